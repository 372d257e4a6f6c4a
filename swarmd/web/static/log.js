/** A cache of the log's events, in pages, loaded on demand. */

import { get } from "./api.js";

const PAGE = 500; // events; pages begin at multiples of it
const PAGES_KEPT = 60;

/**
 * @typedef {{seq: number, at: number, type: string, level: string, text: string, round: number | null,
 *   stage: number | null, peer: string}} EventRow
 */

export class Log {
  constructor() {
    this.begin = 0;
    this.end = 0;
    /** @type {Map<number, (EventRow | undefined)[]>} */
    this.pages = new Map();
    /** @type {Map<number, Promise<void>>} */
    this.asked = new Map();
  }

  /** The row of an event, if it is loaded. @param {number} seq */
  row(seq) {
    return this.pages.get(Math.floor(seq / PAGE))?.[seq % PAGE];
  }

  /** Add an event from the stream. @param {EventRow} row @returns {boolean} whether it is new */
  append(row) {
    if (row.seq < this.end) return false;
    this.put(row);
    this.end = row.seq + 1;
    return true;
  }

  /** @param {EventRow} row */
  put(row) {
    const number = Math.floor(row.seq / PAGE);
    const page = this.pages.get(number) ?? [];
    page[row.seq % PAGE] = row;
    this.pages.set(number, page);
    while (this.pages.size > PAGES_KEPT) this.pages.delete(this.pages.keys().next().value ?? 0);
  }

  /** Load the events from `first` up to, but excluding, `end`. @param {number} first @param {number} end */
  async need(first, end) {
    const [from, to] = [Math.max(first, this.begin), Math.min(end, this.end) - 1];
    const wanted = [];
    for (let number = Math.floor(from / PAGE); number <= Math.floor(to / PAGE); number += 1) {
      if (!this.whole(number)) wanted.push(this.fetch(number));
    }
    await Promise.all(wanted);
  }

  /** @param {number} number of a page */
  whole(number) {
    const page = this.pages.get(number);
    if (!page) return false;
    this.pages.delete(number); // pages are dropped in the order of their last use
    this.pages.set(number, page);
    const first = Math.max(this.begin, number * PAGE);
    const last = Math.min(this.end, (number + 1) * PAGE) - 1;
    return (
      page[first % PAGE] !== undefined &&
      page[last % PAGE] !== undefined &&
      page.length >= (last % PAGE) + 1 &&
      !holes(page, first % PAGE)
    );
  }

  /** @param {number} number */
  fetch(number) {
    const underWay = this.asked.get(number) ?? this.ask(number).finally(() => this.asked.delete(number));
    this.asked.set(number, underWay);
    return underWay;
  }

  /** @param {number} number */
  async ask(number) {
    const page = await get(`node/events?first=${Math.max(this.begin, number * PAGE)}&count=${PAGE}`);
    this.begin = page.begin;
    this.end = Math.max(this.end, page.end);
    for (const row of page.events) if (Math.floor(row.seq / PAGE) === number) this.put(row);
  }
}

/** @param {(EventRow | undefined)[]} page @param {number} first */
function holes(page, first) {
  for (let index = first; index < page.length; index += 1) if (page[index] === undefined) return true;
  return false;
}
