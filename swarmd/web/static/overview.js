/** Counts of events over time: for the whole log, and finer for the visible part. */

import { get } from "./api.js";

const BUCKETS_MAX = 2048;
const WHOLE_BUCKETS = 1024;

/**
 * @typedef {{begin: number, end: number, since: number, until: number, lanes: string[], types: Record<string, string>,
 *   firsts: number[], counts: number[][], warnings: number[], rounds: [number, number, number][]}} Overview
 */

export class Overviews {
  constructor() {
    this.whole = /** @type {Overview | null} */ (null);
    this.part = /** @type {Overview | null} */ (null);
    this.control = new AbortController();
  }

  async loadWhole() {
    this.whole = await get(`node/overview?buckets=${WHOLE_BUCKETS}`);
  }

  /**
   * Load the visible part; an earlier request for one is aborted.
   * @param {number} since
   * @param {number} until
   * @param {number} buckets
   */
  async loadPart(since, until, buckets) {
    this.control.abort();
    this.control = new AbortController();
    const asked = Math.max(16, Math.min(BUCKETS_MAX, Math.floor(buckets)));
    this.part = await get(`node/overview?since=${since}&until=${until}&buckets=${asked}`, this.control.signal);
  }

  /** The finest overview that covers a time. @param {number} at @returns {Overview | null} */
  of(at) {
    const inPart = this.part && at >= this.part.since && at <= this.part.until;
    return inPart ? this.part : this.whole;
  }

  /** The event nearest to a time. @param {number} at */
  seqAt(at) {
    const view = this.of(at);
    if (!view) return 0;
    const buckets = view.firsts.length - 1;
    const place = ((at - view.since) / Math.max(1e-9, view.until - view.since)) * buckets;
    const bucket = Math.min(buckets - 1, Math.max(0, Math.floor(place)));
    const [first, next] = [view.firsts[bucket], view.firsts[bucket + 1]];
    if (next > first) return first;
    return Math.min(nearer(view.firsts, bucket, place), view.end - 1);
  }

  /** The approximate time of an event, to within a bucket. @param {number} seq */
  timeOf(seq) {
    const { part, whole } = this;
    const view = part && seq >= part.firsts[0] && seq < part.firsts[part.firsts.length - 1] ? part : whole;
    if (!view) return 0;
    let [low, high] = [0, view.firsts.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (view.firsts[middle] <= seq) low = middle;
      else high = middle;
    }
    return view.since + ((low + 0.5) / (view.firsts.length - 1)) * (view.until - view.since);
  }

  /**
   * The event at which the next round begins, or the one before.
   * @param {number} seq
   * @param {number} at
   * @param {1 | -1} step
   */
  async round(seq, at, step) {
    const whole = this.whole;
    if (!whole) return null;
    const mark = beside(whole.rounds, seq, step);
    const other = step > 0 ? (mark ? mark[2] : whole.until) : mark ? mark[2] : whole.since;
    const [since, until] = [Math.min(at, other), Math.max(at, other)];
    // The whole log's round marks may be thinned; those of the finer part are complete.
    const near = await get(`node/overview?since=${since - 0.001}&until=${until + 0.001}&buckets=1`);
    return (beside(near.rounds, seq, step) ?? mark)?.[1] ?? null;
  }
}

/** @param {[number, number, number][]} rounds @param {number} seq @param {1 | -1} step */
function beside(rounds, seq, step) {
  return step > 0 ? rounds.find((mark) => mark[1] > seq) : rounds.findLast((mark) => mark[1] < seq);
}

/**
 * The event before or after an empty bucket, whichever is nearer.
 * @param {number[]} firsts
 * @param {number} bucket
 * @param {number} place
 */
function nearer(firsts, bucket, place) {
  let [before, after] = [bucket - 1, bucket + 1];
  while (before >= 0 && firsts[before] === firsts[before + 1]) before -= 1;
  while (after < firsts.length - 1 && firsts[after] === firsts[after + 1]) after += 1;
  const back = before >= 0 && (after >= firsts.length - 1 || place - before - 1 < after - place);
  return back ? firsts[before + 1] - 1 : firsts[bucket];
}
