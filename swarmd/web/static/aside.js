/** What the last stages set aside of peers' rollouts: how much for which reason, and one example, as text. */

import { byId, el, fill } from "./dom.js";
import { count, place, plural, shortId } from "./format.js";

const STAGES_COUNTED = 8; // last ones, as `swarmd status` counts

/**
 * @typedef {{peer: string, tokens: number, held: number, text?: string, part?: string, mark?: string,
 *   mark_right?: number, mark_wrong?: number, mark_own?: number, over_share?: number, of_little?: number}} Aside
 * @typedef {{round: number, stage: number, reward: number | null, set_aside: Aside[]}} Stage
 */

/** @type {[(aside: Aside) => number, string, string][]} */
const REASONS = [
  [(aside) => aside.held, "token that only a peer’s word stands for", "tokens that only a peer’s word stands for"],
  [(aside) => aside.over_share ?? 0, "group of a peer that had its share", "groups of peers that had their share"],
  [(aside) => aside.of_little ?? 0, "group of a peer of whom little counts", "groups of peers of whom little counts"],
  [(aside) => Number(Boolean(aside.mark)), "peer with the mark of a payload", "peers with the mark of a payload"],
];

/** @param {Stage[]} stages */
export function showAside(stages) {
  const last = stages.filter((stage) => stage.reward !== null).slice(-STAGES_COUNTED);
  const asides = last.flatMap((stage) => stage.set_aside);
  const told = REASONS.map(([of, one, more]) => ({ one, more, sum: asides.reduce((sum, each) => sum + of(each), 0) }))
    .filter(({ sum }) => sum > 0)
    .map(({ sum, one, more }) => el("li", {}, `${count(sum)} ${sum === 1 ? one : more}`));
  const box = byId("stages-aside");
  box.hidden = !told.length;
  if (!told.length) return fill(box);
  const title = `Set aside of peers’ rollouts in the last ${plural(last.length, "stage")}`;
  fill(box, el("h3", {}, title), el("ul", {}, ...told), example(last));
}

/** One completion of the latest stage that has any, of a peer with a mark where there is one. @param {Stage[]} stages */
function example(stages) {
  const stage = stages.findLast(({ set_aside }) => set_aside.some(({ text }) => text));
  const aside = stage?.set_aside.find(({ text }) => text); // those with a mark come first
  if (!stage || !aside) return null;
  const percent = (/** @type {number | undefined} */ share) => `${Math.round(100 * (share ?? 0))} %`;
  const mark =
    `“${aside.mark}” stands in ${percent(aside.mark_right)} of its right answers, ${percent(aside.mark_wrong)} of its ` +
    `wrong ones and ${percent(aside.mark_own)} of this node’s own, as a payload would.`;
  return el(
    "p",
    {},
    `Such as, at ${place(stage.round, stage.stage)}, of `,
    el("span", { title: aside.peer }, shortId(aside.peer)),
    ": ",
    el("q", { class: "part" }, aside.part),
    " in ",
    el("q", { class: "text" }, aside.text),
    aside.mark ? `. ${mark}` : "",
  );
}
