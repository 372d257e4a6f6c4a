/** Axes of plots over rounds, and lines of small plots. */

import { fill, svg } from "./dom.js";

const DOTS_MAX = 60; // a longer line has no dots

/**
 * Round numbers for the axis of some values.
 * @param {number[]} values
 * @param {{least?: number | null, most?: number | null}} bounds that the axis reaches; no value lies below `least`
 * @param {number} wanted
 */
export function ticksOf(values, { least, most }, wanted) {
  const low = Math.min(least ?? Infinity, ...values);
  const high = Math.max(most ?? -Infinity, ...values);
  return steps(low, high, wanted).filter((tick) => tick >= (least ?? -Infinity) - 1e-9);
}

/**
 * Draw a line at the highest possible value.
 * @param {number | null | undefined} most @param {(y: number) => number} toY
 * @param {{width: number, left: number, right: number}} size
 */
export function mostLine(most, toY, { width, left, right }) {
  if (most === null || most === undefined) return null;
  const y = toY(most);
  const words = `most: ${Number(most.toFixed(3))}`;
  return svg(
    "g",
    { class: "most" },
    svg("line", { x1: left, x2: width - right, y1: y, y2: y }),
    svg("text", { x: width - right, y: y + 12, "text-anchor": "end", class: "tick" }, words),
  );
}

/**
 * Draw lines over rounds. Returns a function from round to x.
 * @param {any} drawing an svg element
 * @param {{line: string, points: number[][]}[]} lines a third number of a point that is not 0 puts a ring around it
 * @param {{width: number, height: number, left: number, right: number, top: number, bottom: number}} size
 * @param {{least?: number | null, most?: number | null, marked?: boolean}} axis
 * @param {any} [marks] drawn behind the lines
 */
export function drawLines(drawing, lines, size, { least, most, marked }, marks = null) {
  const { width, height, left, right, top, bottom } = size;
  const points = lines.flatMap((line) => line.points);
  const ticks = ticksOf(
    points.map(([, y]) => y),
    { least, most },
    3,
  );
  const [low, high] = [ticks[0], ticks[ticks.length - 1]];
  const xs = points.map(([x]) => x);
  const from = Math.min(...xs);
  const to = Math.max(...xs, from + 1);
  const toX = (/** @type {number} */ x) => left + ((x - from) / (to - from)) * (width - left - right);
  const toY = (/** @type {number} */ y) => top + (1 - (y - low) / (high - low)) * (height - top - bottom);
  const scales = { ticks, from, to, toX, toY };
  const across = marked ? mostLine(most, toY, size) : null;
  fill(drawing, grid(scales, size), across, marks, ...lines.map((line) => curve(line, toX, toY)));
  return toX;
}

/** @param {{line: string, points: number[][]}} line @param {(x: number) => number} toX @param {(y: number) => number} toY */
function curve({ line, points }, toX, toY) {
  const at = points.map(([x, y]) => [toX(x).toFixed(1), toY(y).toFixed(1)]);
  const dots = at.length > DOTS_MAX ? [] : at.map(([cx, cy]) => svg("circle", { cx, cy, r: 2.4 }));
  const drawn = svg("polyline", { points: at.map((pair) => pair.join(",")).join(" ") });
  const rings = at
    .filter((_, index) => points[index][2])
    .map(([cx, cy]) => svg("circle", { cx, cy, r: 5, class: "ring" }));
  return svg("g", { class: `line ${line}` }, drawn, ...dots, ...rings);
}

/** Round numbers that cover low to high. @param {number} low @param {number} high @param {number} wanted */
export function steps(low, high, wanted) {
  if (high - low < 1e-9) [low, high] = [low - 0.5, high + 0.5];
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((each) => each * power >= rough) ?? 10);
  const first = Math.floor(low / step);
  return Array.from({ length: Math.ceil(high / step - 1e-9) - first + 1 }, (_, index) => (first + index) * step);
}

/**
 * Draw grid lines at values, and labels of rounds.
 * @param {{ticks: number[], from: number, to: number, toX: (x: number) => number, toY: (y: number) => number}} scales
 * @param {{width: number, height: number, left: number, right: number}} size
 */
export function grid({ ticks, from, to, toX, toY }, { width, height, left, right }) {
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(ticks[1] - ticks[0]) - 1e-9)));
  const across = ticks.map((value) =>
    svg(
      "g",
      {},
      svg("line", { x1: left, x2: width - right, y1: toY(value), y2: toY(value), class: "grid" }),
      svg("text", { x: left - 6, y: toY(value) + 4, "text-anchor": "end", class: "tick" }, value.toFixed(digits)),
    ),
  );
  const rounds = steps(Math.max(0, from), to, Math.max(2, Math.floor(width / 90))).filter(
    (x) => x >= from && x <= to && Number.isInteger(x),
  );
  const along = rounds.map((x) =>
    svg(
      "text",
      { x: toX(x), y: height - 6, "text-anchor": "middle", class: "tick" },
      x === rounds[0] ? `round ${x}` : x,
    ),
  );
  return svg("g", { "aria-hidden": "true" }, ...across, ...along);
}
