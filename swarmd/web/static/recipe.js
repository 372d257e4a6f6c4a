/** What the node trains and how: kind, model, tasks, settings. */

import { byId, el, fill, say, tableHead } from "./dom.js";
import { count } from "./format.js";
import { plain } from "./tree.js";

/**
 * @typedef {{swarm: string, kind: string, role: string, stages: number, model: string, revision: string,
 *   device: string, parameters: number, numbers: string, configured: boolean,
 *   tasks: {name: string, weight: number, settings: Record<string, any>}[], settings: [string, any][]}} Recipe
 */

/** @param {Recipe} recipe */
export function showRecipe(recipe) {
  say(byId("recipe-from"), recipe.configured ? "from the node’s log and configuration" : "from the node’s log");
  const facts = [
    ["kind of swarm", recipe.kind || "not known here"],
    ["stages in a round", count(recipe.stages)],
    ["model", recipe.model + (recipe.revision ? ` at ${recipe.revision}` : "") || "not loaded yet"],
    ["parameters", recipe.parameters ? count(recipe.parameters) : ""],
    ["held in", recipe.numbers],
    ["device", recipe.device],
  ].filter(([, value]) => value);
  fill(byId("recipe-facts"), ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  fill(byId("recipe-tasks"), ...tasks(recipe));
  fill(byId("recipe-settings"), ...settings(recipe));
}

/** @param {Recipe} recipe */
function tasks(recipe) {
  if (!recipe.configured) return [];
  if (!recipe.tasks.length) return [el("h3", {}, "Tasks"), el("p", {}, "The kind’s own mixture.")];
  const rows = recipe.tasks.map((task) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, task.name),
      el("td", { class: "number" }, task.weight),
      el(
        "td",
        { class: "wrap" },
        Object.entries(task.settings)
          .map(([name, value]) => `${name} = ${JSON.stringify(value)}`)
          .join(", "),
      ),
    ),
  );
  const head = tableHead(["Task", "Weight", "Settings"], (index) => index === 1);
  return [el("h3", {}, "Tasks"), el("table", { class: "small" }, head, el("tbody", {}, ...rows))];
}

/** @param {Recipe} recipe */
function settings(recipe) {
  if (!recipe.configured)
    return [
      el("p", { class: "muted" }, "Tasks and settings are not in the log: start the dashboard with --config FILE."),
    ];
  const rows = recipe.settings.flatMap(([name, value]) => [
    el("dt", { class: "mono" }, name),
    el("dd", {}, plain(value)),
  ]);
  return [el("h3", {}, "Settings of [training]"), el("dl", { class: "facts settings" }, ...rows)];
}
