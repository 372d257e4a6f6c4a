/**
 * Rows of one height in a scroller, with elements for visible rows only. Rows keep their elements while they stay in
 * sight, so that neither focus nor selection is lost when the content changes.
 */

import { el } from "./dom.js";

const SPARE = 8; // extra rows beyond each edge

/**
 * @typedef {{
 *   scroller: HTMLElement, body: HTMLElement, height: number, spacer: string,
 *   keyOf: (index: number) => string,
 *   make: () => HTMLElement,
 *   paint: (row: HTMLElement, index: number) => void,
 *   onRange?: (first: number, end: number) => void,
 *   onDrawn?: () => void,
 * }} Plan
 */

export class VirtualRows {
  /** @param {Plan<any>} plan */
  constructor(plan) {
    this.plan = plan;
    this.length = 0;
    /** @type {Map<string, HTMLElement>} */
    this.rows = new Map();
    this.above = el(plan.spacer, { "aria-hidden": "true", class: "spacer" });
    this.below = el(plan.spacer, { "aria-hidden": "true", class: "spacer" });
    plan.body.replaceChildren(this.above, this.below);
    this.asked = 0;
    plan.scroller.addEventListener("scroll", () => this.later(), { passive: true });
    this.room = plan.scroller.clientHeight;
    new ResizeObserver(() => this.fit()).observe(plan.scroller);
  }

  /** @param {number} length */
  show(length) {
    this.length = length;
    this.later();
  }

  /** The scroller's height changed: keep its end visible if it was. */
  fit() {
    const { scroller } = this.plan;
    if (scroller.scrollTop && scroller.scrollTop + this.room >= scroller.scrollHeight - 1)
      scroller.scrollTop = scroller.scrollHeight;
    this.room = scroller.clientHeight;
    this.later();
  }

  later() {
    this.asked ||= requestAnimationFrame(() => {
      this.asked = 0;
      this.draw();
    });
  }

  /** The range of visible rows, with some spare ones. @returns {[number, number]} */
  range() {
    const { scroller, height } = this.plan;
    const first = Math.max(0, Math.floor(scroller.scrollTop / height) - SPARE);
    const end = Math.min(this.length, Math.ceil((scroller.scrollTop + scroller.clientHeight) / height) + SPARE);
    return [Math.min(first, end), end];
  }

  draw() {
    const { body, height, keyOf, make, paint, onRange, onDrawn } = this.plan;
    const [first, end] = this.range();
    onRange?.(first, end);
    const before = this.rows;
    this.rows = new Map();
    for (let index = first; index < end; index += 1) {
      const key = keyOf(index);
      const row = before.get(key) ?? make();
      before.delete(key);
      row.dataset.key = key;
      paint(row, index);
      this.rows.set(key, row);
    }
    for (const row of before.values()) row.remove();
    let place = this.above.nextSibling;
    for (const row of this.rows.values()) {
      if (row === place) place = row.nextSibling;
      else body.insertBefore(row, place);
    }
    this.above.style.height = `${first * height}px`;
    this.below.style.height = `${(this.length - end) * height}px`;
    onDrawn?.();
  }

  /** Scroll a row into view, to the middle if it was not visible. @param {number} index */
  reveal(index) {
    const { scroller, height } = this.plan;
    this.draw(); // rows just added must exist to scroll to
    const top = index * height;
    const seen = top >= scroller.scrollTop && top + 2 * height <= scroller.scrollTop + scroller.clientHeight;
    if (!seen) scroller.scrollTop = top - scroller.clientHeight / 2 + height;
    this.later();
  }
}
