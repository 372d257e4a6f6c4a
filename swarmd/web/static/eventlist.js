/** The list of all events, with elements for visible rows only; filtering reads the log from its beginning. */

import { byId, el, fill, say } from "./dom.js";
import { clock, count, shortIds } from "./format.js";
import { legend } from "./patches.js";
import { report } from "./top.js";
import { VirtualRows } from "./virtual.js";

const NARROW = matchMedia("(max-width: 700px)"); // the text goes on separate lines
const rowHeight = () => (NARROW.matches ? 60 : 26);
const STEP = 500; // events read at once while filtering
const FOUND_MAX = 5000;
const SETTLE_MS = 150;

/** @typedef {import("./log.js").EventRow} EventRow */

export class EventList {
  /** @param {import("./log.js").Log} log @param {(seq: number) => void} onChoose */
  constructor(log, onChoose) {
    this.log = log;
    this.onChoose = onChoose;
    this.chosen = -1;
    this.found = /** @type {number[] | null} */ (null); // seqs that pass the filter; null: there is none
    this.search = 0; // number of the current filter, so that earlier ones stop
    this.scroller = byId("events-scroller");
    this.rows = new VirtualRows({
      scroller: this.scroller,
      body: this.scroller,
      height: rowHeight(),
      spacer: "div",
      keyOf: (index) => String(this.seqOf(index)),
      make: () =>
        el(
          "div",
          { role: "option", class: "event" },
          el("span", { class: "seq" }),
          el("span", { class: "at" }),
          el("span", { class: "text" }),
        ),
      paint: (row, index) => this.paint(row, index),
      onRange: (first, end) => this.fetch(first, end),
      onDrawn: () => this.tellActive(),
    });
    NARROW.addEventListener("change", () => {
      this.rows.plan.height = rowHeight();
      this.rows.later();
    });
    this.scroller.addEventListener("click", (/** @type {any} */ event) => {
      const row = event.target.closest("[data-key]");
      if (row) this.onChoose(Number(row.dataset.key));
    });
    this.scroller.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.key(event));
    for (const id of ["by-type", "by-round", "by-text"]) byId(id).addEventListener("input", () => this.filterSoon());
    legend("events-key", [
      ["row-chosen", "chosen"],
      ["row-debug", "routine"],
      ["bar-warns", "warning"],
      ["row-error", "error"],
    ]);
    byId("filters").addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());
  }

  /** @param {string[]} types */
  showTypes(types) {
    byId("by-type").append(...types.sort().map((type) => el("option", { value: type }, type.replaceAll("_", " "))));
  }

  /** @param {number} index */
  seqOf(index) {
    return this.found ? this.found[index] : this.log.begin + index;
  }

  /** @param {number} seq @returns {number} -1 where it is not shown */
  indexOf(seq) {
    return this.found ? this.found.indexOf(seq) : seq - this.log.begin;
  }

  get length() {
    return this.found ? this.found.length : this.log.end - this.log.begin;
  }

  show() {
    this.rows.show(this.length);
    if (!this.found) say(byId("events-count"), count(this.length));
  }

  /** @param {number} seq */
  choose(seq) {
    this.chosen = seq;
    const index = this.indexOf(seq);
    this.show();
    if (index >= 0) this.rows.reveal(index);
  }

  /** Name the active row for screen readers, if it has an element. */
  tellActive() {
    const id = `event-${this.chosen}`;
    if (document.getElementById(id)) this.scroller.setAttribute("aria-activedescendant", id);
    else this.scroller.removeAttribute("aria-activedescendant");
  }

  /** @param {EventRow} row */
  append(row) {
    if (this.found && this.passes(row)) this.found.push(row.seq);
    this.show();
  }

  /** @param {any} row @param {number} index */
  paint(row, index) {
    const seq = this.seqOf(index);
    const event = this.log.row(seq);
    row.id = `event-${seq}`;
    row.className = `event ${event?.level ?? "absent"}`;
    row.setAttribute("aria-selected", String(seq === this.chosen));
    row.setAttribute("aria-posinset", String(index + 1));
    row.setAttribute("aria-setsize", String(this.length));
    say(row.children[0], String(seq));
    say(row.children[1], event ? clock(event.at) : "");
    say(row.children[2], event ? shortIds(event.text) : "…");
  }

  /** Request missing visible rows, once scrolling pauses. @param {number} first @param {number} end */
  fetch(first, end) {
    clearTimeout(this.wanted);
    if (end <= first) return;
    const [from, to] = [this.seqOf(first), this.seqOf(end - 1) + 1];
    let absent = false;
    for (let index = first; index < end && !absent; index += 1) absent = !this.log.row(this.seqOf(index));
    if (!absent) return;
    this.wanted = setTimeout(
      () => this.log.need(from, Math.min(to, from + 4 * STEP)).then(() => this.rows.later(), report),
      60,
    );
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / rowHeight()) - 1);
    const now = this.indexOf(this.chosen);
    const to = {
      ArrowUp: now - 1,
      ArrowDown: now + 1,
      PageUp: now - page,
      PageDown: now + page,
      Home: 0,
      End: this.length - 1,
    }[event.key];
    if (to === undefined || !this.length) return;
    event.preventDefault();
    this.onChoose(this.seqOf(Math.min(this.length - 1, Math.max(0, to))));
  }

  // --- the filter ---

  filterSoon() {
    clearTimeout(this.filterDue);
    this.filterDue = setTimeout(() => this.filter().catch(report), SETTLE_MS);
  }

  wants() {
    return {
      type: byId("by-type").value,
      round: byId("by-round").value,
      text: byId("by-text").value.trim().toLowerCase(),
    };
  }

  /** @param {EventRow} row */
  passes(row) {
    const { type, round, text } = this.wants();
    return (
      (!type || row.type === type) &&
      (!round || row.round === Number(round)) &&
      (!text || row.text.toLowerCase().includes(text))
    );
  }

  async filter() {
    const search = (this.search += 1);
    const { type, round, text } = this.wants();
    this.found = type || round || text ? [] : null;
    this.scroller.scrollTop = 0;
    for (let seq = this.log.begin; this.found && seq < this.log.end; seq += STEP - (seq % STEP)) {
      const end = Math.min(this.log.end, seq + STEP - (seq % STEP));
      await this.log.need(seq, end);
      if (search !== this.search) return;
      for (let each = seq; each < end; each += 1) {
        const row = this.log.row(each);
        if (row && this.passes(row)) this.found.push(each);
      }
      this.tellFound(end);
      if (this.found.length >= FOUND_MAX) break;
    }
    this.show();
    if (!this.found && this.chosen >= 0) this.rows.reveal(this.indexOf(this.chosen));
  }

  /** @param {number} end of what has been read */
  tellFound(end) {
    const found = this.found?.length ?? 0;
    const all = end >= this.log.end;
    if (found >= FOUND_MAX) say(byId("events-count"), `the first ${count(found)} found`);
    else
      say(
        byId("events-count"),
        all
          ? `${found ? count(found) : "none"} found`
          : `${count(found)} found, ${count(end)} of ${count(this.log.end)} read`,
      );
    this.show();
  }
}
