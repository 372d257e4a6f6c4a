/** Keeps the chosen event in the page's URL, so that each event can be linked to. */

const SETTLE_MS = 300; // browsers limit how often a page may change its URL
const FORM = /^#event=([0-9]{1,15})$/;

let due = 0;

/** @param {number} seq @returns {string} the address of an event, from any page of this server */
export const linkTo = (seq) => `/node#event=${seq}`;

/** The event in the URL. @returns {number | null} */
export function named() {
  const found = FORM.exec(location.hash);
  return found ? Number(found[1]) : null;
}

/** Set the event in the URL; null removes it. @param {number | null} seq */
export function show(seq) {
  clearTimeout(due);
  due = setTimeout(() => {
    const wanted = seq === null ? location.pathname : linkTo(seq);
    if (location.pathname + location.hash !== wanted) history.replaceState(null, "", wanted);
  }, SETTLE_MS);
}

/** Call `go` when the user follows a link to an event, or edits the URL. @param {(seq: number) => void} go */
export function onNamed(go) {
  addEventListener("hashchange", () => {
    const seq = named();
    if (seq !== null) go(seq);
  });
}
