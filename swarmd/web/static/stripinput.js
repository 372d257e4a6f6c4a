/** Pointer, wheel and key input of the time line. */

import { scale } from "./strip.js";

const WHEEL_STEP = 0.0016;
const UPRIGHT = new Set(["ArrowUp", "ArrowDown", "PageUp", "PageDown", "Home", "End"]);

/**
 * @typedef {import("./timeline.js").Timeline} Timeline
 */

/** @param {Timeline} line @param {HTMLElement} strip @param {HTMLElement} range */
export function bindInput(line, strip, range) {
  bindScrub(line, strip);
  strip.addEventListener("wheel", (event) => wheel(line, strip, event), { passive: false });
  addEventListener("keydown", (event) => {
    if (!isTaken(event, strip) && key(line, event, event.target === strip)) event.preventDefault();
  });
  bindRange(line, range);
}

/** One pointer scrubs, two zoom and pan. @param {Timeline} line @param {HTMLElement} strip */
function bindScrub(line, strip) {
  /** @type {Map<number, number>} */
  const pointers = new Map();
  const placeOf = (/** @type {PointerEvent} */ event) => event.clientX - strip.getBoundingClientRect().left;
  strip.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    strip.focus({ preventScroll: true });
    strip.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, placeOf(event));
    if (pointers.size === 1) line.chooseAt(placeOf(event));
  });
  strip.addEventListener("pointermove", (event) => {
    if (!pointers.has(event.pointerId)) return;
    const before = [...pointers.values()];
    pointers.set(event.pointerId, placeOf(event));
    const after = [...pointers.values()];
    if (after.length === 1) line.chooseAt(after[0]);
    else pinch(line, strip.clientWidth, before, after);
  });
  const end = (/** @type {PointerEvent} */ event) => pointers.delete(event.pointerId);
  strip.addEventListener("pointerup", end);
  strip.addEventListener("pointercancel", end);
}

/** @param {Timeline} line @param {number} width @param {number[]} before @param {number[]} after */
function pinch(line, width, before, after) {
  const { toTime } = scale(line.span, width);
  const apart = (/** @type {number[]} */ [one, other]) => Math.max(10, Math.abs(one - other));
  const middle = (/** @type {number[]} */ [one, other]) => (one + other) / 2;
  line.zoom(apart(before) / apart(after), toTime(middle(before)));
  line.pan((toTime(middle(before)) - toTime(middle(after))) / (line.span.until - line.span.since));
}

/**
 * Zoom or pan. Plain turns of the wheel scroll the page until the strip has the focus.
 * @param {Timeline} line
 * @param {HTMLElement} strip
 * @param {WheelEvent} event
 */
function wheel(line, strip, event) {
  const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
  if (!event.ctrlKey && !sideways && document.activeElement !== strip) return;
  event.preventDefault();
  const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
  if (sideways && !event.ctrlKey) {
    line.pan(((event.deltaX || event.deltaY) * unit) / strip.clientWidth);
    return;
  }
  const { toTime } = scale(line.span, strip.clientWidth);
  const pace = event.ctrlKey ? 6 : 1; // a pinch on a touch pad arrives as small wheel steps with Ctrl
  line.zoom(
    Math.exp(event.deltaY * unit * WHEEL_STEP * pace),
    toTime(event.clientX - strip.getBoundingClientRect().left),
  );
}

/**
 * Whether a key is meant for what has the focus: a field, a list, or a part of the page that scrolls by itself.
 * @param {KeyboardEvent} event @param {HTMLElement} strip
 */
function isTaken(event, strip) {
  const target = /** @type {any} */ (event.target);
  if (event.defaultPrevented || target === strip || !target.closest) return event.defaultPrevented;
  if (target.closest("input, select, textarea, [contenteditable], [role=listbox]")) return true;
  if (event.key === " ") return target.closest("button, summary, a, .scroller") !== null;
  return UPRIGHT.has(event.key) && target.closest(".scroller") !== null;
}

/**
 * @param {Timeline} line @param {KeyboardEvent} event
 * @param {boolean} focused whether the strip has the focus: else up and down scroll the page
 * @returns {boolean} whether it meant something
 */
function key(line, event, focused) {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  if (!focused && (event.key === "ArrowUp" || event.key === "ArrowDown")) return false;
  if (event.shiftKey && event.key === "ArrowLeft") line.pan(-0.2);
  else if (event.shiftKey && event.key === "ArrowRight") line.pan(0.2);
  else if (event.key === "ArrowLeft" || event.key === "ArrowDown") line.step(-1);
  else if (event.key === "ArrowRight" || event.key === "ArrowUp") line.step(1);
  else if (event.key === "PageUp") line.stepRound(-1);
  else if (event.key === "PageDown") line.stepRound(1);
  else if (event.key === "Home") line.scrub(line.log.begin);
  else if (event.key === "End") line.scrub(line.log.end - 1);
  else if (event.key === "+" || event.key === "=") line.zoom(0.5);
  else if (event.key === "-") line.zoom(2);
  else if (event.key === "0") line.showAll();
  else if (event.key === " ") line.player.flip();
  else return false;
  return true;
}

/** The bar below: drag the visible part along the whole log. @param {Timeline} line @param {HTMLElement} range */
function bindRange(line, range) {
  const centre = (/** @type {PointerEvent} */ event) => {
    const { toTime } = scale(line.overviews.whole ?? line.span, range.clientWidth);
    const length = line.span.until - line.span.since;
    const at = toTime(event.clientX - range.getBoundingClientRect().left);
    line.pan((at - length / 2 - line.span.since) / length);
  };
  range.addEventListener("pointerdown", (event) => {
    range.setPointerCapture(event.pointerId);
    centre(event);
  });
  range.addEventListener("pointermove", (event) => {
    if (range.hasPointerCapture(event.pointerId)) centre(event);
  });
}
