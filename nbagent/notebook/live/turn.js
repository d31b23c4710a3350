// One turn on the page: a fold that is filled while it is open, and patched by key.

import { heldCall, isAsked, questionBox } from "./asking.js";
import { h, isBelow, keepHeight, setText } from "./dom.js";
import { firstWords, LINE_CHARS, requestTable, sections, summaryLine } from "./parts.js";

/** @typedef {import("./shapes.js").Placed} Placed */
/** @typedef {import("./shapes.js").Section} Section */
/** @typedef {import("./shapes.js").Shared} Shared */
/** @typedef {import("./shapes.js").State} State */
/** @typedef {import("./shapes.js").Tool} Tool */
/** @typedef {import("./shapes.js").Turn} Turn */

// A person who scrolled or typed so lately is not to be moved.
const BUSY_MS = 1500;

/** A `<details>` that remembers what the person did to it, and is empty while it is folded.
 * @param {Shared} shared @param {string} key @param {string} name @param {Node[]} summary
 * @param {HTMLElement} body @param {() => void} fill @param {() => void} clear */
function foldable(shared, key, name, summary, body, fill, clear) {
  const details = /** @type {HTMLDetailsElement} */ (h("details", name));
  const line = h("summary", "", ...summary);
  line.addEventListener("click", () => {
    shared.touched.set(key, !details.open);
    // The saved picture that takes this view's place keeps it so.
    shared.send({ kind: "fold", key, open: !details.open });
    if (!details.open) fill();
  });
  details.addEventListener("toggle", () => (details.open ? fill() : clear()));
  details.append(line, body);
  details.open = shared.touched.get(key) ?? false;
  return details;
}

/** What a turn sent. @param {Shared} shared @param {Turn} turn */
function requestFold(shared, turn) {
  const { request } = turn;
  const body = h("div", "");
  const fill = () => {
    if (!body.firstChild) body.append(requestTable(request));
  };
  const line = [h("span", "nba-lab", request.words)];
  const fold = foldable(shared, `${turn.id}/request`, "nba-request", line, body, fill, () => body.replaceChildren());
  if (fold.open) fill();
  return fold;
}

/** Put sections in order; rebuild only those whose data changed.
 * @param {HTMLElement} body @param {Map<string, Placed>} placed @param {Section[]} wanted
 * @param {string} held only what stands below this section may change */
function reconcile(body, placed, wanted, held) {
  const keys = new Set(wanted.map((section) => section.key));
  const anchor = placed.get(held)?.node;
  for (const [key, old] of placed) {
    if (!keys.has(key) && (!anchor || isBelow(old.node, anchor))) {
      old.node.remove();
      placed.delete(key);
    }
  }
  let at = anchor ? anchor.nextSibling : body.firstChild;
  const from = anchor ? wanted.findIndex((section) => section.key === held) + 1 : 0;
  for (const { key, data, build } of wanted.slice(from)) {
    const old = placed.get(key);
    let node = old?.node;
    if (old && node && isSame(old.data, data)) {
      old.data = data;
    } else {
      node = build();
      if (old) {
        if (at === old.node) at = node;
        old.node.replaceWith(node);
      }
      const last = node.querySelector(".nba-plain, .nba-think, pre")?.firstChild;
      placed.set(key, { node, data, stream: last instanceof Text ? last : null });
    }
    if (at === node) at = node.nextSibling;
    else body.insertBefore(node, at);
  }
}

/** Ops replace what they change, so most comparisons end at the first. @param {any} a @param {any} b */
function isSame(a, b) {
  return a === b || JSON.stringify(a) === JSON.stringify(b);
}

/** One turn on the page. @param {Shared} shared @param {string} id */
export function createTurn(shared, id) {
  const sum = h("span", "nba-sum");
  const num = h("span", "nba-num");
  const body = h("div", "nba-body");
  /** @type {Map<string, Placed>} */
  const placed = new Map();
  /** @type {Turn | null} */
  let shown = null;
  /** @type {Set<number | undefined>} */
  const asked = new Set();
  const held = () => heldCall(shared, shown?.tools ?? [], body);
  const fill = () => {
    const turn = shown;
    if (!turn) return;
    const ask = (/** @type {Tool} */ tool) => questionBox(shared, tool, leave);
    reconcile(body, placed, sections(turn, shared.state, () => requestFold(shared, turn), ask), `tool ${held()}`);
  };
  const leave = () => line.focus({ preventScroll: true });
  /** Scroll to a question that opens out of sight. @param {Tool} tool */
  const bringIntoSight = ({ key }) => requestAnimationFrame(() => {
    for (const part of [".nba-row", ".nba-top"]) {
      placed.get(`tool ${key}`)?.node.querySelector(part)?.scrollIntoView({ block: "nearest" });
    }
  });
  const clear = () => {
    body.replaceChildren();
    placed.clear();
  };
  const details = foldable(shared, id, "nba-turn", [h("code", "nba-id", id), sum, num], body, fill, clear);
  const line = /** @type {HTMLElement} */ (details.firstChild);
  const caret = h("span", "nba-caret");
  caret.setAttribute("aria-hidden", "true");
  let sig = "";

  /** What a person reads or has selected is not folded away under them. */
  const inUse = () => {
    const root = /** @type {Document | ShadowRoot} */ (details.getRootNode());
    const selected = document.getSelection();
    return (root.activeElement && body.contains(root.activeElement)) ||
      (selected && !selected.isCollapsed && body.contains(selected.anchorNode));
  };

  return {
    details,
    /** Whether the mouse is at a question while one waits: nothing may move under it. */
    isHeld: held,
    /** @param {Turn} turn @param {State} state */
    patch(turn, state) {
      shown = turn;
      keepHeight(line, held());
      const busy = turn.phase === "running" && state.running;
      const now = JSON.stringify([turn.summary, turn.phase, busy && firstWords(turn), busy]);
      if (now !== sig) {
        sig = now;
        sum.replaceChildren(...summaryLine(turn));
        if (busy) sum.append(caret);
      }
      setText(num, turn.numbers);
      // A question that is new is in sight, whatever was folded before.
      const fresh = turn.tools.filter((tool) => isAsked(shared, tool) && !asked.has(tool.question?.nth));
      for (const tool of fresh) asked.add(tool.question?.nth);
      if (fresh.length) shared.touched.delete(id);
      const open = shared.touched.get(id) ?? busy;
      if (details.open && !open && inUse()) shared.touched.set(id, true);
      else if (details.open !== open) details.open = open;
      if (details.open) fill();
      else if (body.firstChild) clear();
      // Nor is one who looks at another question.
      const first = turn.tools.find((tool) => isAsked(shared, tool));
      if (first && first === fresh[0] && performance.now() - shared.moved > BUSY_MS) bringIntoSight(first);
    },
    /** More text at the end of what stands there; false: it has to be patched.
     * @param {string} key @param {string} more @param {any} data what the section shows now */
    append(key, more, data) {
      const first = key === "text" ? sum.querySelector(".nba-first") : null;
      const section = placed.get(key);
      if (details.open ? !section?.stream : key === "text" && !first) return false;
      const words = first?.textContent ?? "";
      if (first && words.length < LINE_CHARS) {
        first.textContent = (words + more).trimStart().slice(0, LINE_CHARS);
      }
      if (details.open && section?.stream) {
        section.stream.appendData(more);
        section.data = data;
      }
      return true;
    },
  };
}
