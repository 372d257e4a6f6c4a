/**
 * Routes a statechart's arrows between its states: straight down to the next layer, through gutters on the right
 * everywhere else. Pixels, from the top left.
 */

export const GAP_Y = 17; // between layers; holds the label of a straight arrow
export const BOX_HEAD = 20;
export const LANE = 13; // between two gutters
export const NOTE_ARROW = 16;
const BENT = 50; // an arrow that shifts sideways by at least this has its label at the bend

/**
 * @typedef {import("./chartplan.js").Arrow} Arrow
 * @typedef {import("./chartplan.js").Note} Note
 * @typedef {{name: string, label: string, x: number, y: number, width: number, height: number, box: boolean}} Shape
 * @typedef {{arrow: Arrow, points: [number, number][], x: number, y: number, anchor: string}} Route
 * @typedef {{note: Note, x: number, y: number, to: number}} Pin
 */

/** @param {string} text in the small type of labels */
export const labelWidth = (text) => text.length * 6.1 + 4;

/** @param {Shape | undefined} shape */
export const right = (shape) => (shape ? shape.x + shape.width : 0);

/** @param {Map<string, Shape>} shapes @param {Note[]} notes @returns {Pin[]} */
export function pin(shapes, notes) {
  return Object.values(Object.groupBy(notes, (note) => note.dest)).flatMap((group) => {
    const beside = group ?? [];
    return beside.map((note, index) => {
      const shape = /** @type {Shape} */ (shapes.get(note.dest));
      const y = shape.y + shape.height / 2 + (index - (beside.length - 1) / 2) * 15;
      return { note, x: shape.x - NOTE_ARROW - 3, y, to: shape.x };
    });
  });
}

/** @param {Map<string, Shape>} shapes @param {Arrow[]} arrows @returns {Route[]} */
export function route(shapes, arrows) {
  const drawn = arrows.filter((arrow) => shapes.has(arrow.source) && shapes.has(arrow.dest));
  const straight = drawn.filter((arrow) => leadsDown(arrow, shapes));
  const around = drawn.filter((arrow) => !straight.includes(arrow));
  return [...straight.map((arrow) => down(arrow, shapes)), ...gutters(around, shapes)];
}

/** Whether nothing lies between the two. @param {Arrow} arrow @param {Map<string, Shape>} shapes */
function leadsDown(arrow, shapes) {
  const [from, to] = [shapes.get(arrow.source), shapes.get(arrow.dest)];
  if (!from || !to) return false;
  const gap = to.y - from.y - from.height;
  return gap > 0 && gap <= GAP_Y + BOX_HEAD;
}

/** @param {Arrow} arrow @param {Map<string, Shape>} shapes @returns {Route} */
function down(arrow, shapes) {
  const [from, to] = /** @type {Shape[]} */ ([shapes.get(arrow.source), shapes.get(arrow.dest)]);
  const x1 = from.x + from.width / 2;
  const x2 = to.box && x1 > to.x && x1 < to.x + to.width ? x1 : to.x + to.width / 2;
  const [y1, y2] = [from.y + from.height, to.y];
  const half = y1 + GAP_Y / 2;
  const points = /** @type {[number, number][]} */ (
    Math.abs(x1 - x2) < 2
      ? [
          [x1, y1],
          [x2, y2],
        ]
      : [
          [x1, y1],
          [x1, half],
          [x2, half],
          [x2, y2],
        ]
  );
  if (Math.abs(x1 - x2) >= BENT) return { arrow, points, x: (x1 + x2) / 2, y: half + 3.5, anchor: "middle" };
  return { arrow, points, x: x2 + 5, y: y2 - (Math.abs(x1 - x2) < 2 ? GAP_Y / 2 - 4 : 6), anchor: "start" };
}

/** @param {Arrow[]} arrows @param {Map<string, Shape>} shapes @returns {Route[]} */
function gutters(arrows, shapes) {
  const ports = portsOf(arrows, shapes);
  const lines = arrows.map((arrow) => {
    const [from, to] = /** @type {Shape[]} */ ([shapes.get(arrow.source), shapes.get(arrow.dest)]);
    const [y1, y2] = [ports.get(`${arrows.indexOf(arrow)} out`) ?? 0, ports.get(`${arrows.indexOf(arrow)} in`) ?? 0];
    const intoTop = to.box && y1 < to.y;
    return { arrow, from, to, y1, y2: intoTop ? to.y : y2, intoTop, lane: 0 };
  });
  const taken = /** @type {{x: number, top: number, bottom: number}[]} */ ([]);
  return lines
    .sort((one, other) => Math.abs(one.y1 - one.y2) - Math.abs(other.y1 - other.y2))
    .map((line) => {
      const [top, bottom] = [Math.min(line.y1, line.y2), Math.max(line.y1, line.y2)];
      const beside = [...shapes.values()].filter(
        (shape) => shape.y < bottom + 2 && shape.y + shape.height > top - 2 && !holds(shape, line),
      );
      let x = Math.max(...beside.map(right), right(line.from)) + LANE + 4;
      while (
        taken.some((other) => Math.abs(other.x - x) < LANE - 1 && other.top < bottom + 4 && other.bottom > top - 4)
      )
        x += LANE;
      taken.push({ x, top, bottom });
      const points = /** @type {[number, number][]} */ ([
        [right(line.from), line.y1],
        [x, line.y1],
        [x, line.y2],
      ]);
      if (!line.intoTop) points.push([right(line.to), line.y2]);
      const above = line.y1 <= line.from.y + line.from.height / 2;
      return { arrow: line.arrow, points, x: right(line.from) + 5, y: line.y1 + (above ? -4 : 11), anchor: "start" };
    });
}

/** Whether a box holds both ends, so that the gutter lies inside, or the arrow ends at it. */
function holds(/** @type {Shape} */ shape, /** @type {{arrow: Arrow, intoTop: boolean}} */ line) {
  if (!shape.box) return false;
  const inside = (/** @type {string} */ name) => name.startsWith(`${shape.name}.`);
  return (inside(line.arrow.source) && inside(line.arrow.dest)) || (line.intoTop && shape.name === line.arrow.dest);
}

/** Heights at which arrows leave and enter on the right, so that none lie on each other. */
function portsOf(/** @type {Arrow[]} */ arrows, /** @type {Map<string, Shape>} */ shapes) {
  const middle = (/** @type {string} */ name) => (shapes.get(name)?.y ?? 0) + (shapes.get(name)?.height ?? 0) / 2;
  const ends = arrows.flatMap((arrow, index) => [
    { key: `${index} out`, at: arrow.source, other: middle(arrow.dest) },
    { key: `${index} in`, at: arrow.dest, other: middle(arrow.source) },
  ]);
  const ports = /** @type {Map<string, number>} */ (new Map());
  for (const group of Object.values(Object.groupBy(ends, (end) => end.at))) {
    const shape = /** @type {Shape} */ (shapes.get(group?.[0].at ?? ""));
    const sorted = (group ?? []).sort((one, other) => one.other - other.other);
    sorted.forEach((end, index) => ports.set(end.key, shape.y + (shape.height * (index + 1)) / (sorted.length + 1)));
  }
  return ports;
}
