/**
 * The server's time, estimated from its Date headers.
 *
 * A Date header gives the second in which an answer was made, between request and response. So each answer gives bounds
 * for the difference of the two clocks, and a few answers together narrow it to well below a second.
 */

let low = -Infinity;
let high = Infinity;

/**
 * @param {string | null} date of an answer's header
 * @param {number} asked client's time when it was asked for, seconds
 * @param {number} got client's time when it came, seconds
 */
export function note(date, asked, got) {
  const told = date ? Date.parse(date) / 1000 : NaN;
  if (Number.isNaN(told)) return;
  const [least, most] = [told - got, told + 1 - asked];
  const apart = least > high || most < low; // one of the clocks was set
  low = apart ? least : Math.max(low, least);
  high = apart ? most : Math.min(high, most);
}

/** POSIX seconds on the server's clock. */
export function now() {
  const offset = Number.isFinite(low + high) ? (low + high) / 2 : 0;
  const sure = low <= 0 && high >= 0; // the bounds allow equal clocks
  return Date.now() / 1000 + (sure ? 0 : offset);
}
