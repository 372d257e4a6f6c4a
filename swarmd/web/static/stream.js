/**
 * The server's stream of events, read with fetch: EventSource cannot be told where to resume, nor when to reconnect.
 */

import { login } from "./api.js";

const FIRST_DELAY_MS = 1000;
const LONGEST_DELAY_MS = 30000;
const SILENCE_MS = 60000; // a connection without data for this long counts as dead
const MESSAGE_CHARACTERS_MAX = 8 * 1024 * 1024;

/**
 * @typedef {{state: "live" | "connecting" | "lost", delay_ms?: number}} Condition
 */

export class Stream {
  /**
   * @param {Record<string, (message: any) => void>} listeners by the name of an event
   * @param {(condition: Condition) => void} onCondition
   */
  constructor(listeners, onCondition) {
    this.listeners = listeners;
    this.onCondition = onCondition;
    this.last = ""; // id of the last event received
    this.tries = 0;
    this.wake = () => {};
    addEventListener("online", () => this.wake());
  }

  /** Read forever. @param {number} [last] event after which the stream begins */
  async run(last) {
    if (last !== undefined && last >= 0) this.last = String(last);
    for (;;) {
      this.onCondition({ state: "connecting" });
      await this.once();
      const delay = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** this.tries) * (0.75 + Math.random() / 2);
      this.tries += 1;
      this.onCondition({ state: "lost", delay_ms: delay });
      await this.rest(delay);
    }
  }

  /** @param {number} delay */
  rest(delay) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, delay);
      this.wake = () => {
        clearTimeout(timer);
        resolve(undefined);
      };
    });
  }

  /** Read one connection to its end. */
  async once() {
    const control = new AbortController();
    const giveUp = () => control.abort();
    let watch = setTimeout(giveUp, SILENCE_MS);
    try {
      const headers = { Accept: "text/event-stream", ...(this.last ? { "Last-Event-ID": this.last } : {}) };
      const response = await fetch("/api/v1/stream", { headers, signal: control.signal, cache: "no-store" });
      if (response.status === 401) login();
      if (!response.ok || !response.body) return;
      this.tries = 0;
      this.onCondition({ state: "live" });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new Parser((message) => this.take(message));
      for (;;) {
        const { done, value } = await reader.read();
        if (done || !parser.feed(value)) return;
        clearTimeout(watch);
        watch = setTimeout(giveUp, SILENCE_MS);
      }
    } catch (error) {
      if (!(error instanceof TypeError || error instanceof DOMException)) throw error; // those mean a lost connection
    } finally {
      clearTimeout(watch);
      control.abort();
    }
  }

  /** @param {Message} message */
  take(message) {
    if (message.id) this.last = message.id;
    this.listeners[message.event]?.(JSON.parse(message.data));
  }
}

/** @typedef {{event: string, data: string, id: string}} Message */

/** Parses server-sent events from text that arrives in pieces. */
class Parser {
  /** @param {(message: Message) => void} onMessage */
  constructor(onMessage) {
    this.onMessage = onMessage;
    this.rest = "";
    this.clear();
  }

  clear() {
    this.event = "message";
    this.data = /** @type {string[]} */ ([]);
    this.id = "";
  }

  /** @param {string} text @returns {boolean} false where a message is beyond any sense */
  feed(text) {
    const lines = (this.rest + text).split(/\r?\n/);
    this.rest = lines.pop() ?? "";
    for (const line of lines) this.line(line);
    return this.rest.length <= MESSAGE_CHARACTERS_MAX;
  }

  /** @param {string} line */
  line(line) {
    if (line === "") {
      if (this.data.length) this.onMessage({ event: this.event, data: this.data.join("\n"), id: this.id });
      this.clear();
      return;
    }
    const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
    if (name === "event") this.event = value;
    else if (name === "data") this.data.push(value);
    else if (name === "id") this.id = value;
  }
}
