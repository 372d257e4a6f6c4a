/** The bar at the top, the notice below it, and the loading of a page. */

import { byId, el, fill, say } from "./dom.js";
import { get, givenUp } from "./api.js";
import { duration } from "./format.js";

const THEMES = ["auto", "light", "dark"];
const RETRY_MS = 3000;
const READING_MS = 400; // between two polls while a long log is read, which takes seconds
const TROUBLE_MS = 5000; // between two polls of whether the log can still be read

/**
 * @typedef {{version: string, node: boolean, swarm: boolean, live: boolean, peer: string, name: string,
 *   swarm_id: string,
 *   data: string, trouble: string, read: number}} PageSource
 */

/** Let the theme be switched; it is remembered in this browser. */
export function bindTheme() {
  const button = byId("theme");
  const show = () => say(button, `Theme: ${document.documentElement.dataset.theme ?? "auto"}`);
  button.addEventListener("click", () => {
    const now = document.documentElement.dataset.theme ?? "auto";
    const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    localStorage.setItem("swarmd.theme", next);
    show();
    dispatchEvent(new Event("themechange"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("themechange")));
  show();
}

/** Show an error; an empty text clears it. @param {string} text */
export function notice(text) {
  say(byId("notice"), text);
}

/**
 * Ask what the server shows, until it answers and has read its log.
 * @param {(found: PageSource) => void} [show] what comes on the way
 * @returns {Promise<PageSource>}
 */
export async function here(show = showHere) {
  for (;;) {
    const found = await get("here").catch(report);
    if (found) show(found);
    if (found && (found.read >= 1 || found.trouble)) return found;
    await new Promise((resolve) => setTimeout(resolve, found ? READING_MS : RETRY_MS));
  }
}

/**
 * Poll for problems of the log and show changes: the server finds damage only after some seconds.
 * @param {PageSource} found what the server said last
 */
export function followTrouble(found) {
  let told = found.trouble;
  setInterval(async () => {
    const now = await get("here").catch(() => null);
    if (now && now.trouble !== told) notice((told = now.trouble));
  }, TROUBLE_MS);
}

/** @param {PageSource} found */
function showHere(found) {
  notice(found.trouble);
  byId("to-swarm").hidden = !found.swarm;
  byId("to-node").hidden = !found.node;
  byId("pulse").dataset.state = found.live ? "connecting" : "archive";
  const state = found.live ? "connecting" : "archive";
  say(byId("pulse"), found.read < 1 ? `reading the log, ${Math.floor(found.read * 100)} %` : state);
  const source = found.data ? ` · ${found.data}` : "";
  fill(byId("foot"), `swarmd ${found.version}${source}`, found.live ? null : " · an archive: it does not change");
}

/** Say an error as a sentence. @param {unknown} error */
export function report(error) {
  if (givenUp(error)) return;
  notice(error instanceof Error ? error.message : String(error));
  if (!(error instanceof Error) || error.name !== "Error") console.error(error); // a bug of the page itself
}

/** Request data for a part of the page, and show it. @param {string} path @param {(answer: any) => void} show */
export async function showPart(path, show) {
  try {
    show(await get(path));
  } catch (error) {
    report(error);
  }
}

let process = "running"; // the node's last known process state

/** @param {string} state of a node's process; "out of reach": of an observer */
export function hasEnded(state) {
  return ["dead", "stopped", "never started", "out of reach"].includes(state);
}

/** Set the node's process state, shown beside the stream's. @param {string} state of the node's process */
export function showProcess(state) {
  process = state;
  if (byId("pulse").dataset.state === "live") showCondition({ state: "live" }, () => {});
}

/**
 * Show the state of the stream, or of the node if it has ended.
 * @param {import("./stream.js").Condition} condition
 * @param {() => void} retry
 */
export function showCondition(condition, retry) {
  const pulse = byId("pulse");
  const ended = condition.state === "live" && hasEnded(process);
  pulse.dataset.state = condition.state;
  pulse.dataset.node = ended ? (process === "dead" ? "dead" : "ended") : "";
  const how = process === "never started" ? "was never started here" : `is ${process}`;
  const words = process === "out of reach" ? "reaches nobody of the swarm" : `the node ${how}`;
  if (condition.state !== "lost") {
    say(pulse, ended ? words : condition.state === "live" ? "connected" : condition.state);
    return;
  }
  const wait = duration((condition.delay_ms ?? 0) / 1000);
  fill(
    pulse,
    el("span", {}, `connection lost, again in ${wait}`),
    el("button", { type: "button", onclick: retry }, "Now"),
  );
}
