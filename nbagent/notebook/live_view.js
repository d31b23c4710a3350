// The live view of a run: pure functions from state to DOM, patched by key, in plain DOM calls.
// Text is text: createElement and textContent only. Owns no data; the kernel sends the picture
// (`state`) and ops. The shapes are those of view_types.py.

/** @typedef {string | [string, Record<string, any>, MdNode[]]} MdNode */
/** @typedef {{text: string, note: string}} Block */
/** @typedef {{name: string, arguments: string, phase: string, outcome: string}} CallWords */
/** @typedef {{calls: CallWords[], more: number, text: string, error: string}} Summary */
/** @typedef {{key: string, name: string, phase: string, word: string, where: string,
 *   arguments: Block, result: Block, error: string, detail: Block, notes: string[],
 *   images: {media_type: string, data: string, alt: string}[], progress: string}} Tool */
/** @typedef {{words: string, earlier: string, messages: {role: string, body: Block}[],
 *   tools: string, params: string, system: Block}} Request */
/** @typedef {{id: string, phase: string, who: string, summary: Summary, numbers: string,
 *   reasoning: Block, text: Block, tree: MdNode[], drafts: {name: string, arguments: string}[],
 *   tools: Tool[], request: Request, notices: string[], error: string}} Turn */
/** @typedef {{status: {word: string, tone: string, mark: string}, activity: string,
 *   running: boolean, doing: string, elapsed_ms: number, bar_words: string, notices: string[],
 *   facts: {key: string, value: string, word: string, aside: string}[],
 *   bar: {kind: string, ms: number, turn: string}[], about: string, model: string,
 *   offline: string, turns: Turn[], answer: string, answer_note: string, error: string,
 *   next: {words: string, type: string}[]}} State */
/** @typedef {{key: string, data: any, build: () => HTMLElement}} Section */
/** @typedef {{node: HTMLElement, sig: string, stream: Text | null}} Placed */

const TAGS = new Set(("p h1 h2 h3 h4 h5 h6 ul ol li blockquote pre code em strong s a " +
  "table thead tbody tr th td hr br").split(" "));
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;
const LINE_CHARS = 110;

/** @param {string} tag @param {string} name class @param {(Node | string | null)[]} children */
function h(tag, name, ...children) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  for (const child of children) if (child) node.append(child);
  return node;
}

/** @param {Node} node @param {string} text */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The nodes of a Markdown tree; tags and addresses are checked once more.
 * @param {MdNode[]} tree @returns {Node[]} */
function markdown(tree) {
  return tree.map((item) => {
    if (typeof item === "string") return document.createTextNode(item);
    const [tag, attributes, children] = item;
    const node = document.createElement(TAGS.has(tag) ? tag : "span");
    if (tag === "a" && /^(https?|mailto):/i.test(attributes.href ?? "")) {
      node.setAttribute("href", attributes.href);
      node.setAttribute("target", "_blank");
      node.setAttribute("rel", "noopener noreferrer nofollow");
    }
    if (tag === "ol" && attributes.start) node.setAttribute("start", String(attributes.start));
    if (attributes.align) node.setAttribute("align", attributes.align);
    node.append(...markdown(children));
    return node;
  });
}

/** The same pattern as `seconds` in visible.py. @param {number} ms */
function seconds(ms) {
  if (ms >= 600000) return [`${Math.floor(ms / 60000)} min ${Math.floor((ms % 60000) / 1000)}`, "s"];
  return [(ms / 1000).toFixed(ms < 99950 ? 1 : 0), "s"];
}

/** @param {CallWords} call */
function callWords(call) {
  const ends = {
    ok: () => h("span", "nba-res", ` → ${call.outcome}`),
    failed: () => h("span", "nba-err", ` ✕ ${call.outcome}`),
    asking: () => h("span", "nba-res", " ? waiting for you"),
    running: () => h("span", "nba-res", " … running"),
  };
  const end = ends[/** @type {keyof typeof ends} */ (call.phase)];
  return h("code", "", h("span", "nba-call", call.name), `(${call.arguments})`, end ? end() : null);
}

/** @param {Turn} turn */
function firstWords(turn) {
  return turn.text.text.trimStart().slice(0, LINE_CHARS);
}

/** A turn's line. @param {Turn} turn */
function summaryLine(turn) {
  const { calls, more, text, error } = turn.summary;
  const words = calls.map(callWords);
  if (more) words.push(h("span", "", `and ${more} more`));
  if (text) words.push(h("span", "nba-first", text));
  if (error) words.push(h("span", "nba-err", `✕ ${error}`));
  if (!words.length && turn.phase === "running") words.push(h("span", "nba-first", firstWords(turn)));
  if (!words.length) words.push(h("span", "nba-aside", "no text"));
  return words.flatMap((word, i) => (i ? [document.createTextNode("\u00a0 \u00a0"), word] : [word]));
}

/** @param {string} label @param {Block} block */
function labelled(label, block) {
  if (!block.text) return [];
  const note = block.note ? h("div", "nba-note", block.note) : null;
  return [h("div", "nba-lab", label), h("pre", "", block.text), note];
}

/** @param {Tool} tool */
function card(tool) {
  const failed = tool.phase === "failed";
  const busy = !failed && tool.phase !== "ok";
  const word = tool.word && h("span", failed ? "nba-err" : "nba-res", failed ? `✕ ${tool.word}` : tool.word);
  const images = tool.images
    .filter((image) => /^image\/(png|jpeg)$/.test(image.media_type) && BASE64.test(image.data))
    .map((image) => {
      const node = document.createElement("img");
      node.alt = image.alt;
      node.src = `data:${image.media_type};base64,${image.data}`;
      return node;
    });
  return h("div", `nba-card${failed ? " nba-bad" : ""}${busy ? " nba-busy" : ""}`,
    h("div", "nba-top", h("span", "nba-call", tool.name), word || null, h("span", "nba-num", tool.where)),
    ...labelled("arguments", tool.arguments),
    ...labelled("result", tool.result),
    ...labelled("error", { text: tool.error, note: "" }),
    ...labelled(tool.error ? "where it failed" : "error", tool.detail),
    tool.progress ? h("div", "nba-notice", tool.progress) : null,
    ...tool.notes.map((note) => h("div", "nba-notice", `note: ${note}`)),
    ...images);
}

/** @param {Request} request */
function requestTable(request) {
  /** @param {string} name @param {Block} block @param {boolean} [plain] */
  const row = (name, block, plain) => !block.text ? null : h("tr", "", h("th", "", name), h("td", "",
    plain ? block.text : h("pre", "", block.text), block.note ? h("div", "nba-note", block.note) : null));
  const short = (/** @type {string} */ name, /** @type {string} */ text) => row(name, { text, note: "" }, true);
  return h("table", "",
    ...request.messages.map((message) => row(message.role, message.body)),
    short("earlier", request.earlier), short("tools", request.tools), short("options", request.params),
    row("system prompt", request.system));
}

/** What stands in an unfolded turn, in order. @param {Turn} turn @param {State} state @param {any} shared
 * @returns {Section[]} */
function sections(turn, state, shared) {
  /** @type {Section[]} */
  const list = [];
  const add = (/** @type {string} */ key, /** @type {any} */ data, /** @type {() => HTMLElement} */ build) =>
    list.push({ key, data, build });
  const { reasoning, text, request } = turn;
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
      h("div", "nba-text", ...markdown(turn.tree)), note(text)));
  } else if (text.text) {
    add("text", text, () => h("div", "", h("div", "nba-lab", "text"), h("div", "nba-plain", text.text)));
  }
  turn.drafts.forEach((draft, i) => add(`draft ${i}`, draft, () => h("div", "nba-card nba-busy",
    h("div", "nba-top", h("span", "nba-call", draft.name || "…"), h("span", "nba-res", "being written")),
    h("div", "nba-lab", "arguments"), h("pre", "", draft.arguments || " "))));
  for (const tool of turn.tools) add(`tool ${tool.key}`, tool, () => card(tool));
  if (turn.notices.length) {
    add("notices", turn.notices, () => h("div", "", ...turn.notices.map((n) => h("div", "nba-notice", `note: ${n}`))));
  }
  if (turn.error) add("error", turn.error, () => h("div", "nba-error", `✕ ${turn.error}`));
  if (request.words) {
    add("request", request, () => foldable(shared, `${turn.id}/request`, "nba-request",
      [h("span", "nba-lab", request.words)], [requestTable(request)]));
  }
  return list;
}

/** A `<details>` that remembers what the person did to it.
 * @param {any} shared @param {string} key @param {string} name @param {Node[]} summary @param {Node[]} body */
function foldable(shared, key, name, summary, body) {
  const details = /** @type {HTMLDetailsElement} */ (h("details", name));
  const line = h("summary", "", ...summary);
  line.addEventListener("click", () => {
    shared.touched.set(key, !details.open);
    // The saved picture that takes this view's place keeps it so.
    shared.send({ kind: "fold", key, open: !details.open });
  });
  details.append(line, ...body);
  details.open = shared.touched.get(key) ?? false;
  return details;
}

/** Put sections in order; rebuild only those whose data changed.
 * @param {HTMLElement} body @param {Map<string, Placed>} placed @param {Section[]} wanted */
function reconcile(body, placed, wanted) {
  const keys = new Set(wanted.map((section) => section.key));
  for (const [key, old] of placed) {
    if (!keys.has(key)) {
      old.node.remove();
      placed.delete(key);
    }
  }
  let at = body.firstChild;
  for (const { key, data, build } of wanted) {
    const old = placed.get(key);
    const sig = JSON.stringify(data);
    let node = old?.node;
    if (!old || old.sig !== sig) {
      node = build();
      if (old) {
        if (at === old.node) at = node;
        old.node.replaceWith(node);
      }
      const last = node.querySelector(".nba-plain, .nba-think, pre")?.firstChild;
      placed.set(key, { node, sig, stream: last instanceof Text ? last : null });
    }
    if (at === node) at = node.nextSibling;
    else body.insertBefore(/** @type {HTMLElement} */ (node), at);
  }
}

/** One turn on the page. @param {any} shared @param {string} id */
function createTurn(shared, id) {
  const sum = h("span", "nba-sum");
  const num = h("span", "nba-num");
  const body = h("div", "nba-body");
  const details = foldable(shared, id, "nba-turn", [h("code", "nba-id", id), sum, num], [body]);
  const caret = h("span", "nba-caret");
  caret.setAttribute("aria-hidden", "true");
  /** @type {Map<string, Placed>} */
  const placed = new Map();
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
    /** @param {Turn} turn @param {State} state */
    patch(turn, state) {
      const now = JSON.stringify([turn.summary, turn.phase, turn.phase === "running" && firstWords(turn)]);
      if (now !== sig) {
        sig = now;
        sum.replaceChildren(...summaryLine(turn));
        if (turn.phase === "running") sum.append(caret);
      }
      setText(num, turn.numbers);
      reconcile(body, placed, sections(turn, state, shared));
      const open = shared.touched.get(id) ?? (turn.phase === "running" && state.running);
      if (details.open && !open && inUse()) shared.touched.set(id, true);
      else if (details.open !== open) details.open = open;
    },
    /** More text at the end of what stands there; false: it has to be patched.
     * @param {string} key @param {string} more */
    append(key, more) {
      const section = placed.get(key);
      if (!section?.stream) return false;
      section.stream.appendData(more);
      section.sig = "";
      const first = key === "text" ? sum.querySelector(".nba-first") : null;
      const shown = first?.textContent ?? "";
      if (first && shown.length < LINE_CHARS) {
        first.textContent = (shown + more).trimStart().slice(0, LINE_CHARS);
      }
      return true;
    },
  };
}

/** One view of the run on the page. @param {any} shared @param {HTMLElement} el */
function createView(shared, el) {
  const mark = h("span", "nba-mark");
  mark.setAttribute("aria-hidden", "true");
  const phase = h("strong", "nba-phase");
  phase.setAttribute("role", "status");
  phase.setAttribute("aria-live", "polite");
  const chip = h("code", "nba-chip");
  const facts = h("span", "nba-facts");
  const stop = /** @type {HTMLButtonElement} */ (h("button", "nba-stop"));
  stop.type = "button";
  stop.addEventListener("click", () => shared.stop());
  const bar = h("div", "nba-bar");
  const offline = h("div", "nba-offline");
  const activity = h("div", "nba-activity");
  const turns = h("div", "nba-turns");
  const ends = h("div", "nba-ends");
  const answer = h("div", "nba-answer");
  const foot = h("div", "nba-foot");
  const root = h("div", "nba-run", h("div", "nba-head", mark, phase, chip, facts, stop),
    bar, offline, activity, turns, ends, answer, foot);
  el.append(root);
  /** @type {Map<string, ReturnType<typeof createTurn>>} */
  const known = new Map();
  /** @type {HTMLElement | null} */
  let clock = null;
  let endSig = "";

  function patchHead() {
    /** @type {State} */
    const state = shared.state;
    mark.className = `nba-mark nba-${state.status.tone}`;
    setText(phase, state.status.word);
    setText(chip, state.model);
    facts.replaceChildren();
    clock = null;
    state.facts.forEach((fact, i) => {
      const value = h("b", "", fact.value);
      if (fact.key === "time") clock = value;
      facts.append(i ? " · " : "", value, fact.word ? ` ${fact.word}` : "");
      if (fact.aside) facts.append(" ", h("span", "nba-aside", fact.aside));
    });
    stop.hidden = !state.running;
    stop.disabled = shared.stopping;
    setText(stop, shared.stopping ? "Stopping…" : "■ Stop");
    stop.setAttribute("aria-label", shared.stopping ? "Stopping this run" : "Stop this run");
    bar.title = state.bar_words;
    setText(offline, state.offline);
    offline.hidden = !state.offline;
    setText(activity, state.activity);
    activity.hidden = !state.activity;
    tick();
  }

  function tick() {
    /** @type {State} */
    const state = shared.state;
    const pieces = state.bar.map((piece) => ({ kind: piece.kind, ms: piece.ms }));
    if (state.running) {
      const elapsed = state.elapsed_ms + performance.now() - shared.since;
      if (clock) setText(clock, seconds(elapsed)[0]);
      const rest = elapsed - pieces.reduce((sum, piece) => sum + piece.ms, 0);
      if (state.doing && rest > 0) pieces.push({ kind: state.doing, ms: rest });
    }
    while (bar.children.length > pieces.length) bar.lastElementChild?.remove();
    while (bar.children.length < pieces.length) bar.append(document.createElement("i"));
    pieces.forEach((piece, i) => {
      const node = /** @type {HTMLElement} */ (bar.children[i]);
      node.className = `nba-${piece.kind}`;
      node.style.flexGrow = String(Math.max(1, Math.round(piece.ms)));
    });
  }

  /** @param {Turn} turn */
  function patchTurn(turn) {
    let view = known.get(turn.id);
    if (!view) {
      view = createTurn(shared, turn.id);
      known.set(turn.id, view);
      turns.append(view.details);
    }
    view.patch(turn, shared.state);
  }

  /** Notices, error, answer and foot. */
  function patchEnds() {
    /** @type {State} */
    const state = shared.state;
    const turn = state.turns.find((one) => one.id === state.answer);
    const sig = JSON.stringify([state.notices, state.error, turn, state.running, state.about]);
    if (sig === endSig) return;
    endSig = sig;
    ends.replaceChildren(...state.notices.map((n) => h("div", "nba-notice", `note: ${n}`)));
    if (state.error) {
      const look = state.error_mark === "✕" ? "nba-error" : "nba-notice";
      ends.append(h("div", look, `${state.error_mark} ${state.error}`));
    }
    answer.hidden = !turn;
    foot.hidden = state.running;
    answer.replaceChildren();
    foot.replaceChildren();
    if (turn) {
      const notes = [state.answer_note, turn.text.note].map((note) => note ? h("div", "nba-note", note) : null);
      answer.append(...[notes[0], ...markdown(turn.tree), notes[1]].filter((node) => node !== null));
      foot.append(copyButton(answer));
    }
    foot.append(h("span", "", state.about));
    for (const step of state.next) foot.append(h("span", "", h("code", "", step.type), ` ${step.words}`));
  }

  function all() {
    patchHead();
    /** @type {State} */
    const state = shared.state;
    const ids = new Set(state.turns.map((turn) => turn.id));
    for (const [id, view] of known) {
      if (!ids.has(id)) {
        view.details.remove();
        known.delete(id);
      }
    }
    state.turns.forEach((turn, i) => {
      patchTurn(turn);
      // A turn that was heard of too early stands too far up.
      const node = known.get(turn.id)?.details;
      if (node && turns.children[i] !== node) turns.insertBefore(node, turns.children[i]);
    });
    patchEnds();
  }

  all();
  const timer = setInterval(() => shared.state.running && tick(), 100);
  return {
    all, patchHead, patchTurn, patchEnds,
    append: (/** @type {string} */ id, /** @type {string} */ key, /** @type {string} */ more) =>
      known.get(id)?.append(key, more) ?? false,
    close() {
      clearInterval(timer);
      root.remove();
    },
  };
}

/** @param {HTMLElement} answer */
function copyButton(answer) {
  const button = /** @type {HTMLButtonElement} */ (h("button", "", "Copy"));
  button.type = "button";
  button.setAttribute("aria-label", "Copy the answer");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(answer.innerText);
      setText(button, "Copied");
    } catch {
      document.getSelection()?.selectAllChildren(answer);
      setText(button, "Selected: press Ctrl+C");
    }
    setTimeout(() => setText(button, "Copy"), 2000);
  });
  return button;
}

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

/** Apply one op to the picture and to every view. @param {any} shared @param {any} op */
function apply(shared, op) {
  /** @type {State} */
  const state = shared.state;
  /** @type {Set<ReturnType<typeof createView>>} */
  const views = shared.views;
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
  } else if (op.op === "text") {
    const turn = turnOf(state, op.turn);
    const block = op.kind === "reasoning" ? turn.reasoning : turn.text;
    block.text += op.text;
    for (const view of views) if (!view.append(op.turn, op.kind, op.text)) view.patchTurn(turn);
  } else if (op.op === "draft") {
    const turn = turnOf(state, op.turn);
    while (turn.drafts.length <= op.index) turn.drafts.push({ name: "", arguments: "" });
    const draft = turn.drafts[op.index];
    draft.arguments += op.text;
    if (op.name) draft.name = op.name;
    for (const view of views) {
      if (op.name || !view.append(op.turn, `draft ${op.index}`, op.text)) view.patchTurn(turn);
    }
  }
}

// anywidget gives `initialize` and `render` different `model` objects: what they share is here.
export default () => {
  const shared = {
    /** @type {any} */ state: null,
    /** @type {Set<ReturnType<typeof createView>>} */ views: new Set(),
    /** What the person folded or unfolded, by key. @type {Map<string, boolean>} */ touched: new Map(),
    since: 0,
    stopping: false,
    /** @type {(content: any) => void} */ send: () => {},
    /** @param {State} state */
    take(state) {
      // A copy: ops change it, and the widget manager's own must stay what the kernel sent.
      shared.state = structuredClone(state);
      shared.since = performance.now();
      if (!state.running) shared.stopping = false;
      for (const view of shared.views) view.all();
    },
    stop() {
      shared.stopping = true;
      shared.send({ kind: "stop" });
      for (const view of shared.views) view.patchHead();
    },
  };
  return {
    /** @param {{model: any}} given */
    initialize({ model }) {
      const changed = () => shared.take(model.get("state"));
      const heard = (/** @type {any} */ message) => {
        for (const op of message?.ops ?? []) apply(shared, op);
      };
      shared.send = (content) => model.send(content);
      changed();
      model.on("change:state", changed);
      model.on("msg:custom", heard);
      shared.send({ kind: "ready", running: shared.state.running });
      return () => {
        model.off("change:state", changed);
        model.off("msg:custom", heard);
      };
    },
    /** @param {{model: any, el: HTMLElement}} given */
    render({ model, el }) {
      if (shared.state === null) shared.take(model.get("state"));
      const view = createView(shared, el);
      shared.views.add(view);
      return () => {
        shared.views.delete(view);
        view.close();
      };
    },
  };
};
