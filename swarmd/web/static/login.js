/** The login form. It also works without scripts, but then leads to the swarm page. */

import { byId } from "./dom.js";

const asked = new URLSearchParams(location.search);
const next = asked.get("next") ?? "/";
byId("next").value = /^\/(?![/\\])/.test(next) ? next : "/";
byId("why").hidden = !asked.has("failed");
byId("token").focus();
