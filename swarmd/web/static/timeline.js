/** The time line of the node page: the chosen event, the visible part of the log, and what moves them. */

import { get, givenUp } from "./api.js";
import * as address from "./address.js";
import { byId, say } from "./dom.js";
import { explainColours, showChosen, showPlaying, tellAbsent } from "./chosen.js";
import { Overviews } from "./overview.js";
import { Player } from "./player.js";
import { bucketsIn, colours, drawRange, drawStrip, scale, spanWords } from "./strip.js";
import { bindInput } from "./stripinput.js";
import { report } from "./top.js";

const SHORTEST_S = 0.05; // shortest visible part
const MOMENTS_KEPT = 24;
const SETTLE_MS = 120; // from the last zoom or pan to the request for a finer overview
const REFRESH_MS = 2000; // least time between two requests for the overview while events arrive
const FRESH_MAX = 2000;
const RECENT_ROUNDS = 8; // visible at first, in a log that grows

export class Timeline {
  /**
   * @param {import("./log.js").Log} log @param {boolean} live
   * @param {(moment: any, scrubbed: boolean) => void} onMoment and whether the time line itself was moved on
   * @param {(seq: number) => void} onChoose
   */
  constructor(log, live, onMoment, onChoose) {
    this.log = log;
    this.live = live;
    this.onMoment = onMoment;
    this.onChoose = onChoose;
    this.overviews = new Overviews();
    this.seq = 0;
    this.following = live;
    this.scrubbed = false;
    this.all = true; // the whole log is visible, and stays so while it grows
    this.span = { since: 0, until: 1 };
    this.fresh = /** @type {{seq: number, at: number, lane: number, warns: boolean}[]} */ ([]);
    this.skips = /** @type {any[]} */ ([]);
    /** @type {Map<number, any>} */
    this.moments = new Map();
    this.loading = false;
    this.strip = byId("strip");
    this.player = new Player(() => this.playOn(), showPlaying);
    this.bind();
  }

  bind() {
    bindInput(this, this.strip, byId("range"));
    const clicks = {
      first: () => this.scrub(this.log.begin),
      previous: () => this.step(-1),
      next: () => this.step(1),
      play: () => this.player.flip(),
      live: () => this.follow(),
      closer: () => this.zoom(0.5),
      farther: () => this.zoom(2),
      whole: () => this.showAll(),
    };
    for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", act);
    byId("pace").addEventListener("change", () => this.player.setPace(Number(byId("pace").value)));
    byId("live").hidden = !this.live;
    address.onNamed((seq) => seq !== this.seq && this.choose(seq));
    explainColours();
    this.paint = colours(this.strip);
    addEventListener("themechange", () => {
      this.paint = colours(this.strip);
      this.draw();
    });
    new ResizeObserver(() => {
      this.draw();
      this.loadPart();
    }).observe(this.strip);
  }

  /** Begin, at the log's end. */
  async open() {
    await this.overviews.loadWhole();
    this.log.begin = this.overviews.whole?.begin ?? 0;
    this.log.end = Math.max(this.log.end, this.overviews.whole?.end ?? 0);
    this.showAll();
    if (this.live) this.showRecent();
    const named = address.named();
    if (named !== null && this.log.end > this.log.begin) this.openAt(named);
    else if (this.log.end > this.log.begin) this.go(this.log.end - 1);
  }

  /** Go to the event in the URL. @param {number} seq */
  openAt(seq) {
    if (seq < this.log.begin || seq >= this.log.end) tellAbsent(this.log, seq);
    this.choose(seq);
  }

  /** Add a new event. @param {import("./log.js").EventRow} row */
  append(row) {
    const lane = (this.overviews.whole?.lanes ?? []).indexOf(this.overviews.whole?.types[row.type] ?? "");
    if (lane >= 0)
      this.fresh.push({ seq: row.seq, at: row.at, lane, warns: row.level === "warning" || row.level === "error" });
    if (this.fresh.length > FRESH_MAX) this.fresh.shift();
    if (this.overviews.whole) this.overviews.whole.until = Math.max(this.overviews.whole.until, row.at);
    if (this.all) this.span = { ...this.span, until: Math.max(this.span.until, row.at) };
    this.refreshDue ||= setTimeout(() => this.refresh(), REFRESH_MS);
    if (this.following) this.go(this.log.end - 1);
    else this.showAria();
    this.draw();
  }

  async refresh() {
    try {
      await this.overviews.loadWhole();
      if (this.all) this.showAll();
      else await this.loadPartNow();
      const known = this.overviews.whole?.end ?? 0;
      this.fresh = this.fresh.filter((event) => event.seq >= known);
    } catch (error) {
      report(error);
    } finally {
      this.refreshDue = 0;
    }
    this.draw();
  }

  // --- which event ---

  /** The user chose an event: stop playing and following. @param {number} seq */
  choose(seq) {
    this.setFollowing(false);
    this.player.stop();
    this.go(seq);
  }

  /** The user chose an event on the time line itself. @param {number} seq */
  scrub(seq) {
    this.scrubbed = true;
    this.choose(seq);
  }

  /** @param {number} x pixels from the strip's left edge */
  chooseAt(x) {
    this.scrub(this.overviews.seqAt(scale(this.span, this.strip.clientWidth).toTime(x)));
  }

  /** @param {number} by */
  step(by) {
    this.scrub(this.seq + by);
  }

  /** @param {1 | -1} by */
  async stepRound(by) {
    try {
      const seq = await this.overviews.round(this.seq, this.timeOf(this.seq), by);
      if (seq !== null) this.scrub(seq);
    } catch (error) {
      report(error);
    }
  }

  playOn() {
    this.setFollowing(false);
    this.scrubbed = true;
    this.go(this.seq + 1);
    return this.seq < this.log.end - 1;
  }

  follow() {
    this.player.stop();
    this.setFollowing(true);
    this.go(this.log.end - 1);
  }

  /** @param {boolean} following */
  setFollowing(following) {
    this.following = following && this.live;
    this.scrubbed &&= !following;
    byId("live").setAttribute("aria-pressed", String(this.following));
  }

  /** @param {number} seq */
  go(seq) {
    this.seq = Math.min(this.log.end - 1, Math.max(this.log.begin, seq));
    this.keepInSight();
    this.onChoose(this.seq);
    address.show(this.following || (!this.live && this.seq === this.log.end - 1) ? null : this.seq);
    this.showAria();
    this.draw();
    this.load();
  }

  /** @param {number} seq */
  timeOf(seq) {
    return this.log.row(seq)?.at ?? this.moments.get(seq)?.event.at ?? this.overviews.timeOf(seq);
  }

  /** Request the chosen event's details; while a request runs, only the newest choice waits. */
  async load() {
    if (this.loading) return;
    this.loading = true;
    try {
      for (let shown = -1; shown !== this.seq;) {
        shown = this.seq;
        const moment = this.moments.get(shown) ?? (await get(`node/moments/${shown}`));
        this.moments.set(shown, moment);
        while (this.moments.size > MOMENTS_KEPT) this.moments.delete(this.moments.keys().next().value ?? 0);
        this.onMoment(moment, this.scrubbed && shown === this.seq);
        if (shown === this.seq) this.scrubbed = false;
        this.draw();
        this.showAria();
      }
    } catch (error) {
      report(error);
    } finally {
      this.loading = false;
    }
  }

  // --- which part ---

  /** The part visible at first: the last rounds of a long log that grows. */
  showRecent() {
    const { rounds, until } = this.overviews.whole ?? { rounds: [], until: 0 };
    if (rounds.length > RECENT_ROUNDS) this.setSpan(rounds[rounds.length - RECENT_ROUNDS][2], until);
  }

  showAll() {
    const whole = this.overviews.whole;
    if (!whole) return;
    const room = Math.max(0.5, (whole.until - whole.since) * 0.004); // keeps the last event off the edge
    this.setSpan(whole.since - room, whole.until + room);
    this.all = true;
  }

  /** @param {number} factor below 1: closer @param {number} [around] time that stays in its place */
  zoom(factor, around = this.inSight(this.timeOf(this.seq))) {
    const { since, until } = this.span;
    this.setSpan(around - (around - since) * factor, around + (until - around) * factor);
  }

  /** @param {number} share of what is in sight */
  pan(share) {
    const { since, until } = this.span;
    this.setSpan(since + share * (until - since), until + share * (until - since));
  }

  /** @param {number} at @returns {number} the same, or the middle where it is out of sight */
  inSight(at) {
    const { since, until } = this.span;
    return at >= since && at <= until ? at : (since + until) / 2;
  }

  keepInSight() {
    const at = this.timeOf(this.seq);
    const { since, until } = this.span;
    const place = this.following ? 0.97 : 0.5; // while following, the end stays at the right edge
    if (at < since || at > until) this.setSpan(at - (until - since) * place, at + (until - since) * (1 - place));
  }

  /** @param {number} since @param {number} until */
  setSpan(since, until) {
    const whole = this.overviews.whole;
    if (!whole) return;
    const room = Math.max(0.5, (whole.until - whole.since) * 0.004);
    const most = whole.until - whole.since + 2 * room;
    const length = Math.min(most, Math.max(SHORTEST_S, until - since));
    const from = Math.min(Math.max(since, whole.since - room), whole.until + room - length);
    this.span = { since: from, until: from + length };
    this.all = length >= most * 0.999;
    say(byId("time-span"), spanWords(this.span));
    this.draw();
    this.loadPart();
  }

  loadPart() {
    clearTimeout(this.settle);
    this.settle = setTimeout(() => this.loadPartNow().catch((error) => givenUp(error) || report(error)), SETTLE_MS);
  }

  async loadPartNow() {
    if (!this.overviews.whole) return;
    await this.overviews.loadPart(this.span.since, this.span.until, bucketsIn(this.strip.clientWidth));
    this.draw();
  }

  // --- showing it ---

  draw() {
    this.drawing ||= requestAnimationFrame(() => {
      this.drawing = 0;
      const { whole, part } = this.overviews;
      if (!whole) return;
      const scene = { span: this.span, at: this.timeOf(this.seq), whole, part, fresh: this.fresh, skips: this.skips };
      drawStrip(byId("lanes"), this.strip.clientWidth, scene, this.paint ?? {});
      drawRange(byId("range-canvas"), this.strip.clientWidth, scene, this.paint ?? {});
    });
  }

  showAria() {
    showChosen(this.strip, this.log, this.seq, this.moments.get(this.seq)?.event ?? this.log.row(this.seq));
  }
}
