/** What the contract says: votes, and this node's own submissions. */

import { byId, copyButton, el, fill, tableHead } from "./dom.js";
import { count, shortId } from "./format.js";

let before = "";

/** @param {any} view SwarmView */
export function showChain(view) {
  const { chain } = view;
  byId("chain").hidden = !chain;
  const now = JSON.stringify(chain);
  if (!chain || now === before) return;
  before = now;
  const names = new Map(view.peers.map((/** @type {any} */ peer) => [peer.id, peer.name]));
  fill(byId("chain-facts"), ...facts(chain).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  fill(byId("votes"), chain.votes.length ? votes(chain, names) : el("p", { class: "empty" }, "No vote has been seen."));
  const own = /** @type {HTMLElement} */ (byId("submissions").parentElement);
  own.hidden = !chain.account && !chain.submissions.length; // an observer has no account
  fill(byId("submissions"), chain.submissions.length ? submissions(chain) : el("p", { class: "empty" }, "None."));
}

/** @param {any} chain @returns {[string, any][]} */
function facts(chain) {
  const rows = /** @type {[string, any][]} */ ([
    ["chain", `${chain.chain_id}${chain.head < 0 ? "" : `, block ${count(chain.head)}`}`],
    ["round", chain.round < 0 ? "not read yet" : `${chain.round} · stage ${chain.stage}`],
    ["contract", copyButton(chain.contract)],
  ]);
  if (chain.account) rows.push(["account", copyButton(chain.account)]);
  return rows;
}

/** @param {any} chain @param {Map<string, string>} names */
function votes(chain, names) {
  const called = (/** @type {string} */ id) => el("span", { title: id, class: "voted" }, names.get(id) || shortId(id));
  const rows = chain.votes.map((/** @type {[string, number, string[]]} */ [voter, round, winners]) =>
    el(
      "tr",
      {},
      el("td", { class: "number round" }, round),
      el("td", {}, called(voter)),
      el("td", { class: "wrap" }, ...winners.map(called)),
    ),
  );
  return tabled("Latest votes", ["Round", "Voter", "For"], rows);
}

/** @param {any} chain */
function submissions(chain) {
  const rows = chain.submissions.map((/** @type {[string, string, string]} */ [id, state, hash]) =>
    el(
      "tr",
      {},
      el("td", { class: "mono" }, id),
      el(
        "td",
        { class: state === "refused" || state === "lost" ? "bad" : state === "confirmed" ? "accent" : "" },
        state,
      ),
      el("td", {}, hash ? copyButton(hash) : "—"),
    ),
  );
  return tabled("Own submissions", ["What", "State", "Transaction"], rows);
}

/** @param {string} caption @param {string[]} titles @param {any[]} rows */
function tabled(caption, titles, rows) {
  return el(
    "div",
    { class: "scroller chain-scroller", role: "region", "aria-label": caption, tabindex: 0 },
    el(
      "table",
      { class: "small" },
      tableHead(titles, (index) => titles[index] === "Round"),
      el("tbody", {}, ...rows),
    ),
  );
}
