// Runs before the first paint, so that a chosen theme never flashes; the switch itself is in top.js.
const chosen = localStorage.getItem("swarmd.theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
