// Ops, the kernel's small messages: each changes the picture, and every view of it.

import { takeBack } from "./asking.js";

/** @typedef {import("./shapes.js").Shared} Shared */
/** @typedef {import("./shapes.js").State} State */
/** @typedef {import("./shapes.js").Turn} Turn */

/** A turn that the picture lacks: its start was sent before anybody listened.
 * @param {State} state @param {string} id @returns {Turn} */
function turnOf(state, id) {
  let turn = state.turns.find((one) => one.id === id);
  if (!turn) {
    const none = () => ({ text: "", note: "" });
    turn = {
      id, phase: "running", who: "", numbers: "", reasoning: none(), text: none(), tree: [], drafts: [],
      summary: { calls: [], more: 0, text: "", error: "" }, tools: [], notices: [], error: "",
      request: { words: "", earlier: "", messages: [], tools: "", params: "", system: none() },
    };
    state.turns.push(turn);
  }
  return turn;
}

/** Apply one op. What it changes is replaced, not written into: views compare by identity.
 * @param {Shared} shared @param {any} op */
export function apply(shared, op) {
  const { state, views } = shared;
  if (op.op === "state") {
    shared.take(op.state);
  } else if (op.op === "head") {
    Object.assign(state, op.head);
    shared.since = performance.now();
    for (const view of views) {
      view.patchHead();
      view.patchEnds();
    }
  } else if (op.op === "turn") {
    const at = state.turns.findIndex((turn) => turn.id === op.turn.id);
    if (at < 0) state.turns.push(op.turn);
    else state.turns[at] = op.turn;
    for (const view of views) view.patchTurn(op.turn);
  } else if (op.op === "tool") {
    const turn = turnOf(state, op.turn);
    const at = turn.tools.findIndex((tool) => tool.key === op.tool.key);
    if (at < 0) turn.tools.push(op.tool);
    else turn.tools[at] = op.tool;
    turn.summary = op.summary;
    for (const view of views) view.patchTurn(turn);
  } else if (op.op === "unclear") {
    takeBack(shared, op);
  } else if (op.op === "text" || op.op === "reasoning") {
    const turn = turnOf(state, op.turn);
    const name = /** @type {"text" | "reasoning"} */ (op.op);
    const block = { text: turn[name].text + op.text, note: turn[name].note };
    turn[name] = block;
    for (const view of views) if (!view.append(op.turn, name, op.text, block)) view.patchTurn(turn);
  } else if (op.op === "draft") {
    const turn = turnOf(state, op.turn);
    while (turn.drafts.length <= op.index) turn.drafts.push({ name: "", arguments: "" });
    const old = turn.drafts[op.index];
    const draft = { name: op.name || old.name, arguments: old.arguments + op.text };
    turn.drafts[op.index] = draft;
    for (const view of views) {
      if (op.name || !view.append(op.turn, `draft ${op.index}`, op.text, draft)) view.patchTurn(turn);
    }
  }
}
