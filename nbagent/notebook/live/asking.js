// A question to the person: the whole call, what it would do, and the ways to answer.

import { h, setAll, setText } from "./dom.js";

/** @typedef {import("./shapes.js").Kept} Kept */
/** @typedef {import("./shapes.js").Piece} Piece */
/** @typedef {import("./shapes.js").Shared} Shared */
/** @typedef {import("./shapes.js").Tool} Tool */

// What comes up under a finger that is already on its way down is not an answer.
const ARMED_MS = 300;

/** What the person does to a question, beside all nodes that show it.
 * @param {Shared} shared @param {Tool} tool @returns {Kept} */
function keptOf(shared, tool) {
  const key = `${tool.key} ${tool.question?.nth}`;
  let kept = shared.asked.get(key);
  if (!kept) {
    const text = tool.question?.editable || tool.question?.pieces[0].text || "";
    const { nth } = /** @type {any} */ (tool.question);
    kept = { call: tool.key, nth, form: "", text, reason: "", said: "", trouble: "", armed: false, boxes: new Set() };
    shared.asked.set(key, kept);
  }
  return kept;
}

/** Whether an answer is awaited. @param {Shared} shared @param {Tool} tool */
export function isAsked(shared, tool) {
  return Boolean(tool.question) && shared.state.running && !keptOf(shared, tool).said;
}

/** The call whose question within a node the mouse is at: while one waits, nothing may move under it.
 * @param {Shared} shared @param {Tool[]} tools @param {Node} root */
export function heldCall(shared, tools, root) {
  if (!tools.some((tool) => isAsked(shared, tool))) return "";
  for (const { call, nth, armed, boxes } of shared.asked.values()) {
    // One that cannot be answered yet may still move; one that is asked anew has to.
    const held = armed && tools.some((tool) => tool.key === call && (tool.question?.nth ?? nth) === nth);
    if (held && [...boxes].some(({ node }) => root.contains(node) && node.matches(":hover"))) return call;
  }
  return "";
}


/** An answer could not be taken: it is asked again, with the words. @param {Shared} shared @param {any} op */
export function takeBack(shared, op) {
  const kept = shared.asked.get(`${op.call} ${op.nth}`);
  if (!kept) return;
  kept.said = "";
  kept.trouble = `Not sent: ${op.text}`;
  for (const box of kept.boxes) box.patch();
}

/** The lines of a diff: the signs stay, the colours only help. @param {string} text */
function diffLines(text) {
  const look = (/** @type {string} */ line) =>
    /^(\+\+\+|---) /.test(line) || line.startsWith("@@") ? "nba-hunk"
      : line.startsWith("+") ? "nba-plus" : line.startsWith("-") ? "nba-minus" : "";
  /** @type {[string, string[]][]} */
  const runs = [];
  for (const line of text.split("\n")) {
    const last = runs.at(-1);
    if (last && last[0] === look(line)) last[1].push(line);
    else runs.push([look(line), [line]]);
  }
  return runs.map(([name, lines]) => h("span", name, `${lines.join("\n")}\n`));
}

/** All of a text; a long one has a bar to scroll it by. @param {Piece} piece */
function shownPiece({ label, text, kind, long }) {
  const pre = h("pre", "", ...(kind === "diff" ? diffLines(text) : [text]));
  if (long) setAll(pre, { tabindex: "0", role: "region", "aria-label": label });
  return [h("div", "nba-lab", label), pre];
}

/** What a person wrote as arguments: an object, or what is wrong. @param {string} text */
function checked(text) {
  try {
    const value = JSON.parse(text);
    const fine = value && typeof value === "object" && !Array.isArray(value);
    return fine ? "" : "the arguments have to be one JSON object: { … }";
  } catch (error) {
    return `this is not JSON: ${/** @type {Error} */ (error).message}`;
  }
}

/** A question, where the card of its call will stand.
 * @param {Shared} shared @param {Tool} tool @param {() => void} leave takes the focus after an answer */
export function questionBox(shared, tool, leave) {
  const kept = keptOf(shared, tool);
  const { nth, host, why, scope, pieces, long } = /** @type {any} */ (tool.question);
  const button = (/** @type {string} */ words, /** @type {string} */ title, /** @type {() => void} */ act) => {
    const node = /** @type {HTMLButtonElement} */ (h("button", "", words));
    node.type = "button";
    if (title) node.title = title;
    // The second click of a double click was meant for what stood there before.
    node.addEventListener("click", (event) => event.detail < 2 && !kept.said && act());
    return node;
  };
  const all = () => shared.asked.forEach(({ boxes }) => boxes.forEach((box) => box.patch()));
  const send = (/** @type {string} */ said, /** @type {any} */ answer) => {
    if (kept.said) return;
    const inside = node.contains(/** @type {any} */ (node.getRootNode()).activeElement);
    Object.assign(kept, { said, trouble: "" });
    all();
    if (inside) leave();
    shared.send({ kind: "answer", call: tool.key, nth, ...answer });
    for (const view of shared.views) view.settle();
  };
  const edited = () => {
    const wrong = checked(kept.text);
    if (!wrong) return send("Allowed, edited", { choice: "once", arguments: kept.text });
    kept.trouble = `Not sent: ${wrong}`;
    all();
    text.focus();
  };
  const denied = () => send("Denied", { choice: "deny", reason: kept.reason });
  const unfold = (/** @type {Kept["form"]} */ form, /** @type {HTMLElement} */ field) => () => {
    kept.form = kept.form === form ? "" : form;
    kept.trouble = "";
    all();
    if (kept.form) field.focus();
  };

  const text = /** @type {HTMLTextAreaElement} */ (h("textarea", ""));
  const reason = /** @type {HTMLInputElement} */ (h("input", ""));
  text.rows = Math.min(16, kept.text.split("\n").length + 1);
  for (const field of [text, reason]) setAll(field, { spellcheck: "false", autocomplete: "off" });
  text.addEventListener("input", () => { kept.text = text.value; });
  reason.addEventListener("input", () => { kept.reason = reason.value; });
  reason.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    // Else the same key would fold the turn, whose line gets the focus.
    event.preventDefault();
    denied();
  });
  const once = button("Allow once", "this call, this time", () => send("Allowed once", { choice: "once" }));
  once.classList.add("nba-go");
  const session = button("Allow for this session", scope ? `for this session: ${scope}` : "",
    () => send("Allowed for this session", { choice: "session" }));
  const edit = button("Edit…", "", unfold("edit", text));
  const deny = button("Deny…", "", unfold("deny", reason));
  const editing = h("div", "nba-answering", h("label", "nba-lab", "arguments, as JSON", text),
    button("Allow with these arguments", "", edited));
  const denying = h("div", "nba-answering", h("label", "nba-lab", "reason, which the model is told", reason),
    button("Deny", "", denied));
  const said = setAll(h("div", "nba-said"), { "aria-live": "polite" });
  const state = h("span", "nba-res");
  const texts = pieces.flatMap(shownPiece);
  const answering = [h("div", "nba-row", once, scope ? session : "", edit, deny), editing, denying, said];
  const node = setAll(h("div", "nba-card nba-ask",
    h("div", "nba-top", h("span", "nba-call", tool.name), state, h("span", "nba-num", host)),
    h("div", "nba-why", why),
    // Below texts that have to be scrolled the buttons would be out of sight.
    ...(long ? [...answering, ...texts] : [...texts, ...answering])), {
    role: "group",
    // JupyterLab would take Enter for its own.
    "data-lm-suppress-shortcuts": "true",
  });

  const patch = () => {
    const off = Boolean(kept.said) || !kept.armed;
    for (const one of node.querySelectorAll("button, textarea, input")) {
      /** @type {HTMLButtonElement} */ (one).disabled = off;
    }
    // While a form is open these would send the call as it was.
    once.disabled = session.disabled = off || Boolean(kept.form);
    editing.hidden = kept.form !== "edit";
    denying.hidden = kept.form !== "deny";
    setAll(edit, { "aria-expanded": String(!editing.hidden) });
    setAll(deny, { "aria-expanded": String(!denying.hidden) });
    setAll(text, { "aria-invalid": String(Boolean(kept.trouble)) });
    if (text.value !== kept.text) text.value = kept.text;
    if (reason.value !== kept.reason) reason.value = kept.reason;
    setText(said, kept.said ? `${kept.said}: sent` : kept.trouble);
    const others = shared.state.turns.some((turn) => turn.tools.some((one) => isAsked(shared, one)));
    const words = kept.said ? kept.said.toLowerCase() + (others ? ", others wait for you" : "") : "waiting for you";
    setText(state, words);
    setAll(node, { "aria-label": `${tool.name} is ${words}: ${why}` });
  };
  for (const box of kept.boxes) if (!box.node.isConnected) kept.boxes.delete(box);
  kept.boxes.add({ node, patch });
  if (!kept.armed) {
    setTimeout(() => {
      kept.armed = true;
      all();
    }, ARMED_MS);
  }
  patch();
  return node;
}
