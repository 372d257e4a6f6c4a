/** Training stage by stage: held-out accuracy, reward, speed, peers' groups, in plots with one cursor. */

import { drawLines } from "./axes.js";
import { linkTo } from "./address.js";
import { byId, el, fill, say, svg, tableHead } from "./dom.js";
import { count, dayAndClock, duration, place, plural, reward } from "./format.js";
import { legend } from "./patches.js";

const HEIGHT = 116;
const EDGE = { left: 44, right: 10, top: 8, bottom: 20 };
const TASK_COLOURS = 8;
const TASKS_TOLD = 4; // tasks named beside the title

/**
 * @typedef {{round: number, stage: number, seq: number, at: number, reward: number | null, held_out: number | null,
 *   steps: number, tokens: number, seconds: number, peer_groups: number, refused: number}} Trained
 * @typedef {{round: number, stage: number, held_out: number, best: number, fallen: boolean, weight: number}} Point
 * @typedef {{task: string, points: Point[], fallen_since: number | null, drawn_more_since: number | null}} Skill
 * @typedef {{stages: Trained[], total: number, held_out_before: number | null, skills: Skill[],
 *   reward_max: number | null}} View
 * @typedef {{name: string, line: string, of: (stage: Trained) => number | null,
 *   words: (value: number | null) => string, more?: (stage: Trained) => boolean}} Series
 */

const percent = (/** @type {number | null} */ value) => (value === null ? "—" : `${(100 * value).toFixed(1)} %`);
const whole = (/** @type {number | null} */ value) => (value === null ? "—" : count(Math.round(value)));
const rate = (/** @type {Trained} */ stage) => (stage.seconds > 0 ? stage.tokens / stage.seconds : null);

/** @type {{title: string, least: number | null, most?: number, rewards?: boolean, series: Series[]}[]} */
const PLOTS = [
  {
    title: "Held-out accuracy",
    least: 0,
    most: 1,
    series: [{ name: "held-out accuracy", line: "t0", of: (stage) => stage.held_out, words: percent }],
  },
  {
    title: "Reward",
    least: null,
    rewards: true,
    series: [{ name: "mean reward", line: "t1", of: (stage) => stage.reward, words: reward }],
  },
  {
    title: "Tokens a second",
    least: 0,
    series: [{ name: "tokens a second", line: "t2", of: rate, words: whole }],
  },
  {
    title: "Peers’ groups",
    least: 0,
    series: [
      { name: "peers’ groups trained on", line: "t3", of: (stage) => stage.peer_groups, words: whole },
      { name: "refused", line: "t4", of: (stage) => stage.refused, words: whole },
    ],
  },
];

const BY_TASK = "Held-out accuracy by task";

export class Training {
  /** @param {(seq: number) => void} onChoose */
  constructor(onChoose) {
    this.onChoose = onChoose;
    this.view = /** @type {View} */ ({ stages: [], total: 0, held_out_before: null, skills: [], reward_max: null });
    this.chosen = -1;
    this.cursor = -1; // index into the stages
    this.tasks = this.make({ title: BY_TASK, least: 0, most: 1, series: [] });
    this.said = el("p", { class: "muted by-task" });
    this.tasks.figure.append(this.said);
    this.tasks.figure.hidden = true;
    this.plots = [...PLOTS.map((plot) => this.make(plot)), this.tasks];
    fill(byId("training"), ...this.plots.map(({ figure }) => figure));
    this.key();
    new ResizeObserver(() => this.draw()).observe(byId("training"));
    byId("training-details").addEventListener("toggle", () => this.table());
  }

  /** @param {typeof PLOTS[number]} plot */
  make(plot) {
    const value = el("span", { class: "value" });
    const drawing = svg("svg", {
      height: HEIGHT,
      role: "img",
      "aria-label": `${plot.title} by stage; the same stands in the table below`,
      onpointermove: (/** @type {PointerEvent} */ event) => this.point(drawing, event),
      onpointerleave: () => this.moveTo(-1),
      onclick: () => this.cursor >= 0 && this.onChoose(this.view.stages[this.cursor].seq),
    });
    const figure = el("figure", { class: "trained" }, el("figcaption", {}, el("span", {}, plot.title), value), drawing);
    return { ...plot, figure, drawing, value };
  }

  key() {
    const lines = this.plots.flatMap(({ series }) => series);
    legend("training-key", [
      ...lines.map(({ line, name }) => /** @type {[string, string]} */ ([line, name])),
      .../** @type {[string, string][]} */ (this.tasks.series.length ? [["more", "ring: drawn more from there on"]] : []),
      ["here", "the chosen event’s stage"],
    ]);
  }

  /** Draw one line for each task, and say which tasks are drawn more often. @param {Skill[]} skills */
  showTasks(skills) {
    this.tasks.series = skills.map(taskSeries);
    this.tasks.figure.hidden = !skills.length;
    const words = skills.map(fallenWords).filter(Boolean);
    say(this.said, words.length ? words.join("; ") : "Nothing has fallen: all is drawn as ever");
    this.key();
  }

  /** @param {View} view */
  show(view) {
    this.view = view;
    this.showTasks(view.skills);
    const gain = gainWords(view);
    say(byId("training-sum"), [view.total ? plural(view.total, "stage") : "", gain && `held-out accuracy ${gain}`].filter(Boolean).join(" · "));
    this.draw();
    this.table();
  }

  draw() {
    const { stages } = this.view;
    const deep = 1 + Math.max(0, ...stages.map((stage) => stage.stage));
    this.xs = stages.map((stage) => stage.round + stage.stage / deep);
    const width = Math.max(160, this.plots[0].figure.clientWidth);
    for (const plot of this.plots) this.drawPlot(plot, width);
    this.tell();
  }

  /** @param {any} plot @param {number} width */
  drawPlot(plot, width) {
    const { drawing, series } = plot;
    drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    drawing.setAttribute("width", String(width));
    const lines = series.map((/** @type {Series} */ each) => ({ ...each, points: this.points(each) }));
    const values = lines.flatMap((/** @type {any} */ line) => line.points.map((/** @type {number[]} */ [, y]) => y));
    if (!values.length) {
      const words = this.view.stages.length ? "Not measured" : "No stage has been trained yet";
      fill(drawing, svg("text", { x: width / 2, y: HEIGHT / 2, "text-anchor": "middle", class: "tick" }, words));
      return;
    }
    plot.marks = svg("g", {});
    const axis = { least: plot.least, most: plot.most ?? (plot.rewards ? this.view.reward_max : null), marked: plot.rewards };
    plot.toX = drawLines(drawing, lines, { width, height: HEIGHT, ...EDGE }, axis, plot.marks);
  }

  /** Draw one line, with the value measured before the first step. @param {Series} series */
  points({ name, of, more }) {
    const found = this.view.stages
      .map((stage, index) => [this.xs[index], of(stage), more?.(stage) ? 1 : 0])
      .filter(([, y]) => y !== null);
    const before = name === "held-out accuracy" ? this.view.held_out_before : null;
    return before !== null && this.xs.length ? [[this.xs[0] - 1, before], ...found] : found;
  }

  // --- which stage ---

  /** @param {any} drawing @param {PointerEvent} event */
  point(drawing, event) {
    const plot = this.plots.find((each) => each.drawing === drawing);
    if (!this.xs.length || !plot.toX) return;
    const x = event.clientX - drawing.getBoundingClientRect().left;
    const gaps = this.xs.map((value) => Math.abs(plot.toX(value) - x));
    this.moveTo(gaps.indexOf(Math.min(...gaps)));
  }

  /** @param {number} index */
  moveTo(index) {
    this.cursor = index;
    this.tell();
  }

  /** The last stage that ended at or before an event. @param {number} seq */
  light(seq) {
    this.chosen = this.view.stages.findLastIndex((stage) => stage.seq <= seq);
    this.tell();
  }

  /** Values of the stage pointed at, else of the chosen one. */
  tell() {
    const index = this.cursor >= 0 ? this.cursor : this.chosen;
    const stage = this.view.stages[index];
    say(byId("training-at"), stage ? `at ${place(stage.round, stage.stage)}:` : "");
    for (const { marks, toX, series, value } of this.plots) {
      const told = series.length > TASKS_TOLD ? [] : series;
      say(value, stage ? told.map((each) => each.words(each.of(stage))).join(" / ") : "");
      const line = (/** @type {number} */ at, /** @type {string} */ name) => {
        if (!this.view.stages[at]) return null;
        const x = toX(this.xs[at]);
        return svg("line", { x1: x, x2: x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom, class: name });
      };
      if (marks) fill(marks, line(this.chosen, "here"), line(this.cursor, "pointed"));
    }
  }

  /** @param {Trained} stage */
  byTask(stage) {
    const told = this.tasks.series.filter((each) => each.of(stage) !== null);
    return told.map((each) => `${each.name} ${each.words(each.of(stage))}${each.more?.(stage) ? " (more)" : ""}`).join(", ");
  }

  table() {
    if (!byId("training-details").open) return;
    const titles = ["Round", "Stage", "Reward", "Held out", "Steps", "Tokens", "Time", "Groups", "Refused", "Event"];
    if (this.view.skills.length) titles.push("Held out by task");
    const rows = [...this.view.stages].reverse().map((stage) =>
      el(
        "tr",
        { title: dayAndClock(stage.at) },
        el("th", { scope: "row" }, stage.round),
        ...[stage.stage, reward(stage.reward), percent(stage.held_out)].map(cell),
        ...[count(stage.steps), count(stage.tokens), duration(stage.seconds)].map(cell),
        ...[count(stage.peer_groups), count(stage.refused)].map(cell),
        el("td", { class: "number" }, el("a", { href: linkTo(stage.seq) }, stage.seq)),
        this.view.skills.length ? el("td", {}, this.byTask(stage)) : null,
      ),
    );
    fill(byId("training-table"), tableHead(titles, Boolean), el("tbody", {}, ...rows));
  }
}

/** Held-out accuracy before training and now; empty before it was measured. @param {View} view */
export function gainWords(view) {
  const held = view.stages.map((stage) => stage.held_out).filter((value) => value !== null);
  const [first, last] = [view.held_out_before ?? held[0], held[held.length - 1]];
  return held.length ? `${percent(first)} → ${percent(last)}` : "";
}

/** @param {Skill} skill @param {number} index @returns {Series} */
function taskSeries({ task, points }, index) {
  const by = new Map(points.map((point) => [`${point.round}/${point.stage}`, point]));
  const at = (/** @type {Trained} */ stage) => by.get(`${stage.round}/${stage.stage}`);
  return {
    name: task,
    line: `k${index % TASK_COLOURS} d${Math.floor(index / TASK_COLOURS)}`,
    of: (stage) => at(stage)?.held_out ?? null,
    words: percent,
    more: (stage) => (at(stage)?.weight ?? 1) > 1,
  };
}

/** @param {Skill} skill */
function fallenWords({ task, points, fallen_since, drawn_more_since }) {
  const last = points[points.length - 1];
  if (drawn_more_since !== null)
    return `${task} is drawn ${last.weight.toFixed(1)} times as often since round ${drawn_more_since}`;
  return fallen_since === null ? "" : `${task} has fallen since round ${fallen_since}, and is drawn as ever`;
}

/** @param {string | number} content */
function cell(content) {
  return el("td", { class: "number" }, content);
}
