/** Draws lanes by node, marks for events, and arrows to their effects, as SVG. */

import { fill, svg } from "./dom.js";

const LANE = 46; // pixels from one to the next
const TOP = 26;
const NAMES = 130; // pixels for the names
const EDGE = 24;
const TICKS = 6;
const LOST = 26; // length in pixels of an arrow without an effect
const QUIET = ["round_announced", "report_seen", "report_published", "link_up", "space_freed"];
const TROUBLE = [
  "node_stopped",
  "link_down",
  "link_degraded",
  "worker_exited",
  "records_rejected",
  "equivocated",
  "command_failed",
  "space_low",
  "rounds_skipped",
  "training_cancelled",
  "timer_fired",
];
const UNDECIDED = ["not-yet", "nothing-sent"]; // arrows that are not drawn: nothing should have arrived yet
const BAD = ["refused", "banned", "down", "cut-off", "sender-down"];

/**
 * @typedef {{kind: string, node: string, seq: number | null, after_s: number | null, words: string,
 *   verdict: string}} Arrow
 * @typedef {{time: number, node: string, seq: number, event: string, round: number, stage: number | null,
 *   words: string, arrows: Arrow[]}} TimelineEvent
 */

/**
 * @param {HTMLElement} into
 * @param {string[]} names of the nodes, one lane each
 * @param {TimelineEvent[]} events
 * @param {Set<string>} kinds of arrows that are wanted
 * @param {(event: TimelineEvent) => boolean} isPicked
 * @param {(event: TimelineEvent) => void} pick
 */
export function drawLanes(into, names, events, kinds, isPicked, pick) {
  const width = Math.max(into.clientWidth, 320);
  const height = TOP + names.length * LANE;
  const place = placing(events, width);
  const level = (/** @type {string} */ name) => TOP + (names.indexOf(name) + 0.5) * LANE;
  const label = `${events.length} events of ${names.length} nodes; the list below tells all of them`;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
  for (const name of names) {
    const y = level(name);
    picture.append(svg("line", { class: "lane", x1: NAMES, x2: width - EDGE, y1: y, y2: y }));
    picture.append(svg("text", { x: 0, y: y + 4 }, name.length > 18 ? `${name.slice(0, 17)}…` : name));
  }
  picture.append(...ticks(events, place, height));
  for (const event of events) {
    for (const arrow of event.arrows) {
      const drawn = kinds.has(arrow.kind) && !UNDECIDED.includes(arrow.verdict);
      if (drawn) picture.append(...drawArrow(event, arrow, place, level, isPicked(event)));
    }
  }
  const quietFirst = [...events].sort((one, other) => Number(isQuiet(other)) - Number(isQuiet(one)));
  for (const event of quietFirst) {
    picture.append(mark(event, place(event.time), level(event.node), isPicked(event), pick));
  }
  fill(into, picture);
}

/** Whether an event gets a quiet mark: an arrow shows it, too, or it is routine. @param {TimelineEvent} event */
function isQuiet(event) {
  return QUIET.includes(event.event);
}

/** The x of a time, in pixels; times after the round's own events are at the right edge. */
function placing(/** @type {TimelineEvent[]} */ events, /** @type {number} */ width) {
  const times = events.map((event) => event.time);
  const ends = events.flatMap((event) => event.arrows.map((arrow) => event.time + (arrow.after_s ?? 0)));
  const first = Math.min(...times);
  const last = Math.max(...times, ...ends, first + 0.001);
  const space = width - NAMES - EDGE - LOST;
  return (/** @type {number} */ time) => NAMES + ((time - first) / (last - first)) * space;
}

/** Seconds since the round's first event. */
function ticks(
  /** @type {TimelineEvent[]} */ events,
  /** @type {(time: number) => number} */ place,
  /** @type {number} */ height,
) {
  if (events.length === 0) return [];
  const first = Math.min(...events.map((event) => event.time));
  const ends = events.flatMap((event) => [event.time, ...event.arrows.map((arrow) => event.time + (arrow.after_s ?? 0))]);
  const span = Math.max(...ends) - first;
  const drawn = [];
  for (let index = 0; index <= TICKS; index += 1) {
    const after = (span * index) / TICKS;
    const x = place(first + after);
    drawn.push(svg("line", { class: "lane", x1: x, x2: x, y1: TOP - 6, y2: height }));
    drawn.push(svg("text", { class: "tick", x, y: 12, "text-anchor": "middle" }, `${after.toFixed(span < 10 ? 1 : 0)} s`));
  }
  return drawn;
}

/**
 * @param {TimelineEvent} event @param {Arrow} arrow
 * @param {(time: number) => number} place @param {(name: string) => number} level @param {boolean} picked
 */
function drawArrow(event, arrow, place, level, picked) {
  const arrives = arrow.after_s !== null;
  const [x1, y1, y2] = [place(event.time), level(event.node), level(arrow.node)];
  const x2 = arrives ? place(event.time + (arrow.after_s ?? 0)) : x1 + LOST;
  const down = y2 > y1 ? 1 : -1;
  const end = y2 - 6 * down;
  const lost = arrives ? null : BAD.includes(arrow.verdict) ? "bad" : "other";
  const words = `${event.node} to ${arrow.node}: ${arrow.words}`;
  const line = svg(
    "line",
    {
      class: "arrow",
      "data-kind": arrow.kind,
      "data-verdict": arrow.verdict || null,
      "data-lost": lost,
      "data-picked": picked,
      ...{ x1, y1, x2, y2: end },
    },
    svg("title", {}, words),
  );
  const tip = arrives
    ? svg("path", { class: "end", d: `M${x2},${y2 - 3 * down} l-3,${-6 * down} h6 z` })
    : svg("text", { x: x2, y: y2 + 4, "text-anchor": "middle" }, "✗");
  return [line, tip];
}

/**
 * @param {TimelineEvent} event @param {number} x @param {number} y @param {boolean} picked
 * @param {(event: TimelineEvent) => void} pick
 */
function mark(event, x, y, picked, pick) {
  return svg(
    "circle",
    {
      class: "mark",
      "data-event": event.event,
      "data-quiet": isQuiet(event),
      "data-trouble": TROUBLE.includes(event.event),
      "data-picked": picked,
      ...{ cx: x, cy: y, r: 5 },
      onclick: () => pick(event),
    },
    svg("title", {}, `${event.node} ${event.words}`),
  );
}
