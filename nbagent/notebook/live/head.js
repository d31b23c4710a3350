// The line on top of a run: its state, its numbers, the time bar, what it waits for, Stop.

import { h, keepHeight, seconds, setAll, setText } from "./dom.js";

/** @typedef {import("./shapes.js").Shared} Shared */
/** @typedef {import("./shapes.js").State} State */

/** @param {Shared} shared */
export function createHead(shared) {
  const mark = setAll(h("span", "nba-mark"), { "aria-hidden": "true" });
  const phase = setAll(h("strong", "nba-phase"), { role: "status", "aria-live": "polite" });
  const chip = h("code", "nba-chip");
  const facts = h("span", "nba-facts");
  const stop = /** @type {HTMLButtonElement} */ (h("button", "nba-stop"));
  stop.type = "button";
  stop.addEventListener("click", () => shared.stop());
  const bar = setAll(h("div", "nba-bar"), { role: "img" });
  const offline = h("div", "nba-offline");
  // Its words are read out when they change; the seconds beside them are not.
  const activity = setAll(h("span", ""), { "aria-live": "polite" });
  const left = setAll(h("span", "nba-left"), { "aria-hidden": "true" });
  const waits = h("div", "nba-activity", activity, left);
  /** What each piece of the bar shows. @type {string[]} */
  let drawn = [];
  /** @type {HTMLElement | null} */
  let clock = null;

  function patchFacts() {
    facts.replaceChildren();
    clock = null;
    shared.state.facts.forEach((fact, i) => {
      const value = h("b", "", fact.value);
      if (fact.key === "time") clock = value;
      facts.append(i ? " · " : "", value, fact.word ? ` ${fact.word}` : "");
      if (fact.aside) facts.append(" ", h("span", "nba-aside", fact.aside));
    });
  }

  /** @param {unknown} held nothing below may move */
  function patch(held) {
    const { state, stopping } = shared;
    keepHeight(line, held);
    mark.className = `nba-mark nba-${state.status.tone}`;
    setText(phase, state.status.word);
    setText(chip, state.model);
    patchFacts();
    stop.hidden = !state.running;
    stop.disabled = stopping;
    setText(stop, stopping ? "Stopping…" : "■ Stop");
    setAll(stop, { "aria-label": stopping ? "Stopping this run" : "Stop this run" });
    setAll(bar, { title: state.bar_words, "aria-label": `time: ${state.bar_words || "none yet"}` });
    if (!held) {
      setText(offline, state.offline);
      offline.hidden = !state.offline;
      setText(activity, state.activity);
      waits.className = state.activity ? "nba-activity" : "nba-activity nba-none";
    }
    tick();
  }

  /** What changes by the time alone. */
  function tick() {
    const { state } = shared;
    const pieces = state.bar.map((piece) => [piece.kind, piece.ms]);
    const since = performance.now() - shared.since;
    if (state.running) {
      const elapsed = state.elapsed_ms + since;
      if (clock) setText(clock, seconds(elapsed)[0]);
      const rest = elapsed - state.bar.reduce((sum, piece) => sum + piece.ms, 0);
      if (state.doing && rest > 0) pieces.push([state.doing, rest]);
    }
    const wait = Math.ceil((state.wait_ms - since) / 1000);
    setText(left, state.wait_ms <= 0 ? "" : wait > 0 ? ` · ${wait}\u00a0s left` : " · asking again");
    drawn.length = Math.min(drawn.length, pieces.length);
    while (bar.children.length > pieces.length) bar.lastElementChild?.remove();
    while (bar.children.length < pieces.length) bar.append(document.createElement("i"));
    pieces.forEach(([kind, ms], i) => {
      const grow = String(Math.max(1, Math.round(Number(ms))));
      if (drawn[i] === `${kind} ${grow}`) return;
      drawn[i] = `${kind} ${grow}`;
      const node = /** @type {HTMLElement} */ (bar.children[i]);
      node.className = `nba-${kind}`;
      node.style.flexGrow = grow;
    });
  }

  const line = h("div", "nba-head", mark, phase, chip, facts, stop);
  return { nodes: [line, bar, offline, waits], patch, tick };
}
