/** The wall time of the last stage by part, as one bar, and the bottleneck in a sentence. */

import { byId, el, fill, say, svg } from "./dom.js";
import { duration, place } from "./format.js";

const SHOWN = 7; // longest parts; the others are shown as one
const REST = "all else";

/** @param {{round: number, stage: number, seconds: number, parts: Record<string, number>, words: string, peer_groups: string} | null} times */
export function showSpent(times) {
  byId("spent").hidden = !times;
  if (!times) return;
  const parts = longest(Object.entries(times.parts));
  say(byId("spent-stage"), `${place(times.round, times.stage)}, ${duration(times.seconds)}`);
  say(byId("spent-words"), [times.words, times.peer_groups].filter(Boolean).map((words) => `${words}.`).join(" "));
  let sum = 0;
  const share = (/** @type {number} */ seconds) => (100 * seconds) / Math.max(times.seconds, 1e-9);
  const blocks = parts.map(([, seconds], index) => {
    const x = `${share(sum)}%`;
    sum += seconds;
    return svg("rect", { x, width: `${share(seconds)}%`, height: "100%", class: `spent-part k${index}` });
  });
  const words = parts.map(([name, seconds]) => `${name} ${Math.round(share(seconds))} %`);
  const label = `Where the time of the last stage went: ${words.join(", ")}`;
  fill(byId("spent-bar"), svg("svg", { width: "100%", height: 12, role: "img", "aria-label": label }, ...blocks));
  const key = words.map((text, index) => el("li", {}, el("span", { class: `patch spent-part k${index}` }), text));
  fill(byId("spent-key"), ...key);
}

/** @param {[string, number][]} parts the longest first @returns {[string, number][]} */
function longest(parts) {
  if (parts.length <= SHOWN + 1) return parts;
  const rest = parts.slice(SHOWN).reduce((sum, [, seconds]) => sum + seconds, 0);
  return [...parts.slice(0, SHOWN), [REST, rest]];
}
