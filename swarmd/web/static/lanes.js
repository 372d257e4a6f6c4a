/** The page of the timeline over nodes. */

import { get } from "./api.js";
import { byId, el, fill, say } from "./dom.js";
import { drawLanes } from "./lanesdraw.js";
import { bindTheme, notice, report } from "./top.js";

const EVERY_MS = 2000; // between two polls of running nodes

/**
 * @typedef {import("./lanesdraw.js").TimelineEvent} TimelineEvent
 * @typedef {{swarm: string, nodes: {node: string}[], clocks: string[], first: number, last: number}} TimelineView
 */

const KINDS = [
  ["rollouts", "Rollouts"],
  ["report", "Reports"],
  ["clock", "Clock"],
  ["weights", "Weights"],
];
const shown = new Set(KINDS.map(([kind]) => kind));
/** @type {TimelineView | null} */
let view = null;
/** @type {TimelineEvent[]} */
let events = [];
let drawn = ""; // what is shown, to redraw only on changes
let picked = ""; // key of the selected event

/** @param {TimelineEvent} event */
function keyOf(event) {
  return `${event.node}/${event.seq}/${event.event}`;
}

/** Select an event; selecting it again clears the selection. @param {TimelineEvent} event */
function pick(event) {
  picked = picked === keyOf(event) ? "" : keyOf(event);
  show();
  if (picked) byId("events").querySelector("[data-picked]")?.scrollIntoView({ block: "nearest" });
}

function show() {
  if (!view) return;
  const names = view.nodes.map((each) => each.node);
  const lanes = byId("lanes");
  lanes.toggleAttribute("data-picking", picked !== "");
  drawLanes(lanes, names, events, shown, (event) => keyOf(event) === picked, pick);
  fill(byId("events"), ...events.map(row));
  const event = events.find((each) => keyOf(each) === picked);
  say(byId("picked"), event ? `${event.node} ${event.words}` : "");
}

/** @param {TimelineEvent} event */
function row(event) {
  const at = new Date(event.time * 1000).toISOString().slice(11, 23);
  const arrows = event.arrows.filter((arrow) => shown.has(arrow.kind));
  const lines = arrows.map((arrow) =>
    el("li", { class: arrow.seq === null ? "lost" : "" }, `${arrow.seq === null ? "✗" : "→"} ${arrow.node}: ${arrow.words}`),
  );
  return el(
    "li",
    { "data-picked": keyOf(event) === picked },
    el("time", {}, at),
    el("strong", {}, event.node),
    el("button", { type: "button", class: "plain", onclick: () => pick(event) }, event.words),
    lines.length > 0 && el("ul", {}, ...lines),
  );
}

/** Read a round and show it, if it has changed. @param {number} round */
async function load(round) {
  say(byId("at"), view && view.last >= 0 ? `${round} of ${view.last}` : "none yet");
  if (!view || view.last < 0) return;
  const found = await get(`timeline/rounds/${round}`);
  if (Number(byId("round").value) !== round) return; // the scrubber was moved meanwhile
  const now = JSON.stringify(found);
  if (now === drawn) return;
  drawn = now;
  events = found.events;
  show();
}

/** Read the range of rounds; a scrubber that follows moves to its end. */
async function look() {
  const found = /** @type {TimelineView} */ (await get("timeline"));
  view = found;
  const scrubber = byId("round");
  scrubber.min = String(Math.max(found.first, 0));
  scrubber.max = String(Math.max(found.last, 0));
  if (byId("follow").checked) scrubber.value = scrubber.max;
  say(byId("title"), `Timeline of ${found.nodes.length} nodes`);
  say(byId("clocks"), found.clocks.join(" · "));
  byId("pulse").dataset.state = "live";
  say(byId("pulse"), "connected");
  notice("");
  await load(Number(scrubber.value));
}

async function keepLooking() {
  for (;;) {
    await look().catch((error) => {
      byId("pulse").dataset.state = "lost";
      say(byId("pulse"), "connection lost");
      report(error);
    });
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
}

function bind() {
  byId("round").addEventListener("input", () => {
    byId("follow").checked = byId("round").value === byId("round").max;
    picked = "";
    load(Number(byId("round").value)).catch(report);
  });
  byId("follow").addEventListener("change", () => look().catch(report));
  const buttons = KINDS.map(([kind, title]) => {
    const button = el("button", { type: "button", "aria-pressed": "true", onclick: () => toggle(kind, button) }, title);
    return button;
  });
  fill(byId("key"), ...buttons);
  addEventListener("resize", show);
}

/** @param {string} kind @param {HTMLElement} button */
function toggle(kind, button) {
  if (!shown.delete(kind)) shown.add(kind);
  button.setAttribute("aria-pressed", String(shown.has(kind)));
  show();
}

bindTheme();
bind();
keepLooking();
