/** The swarm page: where the swarm is, who takes part, what they earn and write. */

import { byId, el, fill } from "./dom.js";
import { Accuracy } from "./accuracy.js";
import { Board } from "./leaderboard.js";
import { Curves } from "./curves.js";
import { Gossip } from "./gossip.js";
import { showChain } from "./chain.js";
import { showRound, tick } from "./round.js";
import { Stream } from "./stream.js";
import { bindTheme, followTrouble, here, notice, showCondition, showPart, showProcess } from "./top.js";

const PAGE_PEERS = 2000; // the most that the server returns at once
const REST_EVERY_MS = 60000; // between two requests for the part of a large leaderboard that the stream does not send
const CURVES_EVERY_MS = 5000; // least time between two requests for the curves

class SwarmPage {
  /** @param {import("./top.js").PageSource} found */
  constructor(found) {
    this.found = found;
    this.accuracy = new Accuracy();
    this.curves = new Curves();
    this.board = new Board(found, (id) => this.toggleCurve(id));
    this.gossip = new Gossip();
    this.place = "";
    this.due = 0;
    this.lost = false;
    this.restAt = -Infinity; // time of the last request for the rest of the leaderboard
  }

  async load() {
    await Promise.all([
      showPart("swarm", (view) => this.show(view)),
      showPart("swarm/gossip", (gossip) => this.gossip.showAll(gossip.messages)),
      this.loadCurves(),
    ]);
  }

  /** @param {any} view SwarmView */
  show(view) {
    showRound(view, this.found.live);
    showProcess(view.out_of_reach ? "out of reach" : view.process);
    this.board.show(view);
    showChain(view);
    byId("notes").hidden = view.notes.length === 0;
    fill(byId("notes-list"), ...view.notes.map((/** @type {string} */ note) => el("li", {}, note)));
    if (view.total > view.peers.length) this.loadRest(view.peers.length, view.total);
    const place = `${view.round}/${view.stage}/${view.reports}`;
    if (this.place && this.place !== place) this.curvesSoon();
    this.place = place;
  }

  curvesSoon() {
    this.due ||= setTimeout(() => {
      this.due = 0;
      this.loadCurves();
    }, CURVES_EVERY_MS);
  }

  async loadCurves() {
    if (this.found.node)
      await showPart("node/training", (view) => {
        this.accuracy.show(view);
        this.curves.most = view.reward_max;
      });
    const asked = this.curves.asked.map((id) => `peer=${encodeURIComponent(id)}`).join("&");
    await showPart(`swarm/curves${asked && "?"}${asked}`, ({ curves }) => {
      this.curves.show(curves);
      this.board.showCurves(this.curves.colours);
    });
  }

  /** Peers behind those of the view, page by page. @param {number} first @param {number} total */
  async loadRest(first, total) {
    if (performance.now() < this.restAt + REST_EVERY_MS) return;
    this.restAt = performance.now();
    /** @type {any[]} */
    const rest = [];
    for (let behind = first; behind < total; behind += PAGE_PEERS)
      await showPart(`swarm/peers?first=${behind}&count=${PAGE_PEERS}`, ({ peers }) => rest.push(...peers));
    this.board.showRest(rest);
  }

  /** @param {string} id */
  toggleCurve(id) {
    this.curves.toggle(id);
    this.loadCurves();
  }

  /** After a lost stream, once the server has read its log. */
  async catchUp() {
    const found = await here(() => {});
    await this.load();
    notice(found.trouble);
  }

  follow() {
    const stream = new Stream(
      {
        swarm: (view) => this.show(view),
        gossip: (message) => this.gossip.add(message),
      },
      (condition) => {
        showCondition(condition, () => stream.wake());
        if (condition.state === "live" && this.lost) this.catchUp();
        this.lost = condition.state !== "live" && (this.lost || condition.state === "lost");
      },
    );
    stream.run();
  }
}

bindTheme();
const found = await here();
if (found.swarm) {
  const page = new SwarmPage(found);
  await page.load();
  setInterval(tick, 1000);
  if (found.live) {
    page.follow();
    followTrouble(found);
  }
} else {
  notice(
    "This server knows of no swarm: the log it shows has no member, announcement or report yet. See the node page.",
  );
}
