/** The head of the swarm page: round, stage, deadline, and a few numbers. */

import { now } from "./clock.js";
import { byId, copyButton, el, fill, say, setCopy } from "./dom.js";
import { hasEnded } from "./top.js";
import { clock, count, countdown, dayAndClock } from "./format.js";

/** @type {any} */
let shown = null;
let live = false;

/** @param {any} view SwarmView @param {boolean} isLive */
export function showRound(view, isLive) {
  shown = view;
  live = isLive && !hasEnded(view.process); // the last view of a node that has ended is not current
  say(byId("swarm-name"), view.swarm || "Swarm");
  const observed = view.chain ? "observed in the DHT and on the chain" : "observed in the DHT";
  const read = view.source === "dht" ? observed : "from a node’s log";
  say(byId("swarm-kind"), [view.kind, read].filter(Boolean).join(" · "));
  document.title = `${view.swarm || "Swarm"} · swarmd`;
  say(byId("place"), placeWords(view));
  showStats(view);
  tick();
}

/** @param {any} view */
function placeWords(view) {
  if (view.round < 0) return "No round yet";
  if (view.final) return `All ${count(view.round)} rounds have been run`;
  const stage = view.stages > 1 ? ` · stage ${view.stage + 1} of ${view.stages}` : "";
  return `Round ${count(view.round)}${stage}`;
}

/** Redraw what depends on the time. */
export function tick() {
  if (!shown) return;
  const { opened_at: opened, deadline_at: deadline } = shown;
  const bar = byId("bar");
  bar.hidden = deadline === null || opened === null || shown.final;
  if (bar.hidden) {
    say(byId("left"), "");
    return;
  }
  const at = live ? now() : shown.at;
  const share = Math.min(1, Math.max(0, (at - opened) / Math.max(0.001, deadline - opened)));
  byId("bar-fill").style.transform = `scaleX(${share})`;
  bar.classList.toggle("over", at > deadline);
  bar.setAttribute("aria-valuenow", String(Math.round(share * 100)));
  bar.setAttribute("aria-valuetext", leftWords(at, deadline));
  say(byId("left"), leftWords(at, deadline));
}

/** @param {number} at @param {number} deadline */
function leftWords(at, deadline) {
  if (!live) return `was to close at ${dayAndClock(deadline)}`;
  if (at > deadline) return `${countdown(at - deadline)} past its deadline`;
  return `closes in ${countdown(deadline - at)}`;
}

/** @param {any} view */
function showStats(view) {
  const reports = view.expected === null ? count(view.reports) : `${count(view.reports)} of ${count(view.expected)}`;
  const rows = [
    ["reports", reports],
    ["peers", count(Math.max(view.total, view.peers.length))],
    ["as of", clock(view.at)],
  ];
  const keeper =
    view.chain && !view.coordinator ? ["contract", view.chain.contract] : ["coordinator", view.coordinator];
  const stats = byId("stats");
  if (stats.childElementCount !== rows.length + 1) {
    fill(stats, ...[...rows, keeper].map(([name]) => stat(name)));
  }
  rows.forEach(([, value], index) => say(stats.children[index].lastElementChild, value));
  const last = stats.children[rows.length];
  say(last.firstElementChild, keeper[0]);
  last.hidden = !keeper[1];
  if (keeper[1]) setCopy(copyOf(last.lastElementChild), keeper[1]);
}

/** @param {string} name */
function stat(name) {
  return el("div", {}, el("dt", {}, name), el("dd", {}));
}

/** @param {Element} cell */
function copyOf(cell) {
  if (!cell.firstElementChild) cell.append(copyButton());
  return cell.firstElementChild;
}
