// One view of a run on the page: its head, its turns, how it ended, the answer, the foot.

import { isAsked } from "./asking.js";
import { copyable, copyButton } from "./copying.js";
import { h, isBelow, markdown, setAll, setText } from "./dom.js";
import { createHead } from "./head.js";
import { createTurn } from "./turn.js";

/** @typedef {import("./shapes.js").Shared} Shared */
/** @typedef {import("./shapes.js").State} State */
/** @typedef {import("./shapes.js").Turn} Turn */
/** @typedef {ReturnType<typeof createTurn>} View */

const TICK_MS = 100;
const CALM_TICK_MS = 1000;

/** @param {Shared} shared @param {HTMLElement} el */
export function createView(shared, el) {
  const head = createHead(shared);
  const turns = h("div", "nba-turns");
  const ends = setAll(h("div", "nba-ends"), { "aria-live": "polite" });
  const answer = setAll(h("div", "nba-answer"), { role: "group", "aria-label": "answer" });
  const foot = h("div", "nba-foot");
  const told = setAll(h("div", "nba-told"), { "aria-live": "polite" });
  const root = setAll(h("div", "nba-run", ...head.nodes, turns, told, ends, answer, foot), {
    role: "group", "aria-label": `agent run, ${shared.state.model}`,
  });
  el.append(root);
  /** @type {Map<string, View>} */
  const known = new Map();
  let endSig = "";
  let behind = false;

  /** The turn with the question that the mouse is at. */
  const heldTurn = () => [...known.values()].find((view) => view.isHeld());

  /** Catch up with what had to wait. */
  function settle() {
    if (behind && !heldTurn()) all();
  }

  for (const moved of ["pointermove", "pointerleave"]) root.addEventListener(moved, settle);
  const leaving = new AbortController();
  for (const done of ["wheel", "touchmove", "keydown"]) {
    document.addEventListener(done, (event) => {
      // What starts a cell is no work elsewhere.
      if (!/Enter|Shift|Control|Meta/.test(/** @type {KeyboardEvent} */ (event).key)) shared.moved = performance.now();
    }, { capture: true, passive: true, signal: leaving.signal });
  }

  function tellQuestions() {
    const open = shared.state.turns.at(-1)?.tools.filter((tool) => isAsked(shared, tool)) ?? [];
    setText(told, open.map((tool) => `${tool.name} is waiting for you`).join(", "));
  }

  /** @param {Turn} turn @param {View | undefined} held */
  function patchTurn(turn, held) {
    let view = known.get(turn.id);
    if (held) behind = true;
    if (held && view && isBelow(held.details, view.details)) return;
    if (!view) {
      view = createTurn(shared, turn.id);
      known.set(turn.id, view);
      turns.append(view.details);
    }
    view.patch(turn, shared.state);
    tellQuestions();
  }

  /** Notices, error, answer and foot. */
  function patchEnds() {
    const { state } = shared;
    const turn = state.turns.find((one) => one.id === state.answer);
    const sig = JSON.stringify([state.notices, state.error, state.error_help, turn, state.running, state.about]);
    if (sig === endSig) return;
    endSig = sig;
    ends.replaceChildren(...state.notices.map((n) => h("div", "nba-notice", `note: ${n}`)));
    if (state.error) {
      const look = state.error_mark === "✕" ? "nba-error" : "nba-notice";
      ends.append(h("div", look, `${state.error_mark} ${state.error}`));
    }
    if (state.error_help) ends.append(h("div", "nba-notice", state.error_help));
    answer.hidden = !turn;
    foot.hidden = state.running;
    answer.replaceChildren();
    foot.replaceChildren();
    if (turn) {
      const notes = [state.answer_note, turn.text.note].map((note) => note ? h("div", "nba-note", note) : null);
      const body = h("div", "", ...markdown(turn.tree, copyable));
      answer.append(...[notes[0], body, notes[1]].filter((node) => node !== null));
      foot.append(copyButton("the answer", () => body));
    }
    foot.append(h("span", "", state.about));
    for (const step of state.next) foot.append(h("span", "", h("code", "", step.type), ` ${step.words}`));
    if (state.bar_words) foot.append(h("span", "nba-times", `time: ${state.bar_words}`));
  }

  function patchHead() {
    const held = heldTurn();
    if (held) behind = true;
    head.patch(held);
    return held;
  }

  /** All of the picture; what stands above a question that the mouse is at has to wait. */
  function all() {
    const { state } = shared;
    behind = false;
    const held = patchHead();
    const ids = new Set(state.turns.map((turn) => turn.id));
    for (const [id, view] of known) {
      if (!ids.has(id) && !held) {
        view.details.remove();
        known.delete(id);
      }
    }
    state.turns.forEach((turn, i) => {
      patchTurn(turn, held);
      // A turn that was heard of too early stands too far up.
      const node = known.get(turn.id)?.details;
      if (node && !held && turns.children[i] !== node) turns.insertBefore(node, turns.children[i]);
    });
    patchEnds();
  }

  all();
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const timer = setInterval(() => shared.state.running && head.tick(), calm ? CALM_TICK_MS : TICK_MS);
  return {
    all, settle, patchEnds,
    patchTurn: (/** @type {Turn} */ turn) => (settle(), patchTurn(turn, heldTurn())),
    patchHead: () => (settle(), patchHead()),
    append: (/** @type {string} */ id, /** @type {string} */ key, /** @type {string} */ more, /** @type {any} */ data) =>
      known.get(id)?.append(key, more, data) ?? false,
    close() {
      clearInterval(timer);
      leaving.abort();
      root.remove();
    },
  };
}
