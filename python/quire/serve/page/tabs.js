// The tablist, by the keys that ARIA gives it: arrows go round, Home and End to the ends, one tab stop.

import { byId } from "./dom.js";

// Calls onShow with the id of the panel that is shown, now and at each change.
export function startTabs(tablist, onShow) {
  const tabs = [...tablist.querySelectorAll("[role=tab]")];

  function show(chosen, takesFocus) {
    for (const tab of tabs) {
      const isChosen = tab === chosen;
      tab.setAttribute("aria-selected", String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
      byId(tab.getAttribute("aria-controls")).hidden = !isChosen;
    }
    if (takesFocus) chosen.focus();
    onShow(chosen.getAttribute("aria-controls"));
  }

  tablist.addEventListener("keydown", (event) => {
    const at = tabs.indexOf(document.activeElement);
    const to = {
      ArrowRight: (at + 1) % tabs.length,
      ArrowLeft: (at + tabs.length - 1) % tabs.length,
      Home: 0,
      End: tabs.length - 1,
    }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    show(tabs[to], true);
  });
  for (const tab of tabs) tab.addEventListener("click", () => show(tab, false));
  // The address remembers which: "#engine" is a link to it.
  const named = tabs.find((tab) => location.hash && tab.id === `tab-${location.hash.slice(1)}`);
  show(named ?? tabs[0], false);
}
