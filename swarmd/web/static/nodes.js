/** The page of several nodes: a row for each, the curves of all, and whose tokens each was trained on. */

import { get } from "./api.js";
import { drawLines } from "./axes.js";
import { byId, el, fill, say, svg, tableHead } from "./dom.js";
import { count, place, plural, reward, shortIds } from "./format.js";
import { bindTheme, notice, report } from "./top.js";

const EVERY_MS = 5000;
const COLOURS = 8;
const SIZE = { height: 180, left: 40, right: 10, top: 10, bottom: 22 };
const TITLES = ["Node", "Health", "At", "Reward", "Last", "Held out", "Trained on", "Wants attention"];
const DEAD = ["dead", "unreachable", "mute"];

/**
 * @typedef {[round: number, stage: number, reward: number, held_out: number | null]} Point
 * @typedef {{place: string, url: string, name: string, peer: string, swarm: string, role: string, state: string,
 *   healthy: boolean, at: number, round: number, stage: number, reward_total: number, attention: string[],
 *   points: Point[], taught_by: Record<string, number>, generated: number, trained: number}} Row
 */

/** @type {Row[]} */
let rows = [];

const nameOf = (/** @type {Row} */ row) => row.name || row.place;
const percent = (/** @type {number} */ value) => `${(100 * value).toFixed(1)} %`;
const colourOf = (/** @type {number} */ index) => `k${index % COLOURS} d${Math.floor(index / COLOURS)}`;

function show() {
  const bad = rows.filter((row) => row.at && !row.healthy).length;
  const sum = rows.reduce((total, row) => total + row.reward_total, 0);
  const well = bad ? `${plural(bad, "node")} of ${rows.length} not well` : `${plural(rows.length, "node")}`;
  say(byId("sum"), `${well} · reward ${reward(sum)} in all`);
  fill(byId("nodes"), tableHead(TITLES, (title) => ["Reward", "Last", "Held out", "Trained on"].includes(title)));
  byId("nodes").append(el("tbody", {}, ...rows.map(line)));
  const missing = rows.some((row) => !row.at && row.state === "being asked");
  byId("pulse").dataset.state = missing ? "connecting" : "live";
  say(byId("pulse"), missing ? "asking the nodes" : "connected");
  plot("accuracy", ([, , , held]) => held, { least: 0, most: 1 }, "Held-out accuracy was not measured yet");
  plot("rewards", ([, , value]) => value, {}, "No stage has been trained yet");
  showTaught();
}

/** @param {Row} row @param {number} index */
function line(row, index) {
  const last = row.points[row.points.length - 1];
  const held = row.points.findLast((point) => point[3] !== null);
  const name = row.url ? el("a", { href: `${row.url}/node` }, nameOf(row)) : el("strong", {}, nameOf(row));
  const how = row.url || !row.at ? row.place : `swarmd dashboard ${row.place}`;
  const health = row.healthy || !row.at ? "good" : DEAD.includes(row.state) ? "bad" : "unwell";
  const number = (/** @type {string} */ text) => el("td", { class: "number" }, text);
  return el(
    "tr",
    { "data-health": row.state === "unreachable" ? "bad" : health },
    el("td", { class: "who" }, el("span", { class: `swatch ${colourOf(index)}` }), name, el("span", { class: "muted" }, how)),
    el("td", { class: "state" }, row.state === "running" ? (row.healthy ? "well" : "not well") : row.state),
    el("td", {}, row.round >= 0 ? place(row.round, row.stage) : ""),
    number(row.at ? reward(row.reward_total) : ""),
    number(last ? reward(last[2]) : ""),
    number(held ? percent(held[3] ?? 0) : ""),
    number(row.generated ? `${count(row.trained)} of ${count(row.generated)} tokens` : ""),
    el("td", { class: "attention" }, ...row.attention.map((words) => el("div", {}, shortIds(words)))),
  );
}

/**
 * @param {string} id @param {(point: Point) => number | null} of @param {{least?: number, most?: number}} axis
 * @param {string} none
 */
function plot(id, of, axis, none) {
  const stages = 1 + Math.max(0, ...rows.flatMap((row) => row.points.map((point) => point[1])));
  const lines = rows
    .map((row, index) => ({
      line: colourOf(index),
      points: row.points
        .map((point) => /** @type {[number, number | null]} */ ([point[0] + point[1] / stages, of(point)]))
        .filter((point) => point[1] !== null),
    }))
    .filter((each) => each.points.length);
  const width = Math.max(200, byId(id).clientWidth);
  const label = `${byId(`${id}-title`).textContent} of ${plural(lines.length, "node")} by round`;
  const drawing = svg("svg", { width, height: SIZE.height, viewBox: `0 0 ${width} ${SIZE.height}`, role: "img", "aria-label": label });
  if (lines.length) drawLines(drawing, /** @type {any} */ (lines), { width, ...SIZE }, axis);
  fill(byId(id), lines.length ? drawing : el("p", { class: "muted" }, none));
}

function showTaught() {
  const by = new Map(rows.filter((row) => row.peer).map((row) => [row.peer, row]));
  const told = rows.flatMap((row) =>
    Object.entries(row.taught_by)
      .filter(([peer]) => by.has(peer))
      .map(([peer, tokens]) => `${nameOf(/** @type {Row} */ (by.get(peer)))} taught ${nameOf(row)} ${plural(tokens, "token")}`),
  );
  byId("taught-panel").hidden = !told.length;
  fill(byId("taught"), ...told.map((words) => el("li", {}, words)));
}

async function look() {
  try {
    rows = (await get("nodes")).nodes;
    notice("");
    show();
  } catch (error) {
    byId("pulse").dataset.state = "lost";
    report(error);
  }
  const waits = rows.some((row) => row.state === "being asked");
  setTimeout(() => (document.hidden ? document.addEventListener("visibilitychange", look, { once: true }) : look()), waits ? 500 : EVERY_MS);
}

bindTheme();
addEventListener("resize", show);
await look();
