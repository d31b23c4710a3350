// What a turn shows: its line, its cards, its request, as nodes made anew from data.

import { copyable, copyButton } from "./copying.js";
import { h, markdown, pictures, setAll } from "./dom.js";

/** @typedef {import("./shapes.js").Block} Block */
/** @typedef {import("./shapes.js").CallWords} CallWords */
/** @typedef {import("./shapes.js").Request} Request */
/** @typedef {import("./shapes.js").Section} Section */
/** @typedef {import("./shapes.js").State} State */
/** @typedef {import("./shapes.js").Tool} Tool */
/** @typedef {import("./shapes.js").Turn} Turn */

export const LINE_CHARS = 110;

/** @param {CallWords} call */
function callWords(call) {
  const ends = {
    ok: () => h("span", "nba-res", ` → ${call.outcome}`),
    failed: () => h("span", "nba-err", ` ✕ ${call.outcome}`),
    asking: () => h("span", "nba-res", " ? waiting for you"),
    running: () => h("span", "nba-res", " … running"),
  };
  const end = ends[/** @type {keyof typeof ends} */ (call.phase)];
  return h("code", "", h("span", "nba-call", call.name), `(${call.arguments})`,
    call.decided ? h("span", "nba-res", ` ${call.decided}`) : null, end ? end() : null);
}

/** @param {Turn} turn */
export function firstWords(turn) {
  return turn.text.text.slice(0, 4 * LINE_CHARS).trimStart().slice(0, LINE_CHARS);
}

/** A turn's line. @param {Turn} turn @returns {Node[]} */
export function summaryLine(turn) {
  const { calls, more, text, error } = turn.summary;
  const words = calls.map(callWords);
  if (more) words.push(h("span", "", `and ${more} more`));
  if (text) words.push(h("span", "nba-first", text));
  if (error) words.push(h("span", "nba-err", `✕ ${error}`));
  if (!words.length && turn.phase === "running") words.push(h("span", "nba-first", firstWords(turn)));
  if (!words.length) words.push(h("span", "nba-aside", "no text"));
  return words.flatMap((word, i) => (i ? [document.createTextNode("\u00a0 \u00a0"), word] : [word]));
}

/** A text with its label and its button. @param {string} label @param {Block} block @param {string} of */
function labelled(label, block, of) {
  if (!block.text) return [];
  const text = h("pre", "", block.text);
  const note = block.note ? h("div", "nba-note", block.note) : null;
  return [h("div", "nba-lab", label, copyButton(`the ${label} of ${of}`, () => text)), text, note];
}

/** A tool run's card. @param {Tool} tool */
function card(tool) {
  const failed = tool.phase === "failed";
  const busy = !failed && tool.phase !== "ok";
  const word = tool.word && h("span", failed ? "nba-err" : "nba-res", failed ? `✕ ${tool.word}` : tool.word);
  return h("div", `nba-card${failed ? " nba-bad" : ""}${busy ? " nba-busy" : ""}`,
    h("div", "nba-top", h("span", "nba-call", tool.name), word || null, h("span", "nba-num", tool.where)),
    tool.decision ? h("div", "nba-notice", tool.decision) : null,
    ...labelled("arguments", tool.arguments, tool.name),
    ...labelled("arguments that the model had written", tool.given, tool.name),
    ...labelled("result", tool.result, tool.name),
    ...labelled("error", { text: tool.error, note: "" }, tool.name),
    ...labelled(tool.error ? "where it failed" : "error", tool.detail, tool.name),
    tool.progress ? h("div", "nba-notice", tool.progress) : null,
    ...tool.notes.map((note) => h("div", "nba-notice", `note: ${note}`)),
    ...pictures(tool.images));
}

/** @param {Request} request */
export function requestTable(request) {
  /** @param {string} name @param {(Node | string | null)[]} cell */
  const row = (name, ...cell) => {
    const head = setAll(h("th", "", name), { scope: "row" });
    return h("tr", "", head, h("td", "", ...cell));
  };
  /** @param {Block} block */
  const text = (block) => [h("pre", "", block.text), block.note ? h("div", "nba-note", block.note) : null];
  const short = (/** @type {string} */ name, /** @type {string} */ words) => (words ? row(name, words) : null);
  return h("table", "",
    ...request.messages.map((one) => row(one.role, ...text(one.body), ...pictures(one.images))),
    short("earlier", request.earlier), short("tools", request.tools), short("options", request.params),
    request.system.text ? row("system prompt", ...text(request.system)) : null);
}

/** What stands in an unfolded turn, in order. @param {Turn} turn @param {State} state
 * @param {() => HTMLElement} request its fold
 * @param {(tool: Tool) => HTMLElement} ask the question about a call @returns {Section[]} */
export function sections(turn, state, request, ask) {
  /** @type {Section[]} */
  const list = [];
  const add = (/** @type {string} */ key, /** @type {any} */ data, /** @type {() => HTMLElement} */ build) =>
    list.push({ key, data, build });
  const { reasoning, text } = turn;
  const note = (/** @type {Block} */ block) => block.note ? h("div", "nba-note", block.note) : null;
  if (turn.who) add("who", turn.who, () => h("div", "nba-lab", turn.who));
  if (reasoning.text) {
    add("reasoning", reasoning, () => h("div", "", h("div", "nba-lab", "reasoning"),
      h("div", "nba-think", reasoning.text), note(reasoning)));
  }
  if (state.answer === turn.id && !state.running) {
    add("text", "answer", () => h("div", "nba-lab", "text · the answer below"));
  } else if (turn.tree.length) {
    add("text", turn.tree, () => h("div", "", h("div", "nba-lab", "text"),
      h("div", "nba-text", ...markdown(turn.tree, copyable)), note(text)));
  } else if (text.text) {
    add("text", text, () => h("div", "", h("div", "nba-lab", "text"), h("div", "nba-plain", text.text)));
  }
  turn.drafts.forEach((draft, i) => add(`draft ${i}`, draft, () => h("div", "nba-card nba-busy",
    h("div", "nba-top", h("span", "nba-call", draft.name || "…"), h("span", "nba-res", "being written")),
    h("div", "nba-lab", "arguments"), h("pre", "", draft.arguments || " "))));
  for (const tool of turn.tools) {
    add(`tool ${tool.key}`, tool, () => (tool.question && state.running ? ask(tool) : card(tool)));
  }
  if (turn.notices.length) {
    add("notices", turn.notices, () => h("div", "", ...turn.notices.map((n) => h("div", "nba-notice", `note: ${n}`))));
  }
  if (turn.error) add("error", turn.error, () => h("div", "nba-error", `✕ ${turn.error}`));
  if (turn.request.words) add("request", turn.request, request);
  return list;
}
