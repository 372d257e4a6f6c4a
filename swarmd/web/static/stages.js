/** The times of each stage's parts as stacked bars; skipped rounds as gaps with their cause. */

import { byId, el, fill, svg, tableHead } from "./dom.js";
import { dayAndClock, duration, reward, shortIds } from "./format.js";
import { steps } from "./axes.js";

const HEIGHT = 190;
const EDGE = { top: 18, bottom: 22 };
const AXIS = 46;
const BAR = 14;
const GAP = 5;
const SKIP = 26;
const PARTS = [
  ["gathered_s", "gather"],
  ["trained_s", "train"],
  ["published_s", "publish"],
  ["submitted_s", "submit"],
];

/**
 * @typedef {{round: number, stage: number, first_seq: number, joined_at: number, gathered_s: number | null,
 *   trained_s: number | null,
 *   published_s: number | null, submitted_s: number | null, reward: number | null, held_out: number | null,
 *   outcome: string}} Stage
 * @typedef {{first: number, last: number, cause: string, seq: number, at: number}} Skip
 * @typedef {{seq: number, x: number, width: number, stage?: Stage, skip?: Skip}} Item
 */

export class Stages {
  /** @param {(seq: number) => void} onChoose */
  constructor(onChoose) {
    this.onChoose = onChoose;
    this.items = /** @type {Item[]} */ ([]);
    this.chosen = -1;
    fill(
      byId("stages-key"),
      ...PARTS.map(([, name], index) => el("li", {}, el("span", { class: `patch part-${index}` }), name)),
      el("li", {}, el("span", { class: "patch part-1 paler" }), "abandoned"),
      el("li", {}, el("span", { class: "patch skipped" }), "rounds skipped, and how many"),
      el("li", {}, el("span", { class: "patch stage-on" }), "the chosen event’s stage"),
    );
    byId("stages-details").addEventListener("toggle", () => this.table());
  }

  /** @param {{stages: Stage[], skips: Skip[], set_aside: string, example: string}} view */
  show(view) {
    const scroller = byId("stages-scroller");
    const atEnd = scroller.scrollLeft + scroller.clientWidth >= scroller.scrollWidth - 4;
    this.view = view;
    this.items = lineUp(view);
    this.draw();
    this.table();
    const aside = [view.set_aside, view.example].filter(Boolean);
    byId("stages-aside").hidden = !aside.length;
    fill(byId("stages-aside"), ...aside.map((words) => el("p", {}, shortIds(words))));
    if (atEnd) scroller.scrollLeft = scroller.scrollWidth;
  }

  draw() {
    const stages = this.view?.stages ?? [];
    if (!this.items.length) {
      fill(byId("stages"), el("p", { class: "empty" }, "This node has not joined a stage yet."));
      return;
    }
    const last = this.items[this.items.length - 1];
    const most = Math.max(0.001, ...stages.map(total));
    const ticks = steps(0, most, 3);
    const toY = (/** @type {number} */ value) =>
      EDGE.top + (1 - value / ticks[ticks.length - 1]) * (HEIGHT - EDGE.top - EDGE.bottom);
    const width = last.x + last.width + 8;
    const drawing = svg(
      "svg",
      {
        width,
        height: HEIGHT,
        viewBox: `0 0 ${width} ${HEIGHT}`,
        role: "img",
        "aria-label": "Durations of stages; the same stands in the table below",
      },
      ...ticks.map((value) => svg("line", { x1: 0, x2: width, y1: toY(value), y2: toY(value), class: "grid" })),
      ...this.items.map((item) =>
        item.stage ? this.bar(item, item.stage, toY) : this.gap(item, /** @type {Skip} */ (item.skip)),
      ),
    );
    const names = ticks.map((value) =>
      svg("text", { x: AXIS - 6, y: toY(value) + 4, "text-anchor": "end", class: "tick" }, tickWords(value)),
    );
    fill(byId("stages-axis"), svg("svg", { width: AXIS, height: HEIGHT, "aria-hidden": "true" }, ...names));
    fill(byId("stages"), drawing);
    this.light(this.chosen);
  }

  /** @param {Item} item @param {Stage} stage @param {(value: number) => number} toY */
  bar(item, stage, toY) {
    let sum = 0;
    const parts = PARTS.map(([key], index) => {
      const value = /** @type {any} */ (stage)[key] ?? 0;
      const [bottom, top] = [toY(sum), toY((sum += value))];
      return value > 0
        ? svg("rect", { x: item.x, y: top, width: BAR, height: Math.max(0.5, bottom - top), class: `part-${index}` })
        : null;
    });
    const words = stageWords(stage);
    const back = svg("rect", {
      x: item.x - 2,
      y: EDGE.top - 4,
      width: BAR + 4,
      height: HEIGHT - EDGE.top - EDGE.bottom + 6,
      class: "back",
    });
    return svg(
      "g",
      { class: `stage ${stage.outcome}`, "data-seq": item.seq, onclick: () => this.onChoose(item.seq) },
      svg("title", {}, words),
      back,
      ...parts,
      this.label(item, stage.stage === 0 ? String(stage.round) : ""),
    );
  }

  /** @param {Item} item @param {Skip} skip */
  gap(item, skip) {
    const middle = item.x + item.width / 2;
    return svg(
      "g",
      { class: "gap", "data-seq": item.seq, onclick: () => this.onChoose(item.seq) },
      svg("title", {}, `${roundsOf(skip)} skipped: ${skip.cause}, ${dayAndClock(skip.at)}`),
      svg("rect", { x: item.x, y: EDGE.top, width: item.width, height: HEIGHT - EDGE.top - EDGE.bottom }),
      svg("text", { x: middle, y: EDGE.top - 6, "text-anchor": "middle", class: "cause" }, skip.cause),
      svg(
        "text",
        { x: middle, y: HEIGHT / 2, "text-anchor": "middle", class: "cause" },
        String(skip.last - skip.first + 1),
      ),
    );
  }

  /** Number every round if there is room, else every fifth. @param {Item} item @param {string} text */
  label(item, text) {
    const crowded = this.items.length > 12 && Number(text) >= 10 && Number(text) % 5 !== 0;
    return text && !crowded
      ? svg("text", { x: item.x + BAR / 2, y: HEIGHT - 6, "text-anchor": "middle", class: "tick" }, text)
      : null;
  }

  /** Mark the stage that an event belongs to. @param {number} seq */
  light(seq) {
    this.chosen = seq;
    const found = this.items.findLast((item) => item.seq <= seq);
    const group = found ? byId("stages").querySelector(`[data-seq="${found.seq}"]`) : null;
    if (group?.classList.contains("on")) return;
    byId("stages").querySelector(".on")?.classList.remove("on");
    group?.classList.add("on");
  }

  table() {
    if (!byId("stages-details").open) return;
    const titles = ["Round", "Stage", "Gather", "Train", "Publish", "Submit", "Reward", "Outcome"];
    const rows = [...this.items]
      .reverse()
      .map((item) => (item.stage ? this.stageRow(item.stage) : this.skipRow(/** @type {Skip} */ (item.skip))));
    fill(byId("stages-table"), tableHead(titles), el("tbody", {}, ...rows));
  }

  /** @param {Stage} stage */
  stageRow(stage) {
    const times = PARTS.map(([key]) => /** @type {any} */ (stage)[key]).map((value) =>
      value === null ? "—" : duration(value),
    );
    const go = el(
      "button",
      {
        type: "button",
        class: "plain",
        "aria-label": `Go to round ${stage.round}, stage ${stage.stage}`,
        onclick: () => this.onChoose(stage.first_seq),
      },
      stage.round,
    );
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, go),
      ...[stage.stage, ...times, reward(stage.reward), stage.outcome].map((cell) => el("td", {}, cell)),
    );
  }

  /** @param {Skip} skip */
  skipRow(skip) {
    const go = el(
      "button",
      {
        type: "button",
        class: "plain",
        "aria-label": `Go to the skip of ${roundsOf(skip)}`,
        onclick: () => this.onChoose(skip.seq),
      },
      rangeOf(skip),
    );
    return el(
      "tr",
      { class: "warn" },
      el("th", { scope: "row" }, go),
      el("td", { colspan: 6 }, "skipped"),
      el("td", {}, skip.cause),
    );
  }
}

/** @param {{stages: Stage[], skips: Skip[]}} view @returns {Item[]} */
function lineUp({ stages, skips }) {
  const items = /** @type {Item[]} */ ([
    ...stages.map((stage) => ({ seq: stage.first_seq, stage, width: BAR, x: 0 })),
    ...skips.map((skip) => ({ seq: skip.seq, skip, width: SKIP, x: 0 })),
  ]).sort((one, other) => one.seq - other.seq);
  let x = 6;
  for (const item of items) {
    item.x = x;
    x += item.width + GAP;
  }
  return items;
}

/** @param {number} seconds */
function tickWords(seconds) {
  if (seconds >= 3600) return `${+(seconds / 3600).toFixed(1)} h`;
  return seconds >= 120 ? `${+(seconds / 60).toFixed(1)} min` : `${+seconds.toFixed(2)} s`;
}

/** @param {Stage} stage */
function total(stage) {
  return PARTS.reduce((sum, [key]) => sum + /** @type {any} */ (stage[key] ?? 0), 0);
}

/** @param {Stage} stage */
function stageWords(stage) {
  const parts = PARTS.filter(([key]) => /** @type {any} */ (stage)[key] !== null).map(
    ([key, name]) => `${name} ${duration(/** @type {any} */ (stage)[key])}`,
  );
  const gained = stage.reward === null ? "" : `, reward ${reward(stage.reward)}`;
  const done = parts.join(", ") || "nothing finished";
  return `round ${stage.round}, stage ${stage.stage}: ${done}${gained}, ${stage.outcome}`;
}

/** @param {Skip} skip */
function rangeOf(skip) {
  return skip.first === skip.last ? String(skip.first) : `${skip.first}–${skip.last}`;
}

/** @param {Skip} skip */
function roundsOf(skip) {
  return `round${skip.first === skip.last ? "" : "s"} ${rangeOf(skip)}`;
}
