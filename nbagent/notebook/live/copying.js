// Copy buttons: what stands in the page goes to the clipboard, and the button says so.

import { h, setAll, setText } from "./dom.js";

const SAID_MS = 2000;

/** A button that copies what a node shows. @param {string} what @param {() => HTMLElement} source */
export function copyButton(what, source) {
  const button = /** @type {HTMLButtonElement} */ (h("button", "nba-copy"));
  button.type = "button";
  const say = (/** @type {string} */ words, /** @type {string} */ name) => {
    setText(button, words);
    setAll(button, { "aria-label": name });
  };
  const rest = () => say("Copy", `Copy ${what}`);
  rest();
  setAll(button, { "aria-live": "polite" });
  let timer = 0;
  button.addEventListener("click", async () => {
    const node = source();
    const done = await put(node);
    say(done ? "Copied" : "Selected: press Ctrl+C", done ? `Copied ${what}` : "Selected: press Ctrl+C");
    clearTimeout(timer);
    timer = setTimeout(rest, SAID_MS);
  });
  return button;
}

/** What a person reads in a node, without the buttons in it. @param {HTMLElement} node */
function textOf(node) {
  const buttons = [...node.querySelectorAll("button")];
  for (const button of buttons) button.hidden = true;
  const text = node.innerText;
  for (const button of buttons) button.hidden = false;
  return text;
}

/** @param {HTMLElement} node @returns {Promise<boolean>} */
async function put(node) {
  try {
    await navigator.clipboard.writeText(textOf(node));
    return true;
  } catch {
    // Plain http to another machine, or a frame that may not: the older way, by a selection.
    document.getSelection()?.selectAllChildren(node);
    return document.execCommand("copy");
  }
}

/** A listing with its button. @param {HTMLElement} code */
export function copyable(code) {
  return h("div", "nba-code", code, copyButton("this code", () => code));
}
