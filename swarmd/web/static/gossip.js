/** What peers wrote, newest first: text and nothing but text, whatever they made of it. */

import { byId, copyButton, el, fill, say } from "./dom.js";
import { clock, plural } from "./format.js";

const SHOWN_MAX = 200;
const SEEN_MAX = 2000; // ids remembered, so that none comes twice
const LONG = 320; // characters beyond which a message is folded

/**
 * @typedef {{id: string, peer: string, name: string, round: number, stage: number, task: string,
 *   question: string, text: string, at: number}} Message
 */

export class Gossip {
  constructor() {
    this.list = byId("gossip");
    this.seen = /** @type {Set<string>} */ (new Set());
    this.waiting = /** @type {Message[]} */ ([]);
    this.held = new Set(); // reasons why nothing moves: "pointer", "focus"
    const scroller = byId("gossip-scroller");
    const hold = (/** @type {string} */ why, /** @type {boolean} */ on) => () => this.hold(why, on);
    scroller.addEventListener("pointerenter", hold("pointer", true));
    scroller.addEventListener("pointerleave", hold("pointer", false));
    scroller.addEventListener("focusin", hold("focus", true));
    scroller.addEventListener("focusout", hold("focus", false));
    this.tell();
  }

  /** @param {Message[]} messages newest first */
  showAll(messages) {
    for (const message of [...messages].reverse()) this.add(message);
  }

  /** @param {Message} message */
  add(message) {
    if (this.seen.has(message.id)) return;
    this.seen.add(message.id);
    if (this.seen.size > SEEN_MAX) this.seen.delete(this.seen.values().next().value ?? "");
    this.waiting.push(message);
    this.waiting = this.waiting.slice(-SHOWN_MAX);
    if (!this.held.size) this.flush();
    this.tell();
  }

  /** @param {string} why @param {boolean} on */
  hold(why, on) {
    if (on) this.held.add(why);
    else this.held.delete(why);
    if (!this.held.size) this.flush();
    this.tell();
  }

  flush() {
    if (this.waiting.length) this.list.querySelector(".empty")?.remove();
    this.list.prepend(...this.waiting.splice(0).reverse().map(item));
    while (this.list.childElementCount > SHOWN_MAX) this.list.lastElementChild.remove();
  }

  tell() {
    const waiting = this.waiting.length
      ? `paused, ${plural(this.waiting.length, "new message")}`
      : "paused while you read";
    say(byId("gossip-state"), this.held.size ? waiting : "");
    if (!this.list.childElementCount) fill(this.list, el("li", { class: "empty" }, "Nothing has been shared yet."));
  }
}

/** @param {Message} message */
function item(message) {
  const head = el(
    "div",
    { class: "said-by" },
    el("strong", {}, message.name || "no name"),
    copyButton(message.peer),
    el("span", { class: "muted" }, `round ${message.round}.${message.stage}`),
    message.task ? el("span", { class: "muted task" }, message.task) : null,
    el("time", { class: "muted" }, clock(message.at)),
  );
  const question = message.question ? el("p", { class: "question" }, message.question) : null;
  return el("li", {}, head, question, ...body(message.text));
}

/** @param {string} text */
function body(text) {
  const words = el("p", { class: "words" }, text);
  if (text.length <= LONG && text.split("\n").length <= 5) return [words];
  words.classList.add("folded");
  const more = el(
    "button",
    {
      type: "button",
      class: "plain",
      "aria-expanded": "false",
      onclick: () => {
        const folded = words.classList.toggle("folded");
        more.setAttribute("aria-expanded", String(!folded));
        say(more, folded ? "More" : "Less");
      },
    },
    "More",
  );
  return [words, more];
}
