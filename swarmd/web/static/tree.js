/** Shows any value as a tree, built only as far as it is opened. */

import { el } from "./dom.js";
import { brief, shortIds } from "./format.js";

const CHUNK = 100; // members built at once
const LINE = 110; // characters shown of a value on one line

/**
 * @param {string} name @param {any} value
 * @param {Set<string>} open paths that are open; kept up to date
 * @param {string} [path]
 * @returns {any}
 */
export function tree(name, value, open, path = name) {
  if (value === null || typeof value !== "object")
    return el("div", { class: "leaf" }, el("span", { class: "key" }, name), plain(value));
  const entries = Object.entries(value);
  const size = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  const node = el(
    "details",
    {},
    el("summary", {}, el("span", { class: "key" }, name), el("span", { class: "muted" }, size)),
  );
  const build = () => {
    if (node.childElementCount > 1) return;
    const body = el("div", { class: "branch" });
    node.append(body);
    grow(body, entries, 0, open, path);
  };
  node.addEventListener("toggle", () => {
    if (node.open) open.add(path);
    else open.delete(path);
    if (node.open) build();
  });
  if (open.has(path)) {
    build();
    node.open = true;
  }
  return node;
}

/**
 * @param {any} body
 * @param {[string, any][]} entries
 * @param {number} from
 * @param {Set<string>} open
 * @param {string} path
 */
function grow(body, entries, from, open, path) {
  const part = entries.slice(from, from + CHUNK);
  body.append(...part.map(([key, value]) => tree(key, value, open, `${path}.${key}`)));
  if (from + CHUNK >= entries.length) return;
  const more = el(
    "button",
    {
      type: "button",
      onclick: () => {
        more.remove();
        grow(body, entries, from + CHUNK, open, path);
      },
    },
    `${entries.length - from - CHUNK} more`,
  );
  body.append(more);
}

/** A value on one line; a long one is cut, and complete in its title. @param {any} value */
export function plain(value) {
  const text = shortIds(brief(value));
  return el(
    "span",
    { class: "value", title: text.length > LINE ? text.slice(0, 4000) : null },
    text.length > LINE ? `${text.slice(0, LINE)}…` : text,
  );
}
