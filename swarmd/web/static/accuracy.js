/** Whether the swarm learns, at the top of its page: held-out accuracy, as the node that is asked has measured it. */

import { byId, el, fill, say, svg } from "./dom.js";
import { drawLines } from "./axes.js";
import { gainWords } from "./training.js";

const HEIGHT = 104;
const EDGE = { left: 34, right: 10, top: 8, bottom: 20 };

export class Accuracy {
  constructor() {
    this.points = /** @type {number[][]} */ ([]);
    this.drawing = svg("svg", { height: HEIGHT, role: "img", "aria-label": "Held-out accuracy by round" });
    this.said = el("p", { class: "muted" });
    fill(byId("accuracy-plot"), this.drawing, this.said);
    new ResizeObserver(() => this.draw()).observe(byId("accuracy-plot"));
  }

  /** @param {import("./training.js").View} view */
  show(view) {
    byId("accuracy").hidden = false;
    say(byId("accuracy-gain"), gainWords(view));
    const deep = 1 + Math.max(0, ...view.stages.map((stage) => stage.stage));
    const measured = view.stages
      .filter((stage) => stage.held_out !== null)
      .map((stage) => [stage.round + stage.stage / deep, stage.held_out ?? 0]);
    const before = view.held_out_before;
    this.points = before !== null && measured.length ? [[measured[0][0] - 1, before], ...measured] : measured;
    const why = view.total ? "Not measured: training.held_out_questions is 0, or its turn has not come." : "No stage has been trained yet.";
    say(this.said, this.points.length ? "" : why);
    this.draw();
  }

  draw() {
    const width = Math.max(160, byId("accuracy-plot").clientWidth);
    this.drawing.toggleAttribute("hidden", !this.points.length);
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.drawing.setAttribute("width", String(width));
    const line = { line: "t0", points: this.points };
    if (this.points.length) drawLines(this.drawing, [line], { width, height: HEIGHT, ...EDGE }, { least: 0, most: 1 });
  }
}
