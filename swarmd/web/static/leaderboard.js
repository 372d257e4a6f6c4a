/** The leaderboard, sortable and searchable, with elements for visible rows only. */

import { now } from "./clock.js";
import { byId, copyButton, el, fill, say, setCopy } from "./dom.js";
import { age, count, plural, reward } from "./format.js";
import { legend } from "./patches.js";
import { VirtualRows } from "./virtual.js";

const FEW = 8; // with so few peers the messages get the whole width
const BY_NAME = new Intl.Collator(); // much faster than localeCompare
const TALL = matchMedia("(max-width: 700px)");

/**
 * @typedef {{id: string, name: string, rank: number, reward: number, rounds: number, last_round: number,
 *   last_stage: number, last_reward: number | null, seen_at: number | null, present: boolean, votes: number | null,
 *   known: boolean, admitted: boolean, barred_until: number | null}} PeerRow
 * @typedef {{key: keyof PeerRow, title: string, class: string, descending: boolean}} Column
 */

/** @type {Column[]} */
const COLUMNS = [
  { key: "rank", title: "#", class: "number rank", descending: false },
  { key: "name", title: "Peer", class: "peer", descending: false },
  { key: "reward", title: "Reward", class: "number sum", descending: true },
  { key: "last_reward", title: "Last", class: "number last", descending: true },
  { key: "rounds", title: "Rounds", class: "number rounds", descending: true },
  { key: "votes", title: "Votes", class: "number votes", descending: true },
  { key: "seen_at", title: "Seen", class: "number seen", descending: true },
];

export class Board {
  /** @param {import("./top.js").PageSource} found @param {(id: string) => void} onCurve */
  constructor(found, onCurve) {
    this.live = found.live;
    this.own = found.peer;
    this.onCurve = onCurve;
    this.peers = /** @type {PeerRow[]} */ ([]);
    this.top = /** @type {PeerRow[]} */ ([]); // as they came with the view
    this.rest = /** @type {PeerRow[]} */ ([]); // of a large swarm, those behind; they come apart, and less often
    this.total = 0;
    this.order = COLUMNS[0];
    this.down = false;
    this.hits = /** @type {PeerRow[]} */ ([]);
    this.hit = 0;
    this.hitIds = /** @type {Set<string>} */ (new Set());
    this.sought = "";
    this.colours = /** @type {Map<string, string>} */ (new Map());
    this.rows = this.build();
    this.bindSearch();
    this.head();
    legend("board-key", [
      ["share-key", "share of the highest reward"],
      ["gone-key", "has left"],
    ]);
  }

  build() {
    const rows = new VirtualRows({
      scroller: byId("board-scroller"),
      body: byId("board-body"),
      height: TALL.matches ? 90 : 46,
      spacer: "tr",
      keyOf: (index) => this.peers[index].id,
      make: () => this.make(),
      paint: (row, index) => this.paint(row, this.peers[index], index),
    });
    TALL.addEventListener("change", () => {
      rows.plan.height = TALL.matches ? 90 : 46;
      rows.later();
    });
    return rows;
  }

  /** @param {any} view SwarmView */
  show(view) {
    this.at = view.at;
    this.top = view.peers;
    this.total = view.total;
    this.highest = Math.max(...view.peers.map((/** @type {PeerRow} */ peer) => (peer.known && peer.reward) || 0), 0);
    byId("board").classList.toggle("no-votes", !view.chain && this.top.every((peer) => peer.votes === null));
    if (this.total <= this.top.length) this.rest = [];
    this.put();
  }

  /** Set the peers after those that come with the view. @param {PeerRow[]} rest */
  showRest(rest) {
    this.rest = rest;
    this.put();
  }

  put() {
    const first = new Set(this.rest.length ? this.top.map((peer) => peer.id) : []);
    this.peers = [...this.top, ...this.rest.filter((peer) => !first.has(peer.id))];
    byId("board").setAttribute("aria-rowcount", String(this.peers.length + 1));
    const cut = this.total > this.peers.length && !this.rest.length ? `first ${count(this.peers.length)} of ` : "";
    say(byId("board-count"), cut + plural(Math.max(this.total, this.peers.length), "peer"));
    byId("columns").classList.toggle("few", this.peers.length <= FEW);
    this.sort();
    if (this.sought) this.seek(this.sought, false);
  }

  /** @param {Map<string, string>} colours class of the curve by peer id */
  showCurves(colours) {
    this.colours = colours;
    this.rows.later();
  }

  head() {
    const cells = COLUMNS.map((column) => {
      const chosen = column === this.order;
      const sort = chosen ? (this.down ? "descending" : "ascending") : null;
      const button = el("button", { type: "button", class: "plain", onclick: () => this.choose(column) }, column.title);
      return el("th", { scope: "col", class: column.class, "aria-sort": sort }, button);
    });
    fill(byId("board-head"), el("tr", { "aria-rowindex": 1 }, ...cells));
  }

  /** @param {Column} column */
  choose(column) {
    this.down = column === this.order ? !this.down : column.descending;
    this.order = column;
    this.head();
    byId("board-head").querySelector("[aria-sort] button").focus();
    this.sort();
    byId("board-scroller").scrollTop = 0;
  }

  sort() {
    const { key } = this.order;
    const sign = this.down ? -1 : 1;
    this.peers.sort((one, other) => sign * compare(one[key], other[key]) || one.rank - other.rank);
    this.rows.show(this.peers.length);
  }

  make() {
    const cells = COLUMNS.map((column) => el("td", { class: column.class }));
    const swatch = el("button", { type: "button", class: "swatch", onclick: () => this.onCurve(swatch.dataset.id) });
    const more = [el("span", { class: "own-tag" }, "this node"), el("span", { class: "figures muted" })];
    cells[1].append(el("div", { class: "peer-line" }, swatch, el("span", { class: "name" }), copyButton(), ...more));
    cells[2].append(el("span", { class: "share" }), el("span", { class: "value" }));
    return el("tr", {}, ...cells);
  }

  /** @param {any} row @param {PeerRow} peer @param {number} index */
  paint(row, peer, index) {
    const [rank, name, sum, last, rounds, votes, seen] = row.children;
    row.setAttribute("aria-rowindex", index + 2);
    row.className = this.rowClass(peer);
    say(rank, count(peer.rank));
    const [swatch, called, copy, own, figures] = name.firstElementChild.children;
    this.paintSwatch(swatch, peer);
    say(called, `${peer.name || "no name"}${peer.admitted ? "" : " (not admitted)"}`);
    called.title = peer.name;
    own.hidden = peer.id !== this.own;
    say(figures, this.figures(peer));
    setCopy(copy, peer.id);
    sum.children[0].style.transform = `scaleX(${this.share(peer)})`;
    say(sum.children[1], peer.known ? reward(peer.reward) : "—");
    say(last, peer.last_reward === null ? "—" : reward(peer.last_reward));
    last.title = peer.last_round < 0 ? "" : `in round ${peer.last_round}, stage ${peer.last_stage}`;
    say(rounds, count(peer.rounds));
    say(votes, peer.votes === null ? "—" : count(peer.votes));
    say(seen, peer.barred_until !== null ? "barred" : peer.present ? this.seen(peer) : "left");
    row.title = barred(peer);
  }

  /** A peer's share of the highest reward. @param {PeerRow} peer */
  share(peer) {
    return this.highest > 0 && peer.known ? Math.max(0, peer.reward / this.highest) : 0;
  }

  /** The values for which a narrow screen has no columns. @param {PeerRow} peer */
  figures(peer) {
    const last = peer.last_reward === null ? "" : `last ${reward(peer.last_reward)}`;
    const votes = peer.votes === null ? "" : plural(peer.votes, "vote");
    const seen = peer.present ? (peer.seen_at === null ? "" : `seen ${this.seen(peer)} ago`) : "left";
    return [barred(peer), last, plural(peer.rounds, "round"), votes, seen].filter(Boolean).join(" · ");
  }

  /** @param {PeerRow} peer */
  rowClass(peer) {
    const names = [peer.present ? "" : "gone", peer.id === this.own ? "own" : ""];
    if (this.hitIds.has(peer.id)) names.push("hit");
    if (this.hits[this.hit]?.id === peer.id) names.push("chosen");
    return names.filter(Boolean).join(" ");
  }

  /** @param {any} swatch @param {PeerRow} peer */
  paintSwatch(swatch, peer) {
    const colour = this.colours.get(peer.id);
    swatch.dataset.id = peer.id;
    swatch.className = `swatch ${colour ?? ""}`;
    swatch.setAttribute("aria-pressed", colour !== undefined);
    swatch.setAttribute("aria-label", `Rewards of ${peer.name || peer.id} in the plot`);
  }

  /** @param {PeerRow} peer */
  seen(peer) {
    return peer.seen_at === null ? "—" : age((this.live ? now() : this.at) - peer.seen_at);
  }

  bindSearch() {
    const field = byId("search");
    field.addEventListener("input", () => this.seek(field.value, true));
    byId("search-form").addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      if (this.hits.length > 1 && field.value === this.sought) this.next();
      else this.seek(field.value, true);
    });
  }

  /** Mark what matches; exact matches are shown first. @param {string} text @param {boolean} move */
  seek(text, move) {
    this.sought = text;
    const wanted = text.trim().toLowerCase();
    const chosen = this.hits[this.hit]?.id;
    const held = this.peers.filter((peer) => wanted && matches(peer, wanted));
    this.hits = held.sort((one, other) => Number(isExact(other, wanted)) - Number(isExact(one, wanted)));
    this.hitIds = new Set(this.hits.map((peer) => peer.id));
    const again = this.hits.findIndex((peer) => peer.id === chosen);
    this.hit = move || again < 0 ? 0 : again;
    this.tellHits(wanted && text.trim());
    if (move && this.hits.length) this.reveal();
    this.rows.later();
  }

  next() {
    this.hit = (this.hit + 1) % this.hits.length;
    this.tellHits(this.sought.trim());
    this.reveal();
  }

  reveal() {
    this.rows.reveal(this.peers.findIndex((peer) => peer.id === this.hits[this.hit].id));
  }

  /** @param {string} text */
  tellHits(text) {
    if (!text) say(byId("found"), "");
    else if (!this.hits.length) say(byId("found"), `No peer here has “${text}” in its name or id.`);
    else if (this.hits.length === 1) say(byId("found"), `Found ${this.hits[0].name}, rank ${this.hits[0].rank}.`);
    else say(byId("found"), `${this.hit + 1} of ${this.hits.length} found; Enter shows the next.`);
  }
}

/** Why little or nothing of a peer counts; usually empty. @param {PeerRow} peer */
function barred(peer) {
  if (peer.barred_until === null) return peer.admitted ? "" : "neither proof of work nor an invitation";
  return `signed two different reports of one stage: nothing of it counts before round ${peer.barred_until}`;
}

/** @param {PeerRow} peer @param {string} wanted in lower case */
function matches(peer, wanted) {
  return peer.name.toLowerCase().includes(wanted) || peer.id.toLowerCase().includes(wanted);
}

/** @param {PeerRow} peer @param {string} wanted in lower case */
function isExact(peer, wanted) {
  return peer.name.toLowerCase() === wanted || peer.id.toLowerCase() === wanted;
}

/** Compare values; unknown ones come first when ascending. @param {any} one @param {any} other */
function compare(one, other) {
  if (typeof one === "string") return BY_NAME.compare(one, other);
  return (one ?? -Infinity) === (other ?? -Infinity) ? 0 : (one ?? -Infinity) - (other ?? -Infinity);
}
