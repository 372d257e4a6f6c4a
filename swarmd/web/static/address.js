/** The chosen event in the page's address, so that any event can be linked to and come back to. */

const SETTLE_MS = 300; // browsers take only so many changes of the address in a while
const FORM = /^#event=([0-9]{1,15})$/;

let due = 0;

/** @param {number} seq @returns {string} the address of an event, from any page of this server */
export const linkTo = (seq) => `/node#event=${seq}`;

/** The event that the address names. @returns {number | null} */
export function named() {
  const found = FORM.exec(location.hash);
  return found ? Number(found[1]) : null;
}

/** Put the chosen event into the address, or take it out. @param {number | null} seq */
export function show(seq) {
  clearTimeout(due);
  due = setTimeout(() => {
    const wanted = seq === null ? location.pathname : linkTo(seq);
    if (location.pathname + location.hash !== wanted) history.replaceState(null, "", wanted);
  }, SETTLE_MS);
}

/** Go where a person follows a link to, or types into the address. @param {(seq: number) => void} go */
export function onNamed(go) {
  addEventListener("hashchange", () => {
    const seq = named();
    if (seq !== null) go(seq);
  });
}
