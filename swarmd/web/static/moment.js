/** The chosen event: its text and fields, what it changed and caused, and what was pending then. */

import { linkTo } from "./address.js";
import { byId, copyButton, copyText, el, fill, say } from "./dom.js";
import { clock, count, dayAndClock, duration, plural, shortIds } from "./format.js";
import { plain, tree } from "./tree.js";

const LONG_ID = /^(?:(?:12D3KooW|Qm|0x)[0-9A-Za-z]{20,}|[0-9a-f]{40,})$/;

export class MomentPanel {
  constructor() {
    this.open = /** @type {Set<string>} */ (new Set());
    this.seq = -1;
    byId("moment-copy").addEventListener("click", () => this.copyLink());
  }

  async copyLink() {
    await copyText(new URL(linkTo(this.seq), location.href).href);
    say(byId("moment-copy"), "Copied");
    setTimeout(() => say(byId("moment-copy"), "Copy link"), 1500);
  }

  /** @param {any} moment Moment */
  show(moment) {
    if (moment.event.seq === this.seq) return;
    this.seq = moment.event.seq;
    const { event } = moment;
    say(byId("moment-seq"), `#${count(event.seq)}`);
    byId("moment-seq").href = linkTo(event.seq);
    say(byId("moment-at"), dayAndClock(event.at));
    fill(
      byId("moment"),
      el("p", { class: `event-text ${event.level}` }, shortIds(event.text)),
      el("p", { class: "muted event-type" }, event.type, event.level === "info" ? "" : ` · ${event.level}`),
      section("Changed", changes(moment.changes)),
      section("Caused", this.commands(moment.commands, "caused")),
      section("Waiting for answers", this.commands(moment.pending, "pending")),
      section("Deadlines", deadlines(moment.deadlines, event.at)),
      section("Fields", fields(moment.fields)),
      el("div", { class: "tree" }, tree("State after it", moment.state, this.open)),
    );
  }

  /** @param {any[]} commands @param {string} where */
  commands(commands, where) {
    return commands.length ? el("ul", { class: "commands" }, ...commands.map((each) => this.command(each, where))) : null;
  }

  /** @param {{id: string, type: string, fields: Record<string, any>}} command @param {string} where */
  command(command, where) {
    const entries = Object.keys(command.fields).filter((name) => name !== "id");
    const shown = Object.fromEntries(entries.map((name) => [name, command.fields[name]]));
    const head = [el("span", { class: "command-type" }, command.type), el("span", { class: "mono muted" }, command.id)];
    if (!entries.length) return el("li", {}, ...head);
    const path = `${where} ${command.type}`;
    const node = el("details", {}, el("summary", {}, ...head), fields(shown));
    node.open = this.open.has(path);
    node.addEventListener("toggle", () => (node.open ? this.open.add(path) : this.open.delete(path)));
    return el("li", {}, node);
  }
}

/** @param {string} title @param {any} body */
function section(title, body) {
  return body && el("section", { class: "part" }, el("h3", {}, title), body);
}

/** @param {Record<string, any>} values */
function fields(values) {
  const entries = Object.entries(values).filter(([, value]) => !saysNothing(value));
  if (!entries.length) return null;
  return el(
    "dl",
    { class: "facts" },
    ...entries.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, shown(name, value))]),
  );
}

/** @param {any} value */
function saysNothing(value) {
  return value === null || value === "" || (Array.isArray(value) && value.length === 0);
}

/** @param {string} name @param {any} value */
function shown(name, value) {
  if (typeof value === "string" && LONG_ID.test(value)) return copyButton(value);
  if (typeof value === "number" && /(^|_)(at|since)$/.test(name) && value > 1e9) return dayAndClock(value);
  return plain(value);
}

/** @param {{path: string, before: any, after: any}[]} rows */
function changes(rows) {
  if (!rows.length) return el("p", { class: "muted" }, "Nothing.");
  const cells = rows.map((row) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", class: "path" }, row.path),
      el("td", { class: "before" }, shown(lastOf(row.path), row.before)),
      el("td", { class: "to", "aria-hidden": "true" }, "→"),
      el("td", { class: isPlain(row.after) ? "after" : "" }, shown(lastOf(row.path), row.after)),
    ),
  );
  const head = ["Field", "Before", "", "After"].map((title) =>
    title ? el("th", { scope: "col" }, title) : el("td", { "aria-hidden": "true" }),
  );
  return el(
    "table",
    { class: "small changes" },
    el("caption", { class: "unseen" }, plural(rows.length, "field")),
    el("colgroup", {}, ...["path", "before", "to", "after"].map((name) => el("col", { class: `of-${name}` }))),
    el("thead", { class: "unseen" }, el("tr", {}, ...head)),
    el("tbody", {}, ...cells),
  );
}

/** Whether a value is neither a list nor an object. @param {any} value */
function isPlain(value) {
  return value === null || typeof value !== "object";
}

/** @param {string} path */
function lastOf(path) {
  return path.split(".").pop() ?? path;
}

/** @param {[string, number][]} rows @param {number} at */
function deadlines(rows, at) {
  if (!rows.length) return null;
  const sorted = [...rows].sort((one, other) => one[1] - other[1]);
  return el(
    "ul",
    { class: "deadlines" },
    ...sorted.map(([name, due]) =>
      el(
        "li",
        {},
        el("span", { class: "mono" }, name),
        el(
          "span",
          { class: "muted" },
          `${due >= at ? `in ${duration(due - at)}` : `${duration(at - due)} ago`}, ${clock(due)}`,
        ),
      ),
    ),
  );
}
