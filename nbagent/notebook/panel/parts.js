// The parts of the panel that ipywidgets has none for: the box for the prompt, and the person's
// words above a run. What is typed is never a trait: it leaves as a message when it is sent, so no
// saved widget state holds it. Text is text: createElement and textContent only.

/** @typedef {{working: boolean, can_continue: boolean, goes_on: boolean, status: string,
 *   error: string, system: string, hints: Record<string, string>}} BoxState */

const WAITS = "Waits for the kernel, which a cell keeps busy. It goes out as soon as the kernel is free.";
const SILENT = "No answer from a kernel yet. If it was restarted, run the cell again for a new panel.";
const GONE = "The kernel of this panel is gone. Run the cell again for a new one; runs that ended are kept.";

/** @param {string} tag @param {string} name class @param {(Node | string)[]} children */
function h(tag, name, ...children) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...children);
  return node;
}

/** @param {Node} node @param {string} text */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** @param {string} label @param {string} name @param {() => void} click */
function button(label, name, click) {
  const node = /** @type {HTMLButtonElement} */ (h("button", name, label));
  node.type = "button";
  node.addEventListener("click", click);
  return node;
}

/** @param {string} label @param {number} rows */
function textarea(label, rows) {
  const node = /** @type {HTMLTextAreaElement} */ (document.createElement("textarea"));
  node.rows = rows;
  node.spellcheck = true;
  node.setAttribute("aria-label", label);
  return node;
}

/** Say what the fields mean: ipywidgets has no tooltip for a field with a label.
 * @param {HTMLElement} root @param {Record<string, string>} hints by the fields' labels */
function describe(root, hints) {
  for (const label of root.closest(".nba-panel")?.querySelectorAll(".nba-field > label") ?? []) {
    const hint = Object.hasOwn(hints, label.textContent ?? "") ? hints[label.textContent ?? ""] : "";
    if (hint) label.parentElement?.querySelector("input")?.setAttribute("title", hint);
  }
}

/** One view of the box. @param {any} shared @param {HTMLElement} el */
function createBox(shared, el) {
  const system = textarea("System prompt", 3);
  const first = h("span", "nba-box-first");
  const fold = h("details", "nba-box-system", h("summary", "", h("span", "", "System prompt"), first), system);
  const prompt = textarea("Prompt", 3);
  prompt.setAttribute("aria-keyshortcuts", "Control+Enter");
  const send = button("Send", "nba-box-send", () => shared.ask("send"));
  send.title = "Ctrl+Enter";
  const goOn = button("Continue", "nba-box-go", () => shared.ask("continue"));
  goOn.title = "Go on from where the run stopped";
  const stop = button("■ Stop", "nba-box-stop", () => shared.stop());
  stop.setAttribute("aria-label", "Stop the run of this panel");
  const status = h("span", "nba-box-status");
  status.setAttribute("role", "status");
  status.setAttribute("aria-live", "polite");
  const error = h("div", "nba-box-error");
  error.setAttribute("role", "alert");
  const root = h("div", "nba-box", error, fold, prompt, h("div", "nba-box-row", send, goOn, stop, status));
  // JupyterLab's own Ctrl+Enter would run the cell.
  root.setAttribute("data-lm-suppress-shortcuts", "true");
  root.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.target === prompt && event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      shared.ask("send");
    }
  });
  prompt.addEventListener("input", () => {
    shared.draft = prompt.value;
    shared.patch();
  });
  system.addEventListener("input", () => {
    shared.system = system.value;
    shared.patch();
  });
  system.addEventListener("change", () => shared.send({ kind: "system", text: system.value }));
  el.append(root);
  const forget = follow(shared, root);

  return {
    patch() {
      /** @type {BoxState} */
      const state = shared.state;
      const waits = shared.waiting !== null;
      const free = !state.working && !waits && !shared.gone;
      if (prompt.value !== shared.draft) prompt.value = shared.draft;
      if (system.value !== shared.system) system.value = shared.system;
      prompt.readOnly = waits;
      prompt.placeholder = state.goes_on ? "Say more…" : "Ask something…";
      setText(first, shared.system.trim().slice(0, 120));
      send.disabled = !free || !shared.draft.trim();
      goOn.disabled = !free;
      goOn.hidden = !state.can_continue;
      stop.disabled = shared.gone || shared.stopping || !(state.working || waits);
      setText(stop, shared.stopping && state.working ? "Stopping…" : "■ Stop");
      setText(status, shared.words());
      setText(error, shared.gone ? GONE : state.error);
      error.hidden = !error.textContent;
      root.classList.toggle("nba-gone", shared.gone);
      describe(root, state.hints);
    },
    close() {
      forget();
      root.remove();
    },
  };
}

/** Keep the box where it is seen while the conversation above it grows, as long as it was seen.
 * @param {any} shared @param {HTMLElement} root */
function follow(shared, root) {
  let seen = false;
  const sight = new IntersectionObserver((all) => { seen = all[all.length - 1].intersectionRatio > 0.6; },
    { threshold: [0, 0.6, 1] });
  const growth = new ResizeObserver(() => {
    if (seen && performance.now() < shared.grows) root.scrollIntoView({ block: "nearest" });
  });
  sight.observe(root);
  // The widget's own element is there before its neighbours are.
  requestAnimationFrame(() => {
    const talk = root.closest(".nba-panel")?.querySelector(".nba-panel-talk");
    if (talk) growth.observe(talk);
  });
  return () => {
    sight.disconnect();
    growth.disconnect();
  };
}

/** What all views of one box share. @param {any} model */
function createShared(model) {
  const shared = {
    /** @type {BoxState} */ state: model.get("state"),
    /** @type {Set<ReturnType<typeof createBox>>} */ views: new Set(),
    draft: "",
    system: model.get("state").system,
    /** @type {{id: string, kind: string} | null} */ waiting: null,
    late: false,
    heard: false,
    silent: false,
    stopping: false,
    gone: false,
    /** Until when the conversation grows by what a run does. */ grows: 0,
    /** @param {any} content */
    send(content) {
      model.send(content);
    },
    patch() {
      for (const view of shared.views) view.patch();
    },
    words() {
      if (shared.gone) return "";
      if (shared.waiting) return shared.late ? WAITS : "Sending…";
      if (shared.silent) return SILENT;
      return shared.state.status || (shared.state.working ? "" : "Ctrl+Enter sends");
    },
    /** @param {string} kind */
    ask(kind) {
      const { working, can_continue } = shared.state;
      if (shared.waiting || working || shared.gone) return;
      if (kind === "send" ? !shared.draft.trim() : !can_continue) return;
      const asked = { id: Math.random().toString(36).slice(2), kind };
      shared.waiting = asked;
      shared.late = false;
      shared.send({ kind, id: asked.id, prompt: kind === "send" ? shared.draft : "", system: shared.system });
      setTimeout(() => {
        shared.late = shared.waiting === asked;
        shared.patch();
      }, 700);
      shared.patch();
    },
    stop() {
      shared.stopping = shared.state.working;
      shared.send({ kind: "stop" });
      shared.patch();
    },
    /** What the kernel says. @param {any} content */
    hear(content) {
      shared.heard = true;
      shared.silent = false;
      if (shared.waiting && content.id === shared.waiting.id) {
        // What was typed meanwhile is not what a Continue sends.
        if (content.kind === "taken" && shared.waiting.kind === "send") shared.draft = "";
        shared.waiting = null;
      } else if (content.kind === "refused" && !shared.waiting && !shared.draft) {
        // The page was loaded anew since: its own copy is gone.
        shared.draft = content.prompt;
      }
      shared.patch();
    },
    changed() {
      const before = shared.state;
      shared.state = model.get("state");
      if (!shared.state.working) shared.stopping = false;
      shared.grows = shared.state.working ? Infinity : performance.now() + 1000;
      if (shared.state.system !== before.system) shared.system = shared.state.system;
      shared.patch();
    },
  };
  return shared;
}

// anywidget gives `initialize` and `render` different `model` objects: what they share is here.
export default () => {
  /** @type {any} */
  let shared = null;
  return {
    /** @param {{model: any}} given */
    initialize({ model }) {
      if (model.get("kind") !== "box") return;
      shared = createShared(model);
      model.on("change:state", shared.changed);
      model.on("msg:custom", shared.hear);
      model.on("comm_live_update", () => {
        // Told only when the kernel restarts: a model that is made anew is another one.
        shared.gone = true;
        shared.waiting = null;
        shared.patch();
      });
      shared.send({ kind: "ready" });
      setTimeout(() => {
        shared.silent = !shared.heard;
        shared.patch();
      }, 4000);
    },
    /** @param {{model: any, el: HTMLElement}} given */
    render({ model, el }) {
      if (model.get("kind") !== "box") {
        const { who, text } = model.get("state");
        el.append(h("div", "nba-said", h("span", "nba-said-who", who), h("div", "nba-said-text", text)));
        return undefined;
      }
      const view = createBox(shared, el);
      shared.views.add(view);
      view.patch();
      return () => {
        shared.views.delete(view);
        view.close();
      };
    },
  };
};
