/** What became of a round and why: the sentences of `swarmd explain`, each with its event. */

import { get, givenUp } from "./api.js";
import { linkTo } from "./address.js";
import { byId, el, fill, say } from "./dom.js";
import { clock, count, shortIds } from "./format.js";
import { report } from "./top.js";

const SETTLE_MS = 250; // while scrubbing, a round is requested only after this pause
const AGAIN_MS = 3000; // least time between two requests for the open round

/**
 * @typedef {{round: number, outcome: string, verdict: string, advice: string[], cut: number,
 *   unread: string, sentences: {at: number, seq: number, text: string, trouble: boolean}[]}} RoundStory
 */

export class StoryPanel {
  constructor() {
    this.round = -1;
    this.shown = ""; // the shown text, to keep selections if it has not changed
    this.control = new AbortController();
    this.due = 0;
    this.againDue = 0;
  }

  /** Show the story of the chosen event's round. @param {any} moment Moment */
  static roundOf({ event, state }) {
    return event.round ?? state.work?.round ?? state.clock?.round ?? -1;
  }

  /** @param {number} round */
  choose(round) {
    if (round === this.round) return;
    this.round = round;
    clearTimeout(this.due);
    this.due = setTimeout(() => this.load(), SETTLE_MS);
  }

  /** On new events, refresh the story of the open round. */
  again() {
    this.againDue ||= setTimeout(() => {
      this.againDue = 0;
      this.load();
    }, AGAIN_MS);
  }

  async load() {
    this.control.abort();
    this.control = new AbortController();
    if (this.round < 0) {
      this.show(null);
      return;
    }
    try {
      this.show(await get(`node/rounds/${this.round}`, this.control.signal));
    } catch (error) {
      if (!givenUp(error)) report(error);
    }
  }

  /** @param {RoundStory | null} story */
  show(story) {
    const told = JSON.stringify(story);
    if (told === this.shown) return;
    this.shown = told;
    say(byId("story-title"), story ? `Round ${count(story.round)}` : "Round");
    if (!story) {
      fill(byId("story"), el("p", { class: "empty" }, "The swarm’s first round was not known yet."));
      return;
    }
    const lines = story.sentences.map((each) =>
      el(
        "li",
        each.trouble ? { class: "trouble" } : {},
        el("span", { class: "muted" }, clock(each.at)),
        el("a", { href: linkTo(each.seq), "aria-label": `Event ${each.seq}` }, each.seq),
        el("span", {}, `${shortIds(each.text)}.`),
      ),
    );
    const more = story.cut ? el("p", { class: "muted" }, `${count(story.cut)} more sentences are left out.`) : null;
    const advice = story.advice.map((line) => el("p", { class: "advice" }, line));
    fill(
      byId("story"),
      el("p", { class: `verdict ${story.outcome}` }, shortIds(story.verdict)),
      ...advice,
      story.unread ? el("p", { class: "unread" }, story.unread) : null,
      lines.length ? el("ol", { class: "sentences" }, ...lines) : null,
      more,
    );
  }
}
