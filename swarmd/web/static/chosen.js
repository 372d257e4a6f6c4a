/** Describes the chosen event beside the time line, also for screen readers. */

import { linkTo } from "./address.js";
import { byId, say } from "./dom.js";
import { clock, count, shortIds } from "./format.js";
import { legend } from "./patches.js";
import { notice } from "./top.js";

/** What the colours of the time line mean. */
export function explainColours() {
  legend("strip-key", [
    ["bar-past", "up to the chosen event"],
    ["bar-later", "after it"],
    ["bar-warns", "warning or skip"],
    ["bar-sight", "in sight"],
  ]);
}

/**
 * @param {HTMLElement} strip @param {import("./log.js").Log} log @param {number} seq
 * @param {import("./log.js").EventRow | undefined} event where it is known already
 */
export function showChosen(strip, log, seq, event) {
  const place = `event ${count(seq)} of ${count(log.end - 1)}`;
  strip.setAttribute("aria-valuemin", String(log.begin));
  strip.setAttribute("aria-valuemax", String(Math.max(log.begin, log.end - 1)));
  strip.setAttribute("aria-valuenow", String(seq));
  strip.setAttribute("aria-valuetext", event ? `${place}, ${clock(event.at)}: ${event.text}` : place);
  byId("now-link").href = linkTo(seq);
  say(byId("now-link"), `#${count(seq)}`);
  say(byId("now-at"), event ? clock(event.at) : "");
  say(byId("now-text"), event ? shortIds(event.text) : "…");
  byId("now-text").className = event?.level ?? "";
}

/** @param {boolean} playing */
export function showPlaying(playing) {
  byId("play").setAttribute("aria-pressed", String(playing));
  say(byId("play"), playing ? "Pause" : "Play");
}

/** Say that the event in the URL does not exist. @param {import("./log.js").Log} log @param {number} seq */
export function tellAbsent(log, seq) {
  const kept = `events ${count(log.begin)} to ${count(log.end - 1)}`;
  notice(`There is no event ${count(seq)} here: this log has ${kept}. Shown is the nearest.`);
}
