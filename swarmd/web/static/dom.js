/** Creates elements. Text from outside only ever becomes a text node. */

import { shortId } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

/**
 * @typedef {Node | string | number | null | undefined | false} Child
 * @typedef {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} Attributes
 */

/**
 * @param {Element} element
 * @param {Attributes} attributes a function is a listener ("onclick"), true an empty attribute, null or false none
 * @param {Child[]} children
 */
function furnish(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...shown(children));
}

/** @param {Child[]} children @returns {(Node | string)[]} */
function shown(children) {
  const kept = children.filter((child) => child !== null && child !== undefined && child !== false);
  return kept.map((child) => (child instanceof Node ? child : String(child)));
}

/**
 * An HTML element.
 * @param {string} tag @param {Attributes} [attributes] @param {...Child} children
 * @returns {any}
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  furnish(element, attributes, children);
  return element;
}

/**
 * An SVG element.
 * @param {string} tag @param {Attributes} [attributes] @param {...Child} children
 * @returns {any}
 */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  furnish(element, attributes, children);
  return element;
}

/**
 * The head of a table.
 * @param {string[]} titles @param {(index: number) => boolean} [isNumber] whether a column holds numbers
 */
export function tableHead(titles, isNumber = () => false) {
  const cells = titles.map((title, index) => el("th", { scope: "col", class: isNumber(index) ? "number" : "" }, title));
  return el("thead", {}, el("tr", {}, ...cells));
}

/** Replace the children of an element. @param {Element} element @param {...Child} children */
export function fill(element, ...children) {
  element.replaceChildren(...shown(children));
}

/** The element with this id, which the page has. @param {string} id @returns {any} */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element #${id}`);
  return found;
}

/**
 * Set text only if it differs, so that a screen reader announces real changes only, and selections stay.
 * @param {Element} element
 * @param {string} text
 */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * A button that shows the short form of an id and copies the whole.
 * @param {string} [id]
 * @returns {any}
 */
export function copyButton(id = "") {
  const button = el("button", { type: "button", class: "plain copy", onclick: () => copy(button) });
  setCopy(button, id);
  return button;
}

/** @param {any} button one of `copyButton` @param {string} id */
export function setCopy(button, id) {
  if (button.dataset.id === id) return;
  button.dataset.id = id;
  button.title = id;
  button.setAttribute("aria-label", `Copy ${id}`);
  button.textContent = shortId(id);
}

/** Put a text into the clipboard. @param {string} text */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    select(text); // without a secure context there is no clipboard to write to
  }
}

/** @param {any} button */
async function copy(button) {
  await copyText(button.dataset.id);
  button.dataset.copied = "";
  setTimeout(() => delete button.dataset.copied, 1500);
}

/** The old way to copy. @param {string} text */
function select(text) {
  const field = el("textarea", { class: "unseen", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
