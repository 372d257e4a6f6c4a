/** The node page: the node's health, and each event of its log with the state after it. */

import { byId, say } from "./dom.js";
import { Charts } from "./charts.js";
import { EventList } from "./eventlist.js";
import { Log } from "./log.js";
import { legend } from "./patches.js";
import { showRecipe } from "./recipe.js";
import { MomentPanel } from "./moment.js";
import { Stages } from "./stages.js";
import { StoryPanel } from "./story.js";
import { showStatus } from "./health.js";
import { showSpent } from "./spent.js";
import { Stream } from "./stream.js";
import { Timeline } from "./timeline.js";
import { Training } from "./training.js";
import {
  bindTheme,
  followTrouble,
  here,
  hasEnded,
  notice,
  report,
  showCondition,
  showPart,
  showProcess,
} from "./top.js";

const STAGES_EVERY_MS = 1500; // least time between two requests for the stages

class NodePage {
  /** @param {boolean} live */
  constructor(live) {
    this.live = live;
    this.log = new Log();
    this.panel = new MomentPanel();
    this.stages = new Stages((seq) => this.line.choose(seq));
    this.training = new Training((seq) => this.line.choose(seq));
    this.story = new StoryPanel();
    this.list = new EventList(this.log, (seq) => this.line.choose(seq));
    this.line = new Timeline(
      this.log,
      live,
      (moment, scrubbed) => this.showMoment(moment, scrubbed),
      (seq) => this.choose(seq),
    );
    this.charts = /** @type {Charts | null} */ (null);
    this.stagesDue = 0;
    this.lost = false;
    this.ended = false; // whether the node has ended, orderly or not
  }

  async load() {
    await Promise.all([
      showPart("node/status", (status) => this.showStatus(status)),
      showPart("node/charts", (view) => {
        this.charts = new Charts(view);
        if (this.moment) this.showMoment(this.moment);
        else this.charts.light(view.now);
      }),
      this.loadStages(),
      showPart("node/recipe", showRecipe),
      this.line.open().catch(report),
    ]);
    this.list.showTypes(Object.keys(this.line.overviews.whole?.types ?? {}));
  }

  /** @param {any} status Status */
  showStatus(status) {
    showStatus(status);
    showSpent(status.times);
    showProcess(status.process.state);
    this.ended = hasEnded(status.process.state);
    this.sayWhen();
  }

  /** Say which time the charts show: a dead node's log does not end now. */
  sayWhen() {
    const now = this.ended ? "as the log ends" : "now";
    if (this.moment) say(byId("charts-when"), this.line.following ? now : `after event ${this.moment.event.seq}`);
  }

  async loadStages() {
    await showPart("node/stages", (view) => {
      this.stages.show(view);
      this.line.skips = view.skips;
      this.line.draw();
    });
    await showPart("node/training", (view) => {
      this.training.show(view);
      this.training.light(this.line.seq);
    });
  }

  /** @param {number} seq */
  choose(seq) {
    this.list.choose(seq);
    this.stages.light(seq);
    this.training.light(seq);
  }

  /** @param {any} moment @param {boolean} [scrubbed] on the time line, which the charts then stay beside */
  showMoment(moment, scrubbed = false) {
    this.moment = moment;
    this.panel.show(moment);
    this.charts?.light(moment.charts, moment.before);
    this.story.choose(StoryPanel.roundOf(moment));
    this.sayWhen();
    if (scrubbed) this.charts?.reveal(); // last, because the text above may take another line
  }

  /** @param {import("./log.js").EventRow} row */
  append(row) {
    if (!this.log.append(row)) return;
    this.list.append(row);
    this.line.append(row);
    this.story.again();
    this.stagesDue ||= setTimeout(() => {
      this.stagesDue = 0;
      this.loadStages();
    }, STAGES_EVERY_MS);
  }

  /**
   * After a lost stream: a server that has just started may have sent the stream before it had read its log, and one
   * that was away for long sends the latest events only. What lies before them is fetched when it comes into sight.
   */
  async catchUp() {
    const found = await here(() => {});
    await showPart("node/events?first=-1&count=1", ({ end, events }) => {
      if (end < this.log.end) location.reload(); // it is now another log
      events.forEach((/** @type {import("./log.js").EventRow} */ row) => this.append(row));
    });
    notice(found.trouble);
  }

  follow() {
    const stream = new Stream(
      { event: (row) => this.append(row), status: (status) => this.showStatus(status) },
      (condition) => {
        showCondition(condition, () => stream.wake());
        if (condition.state === "live" && this.lost) this.catchUp();
        this.lost = condition.state === "lost" || (condition.state === "connecting" && this.lost);
      },
    );
    stream.run(this.log.end - 1);
  }
}

bindTheme();
legend("story-key", [["bar-warns", "something went wrong"]]);
const found = await here();
if (found.node) {
  const page = new NodePage(found.live);
  await page.load();
  if (found.live) {
    page.follow();
    followTrouble(found);
  }
} else {
  notice(
    "This server follows a swarm from outside and reads no node’s log. " +
      "Give `swarmd dashboard` a node’s directory to see its events.",
  );
}
