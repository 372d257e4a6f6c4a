/** Numbers and times in words. All times come as POSIX seconds, all durations as seconds. */

const PLAIN = new Intl.NumberFormat("en");
const COINS = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "2-digit", month: "short" });

/** @param {number} value */
export function count(value) {
  return PLAIN.format(value);
}

/** An amount of the chain's coin. @param {number} value */
export function coins(value) {
  return COINS.format(value);
}

/** @param {number | null | undefined} value a reward; null where it was not a number */
export function reward(value) {
  if (value === null || value === undefined) return "—";
  return Math.abs(value) >= 1000 ? PLAIN.format(Math.round(value)) : value.toFixed(Math.abs(value) >= 100 ? 1 : 3);
}

/** Two units at most: "4 min 5 s". @param {number} seconds */
export function duration(seconds) {
  const whole = Math.max(0, seconds);
  if (whole < 10) return `${whole.toFixed(1)} s`;
  if (whole < 60) return `${Math.round(whole)} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${Math.floor(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** One unit: "4 min". @param {number} seconds */
export function age(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86400)} d`;
}

/** Minutes and seconds: "4:05". @param {number} seconds */
export function countdown(seconds) {
  const whole = Math.ceil(Math.abs(seconds));
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor((whole % 3600) / 60);
  const rest = String(whole % 60).padStart(2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

/** Time of day. @param {number} at */
export function clock(at) {
  return CLOCK.format(at * 1000);
}

/** Day and time of day. @param {number} at */
export function dayAndClock(at) {
  return `${DAY.format(at * 1000)} ${clock(at)}`;
}

/** @param {number} at */
export function day(at) {
  return DAY.format(at * 1000);
}

/** A round and stage: "round 3 · stage 0". @param {number} round @param {number} stage */
export function place(round, stage) {
  return round < 0 ? "none" : `round ${round} · stage ${stage}`;
}

/** @param {number} value @param {string} one @param {string} [more] */
export function plural(value, one, more = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : more}`;
}

/** Any value of an event or a state on one line. @param {unknown} value */
export function brief(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text === undefined ? "—" : text;
}

/** Shorten a long id by leaving out its middle. @param {string} id */
export function shortId(id) {
  return id.length > 14 ? `${id.slice(0, 4)}…${id.slice(-6)}` : id;
}

/** Words with the peer ids and digests in them shortened. @param {string} text */
export function shortIds(text) {
  return text.replace(/\b(?:12D3KooW[1-9A-Za-z]{44}|[0-9a-f]{40,})\b/g, shortId);
}
