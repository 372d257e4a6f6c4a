/**
 * The time line as a drawing: lanes of events, denser where there are more; and the bar below it with the whole log.
 */

import { clock, day, dayAndClock } from "./format.js";

const LANE_HEIGHT = 11;
const HEAD = 18; // pixels, for the numbers of rounds
const FOOT = 16; // pixels, for times
const BUCKET = 3; // pixels
const STEPS_S = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600,
];

/**
 * @typedef {import("./overview.js").Overview} Overview
 * @typedef {{since: number, until: number}} Span
 * @typedef {{span: Span, at: number, part: Overview | null, whole: Overview, fresh: {at: number, lane: number,
 *   warns: boolean}[],
 *   skips: {at: number}[]}} Scene
 */

/** The theme's colours, read because a canvas cannot use CSS variables. @param {HTMLElement} element */
export function colours(element) {
  const names = [
    "ink",
    "muted",
    "line",
    "line-strong",
    "accent",
    "accent-soft",
    "on-accent",
    "warn",
    "surface",
    "sunken",
  ];
  const before = element.style.color;
  const found = names.map((name) => {
    element.style.color = `var(--${name})`;
    return [name, getComputedStyle(element).color];
  });
  element.style.color = before;
  return Object.fromEntries(found);
}

/** Width of the names of lanes. @param {number} width of the strip */
export const gutter = (width) => (width < 600 ? 62 : 76);

/** How many buckets a strip can show. @param {number} width */
export const bucketsIn = (width) => Math.max(1, Math.floor((width - gutter(width)) / BUCKET));

/** @param {Span} span @param {number} width */
export function scale(span, width) {
  const left = gutter(width);
  const across = width - left - 2;
  return {
    left,
    toX: (/** @type {number} */ at) => left + ((at - span.since) / (span.until - span.since)) * across,
    toTime: (/** @type {number} */ x) => span.since + ((x - left) / across) * (span.until - span.since),
  };
}

/**
 * Fit a canvas to its place and the screen.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 */
function fit(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {Scene} scene
 * @param {Record<string, string>} paint
 */
export function drawStrip(canvas, width, scene, paint) {
  const lanes = scene.whole.lanes;
  const height = HEAD + lanes.length * LANE_HEIGHT + FOOT;
  const context = fit(canvas, width, height);
  const { left, toX } = scale(scene.span, width);
  context.font = `10.5px ${getComputedStyle(canvas).fontFamily}`;
  context.textBaseline = "middle";
  drawLanes(context, lanes, width, paint);
  context.save();
  context.beginPath();
  context.rect(left, 0, width - left, height);
  context.clip();
  drawRounds(context, scene, toX, height, width, paint);
  drawTimes(context, scene.span, toX, width, height, paint);
  drawBuckets(context, scene, toX, paint);
  context.restore();
  drawHead(context, toX(scene.at), left, width, height, paint);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {string[]} lanes
 * @param {number} width
 * @param {Record<string, string>} paint
 */
function drawLanes(context, lanes, width, paint) {
  context.textAlign = "left";
  lanes.forEach((lane, index) => {
    const bottom = HEAD + (index + 1) * LANE_HEIGHT;
    context.fillStyle = paint.muted;
    context.fillText(lane, 0, bottom - LANE_HEIGHT / 2 + 1);
    context.fillStyle = paint.line;
    context.fillRect(gutter(width), bottom - 1, width, 1);
  });
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 * @param {(at: number) => number} toX
 * @param {number} height
 * @param {number} edge
 * @param {Record<string, string>} paint
 */
function drawRounds(context, scene, toX, height, edge, paint) {
  const marks = (covers(scene.part, scene.span) ?? scene.whole).rounds.filter(
    ([, , at]) => at >= scene.span.since && at <= scene.span.until,
  );
  context.textAlign = "left";
  let free = -Infinity;
  const lined = marks.length < 160;
  for (const [round, , at] of marks) {
    const x = Math.round(toX(at)) + 0.5;
    context.fillStyle = paint.line;
    if (lined) context.fillRect(x, HEAD - 6, 1, height - HEAD - FOOT + 6);
    if (x < free) continue;
    context.fillStyle = paint.muted;
    const text = free === -Infinity ? `round ${round}` : String(round);
    const end = x + 3 + context.measureText(text).width;
    if (end > edge) break;
    context.fillText(text, x + 3, 9);
    free = end + 22;
  }
  context.fillStyle = paint.warn;
  for (const { at } of scene.skips) context.fillRect(toX(at) - 1.5, HEAD + 2, 3, LANE_HEIGHT - 4);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Span} span
 * @param {(at: number) => number} toX
 * @param {number} width
 * @param {number} height
 * @param {Record<string, string>} paint
 */
function drawTimes(context, span, toX, width, height, paint) {
  const wanted = (span.until - span.since) / Math.max(2, (width - gutter(width)) / 110);
  const step = STEPS_S.find((each) => each >= wanted) ?? STEPS_S[STEPS_S.length - 1] * Math.ceil(wanted / 1209600);
  const zone = new Date(span.since * 1000).getTimezoneOffset() * 60;
  context.fillStyle = paint.muted;
  context.textAlign = "center";
  for (let at = Math.ceil((span.since - zone) / step) * step + zone; at < span.until; at += step) {
    const midnight = (at - zone) % 86400 === 0;
    const text = midnight ? day(at) : step < 60 ? clock(at) : clock(at).slice(0, 5);
    context.fillText(text, toX(at), height - FOOT / 2 + 2);
    context.fillRect(Math.round(toX(at)), height - FOOT, 1, 4);
  }
}

/** The finer overview, if it covers the whole span. @param {Overview | null} part @param {Span} span */
function covers(part, span) {
  return part && part.since <= span.since + 1e-6 && part.until >= span.until - 1e-6 ? part : null;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 * @param {(at: number) => number} toX
 * @param {Record<string, string>} paint
 */
function drawBuckets(context, scene, toX, paint) {
  const view = covers(scene.part, scene.span) ?? scene.whole;
  const buckets = view.warnings.length;
  const length = (view.until - view.since) / buckets;
  const width = Math.max(1.5, Math.min(BUCKET, toX(view.since + length) - toX(view.since)) - 0.5);
  const most = Math.max(1, ...view.counts.map((counts) => Math.max(...counts)));
  const first = Math.max(0, Math.floor((scene.span.since - view.since) / length) - 1);
  const end = Math.min(buckets, Math.ceil((scene.span.until - view.since) / length) + 1);
  for (let bucket = first; bucket < end; bucket += 1) {
    const at = view.since + bucket * length;
    context.fillStyle = at <= scene.at ? paint.accent : paint["line-strong"];
    view.counts.forEach((counts, lane) => {
      if (counts[bucket]) bar(context, toX(at), lane, width, counts[bucket] / most);
    });
    if (!view.warnings[bucket]) continue;
    context.fillStyle = paint.warn;
    context.fillRect(toX(at) - 0.5, HEAD - 3, width + 1, 3);
  }
  for (const { at, lane, warns } of scene.fresh) {
    context.fillStyle = warns ? paint.warn : at <= scene.at ? paint.accent : paint["line-strong"];
    bar(context, toX(at), lane, width, 1 / most);
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} lane
 * @param {number} width
 * @param {number} share
 */
function bar(context, x, lane, width, share) {
  const height = 4 + (LANE_HEIGHT - 6) * Math.log2(1 + share);
  context.fillRect(x, HEAD + (lane + 1) * LANE_HEIGHT - 2 - height, width, height);
}

/**
 * The line at the chosen event.
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} left
 * @param {number} width
 * @param {number} height
 * @param {Record<string, string>} paint
 */
function drawHead(context, x, left, width, height, paint) {
  if (x < left - 1 || x > width + 1) return;
  context.fillStyle = paint.accent;
  context.fillRect(x - 0.75, HEAD - 4, 1.5, height - HEAD - FOOT + 6);
  context.beginPath();
  context.moveTo(x - 6, HEAD - 8);
  context.lineTo(x + 6, HEAD - 8);
  context.lineTo(x, HEAD + 1);
  context.closePath();
  context.fill();
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {Scene} scene
 * @param {Record<string, string>} paint
 */
export function drawRange(canvas, width, scene, paint) {
  const height = 10;
  const context = fit(canvas, width, height);
  const { whole, span } = scene;
  const { toX, left } = scale(whole, width);
  const buckets = whole.warnings.length;
  const sums = whole.warnings.map((_, bucket) => whole.counts.reduce((sum, counts) => sum + counts[bucket], 0));
  const most = Math.max(1, ...sums);
  context.fillStyle = paint.sunken;
  context.fillRect(left, 0, width - left, height);
  const [from, to] = [Math.max(left, toX(span.since)), Math.min(width, toX(span.until))];
  context.fillStyle = paint["accent-soft"];
  context.fillRect(from, 0, Math.max(3, to - from), height);
  context.fillStyle = paint.muted;
  const step = (width - left) / buckets;
  sums.forEach((sum, bucket) => {
    if (sum)
      context.fillRect(
        left + bucket * step,
        height - 2 - (height - 4) * (sum / most),
        Math.max(1, step - 0.3),
        2 + (height - 5) * (sum / most),
      );
  });
  context.fillStyle = paint.accent;
  context.fillRect(from - 1, 0, 2, height);
  context.fillRect(Math.max(from + 2, to) - 1, 0, 2, height);
}

/** @param {Span} span */
export function spanWords(span) {
  const sameDay = day(span.since) === day(span.until);
  return `${dayAndClock(span.since)} – ${sameDay ? clock(span.until) : dayAndClock(span.until)}`;
}
