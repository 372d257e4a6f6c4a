/** Rewards over rounds, as lines and as a table. */

import { grid, mostLine, ticksOf } from "./axes.js";
import { byId, el, fill, say, svg, tableHead } from "./dom.js";
import { plural, reward } from "./format.js";

const COLOURS = 10;
const CURVES_MAX = 20;
const HEIGHT = 240;
const EDGE = { left: 46, right: 12, top: 10, bottom: 24 };

/**
 * @typedef {[round: number, stage: number, reward: number | null, at: number]} Point
 * @typedef {{id: string, name: string, points: Point[]}} Curve
 */

export class Curves {
  constructor() {
    this.asked = /** @type {string[]} */ ([]); // peers asked for by name; empty: those the server chooses
    this.curves = /** @type {Curve[]} */ ([]);
    this.colours = /** @type {Map<string, string>} */ (new Map());
    this.hidden = /** @type {Set<string>} */ (new Set());
    this.most = /** @type {number | null} */ (null); // the highest reward that there can be
    this.cursor = -1; // index into this.xs
    this.xs = /** @type {number[]} */ ([]);
    this.plot = byId("plot");
    this.svg = svg("svg", {
      height: HEIGHT,
      tabindex: 0,
      role: "slider",
      "aria-label": "Rewards by round; arrow keys read them",
      "aria-valuemin": 0,
      "aria-valuemax": 0,
      "aria-valuenow": 0,
      onpointermove: (/** @type {PointerEvent} */ event) => this.point(event),
      onpointerleave: () => this.leave(),
      onblur: () => this.moveTo(-1),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
    });
    this.plot.append(this.svg);
    new ResizeObserver(() => this.draw()).observe(this.plot);
    byId("curves-details").addEventListener("toggle", () => this.table());
  }

  /** @param {string} id */
  toggle(id) {
    const shown = this.curves.map((curve) => curve.id);
    this.asked = shown.includes(id) ? shown.filter((other) => other !== id) : [...shown, id].slice(-CURVES_MAX);
    this.hidden.delete(id);
  }

  /** @param {Curve[]} curves */
  show(curves) {
    this.curves = curves;
    this.paint();
    const stages = 1 + Math.max(0, ...curves.flatMap((curve) => curve.points.map((point) => point[1])));
    this.stages = stages;
    this.xs = [...new Set(curves.flatMap((curve) => curve.points.map((point) => this.x(point))))].sort((a, b) => a - b);
    this.cursor = Math.min(this.cursor, this.xs.length - 1);
    this.legend();
    this.draw();
    this.table();
  }

  /** A curve keeps its colour while it is shown. */
  paint() {
    const before = this.colours;
    this.colours = new Map();
    for (const { id } of this.curves) if (before.has(id)) this.colours.set(id, before.get(id) ?? "");
    for (const { id } of this.curves) {
      const taken = [...this.colours.values()];
      const uses = Array.from({ length: COLOURS }, (_, index) => taken.filter((name) => name === `c${index}`).length);
      if (!this.colours.has(id)) this.colours.set(id, `c${uses.indexOf(Math.min(...uses))}`);
    }
  }

  /** @param {Point} point */
  x([round, stage]) {
    return round + stage / (this.stages ?? 1);
  }

  legend() {
    fill(
      byId("legend"),
      ...this.curves.map((curve) =>
        el(
          "li",
          {},
          el(
            "button",
            {
              type: "button",
              class: `plain ${this.colours.get(curve.id)}`,
              "aria-pressed": !this.hidden.has(curve.id),
              title: curve.id,
              onclick: (/** @type {any} */ event) => this.flip(curve.id, event.currentTarget),
              onpointerenter: () => this.emphasise(curve.id),
              onpointerleave: () => this.emphasise(""),
            },
            el("span", { class: "line" }),
            el("span", { class: "who" }, curve.name || "no name"),
            el("span", { class: "value" }),
          ),
        ),
      ),
    );
  }

  /** @param {string} id @param {any} button */
  flip(id, button) {
    if (!this.hidden.delete(id)) this.hidden.add(id);
    button.setAttribute("aria-pressed", !this.hidden.has(id));
    this.draw();
  }

  /** @param {string} id */
  emphasise(id) {
    this.svg.classList.toggle("one", id !== "");
    for (const line of this.svg.querySelectorAll(".curve")) line.classList.toggle("chosen", line.dataset.id === id);
  }

  draw() {
    const width = Math.max(120, this.plot.clientWidth);
    const shown = this.curves.filter((curve) => !this.hidden.has(curve.id) && curve.points.length);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("width", width);
    if (!shown.length) {
      const words = this.curves.some((curve) => curve.points.length)
        ? "All curves are hidden"
        : "No report has been seen yet";
      fill(this.svg, svg("text", { x: width / 2, y: HEIGHT / 2, "text-anchor": "middle", class: "tick" }, words));
      return;
    }
    const values = shown.flatMap((curve) => curve.points.map((point) => point[2])).filter((value) => value !== null);
    const ticks = ticksOf(values, { most: this.most }, 5);
    const [low, high] = [ticks[0], ticks[ticks.length - 1]];
    const [from, to] = [this.xs[0], Math.max(this.xs[this.xs.length - 1], this.xs[0] + 1)];
    const across = width - EDGE.left - EDGE.right;
    const up = HEIGHT - EDGE.top - EDGE.bottom;
    this.toX = (/** @type {number} */ x) => EDGE.left + ((x - from) / (to - from)) * across;
    this.toY = (/** @type {number} */ y) => EDGE.top + (1 - (y - low) / (high - low || 1)) * up;
    this.mark = svg("g", { class: "cursor" });
    const drawn = grid({ ticks, from, to, toX: this.toX, toY: this.toY }, { width, height: HEIGHT, ...EDGE });
    const most = mostLine(this.most, this.toY, { width, ...EDGE });
    fill(this.svg, drawn, most, ...shown.map((curve) => this.line(curve)), this.mark);
    this.svg.setAttribute("aria-valuemax", this.xs.length - 1);
    this.showCursor();
  }

  /** @param {Curve} curve */
  line(curve) {
    const colour = this.colours.get(curve.id);
    const known = curve.points.filter((point) => point[2] !== null);
    const at = known.map(
      (point) => `${this.toX(this.x(point)).toFixed(1)},${this.toY(/** @type {number} */ (point[2])).toFixed(1)}`,
    );
    const dots =
      known.length > 40
        ? []
        : at.map((pair) => svg("circle", { cx: pair.split(",")[0], cy: pair.split(",")[1], r: 2.2 }));
    return svg(
      "g",
      { class: `curve ${colour}`, "data-id": curve.id },
      svg("polyline", { points: at.join(" ") }),
      ...dots,
    );
  }

  /** @param {PointerEvent} event */
  point(event) {
    if (!this.xs.length || !this.toX) return;
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    const gaps = this.xs.map((value) => Math.abs(this.toX(value) - x));
    this.moveTo(gaps.indexOf(Math.min(...gaps)));
  }

  leave() {
    if (document.activeElement !== this.svg) this.moveTo(-1);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const last = this.xs.length - 1;
    const now = this.cursor < 0 ? last + 1 : this.cursor;
    const to = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, Home: 0, End: last }[
      event.key
    ];
    if (to === undefined) return;
    event.preventDefault();
    this.moveTo(Math.min(last, Math.max(0, to)));
  }

  /** @param {number} index */
  moveTo(index) {
    if (index === this.cursor) return;
    this.cursor = index;
    this.showCursor();
  }

  showCursor() {
    const x = this.xs[this.cursor];
    const found = this.curves.map((curve) => curve.points.find((point) => this.x(point) === x));
    [...byId("legend").children].forEach((item, index) =>
      say(item.querySelector(".value"), found[index] ? reward(found[index]?.[2]) : ""),
    );
    fill(this.mark, ...(x === undefined ? [] : this.marks(x, found)));
    const words = x === undefined ? "" : this.words(x);
    say(byId("curves-at"), words);
    const values = this.curves
      .map((curve, index) => found[index] && `${curve.name} ${reward(found[index]?.[2])}`)
      .filter(Boolean);
    this.svg.setAttribute("aria-valuenow", Math.max(0, this.cursor));
    this.svg.setAttribute("aria-valuetext", words ? `${words}: ${values.join(", ")}` : "no round chosen");
  }

  /** @param {number} x @param {(Point | undefined)[]} found */
  marks(x, found) {
    const dots = this.curves.map((curve, index) => {
      const value = found[index]?.[2];
      if (value === null || value === undefined || this.hidden.has(curve.id)) return null;
      return svg("circle", { cx: this.toX(x), cy: this.toY(value), r: 4, class: this.colours.get(curve.id) });
    });
    return [svg("line", { x1: this.toX(x), x2: this.toX(x), y1: EDGE.top, y2: HEIGHT - EDGE.bottom }), ...dots];
  }

  /** @param {number} x */
  words(x) {
    const stage = Math.round((x % 1) * (this.stages ?? 1));
    return this.stages === 1 ? `round ${x}` : `round ${Math.floor(x)} · stage ${stage}`;
  }

  table() {
    if (!byId("curves-details").open) return;
    const titles = ["Round", ...this.curves.map((curve) => curve.name)];
    const by = this.curves.map((curve) => new Map(curve.points.map((point) => [this.x(point), point[2]])));
    const rows = [...this.xs]
      .reverse()
      .map((x) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, this.words(x).replace("round ", "")),
          ...by.map((map) => el("td", { class: "number" }, map.has(x) ? reward(map.get(x)) : "")),
        ),
      );
    fill(
      byId("curves-table"),
      el("caption", { class: "unseen" }, `Rewards of ${plural(this.curves.length, "peer")}, newest first`),
      tableHead(titles, Boolean),
      el("tbody", {}, ...rows),
    );
  }
}
