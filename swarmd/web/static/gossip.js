/** Peers' messages, newest first; shown as plain text, whatever markup they contain. */

import { linkTo } from "./address.js";
import { byId, copyButton, el, fill, say } from "./dom.js";
import { clock, count, plural, reward } from "./format.js";
import { legend } from "./patches.js";

const SHOWN_MAX = 200;
const SEEN_MAX = 2000; // ids remembered, to show no message twice
const LONG = 320; // characters beyond which a message is folded

/**
 * @typedef {{id: string, peer: string, name: string, round: number, stage: number, task: string,
 *   question: string, text: string, at: number, seq: number | null, completions: number, truth: string | null,
 *   reward: number | null, right: boolean | null, mean_reward: number | null}} Message
 */

export class Gossip {
  constructor() {
    this.list = byId("gossip");
    this.seen = /** @type {Set<string>} */ (new Set());
    this.items = /** @type {Map<string, any>} */ (new Map()); // those in the list, by the message's id
    this.waiting = /** @type {Message[]} */ ([]);
    this.held = new Set(); // reasons for not moving the list: "pointer", "focus"
    const scroller = byId("gossip-scroller");
    const hold = (/** @type {string} */ why, /** @type {boolean} */ on) => () => this.hold(why, on);
    scroller.addEventListener("pointerenter", hold("pointer", true));
    scroller.addEventListener("pointerleave", hold("pointer", false));
    scroller.addEventListener("focusin", hold("focus", true));
    scroller.addEventListener("focusout", hold("focus", false));
    this.tell();
    legend("gossip-key", [
      ["said-right", "right"],
      ["said-wrong", "wrong, or in another form"],
    ]);
  }

  /** @param {Message[]} messages newest first */
  showAll(messages) {
    for (const message of [...messages].reverse()) this.add(message);
  }

  /** @param {Message} message */
  add(message) {
    if (this.seen.has(message.id)) {
      this.renew(message);
      return;
    }
    this.seen.add(message.id);
    if (this.seen.size > SEEN_MAX) this.seen.delete(this.seen.values().next().value ?? "");
    this.waiting.push(message);
    this.waiting = this.waiting.slice(-SHOWN_MAX);
    if (!this.held.size) this.flush();
    this.tell();
  }

  /** Update a message that has been scored. @param {Message} message */
  renew(message) {
    const shown = this.items.get(message.id);
    const [head, ...rest] = shown?.children ?? [];
    if (shown && message.reward !== null && !rest.some((each) => each.matches(".scored"))) {
      const unfolded = shown.querySelector("[aria-expanded=true]") !== null;
      fill(shown, head, ...parts(message, unfolded));
    }
    this.waiting = this.waiting.map((each) => (each.id === message.id ? message : each));
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
    const fresh = this.waiting.splice(0).map((message) => {
      const made = item(message);
      this.items.set(message.id, made);
      return made;
    });
    this.list.prepend(...fresh.reverse());
    while (this.list.childElementCount > SHOWN_MAX) this.list.lastElementChild.remove();
    for (const [id, made] of this.items) if (!made.isConnected) this.items.delete(id);
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
    el("span", { class: "muted" }, `round ${message.round} · stage ${message.stage}`),
    message.task ? el("span", { class: "muted" }, message.task) : null,
    el(
      "span",
      { class: "when muted" },
      el("time", {}, clock(message.at)),
      message.seq === null ? null : el("a", { href: linkTo(message.seq) }, `#${count(message.seq)}`),
    ),
  );
  return el("li", {}, head, ...parts(message, false));
}

/** The body of a message. @param {Message} message @param {boolean} unfolded */
function parts(message, unfolded) {
  const question = message.question ? el("p", { class: "question" }, message.question) : null;
  return [question, ...body(message.text, unfolded), message.reward === null ? null : scored(message)];
}

/** How this node scored it. @param {Message} message */
function scored(message) {
  const others = message.completions > 1 ? ` (mean of ${message.completions}: ${reward(message.mean_reward)})` : "";
  return el(
    "p",
    { class: `scored ${message.right ? "right" : "wrong"}` },
    el("strong", {}, message.right ? "right" : "wrong"),
    el("span", {}, `reward ${reward(message.reward)}${others}`),
    message.truth ? el("span", { class: "truth" }, "expected ", el("b", {}, message.truth)) : null,
  );
}

/** @param {string} text @param {boolean} unfolded */
function body(text, unfolded) {
  const words = el("p", { class: "words" }, text);
  if (text.length <= LONG && text.split("\n").length <= 5) return [words];
  words.classList.toggle("folded", !unfolded);
  const more = el(
    "button",
    {
      type: "button",
      class: "plain",
      "aria-expanded": String(unfolded),
      onclick: () => {
        const folded = words.classList.toggle("folded");
        more.setAttribute("aria-expanded", String(!folded));
        say(more, folded ? "More" : "Less");
      },
    },
    unfolded ? "Less" : "More",
  );
  return [words, more];
}
