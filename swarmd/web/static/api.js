/** Requests to the server. */

import { note } from "./clock.js";

const PATIENCE_MS = 20000;
const BUSY_TRIES = 8; // requests to a busy server, which says when to try again

/** A refusal or a failure, as a sentence for people. */
class Problem extends Error {
  /** @param {string} message @param {number} [status] of the answer; 0 where none came */
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** Leave this page for the login page. */
export function login() {
  location.assign(`/login?next=${encodeURIComponent(location.pathname + location.hash)}`);
}

/**
 * @param {string} path below /api/v1/
 * @param {AbortSignal} [signal] gives the question up
 * @returns {Promise<any>}
 */
export async function get(path, signal) {
  const limit = AbortSignal.timeout(PATIENCE_MS);
  const end = signal ? AbortSignal.any([signal, limit]) : limit;
  let asked = Date.now() / 1000;
  let response = await ask(path, end);
  for (let tries = 0; isBusy(response) && tries < BUSY_TRIES; tries += 1) {
    const wait = Number(response.headers.get("Retry-After")) * (0.5 + Math.random());
    await new Promise((resolve) => setTimeout(resolve, wait * 1000));
    asked = Date.now() / 1000;
    response = await ask(path, end);
  }
  note(response.headers.get("Date"), asked, Date.now() / 1000);
  if (response.status === 401) login();
  if (!response.ok) throw new Problem(await refusal(response), response.status);
  return response.json();
}

/** Whether repeating the request may soon succeed. @param {Response} response */
function isBusy(response) {
  return response.status === 503 && Number(response.headers.get("Retry-After")) > 0;
}

/** @param {string} path @param {AbortSignal} signal */
async function ask(path, signal) {
  try {
    return await fetch(`/api/v1/${path}`, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem("The server does not answer. See that it still runs; this page goes on as soon as it does.");
  }
}

/** @param {Response} response */
async function refusal(response) {
  try {
    const told = await response.json();
    if (typeof told.message === "string" && told.message) return told.message;
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error; // not JSON: another server, or a proxy, answered
  }
  return `The server answered ${response.status} and gave no reason. Its own log says why.`;
}

/** Whether an error comes from an aborted request. @param {unknown} error */
export function givenUp(error) {
  return error instanceof DOMException && error.name === "AbortError";
}
