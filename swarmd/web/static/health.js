/** The layers of a node's health, each with its state, age and reason. */

import { byId, copyButton, el, fill, say } from "./dom.js";
import { legend } from "./patches.js";
import { age, coins, count, duration, place, plural, reward, shortIds } from "./format.js";

const LAYERS = [
  ["process", "Process"],
  ["network", "Network"],
  ["training", "Training"],
  ["round", "Round"],
  ["chain", "Chain"],
  ["submissions", "Submissions"],
  ["learning", "Learning"],
];
const DETAILS = /** @type {Record<string, (layer: any, status: any) => (string | false)[]>} */ ({
  process: (layer) => [
    layer.pid > 0 && `pid ${layer.pid}`,
    layer.rss_bytes > 0 && `${Math.round(layer.rss_bytes / 1048576)} MiB`,
    layer.version && `swarmd ${layer.version}`,
    layer.exit_code !== null && `exit code ${layer.exit_code}`,
  ],
  network: (layer) => [plural(layer.peers, "peer")],
  training: (layer, status) => [
    layer.model && `${layer.model} on ${layer.device}`,
    layer.doing && (layer.total > 0 ? `${layer.doing} ${layer.done} of ${layer.total}` : layer.doing),
    layer.step,
    layer.other_weights && `begun from other weights than the swarm: ${layer.other_weights}`,
    layer.figures.tokens_per_s > 0 && `${Math.round(layer.figures.tokens_per_s)} tokens/s`,
    ...weightsWords(status.weights),
  ],
  round: (layer) => [
    layer.round >= 0 && (layer.final ? `${count(layer.round)} rounds have been run` : place(layer.round, layer.stage)),
    layer.deadline_in_s > 0 && `deadline in ${duration(layer.deadline_in_s)}`,
    `${count(layer.joined)} joined, ${count(layer.skipped)} skipped`,
  ],
  chain: (layer) => [
    layer.block >= 0 && `block ${count(layer.block)}`,
    layer.lag_s !== null && `${duration(layer.lag_s)} behind`,
    layer.rounds_paid !== null && `pays for ${count(layer.rounds_paid)} rounds`,
    dayWords(layer),
    layer.endpoint,
  ],
  submissions: (layer) => [
    `${layer.confirmed} confirmed`,
    layer.waiting + layer.sent > 0 && `${layer.waiting + layer.sent} under way`,
    layer.refused > 0 && `${layer.refused} refused`,
  ],
  learning: (layer) => [place(layer.round, layer.stage), `reward ${reward(layer.reward)}`],
});

legend("layers-key", [
  ["health-good", "healthy"],
  ["health-bad", "not healthy"],
  ["health-off", "stopped in order"],
]);

let before = "";

/** @param {any} status Status */
export function showStatus(status) {
  showWho(status);
  const layers = LAYERS.filter(([key]) => status[key]);
  const list = byId("layers");
  const keys = layers.map(([key]) => key).join();
  if (keys !== before) fill(list, ...layers.map(([, title]) => card(title)));
  before = keys;
  layers.forEach(([key], index) => paint(list.children[index], key, status));
}

/** @param {any} status */
function showWho(status) {
  say(byId("node-name"), status.name || "Node");
  document.title = `${status.name || "Node"} · swarmd`;
  if (status.peer && byId("node-id").dataset.of !== status.peer) fill(byId("node-id"), copyButton(status.peer));
  byId("node-id").dataset.of = status.peer;
  const rejected = Object.values(status.rejections).reduce((sum, each) => sum + each, 0);
  const facts = [
    status.role && `${status.role} in ${status.swarm}`,
    `reward ${reward(status.reward_total)} in all`,
    `${count(status.log.next_seq)} events`,
    rejected ? `${plural(rejected, "record")} of peers refused` : "",
  ];
  say(byId("node-facts"), facts.filter(Boolean).join(" · "));
  say(byId("tokens"), status.tokens ? `Tokens: ${status.tokens.words}.` : "");
  byId("tokens").className = status.tokens?.difference ? "warning" : "muted";
  byId("node-credit").className = status.credit?.state === "not credited" ? "warning" : "muted";
  say(byId("node-credit"), status.credit ? `Credit: ${shortIds(status.credit.words)}.` : "");
}

/** @param {string} title */
function card(title) {
  return el(
    "li",
    { class: "layer panel" },
    el(
      "div",
      { class: "layer-head" },
      el("h2", {}, title),
      el("span", { class: "layer-state" }),
      el("span", { class: "layer-age muted" }),
    ),
    el("p", { class: "layer-reason" }),
    el("p", { class: "layer-details muted" }),
    el("p", { class: "layer-worker muted" }),
  );
}

/** @param {any} node @param {string} key @param {any} status Status */
function paint(node, key, status) {
  const [layer, stopped] = [status[key], ["stopped", "never started"].includes(status.process.state)];
  const [head, reason, details, worker] = node.children;
  node.dataset.health = layer.healthy ? "good" : stopped ? "off" : "bad";
  say(head.children[2], layer.age_s > 0 ? `for ${age(layer.age_s)}` : "");
  fill(head.children[1], layer.state, el("span", { class: "unseen" }, layer.healthy ? ", healthy" : ", not healthy"));
  say(reason, layer.reason);
  say(details, DETAILS[key](layer, status).filter(Boolean).join(" · "));
  say(worker, layer.worker ? workerWords(layer.worker) : "");
}

/** Weights offered to peers and taken from them. @param {any} weights WeightsStatus, or null */
function weightsWords(weights) {
  if (!weights) return [];
  const { awaited_s: awaited, taken, offered } = weights;
  return [
    awaited > 0 && `waits for a peer’s weights, ${duration(awaited)} more at most`,
    taken && `${taken.words} (${age(taken.age_s)} ago)`,
    offered && `${offered.words} (${age(offered.age_s)} ago)`,
  ];
}

/** The part of the day's gas budget that is spent, unless the reason already says it. @param {any} layer ChainStatus */
function dayWords(layer) {
  const { day_spent_coins: spent, day_coins_max: most } = layer;
  if (spent === null || (!spent && !most) || layer.reason.includes("the day's budget")) return false;
  return `signed for ${coins(spent)}${most ? ` of ${coins(most)}` : ""} coins today (UTC)`;
}

/** @param {{pid: number, restarts: number, outside: number, last_exit: string, answering: boolean | null}} worker */
function workerWords(worker) {
  const words = [
    worker.pid ? `worker ${worker.pid}` : "",
    worker.answering === false ? "silent" : "",
    worker.restarts ? plural(worker.restarts, "restart") : "",
    worker.outside ? `${plural(worker.outside, "end")} caused from outside, not counted as restarts` : "",
  ];
  const ended = (worker.restarts || worker.outside) && worker.last_exit;
  const exit = ended ? `last exit: ${worker.last_exit.split("\n")[0]}` : "";
  return [...words, exit].filter(Boolean).join(" · ");
}
