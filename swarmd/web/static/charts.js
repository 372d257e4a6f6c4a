/** Drawings of the statecharts, with the current state highlighted. */

import { byId, el, fill, say, svg, tableHead } from "./dom.js";
import { layOut } from "./chartlayout.js";
import { legend } from "./patches.js";

/** @typedef {import("./chartplan.js").ChartView} ChartView */

const TITLES = /** @type {Record<string, string>} */ ({
  round: "Round: the life of this node in its swarm",
  link: "Link: the way to the DHT",
  chain: "Chain: the way to the contract",
  trainer: "Trainer",
  coordinator: "Coordinator: who opens and closes rounds",
});

// Side by side, so that all highlighted states are visible; on a narrow screen one below the other.
const COLUMNS = [["round"], ["coordinator", "chain", "submission"], ["link", "trainer"]];
const WIDEST = 560; // pixels of one drawing, if there is room
const CAPTION = 24;
const MARGIN = 8; // below the time line, which stays at the top, when scrolling to a chart

export class Charts {
  /** @param {any} view ChartsView */
  constructor(view) {
    this.views = view.charts.filter((/** @type {ChartView} */ chart) => chart.name in view.now || chart.name in TITLES);
    this.figures = new Map(this.views.map((/** @type {ChartView} */ chart) => [chart.name, figure(chart)]));
    const columns = COLUMNS.map((names) => names.map((name) => this.figures.get(name)?.node).filter(Boolean));
    fill(
      byId("charts"),
      ...columns.filter((nodes) => nodes.length).map((nodes) => el("div", { class: "chart-column" }, ...nodes)),
    );
    legend("charts-key", [
      ["chart-on", "here"],
      ["chart-was", "left with this event"],
      ["chart-way", "way that was taken"],
      ["chart-box", "states within"],
    ]);
    this.width = 0;
    new ResizeObserver(() => this.draw()).observe(byId("charts"));
    this.now = view.now;
    this.before = view.now;
  }

  /** @param {Record<string, string>} now @param {Record<string, string>} [before] */
  light(now, before = now) {
    this.now = now;
    this.before = before;
    for (const [name, { node, words, drawing }] of this.figures) {
      node.hidden = !(name in now);
      say(words, spoken(now[name], before[name] ?? now[name]));
      mark(drawing, name, now[name], before[name] ?? now[name]);
    }
  }

  draw() {
    const width = byId("charts").clientWidth;
    if (width === this.width) return;
    this.width = width;
    for (const chart of this.views) {
      const { drawing } = this.figures.get(chart.name) ?? {};
      drawChart(drawing, chart, Math.min(width, WIDEST));
    }
    this.light(this.now, this.before);
  }

  /**
   * Have the lit states in sight below the time line: of all charts, or of those that moved and of the node's round,
   * or of the one that moved, as far as there is room. Where a person has scrolled past the charts, nothing moves.
   */
  reveal() {
    const panel = byId("charts").parentElement.getBoundingClientRect();
    const bar = byId("time").getBoundingClientRect();
    const sticks = getComputedStyle(byId("time")).position === "sticky";
    const top = (sticks ? bar.height : 0) + MARGIN;
    if (panel.bottom < bar.bottom) return;
    const end = innerHeight - MARGIN;
    const placesOf = (/** @type {string[]} */ names) =>
      names
        .map((name) => this.figures.get(name)?.drawing.querySelector(".state.on"))
        .filter(Boolean)
        .map((state) => state.getBoundingClientRect());
    const moved = Object.keys(this.now).filter((name) => this.now[name] !== this.before[name]);
    const choices = [[...this.figures.keys()], [...moved, "round"], [...moved, "round"].slice(0, 1)].map(placesOf);
    const heightOf = (/** @type {DOMRect[]} */ places) =>
      Math.max(...places.map((place) => place.bottom)) - Math.min(...places.map((place) => place.top));
    const places = choices.find((each) => heightOf(each) <= end - top) ?? choices[2];
    if (places.every((place) => place.top >= bar.bottom && place.bottom <= end)) return;
    const from = Math.min(...places.map((place) => place.top));
    const to = Math.max(...places.map((place) => place.bottom));
    scrollBy({ top: from < bar.bottom ? from - top - CAPTION : to - end, behavior: "instant" });
  }
}

/** @param {string} now @param {string} before */
function spoken(now, before) {
  return now === before ? now : `${before} → ${now}`;
}

/** @param {ChartView} chart */
function figure(chart) {
  const words = el("span", { class: "chart-now" });
  const drawing = svg("svg", {
    role: "img",
    "aria-label": `Statechart ${chart.name}; its transitions stand in the table below it`,
  });
  const node = el(
    "figure",
    { class: "chart", "data-chart": chart.name },
    el("figcaption", {}, el("strong", {}, TITLES[chart.name] ?? chart.name), words),
    el("div", { class: "scroller", tabindex: 0, role: "region", "aria-label": `Drawing of ${chart.name}` }, drawing),
    el("details", {}, el("summary", {}, "Transitions"), table(chart)),
  );
  return { node, words, drawing };
}

/** @param {ChartView} chart */
function table(chart) {
  const rows = chart.edges.map((edge) =>
    el(
      "tr",
      {},
      el("td", {}, edge.source === "*" ? "any" : edge.source),
      el("td", { class: "mono" }, edge.trigger),
      el("td", {}, edge.dest),
    ),
  );
  return el(
    "div",
    { class: "scroller edges", tabindex: 0, role: "region", "aria-label": `Transitions of ${chart.name}` },
    el("table", { class: "small" }, tableHead(["From", "Trigger", "To"]), el("tbody", {}, ...rows)),
  );
}

/** @param {any} drawing @param {ChartView} chart @param {number} available */
function drawChart(drawing, chart, available) {
  const { shapes, routes, pins, width, height } = layOut(chart, available);
  drawing.setAttribute("viewBox", `-2 -2 ${width + 4} ${height + 4}`);
  drawing.setAttribute("width", width + 4);
  drawing.setAttribute("height", height + 4);
  const boxes = shapes.filter((shape) => shape.box).map(drawShape);
  const nodes = shapes.filter((shape) => !shape.box).map(drawShape);
  const labels = routes.map((route) =>
    svg(
      "text",
      { x: route.x, y: route.y, "text-anchor": route.anchor, class: "label", "data-ways": ways(route.arrow.edges) },
      route.arrow.label,
    ),
  );
  fill(
    drawing,
    heads(chart.name),
    ...boxes,
    ...routes.map((route) => drawRoute(route, chart.name)),
    ...nodes,
    ...pins.map((pin) => drawPin(pin, chart.name)),
    ...labels,
  );
}

/** Arrow heads: of plain and of highlighted arrows. */
function heads(/** @type {string} */ chart) {
  const head = (/** @type {string} */ name) =>
    svg(
      "marker",
      {
        id: `${name}-${chart}`,
        viewBox: "0 0 8 8",
        refX: 7,
        refY: 4,
        markerWidth: 7,
        markerHeight: 7,
        markerUnits: "userSpaceOnUse",
        orient: "auto-start-reverse",
      },
      svg("path", { d: "M0 0.6 8 4 0 7.4z", class: name }),
    );
  return svg("defs", {}, head("head"), head("head-taken"));
}

/** @param {import("./chartroutes.js").Shape} shape */
function drawShape(shape) {
  const text = shape.box
    ? { x: shape.x + 10, y: shape.y + 15 }
    : { x: shape.x + shape.width / 2, y: shape.y + shape.height / 2 + 4.2, "text-anchor": "middle" };
  return svg(
    "g",
    { class: shape.box ? "box" : "state", "data-state": shape.name },
    svg("rect", { x: shape.x, y: shape.y, width: shape.width, height: shape.height, rx: shape.box ? 8 : 6 }),
    svg("text", text, shape.label),
  );
}

/** @param {import("./chartroutes.js").Route} route @param {string} chart */
function drawRoute(route, chart) {
  return svg("path", {
    d: rounded(route.points),
    class: "arrow",
    "marker-end": `url(#head-${chart})`,
    "data-ways": ways(route.arrow.edges),
  });
}

/** @param {import("./chartroutes.js").Pin} pin @param {string} chart */
function drawPin({ note, x, y, to }, chart) {
  const sources = note.edges.map((edge) => (edge.source === "*" ? "any state" : edge.source));
  const title = `${note.edges[0].trigger}: ${sources.join(", ")} → ${note.dest}`;
  const group = { class: "pin", "data-ways": ways(note.edges) };
  return svg(
    "g",
    group,
    svg("title", {}, title),
    svg("path", {
      d: `M${x} ${y}H${to}`,
      class: "arrow",
      "marker-end": `url(#head-${chart})`,
      "data-ways": ways(note.edges),
    }),
    svg("text", { x: x - 4, y: y + 4, "text-anchor": "end", class: "label" }, note.label),
  );
}

/** @param {import("./chartplan.js").ChartEdge[]} edges */
function ways(edges) {
  return JSON.stringify(edges.map((edge) => [edge.source, edge.dest]));
}

/** A line through the points with round corners. @param {[number, number][]} points */
function rounded(points) {
  const parts = points.slice(1, -1).map(([x, y], index) => {
    const [before, after] = [points[index], points[index + 2]];
    const near = (/** @type {[number, number]} */ [px, py]) => {
      const length = Math.hypot(px - x, py - y) || 1;
      const radius = Math.min(6, length / 2);
      return `${x + ((px - x) / length) * radius} ${y + ((py - y) / length) * radius}`;
    };
    return `L${near(before)}Q${x} ${y} ${near(after)}`;
  });
  return `M${points[0].join(" ")}${parts.join("")}L${points[points.length - 1].join(" ")}`;
}

/**
 * Highlight the state, its box, and the arrows from the state before.
 * @param {any} drawing
 * @param {string} chart
 * @param {string} now
 * @param {string} before
 */
function mark(drawing, chart, now, before) {
  for (const state of drawing.querySelectorAll("[data-state]")) {
    const name = state.dataset.state;
    state.classList.toggle("on", name === now || now?.startsWith(`${name}.`));
    state.classList.toggle("was", before !== now && name === before);
  }
  for (const way of drawing.querySelectorAll("[data-ways]")) {
    const leads = (/** @type {string[]} */ [source, dest]) =>
      dest === now && (source === before || source === "*" || before?.startsWith(`${source}.`));
    const taken = before !== now && JSON.parse(way.dataset.ways).some(leads);
    way.classList.toggle("taken", taken);
    if (way.matches("path")) way.setAttribute("marker-end", `url(#${taken ? "head-taken" : "head"}-${chart})`);
  }
}
