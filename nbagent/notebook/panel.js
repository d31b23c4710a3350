// The panel: a conversation, a prompt box, a form. Appended to `live.js`, whose views draw the runs
// and whose page actions handle the buttons below them. Typed text is sent as messages, never as a
// trait: traits are saved with the notebook.

/** @typedef {{ name: string, label: string, hint: string, help: string }} Field */
/** @typedef {{ working: string, can_continue: boolean, goes_on: boolean, status: string,
 *   error: string, totals: string, usual: string, values: Record<string, string>,
 *   tools: [string, string, boolean][], attached: [string, number][] }} PanelState */

const DRAFT_MS = 400;
const FIND_MS = 200;
// A free kernel takes a prompt sooner; after this time it is probably busy.
const LATE_MS = 700;
const SILENT_MS = 4000;
const LOOK_MS = 500;
// Limit of one file: a message to the kernel holds at most 10 MiB, and base64 adds a third.
const FILE_BYTES = 7000000;
const WAITS =
  "Waiting: a cell is running. The prompt is sent as soon as the kernel is free.";
const SILENT =
  "No answer from a kernel yet. If it was restarted, run the cell again for a new panel.";
const GONE =
  "The kernel of this panel is gone. Run the cell again for a new one; runs that ended are kept.";
const OPTIONS = ["temperature", "max_tokens", "reasoning", "max_turns", "max_total_tokens",
  "max_cost_usd", "base_url", "session", "template"];
const WORKFLOW = ["workflow", "document", "agent", "autopilot"];

/** @param {string} action @param {string} label @param {Record<string, string>} more */
function panelButton(action, label, more = {}) {
  return ["button", { type: "button", "data-do": action, ...more }, label];
}

/** @param {string} key @param {string} label @param {...any} children */
function panelFold(key, label, ...children) {
  const words = ["summary", {}, ["span", {}, label], ["span", { class: "nba-brief" }]];
  return ["details", { class: `nba-fold nba-fold-${key}`, "data-key": key }, words, ...children];
}

/** Container of a list that the kernel sends. @param {string} key */
function panelList(key) {
  return ["div", { "data-key": `${key}/list` }, "Asking…"];
}

/**
 * The parts of the panel that do not change.
 * @param {Field[]} fields
 * @param {[string, string][]} formats Word and title of each export button.
 */
function panelLayout(fields, formats) {
  const of = (/** @type {string[]} */ names) => ["div", { class: "nba-fields" }, ...fields
    .filter(({ name }) => names.includes(name)).map(({ name, label, hint, help }) =>
      ["label", { class: "nba-field" }, ["span", {}, label], ["input", { type: "text",
        "data-field": name, placeholder: hint, title: help, spellcheck: "false" }]])];
  const exports = formats.map(([value, label]) => panelButton("export", label, { value }));
  return ["div", { class: "nba-panel", "data-lm-suppress-shortcuts": "true" },
    ["div", { class: "nba-panel-head" },
      ["span", { class: "nba-totals" }],
      panelFold("runs", "Runs", ["input", { type: "search", "aria-label": "Search the runs",
        placeholder: "text in prompts, answers or results; a name, a model, a state" }],
        panelList("runs")),
      panelFold("session", "Session", panelList("session")),
      panelFold("export", "Export", ["div", { class: "nba-row" },
        ["select", { "aria-label": "Run to export" }], ...exports]),
      panelButton("new", "New conversation")],
    panelButton("more", "", { title: "Show the whole conversation" }),
    ["div", { class: "nba-thread", role: "group", "aria-label": "Conversation", tabindex: "0" }],
    ["div", { class: "nba-wrong", role: "alert" }],
    ["div", { class: "nba-box" },
      ["textarea", { rows: "3", "aria-label": "Prompt", "data-field": "prompt" }],
      ["div", { class: "nba-chips" }],
      ["div", { class: "nba-row" },
        panelButton("send", "Send", { title: "Ctrl+Enter", class: "nba-go" }),
        panelButton("files", "Attach…", { title: "Attach files or images, or drop or paste them" }),
        panelButton("continue", "Continue", { title: "Continue where the run stopped" }),
        panelButton("stop", "■ Stop", { title: "Stop the run of this panel" }),
        panelButton("pause", "‖ Pause", { title: "Pause when this turn is over" }),
        ["span", { class: "nba-status", role: "status", "aria-live": "polite" }]]],
    ["div", { class: "nba-form" },
      panelFold("models", "Model", of(["model"]), panelList("models")),
      panelFold("tools", "Tools", ["div", { class: "nba-ticks" }]),
      panelFold("system", "System prompt",
        ["textarea", { rows: "4", "aria-label": "System prompt", "data-field": "system" }]),
      panelFold("options", "Options and limits", of(OPTIONS)),
      panelFold("packages", "Workflow", of(WORKFLOW), panelList("packages"))]];
}

/** One view of the panel. @param {any} shared @param {HTMLElement} el */
function createPanel(shared, el) {
  const root = el.appendChild(build(panelLayout(shared.fields, shared.formats)));
  const find = (/** @type {string} */ selector) =>
    /** @type {any} */ (root.querySelector(selector));
  const thread = find(".nba-thread");
  const prompt = find('[data-field="prompt"]');
  const search = find("[type=search]");
  const page = Math.random().toString(36).slice(2);
  const picker = Object.assign(document.createElement("input"), { type: "file", multiple: true });
  const send = (/** @type {any} */ message) => shared.send({ ...message, page });
  const labels = Object.fromEntries(
    shared.fields.map((/** @type {Field} */ { name, label }) => [name, label.toLowerCase()]));
  /** @type {ReturnType<typeof createView> | null} */
  let view = null;
  let wait = 0;

  /** Show another conversation. @param {any[]} pictures */
  function begin(pictures) {
    view?.close();
    view = createView({ pictures: () => pictures, send }, thread);
    // The style sheet reverses the list, so 0 is its end.
    thread.scrollTop = 0;
  }

  /** @param {any} event */
  function onClick({ target }) {
    const button = target.closest("button[data-do]");
    if (!button || button.closest(".nba-view")) return;
    const { value, dataset } = button;
    const action = dataset.do;
    if (action === "files") picker.click();
    else if (action === "send" || action === "continue") shared.ask(action);
    else if (action === "set") send({ kind: "field", name: dataset.field, value });
    else if (action === "show") send({ kind: "open", value: dataset.run });
    else if (action === "export") send({ kind: action, value, run: find("select").value });
    else send({ kind: action, name: dataset.field, value });
    const closesFold = ["set", "open", "show", "export"].includes(action);
    if (closesFold) button.closest(".nba-fold").open = false;
  }

  /** @param {any} event */
  function onChange({ target }) {
    const { field } = target.dataset;
    if (target.type === "checkbox") {
      const ticked = [...root.querySelectorAll(".nba-ticks :checked")].map(({ value }) => value);
      send({ kind: "field", name: "tools", value: ticked.join(",") });
    } else if (field && target !== prompt && !target.closest(".nba-view")) {
      send({ kind: "field", name: field, value: target.value });
    }
  }

  /** @param {any} event */
  function onInput({ target }) {
    if (target === prompt) shared.type(prompt.value);
    if (target !== search) return;
    clearTimeout(wait);
    wait = setTimeout(() => ask("runs"), FIND_MS);
  }

  /** Handle keys here only: JupyterLab's shortcuts would act on the cell. @param {any} event */
  function onKeyDown(event) {
    event.stopPropagation();
    if (event.target !== prompt || event.key !== "Enter" || event.isComposing) return;
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    shared.ask("send");
  }

  /** Ask the kernel for a list. @param {string} name */
  function ask(name) {
    send({ kind: "list", name, value: name === "runs" ? search.value : "" });
  }

  /** @param {any} event */
  function onUnfold({ target }) {
    const { key } = target.dataset;
    if (!target.matches(".nba-fold") || !target.open) return;
    if (keyed(target, `${key}/list`)) ask(key);
    if (key !== "export") return;
    const runs = [...thread.querySelectorAll("[data-run]")].reverse();
    list("select", runs.map((run) => {
      const words = run.querySelector(".nba-prompt")?.textContent ?? "";
      return ["option", { value: run.dataset.run }, words.slice(0, 80) || run.dataset.run];
    }));
  }

  /** @param {any} event */
  function onFiles(event) {
    const { files } = event.clipboardData ?? event.dataTransfer ?? { files: [] };
    if (!files.length) return;
    event.preventDefault();
    shared.attach(files);
  }

  /** Update everything that the kernel or the person changed. */
  function patch() {
    const { state, waiting, isDead } = shared;
    const { values } = state;
    const isFree = !state.working && !waiting && !isDead;
    const isAny = shared.draft.trim() || state.attached.length || values.workflow ||
      values.document;
    const isAtWork = !isDead && Boolean(state.working || waiting);
    /** Per button: enabled, visible. @type {Record<string, any[]>} */
    const buttons = {
      send: [isFree && isAny], files: [!isDead], new: [isFree], more: [!isDead, shared.more],
      continue: [isFree, state.can_continue && !isAtWork],
      stop: [shared.stopping !== "stop", isAtWork],
      pause: [!shared.stopping, state.working && !isDead],
    };
    for (const [action, [isEnabled, isVisible = true]] of Object.entries(buttons)) {
      const button = find(`:not(.nba-view *)[data-do="${action}"]`);
      button.disabled = !isEnabled;
      button.hidden = !isVisible;
    }
    if (prompt.value !== shared.draft) prompt.value = shared.draft;
    prompt.readOnly = Boolean(waiting);
    prompt.placeholder = state.goes_on ? "Say more…" : "Ask something…";
    find('input[data-field="model"]').placeholder = state.usual;
    write('[data-do="more"]', `Show ${shared.more} earlier runs`);
    write(".nba-status", shared.words());
    write(".nba-wrong", isDead ? GONE : shared.error || state.error);
    write(".nba-totals", state.totals || "nbagent panel");
    for (const field of root.querySelectorAll(".nba-form [data-field]:not(button)")) {
      const value = values[field.dataset.field] ?? "";
      if (field !== root.getRootNode().activeElement && field.value !== value) field.value = value;
    }
    list(".nba-ticks", state.tools.map((/** @type {any[]} */ [name, about, on]) =>
      ["label", { class: "nba-tick", title: about },
        ["input", { type: "checkbox", value: name, ...(on ? { checked: "" } : {}) }], name]));
    list(".nba-chips", state.attached.map((/** @type {any[]} */ [name, size]) =>
      ["span", { class: "nba-chip" }, `${name} · ${Math.ceil(size / 1000)} kB `,
        panelButton("detach", "×", { value: name, "aria-label": `Remove ${name}` })]));
    const ticked = state.tools.filter((/** @type {any[]} */ [, , on]) => on);
    const set = OPTIONS.filter((name) => values[name] && name !== "session");
    brief("models", values.model || state.usual);
    brief("tools", ticked.map((/** @type {any[]} */ [name]) => name).join(", ") || "none");
    brief("system", values.system.trim().slice(0, 120));
    brief("options", set.map((name) => `${labels[name]} ${values[name]}`).join(" · "));
    brief("packages", values.workflow || values.document);
    root.classList.toggle("nba-gone", isDead);
  }

  /** Replace the children of an element if they changed.
   * @param {string} selector @param {any[]} nodes */
  function list(selector, nodes) {
    const old = find(selector);
    const fresh = old.cloneNode();
    fresh.append(...nodes.map(build));
    if (!fresh.isEqualNode(old)) replace(old, fresh);
  }

  /** @param {string} selector @param {string} text */
  function write(selector, text) {
    const node = find(selector);
    if (node.textContent !== text) node.textContent = text;
    if (node.localName !== "button") node.hidden = !text;
  }

  /** @param {string} key @param {string} text */
  function brief(key, text) {
    write(`.nba-fold-${key} .nba-brief`, text);
  }

  const handlers = { click: onClick, change: onChange, input: onInput, keydown: onKeyDown,
    paste: onFiles, drop: onFiles,
    // Without it the browser opens a dropped file in place of the notebook.
    dragover: (/** @type {Event} */ event) => event.preventDefault() };
  for (const [name, handler] of Object.entries(handlers)) {
    root.addEventListener(name, handler);
  }
  root.addEventListener("toggle", onUnfold, { capture: true });
  picker.addEventListener("change", () => {
    shared.attach(picker.files);
    picker.value = "";
  });
  begin([]);
  patch();
  return {
    root, page, patch, begin,
    get view() { return view; },
    /** A run started: scroll to it and remove the forms and messages above. */
    follow() {
      for (const node of thread.querySelectorAll(".nba-words, .nba-run > .nba-said")) node.remove();
      thread.scrollTop = 0;
    },
    close() {
      view?.close();
      root.remove();
    },
  };
}

/** State that all views of the panel in a page share. @param {any} model */
function createShared(model) {
  let typing = 0;
  let since = performance.now();
  const shared = {
    /** @type {PanelState} */ state: model.get("state"),
    /** @type {Field[]} */ fields: model.get("fields"),
    /** @type {[string, string][]} */ formats: model.get("exports"),
    /** @type {ReturnType<typeof createPanel>[]} */ panels: [],
    draft: "", error: "", stopping: "", more: 0,
    /** Id of the sent prompt until the kernel takes it. */ waiting: "",
    isClearing: false, isSilent: true, isDead: false,
    send(/** @type {any} */ message) {
      if (message.kind in STOPS) shared.stopping = message.kind;
      model.send(message);
      shared.patch();
    },
    patch() {
      for (const panel of shared.panels) panel.patch();
    },
    words() {
      const { state } = shared;
      const ms = performance.now() - since;
      if (shared.isDead) return "";
      if (shared.waiting) return ms > LATE_MS ? WAITS : "Sending…";
      if (shared.isSilent && ms > SILENT_MS) return SILENT;
      return (state.working && STOPS[shared.stopping]) || state.status || "Ctrl+Enter sends";
    },
    type(/** @type {string} */ text) {
      shared.draft = text;
      clearTimeout(typing);
      typing = setTimeout(() => shared.send({ kind: "draft", text }), DRAFT_MS);
      shared.patch();
    },
    ask(/** @type {string} */ kind) {
      const [panel] = shared.panels;
      if (shared.waiting || panel.root.querySelector(`[data-do="${kind}"]`).disabled) return;
      // A draft sent after the prompt would put it back into the box of a reloaded page.
      clearTimeout(typing);
      since = performance.now();
      shared.isClearing = kind === "send";
      shared.waiting = Math.random().toString(36).slice(2);
      // Text that was typed meanwhile is not meant for a Continue.
      const text = shared.isClearing ? shared.draft : "";
      shared.send({ kind, id: shared.waiting, prompt: text });
    },
    attach(/** @type {any} */ files) {
      for (const file of files) {
        const isLarge = file.size > FILE_BYTES;
        shared.error = isLarge ? `${file.name} is larger than 7 MB; attach a smaller file` : "";
        shared.patch();
        if (shared.error) return;
        const reader = new FileReader();
        reader.onload = () => {
          const data = String(reader.result).split(",")[1] ?? "";
          shared.send({ kind: "attach", name: file.name, data });
        };
        reader.readAsDataURL(file);
      }
    },
  };
  return shared;
}

/** Handle a message of the kernel. @param {any} shared @param {any} message */
function onKernelMessage(shared, message) {
  const { kind, id, page } = message;
  const isOurs = Boolean(id) && id === shared.waiting;
  const panels = shared.panels.filter((/** @type {any} */ panel) => !page || page === panel.page);
  shared.isSilent = false;
  if (isOurs) shared.waiting = "";
  if (kind === "thread") {
    shared.state = message.state;
    shared.more = message.more;
    // Text typed while the page was loading wins over the kernel's copy.
    shared.draft ||= message.draft;
    for (const panel of panels) panel.begin(message.pictures);
  } else if (kind === "taken") {
    const isSame = shared.draft.trim() === message.prompt.trim();
    // Sent by another page: clear only the same text, not a prompt that is being written here.
    if (isOurs ? shared.isClearing : isSame) shared.draft = "";
    shared.stopping = shared.error = "";
    for (const panel of panels) panel.follow();
  } else if (kind === "refused") {
    shared.draft ||= message.prompt;
  } else if (kind === "list") {
    for (const { root } of panels) {
      keyed(root, `${message.key}/list`)?.replaceChildren(build(message.node));
    }
  } else if (kind === "file" && panels.length) {
    const blob = new Blob([message.text], { type: "text/plain" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = message.name;
    link.click();
    // Later: the browser reads the address after the click.
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  } else if (message.ops) {
    for (const { view } of panels) view.applyOps(message);
  }
  shared.patch();
}

/** Widget of the panel: all its views in a page share the typed text. */
KINDS.panel = () => {
  /** @type {any} */
  let shared;
  return {
    /** @param {{ model: any }} context */
    initialize({ model }) {
      shared = createShared(model);
      const onMessage = (/** @type {any} */ message) => onKernelMessage(shared, message);
      const changed = () => {
        shared.state = model.get("state");
        if (!shared.state.working) shared.stopping = "";
        shared.patch();
      };
      const leave = watchKernel(model, () => {
        shared.isDead = true;
        for (const { view } of shared.panels) view.onKernelDead();
        shared.patch();
      });
      // Update texts that depend on the time.
      const timer = setInterval(shared.patch, LOOK_MS);
      model.on("msg:custom", onMessage);
      model.on("change:state", changed);
      return () => {
        leave();
        clearInterval(timer);
        model.off("msg:custom", onMessage);
        model.off("change:state", changed);
      };
    },
    /** @param {{ model: any, el: HTMLElement }} context */
    render({ el }) {
      const panel = createPanel(shared, el);
      shared.panels.push(panel);
      shared.send({ kind: "ready", page: panel.page });
      return () => {
        shared.panels.splice(shared.panels.indexOf(panel), 1);
        panel.close();
      };
    },
  };
};
