/**
 * Lays out a statechart's states: layers from top to bottom, nested states in a box. Pixels, from the top left.
 */

import { plan } from "./chartplan.js";
import { BOX_HEAD, GAP_Y, LANE, NOTE_ARROW, labelWidth, pin, right, route } from "./chartroutes.js";

const NODE_HEIGHT = 21;
const GAP_X = 30;
const PAD = 12;

const nodeWidth = (/** @type {string} */ text) => Math.max(70, text.length * 7.2 + 22);

/**
 * @typedef {import("./chartplan.js").Arrow} Arrow
 * @typedef {import("./chartplan.js").Note} Note
 * @typedef {import("./chartroutes.js").Shape} Shape
 * @typedef {import("./chartroutes.js").Route} Route
 * @typedef {import("./chartroutes.js").Pin} Pin
 * @typedef {{width: number, height: number, axis: number, inner: any, left: number}} Size arrows go down at `axis`
 * @typedef {{shapes: Shape[], routes: Route[], pins: Pin[], width: number, height: number}} Layout
 */

/**
 * @param {import("./chartplan.js").ChartView} chart
 * @param {number} available width, where it can be kept to
 * @returns {Layout}
 */
export function layOut(chart, available) {
  const { arrows, notes } = plan(chart);
  const top = chart.states.filter((state) => !state.parent);
  const topOf = (/** @type {string} */ name) => name.split(".")[0];
  const outer = arrows.map((arrow) => [topOf(arrow.source), topOf(arrow.dest)]).filter(([from, to]) => from !== to);
  const shapes = /** @type {Map<string, Shape>} */ (new Map());
  const sizes = new Map(top.map((state) => [state.name, size(chart, state, arrows, notes)]));
  const parts = components(
    top.map((state) => state.name),
    outer,
  );
  let [x, y, bottom] = [0, 0, 0];
  for (const part of parts) {
    const names = top.map((state) => state.name).filter((name) => part.has(name));
    const block = stack(names, outer, notes, (name) => /** @type {Size} */ (sizes.get(name)));
    const left = noteRoom(notes.filter((note) => part.has(note.dest)));
    const beside = x + left + block.width;
    if (x && beside > available) [x, y] = [0, bottom + GAP_Y];
    for (const [name, at] of block.places) place(chart, name, x + left + at.x, y + at.y, sizes, shapes);
    bottom = Math.max(bottom, y + block.height);
    x = freeFrom(shapes, arrows, y, parts, part) + GAP_X;
  }
  return finish(shapes, arrows, notes);
}

/** A state's size; a box is as large as its content. */
function size(
  /** @type {any} */ chart,
  /** @type {any} */ state,
  /** @type {Arrow[]} */ arrows,
  /** @type {Note[]} */ notes,
) {
  const children = chart.states.filter((/** @type {any} */ other) => other.parent === state.name);
  if (!children.length) return leaf(state.label);
  const names = children.map((/** @type {any} */ child) => child.name);
  const inside = arrows.filter((arrow) => names.includes(arrow.source) && names.includes(arrow.dest));
  const pairs = inside.map((arrow) => [arrow.source, arrow.dest]);
  const inner = stack(names, pairs, notes, (name) => leaf(name.split(".").pop() ?? ""));
  const left = PAD + noteRoom(notes.filter((note) => names.includes(note.dest)));
  const leaving = arrows.filter((arrow) => names.includes(arrow.source) && !inner.straight(arrow.source, arrow.dest));
  const right = Math.max(PAD, ...leaving.map((arrow) => labelWidth(arrow.label) + LANE));
  return {
    width: left + inner.width + right,
    height: BOX_HEAD + inner.height + PAD,
    axis: left + inner.axis,
    inner,
    left,
  };
}

/** @param {string} label @returns {Size} */
function leaf(label) {
  const width = nodeWidth(label);
  return { width, height: NODE_HEIGHT, axis: width / 2, inner: null, left: 0 };
}

/** @param {Note[]} notes */
function noteRoom(notes) {
  return notes.length ? Math.max(...notes.map((note) => labelWidth(note.label))) + NOTE_ARROW + 4 : 0;
}

/** Sets of names that arrows connect, the largest first. @param {string[]} names @param {string[][]} pairs */
function components(names, pairs) {
  const parts = names.map((name) => new Set([name]));
  for (const [from, to] of pairs) {
    const one = parts.findIndex((part) => part.has(from));
    const other = parts.findIndex((part) => part.has(to));
    if (one !== other) {
      for (const name of parts[other]) parts[one].add(name);
      parts.splice(other, 1);
    }
  }
  return parts.sort((one, other) => other.size - one.size);
}

/**
 * Stack states in layers, each centred on one axis.
 * @param {string[]} names @param {string[][]} pairs @param {Note[]} notes @param {(name: string) => Size} sizeOf
 */
function stack(names, pairs, notes, sizeOf) {
  const layer = layers(names, pairs);
  const rows = /** @type {string[][]} */ ([]);
  for (const name of names) (rows[layer.get(name) ?? 0] ??= []).push(name);
  const before = (/** @type {string} */ name, /** @type {string[]} */ row) =>
    name === row[0] ? 0 : GAP_X + noteRoom(notes.filter((note) => note.dest === name));
  const widths = rows.map((row) => row.reduce((sum, name) => sum + before(name, row) + sizeOf(name).width, 0));
  const lefts = rows.map((row, index) => (row.length === 1 ? sizeOf(row[0]).axis : widths[index] / 2));
  const axis = Math.max(...lefts);
  const places = new Map();
  let y = 0;
  rows.forEach((row, index) => {
    let x = axis - lefts[index];
    for (const name of row) {
      x += before(name, row);
      places.set(name, { x, y });
      x += sizeOf(name).width;
    }
    y += Math.max(...row.map((name) => sizeOf(name).height)) + GAP_Y;
  });
  const straight = (/** @type {string} */ from, /** @type {string} */ to) =>
    layer.get(to) === (layer.get(from) ?? NaN) + 1;
  return {
    places,
    axis,
    width: axis + Math.max(...widths.map((width, index) => width - lefts[index])),
    height: y - GAP_Y,
    straight,
  };
}

/** Longest path from a start to each name, without back edges. @param {string[]} names @param {string[][]} pairs */
function layers(names, pairs) {
  const onward = new Map(names.map((name) => [name, /** @type {string[]} */ ([])]));
  const done = new Map();
  const visit = (/** @type {string} */ name) => {
    done.set(name, false);
    for (const [, to] of pairs.filter(([from, to]) => from === name && onward.has(to))) {
      if (!done.has(to)) visit(to);
      if (done.get(to)) onward.get(name)?.push(to);
    }
    done.set(name, true);
  };
  const entered = new Set(pairs.map(([, to]) => to));
  for (const name of [...names.filter((each) => !entered.has(each)), ...names]) if (!done.has(name)) visit(name);
  const layer = new Map(names.map((name) => [name, 0]));
  for (const name of [...done.keys()].sort((a, b) => depth(b, onward) - depth(a, onward))) {
    for (const to of onward.get(name) ?? []) layer.set(to, Math.max(layer.get(to) ?? 0, (layer.get(name) ?? 0) + 1));
  }
  for (const name of names.slice(1)) {
    const onto = (onward.get(name) ?? []).map((to) => layer.get(to) ?? 0);
    const near = Math.max(0, Math.min(...onto) - 1); // a start goes directly above its nearest successor
    if (!entered.has(name) && onto.length) layer.set(name, near);
  }
  return layer;
}

/** Longest path from here to an end. @param {string} name @param {Map<string, string[]>} onward @returns {number} */
function depth(name, onward) {
  return Math.max(0, ...(onward.get(name) ?? []).map((to) => 1 + depth(to, onward)));
}

/**
 * @param {any} chart
 * @param {string} name
 * @param {number} x
 * @param {number} y
 * @param {Map<string, any>} sizes
 * @param {Map<string, Shape>} shapes
 */
function place(chart, name, x, y, sizes, shapes) {
  const { width, height, inner, left } = sizes.get(name);
  shapes.set(name, { name, label: name, x, y, width, height, box: inner !== null });
  for (const [child, at] of inner?.places ?? []) {
    const label = child.split(".").pop();
    shapes.set(child, {
      name: child,
      label,
      x: x + left + at.x,
      y: y + BOX_HEAD + at.y,
      width: nodeWidth(label),
      height: NODE_HEIGHT,
      box: false,
    });
  }
}

/** The x from which on there is free space, beside the parts placed so far, at the next part's height. */
function freeFrom(
  /** @type {Map<string, Shape>} */ shapes,
  /** @type {Arrow[]} */ arrows,
  /** @type {number} */ y,
  /** @type {Set<string>[]} */ parts,
  /** @type {Set<string>} */ part,
) {
  const next = parts[parts.indexOf(part) + 1];
  const reach = y + (next ? (next.size + 1) * (NODE_HEIGHT + GAP_Y) : 0);
  const near = [...shapes.values()].filter((shape) => shape.y >= y && shape.y < reach);
  const labels = arrows.filter((arrow) => near.some((shape) => shape.name === arrow.source));
  const words = labels.map((arrow) => right(shapes.get(arrow.source)) + labelWidth(arrow.label));
  return Math.max(...near.map((shape) => shape.x + shape.width), ...words);
}

/** @param {Map<string, Shape>} shapes @param {Arrow[]} arrows @param {Note[]} notes @returns {Layout} */
function finish(shapes, arrows, notes) {
  const routes = route(shapes, arrows);
  const pins = pin(shapes, notes);
  const all = [...shapes.values()];
  const ends = routes.flatMap((each) => [
    ...each.points.map(([x]) => x),
    each.x + (each.anchor === "start" ? labelWidth(each.arrow.label) : 0),
  ]);
  return {
    shapes: all.sort((one, other) => Number(other.box) - Number(one.box)),
    routes,
    pins,
    width: Math.max(...all.map(right), ...ends) + 4,
    height:
      Math.max(
        ...all.map((shape) => shape.y + shape.height),
        ...routes.flatMap((each) => each.points.map(([, y]) => y)),
      ) + 4,
  };
}
