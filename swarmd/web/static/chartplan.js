/**
 * Decides which transitions of a statechart are drawn as arrows, and which as a note beside a state.
 *
 * A trigger that leads to one state from three or more would hide everything under its arrows, so it becomes a note at
 * that state ("drain, from 7"). Transitions from a state to several children of another become one arrow to their box.
 */

const MANY = 3;

/**
 * @typedef {{name: string, label: string, parent: string}} ChartState
 * @typedef {{trigger: string, source: string, dest: string}} ChartEdge
 * @typedef {{name: string, initial: string, states: ChartState[], edges: ChartEdge[]}} ChartView
 * @typedef {{source: string, dest: string, label: string, edges: ChartEdge[]}} Arrow
 * @typedef {{dest: string, label: string, edges: ChartEdge[]}} Note
 */

/** @param {ChartView} chart @returns {{arrows: Arrow[], notes: Note[]}} */
export function plan(chart) {
  const order = new Map(chart.states.map((state, index) => [state.name, index]));
  const parents = new Set(chart.states.map((state) => state.parent));
  const leaves = chart.states.filter((state) => !parents.has(state.name)).map((state) => state.name);
  const groups = Object.values(Object.groupBy(chart.edges, (edge) => `${edge.trigger} ${edge.dest}`));
  const noted = new Set(groups.filter((group) => group && isNote(group)).flat());
  const drawn = chart.edges.filter((edge) => !noted.has(edge) && edge.source !== edge.dest);
  const kept = waysOut(chart, leaves, drawn, order);
  const notes = groups.flatMap((group) => notesOf(group ?? []));
  const inOrder = chart.edges.filter((edge) => drawn.includes(edge) || kept.includes(edge));
  return { arrows: arrows(chart, inOrder), notes };
}

/** @param {(ChartEdge | undefined)[]} group of one trigger and one dest */
function isNote(group) {
  return group.length >= MANY || group[0]?.source === "*";
}

/** @param {ChartEdge[]} group @returns {Note[]} */
function notesOf(group) {
  const [{ trigger, dest, source }] = group;
  if (source === "*") return [{ dest, label: `${trigger}, from any`, edges: group }];
  if (isNote(group)) return [{ dest, label: `${trigger}, from ${group.length}`, edges: group }];
  return group
    .filter((edge) => edge.source === edge.dest)
    .map((edge) => ({ dest, label: `${trigger}, again`, edges: [edge] }));
}

/**
 * A state with only notes as exits would look final, so one exit is drawn: the one to the next state, else
 * the first.
 * @param {ChartView} chart @param {string[]} leaves @param {ChartEdge[]} drawn @param {Map<string, number>} order
 */
function waysOut(chart, leaves, drawn, order) {
  return leaves
    .filter((leaf) => !drawn.some((edge) => edge.source === leaf))
    .flatMap((leaf) => {
      const ways = chart.edges.filter((edge) => edge.source === leaf && edge.dest !== leaf);
      const next = ways.find((edge) => isNext(edge, order, leaves));
      return next ? [next] : ways.slice(0, 1);
    });
}

/** @param {ChartEdge} edge @param {Map<string, number>} order @param {string[]} leaves */
function isNext(edge, order, leaves) {
  return leaves.indexOf(edge.dest) === leaves.indexOf(edge.source) + 1 && order.has(edge.dest);
}

/** @param {ChartView} chart @param {ChartEdge[]} edges @returns {Arrow[]} */
function arrows(chart, edges) {
  const parentOf = new Map(chart.states.map((state) => [state.name, state.parent]));
  const fanned = (/** @type {ChartEdge} */ edge) => {
    const parent = parentOf.get(edge.dest);
    const beside = edges.filter((other) => other.source === edge.source && parentOf.get(other.dest) === parent);
    return parent && parentOf.get(edge.source) !== parent && beside.length >= MANY ? parent : edge.dest;
  };
  const groups = Object.groupBy(edges, (edge) => `${edge.source} ${fanned(edge)}`);
  return Object.values(groups).map((group) => {
    const all = group ?? [];
    return { source: all[0].source, dest: fanned(all[0]), label: labelOf(all.map((edge) => edge.trigger)), edges: all };
  });
}

/** @param {string[]} triggers */
function labelOf(triggers) {
  const names = [...new Set(triggers)];
  if (names.length < MANY) return names.join(", ");
  let shared = names[0];
  while (!names.every((name) => name.startsWith(shared))) shared = shared.slice(0, -1);
  return shared.length > 2 ? `${shared}…` : `${names[0]} and ${names.length - 1} more`;
}
