/** Legends: what each colour of a panel means. */

import { byId, el, fill } from "./dom.js";

/**
 * @param {string} id of the list
 * @param {[name: string, words: string, title?: string][]} entries the class that paints the patch, and what it means
 */
export function legend(id, entries) {
  const items = entries.map(([name, words, title]) =>
    el("li", title ? { title } : {}, el("span", { class: `patch ${name}`, "aria-hidden": "true" }), words),
  );
  fill(byId(id), ...items);
}
