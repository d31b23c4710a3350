// The panel: a conversation, a prompt box, a form. Appended to `live.js`, whose views draw the runs.
// What is typed leaves as messages, never as a trait: no saved widget state holds it.

/** @typedef {{ name: string, label: string, hint: string, help: string }} Field */
/** @typedef {{ working: string, can_continue: boolean, goes_on: boolean, status: string,
 *   error: string, totals: string, values: Record<string, string>,
 *   tools: [string, string, boolean][], attached: [string, number][] }} PanelState */

const DRAFT_MS = 400;
const FIND_MS = 200;
const LATE_MS = 700;
const SILENT_MS = 4000;
// A message of the page has to fit into 10 MiB, as base64.
const FILE_BYTES = 7000000;
const WAITS =
  "Waits for the kernel, which a cell keeps busy. It goes out as soon as the kernel is free.";
const SILENT =
  "No answer from a kernel yet. If it was restarted, run the cell again for a new panel.";
const GONE =
  "The kernel of this panel is gone. Run the cell again for a new one; runs that ended are kept.";
const EXPORTS = { md: "Markdown", html: "HTML", jsonl: "JSON Lines" };
const OPTIONS = ["temperature", "max_tokens", "reasoning", "max_turns", "max_total_tokens",
  "max_cost_usd", "base_url", "session"];
const WORKFLOW = ["workflow", "document", "agent", "autopilot"];

/** @param {string} what @param {string} label @param {string} title @param {string} cls */
function panelButton(what, label, title = "", cls = "") {
  return ["button", { type: "button", class: cls, "data-do": what, title }, label];
}

/** @param {string} key @param {string} label @param {...any} children */
function panelFold(key, label, ...children) {
  const words = ["summary", {}, ["span", {}, label], ["span", { class: "nba-brief" }]];
  return ["details", { class: `nba-fold nba-fold-${key}`, "data-key": key }, words, ...children];
}

/** @param {Field} field */
function panelField({ name, label, hint, help }) {
  const input = { type: "text", "data-field": name, placeholder: hint, title: help };
  return ["label", { class: `nba-field nba-field-${name}` }, ["span", {}, label],
    ["input", { ...input, spellcheck: "false" }]];
}

/** All that does not change. @param {Field[]} fields */
function panelLayout(fields) {
  const of = (/** @type {string[]} */ names) =>
    fields.filter(({ name }) => names.includes(name)).map(panelField);
  const exports = Object.entries(EXPORTS).map(([value, label]) =>
    ["button", { type: "button", "data-do": "export", value }, label]);
  const search = { type: "search", "aria-label": "Search the runs", placeholder:
    "name, words of the prompt, model, state" };
  return ["div", { class: "nba-panel", "data-lm-suppress-shortcuts": "true" },
    ["div", { class: "nba-panel-head" },
      ["span", { class: "nba-totals" }],
      panelFold("runs", "Runs", ["input", search], ["div", { "data-key": "runs/list" }]),
      panelFold("export", "Export", ["div", { class: "nba-row" }, ...exports]),
      panelButton("new", "New conversation")],
    panelButton("more", "", "Show the whole conversation", "nba-more"),
    ["div", { class: "nba-thread", role: "group", "aria-label": "Conversation", tabindex: "0" }],
    ["div", { class: "nba-wrong", role: "alert" }],
    ["div", { class: "nba-box" },
      ["textarea", { rows: "3", "aria-label": "Prompt", "data-field": "prompt" }],
      ["div", { class: "nba-chips" }],
      ["div", { class: "nba-row" },
        panelButton("send", "Send", "Ctrl+Enter", "nba-go"),
        panelButton("continue", "Continue", "Go on from where the run stopped"),
        panelButton("stop", "■ Stop", "Stop the run of this panel"),
        panelButton("pause", "Pause", "Pause after this turn"),
        panelButton("files", "Attach…", "Files and images; they can be dropped or pasted, too"),
        ["span", { class: "nba-status", role: "status", "aria-live": "polite" }]]],
    ["div", { class: "nba-form" }, ...of(["model"]),
      panelFold("models", "Choose a model", ["div", { "data-key": "models/list" }, "Asking…"]),
      panelFold("tools", "Tools", ["div", { class: "nba-ticks" }]),
      panelFold("system", "System prompt",
        ["textarea", { rows: "4", "aria-label": "System prompt", "data-field": "system" }]),
      panelFold("options", "Options and limits", ["div", { class: "nba-fields" }, ...of(OPTIONS)]),
      panelFold("workflow", "Workflow", ["div", { class: "nba-fields" }, ...of(WORKFLOW)],
        ["div", { "data-key": "packages/list" }])]];
}

/** One view of the panel. @param {any} shared @param {HTMLElement} el */
function createPanel(shared, el) {
  const root = el.appendChild(build(panelLayout(shared.fields)));
  const find = (/** @type {string} */ what) => /** @type {any} */ (root.querySelector(what));
  const thread = find(".nba-thread");
  const prompt = find('.nba-box [data-field="prompt"]');
  const search = find(".nba-fold-runs input");
  const buttons = Object.fromEntries(["new", "more", "send", "continue", "stop", "pause", "files"].map(
    (what) => [what, find(`[data-do="${what}"]`)]));
  const page = Math.random().toString(36).slice(2);
  const picker = Object.assign(document.createElement("input"), { type: "file", multiple: true });
  /** @type {any[]} */
  let pictures = [];
  const runs = { pictures: () => pictures, send: act };
  let view = createView(runs, thread);
  let isAtEnd = true;
  let wait = 0;

  const growth = new ResizeObserver(() => {
    if (isAtEnd) thread.scrollTop = thread.scrollHeight;
  });

  /** What the views of the runs say. @param {any} message */
  function act(message) {
    const { kind, do: what, fields } = message;
    const begins = kind === "act" && (what === "retry" || (fields && what !== "compare"));
    shared.send({ ...message, page, ...(begins ? { id: shared.wait("") } : {}) });
  }

  /** @param {any} event */
  function clicked({ target }) {
    const button = target.closest("button[data-do]");
    if (!button || button.closest(".nba-view")) return;
    const { value, dataset } = button;
    const what = dataset.do;
    if (what === "files") picker.click();
    else if (what === "send" || what === "continue") shared.ask(what);
    else if (what === "set") shared.send({ kind: "field", name: dataset.field, value });
    else shared.send({ kind: what, value, page });
    if (["set", "open", "export"].includes(what)) button.closest("details").open = false;
  }

  /** @param {any} event */
  function changed({ target }) {
    const { field } = target.dataset;
    if (target.type === "checkbox") {
      shared.send({ kind: "tick", name: target.value, on: target.checked });
    } else if (field && field !== "prompt" && !target.closest(".nba-view")) {
      shared.send({ kind: "field", name: field, value: target.value });
    }
  }

  /** @param {any} event */
  function typed({ target }) {
    if (target === prompt) shared.type(prompt.value);
    if (target !== search) return;
    clearTimeout(wait);
    wait = setTimeout(() => shared.send({ kind: "runs", text: search.value }), FIND_MS);
  }

  /** JupyterLab's own keys would act on the cell. @param {any} event */
  function pressed(event) {
    event.stopPropagation();
    if (event.target !== prompt || event.key !== "Enter" || event.isComposing) return;
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    shared.ask("send");
  }

  /** @param {any} event */
  function unfolded({ target }) {
    const lists = /** @type {any} */ ({ runs: "runs", models: "models", workflow: "packages" });
    const kind = lists[target.dataset?.key ?? ""];
    if (kind && target.open) shared.send({ kind, text: search.value });
  }

  /** @param {any} event */
  function given(event) {
    const { files } = event.clipboardData ?? event.dataTransfer ?? { files: [] };
    if (!files.length) return;
    event.preventDefault();
    shared.attach(files);
  }

  /** Draw what the kernel or the person changed. */
  function patch() {
    const { state, waiting, gone } = shared;
    const isFree = !state.working && !waiting && !gone;
    const canBegin = shared.draft.trim() || state.attached.length || state.values.workflow ||
      state.values.document;
    if (prompt.value !== shared.draft) prompt.value = shared.draft;
    prompt.readOnly = Boolean(waiting);
    prompt.placeholder = state.goes_on ? "Say more…" : "Ask something…";
    buttons.send.disabled = !isFree || !canBegin;
    buttons.continue.disabled = !isFree;
    buttons.continue.hidden = !state.can_continue;
    buttons.new.disabled = !isFree;
    buttons.files.disabled = gone;
    const isStoppable = !gone && Boolean(state.working || waiting);
    buttons.stop.disabled = !isStoppable || shared.stopping === "stop";
    buttons.pause.disabled = !isStoppable || !state.working || Boolean(shared.stopping);
    buttons.more.textContent = `Show ${shared.more} earlier runs`;
    buttons.more.hidden = !shared.more;
    say_(".nba-status", shared.words());
    say_(".nba-wrong", gone ? GONE : shared.error || state.error);
    say_(".nba-totals", state.totals || "nbagent panel");
    for (const field of root.querySelectorAll(".nba-form [data-field]:not(button)")) {
      const value = state.values[field.dataset.field] ?? "";
      if (field !== root.getRootNode().activeElement && field.value !== value) field.value = value;
    }
    find('input[data-field="model"]').placeholder = state.usual;
    patchTools();
    list(".nba-chips", state.attached.map((/** @type {[string, number]} */ [name, size]) => {
      const given = { type: "button", "data-do": "detach", value: name };
      return ["span", { class: "nba-chip" }, `${name} · ${Math.ceil(size / 1000)} kB `,
        ["button", { ...given, "aria-label": `Remove ${name}` }, "×"]];
    }));
    brief("system", state.values.system.trim().slice(0, 120));
    const set = OPTIONS.filter((name) => state.values[name] && name !== "session");
    const words = set.map((name) => `${name.replaceAll("_", " ")} ${state.values[name]}`);
    brief("options", words.join(" · "));
    brief("workflow", state.values.workflow || state.values.document || "");
    root.classList.toggle("nba-gone", gone);
  }

  function patchTools() {
    /** @type {[string, string, boolean][]} */
    const tools = shared.state.tools;
    const ticked = tools.filter(([, , on]) => on).map(([name]) => name);
    brief("tools", ticked.join(", ") || "none");
    list(".nba-ticks", tools.map(([name, about, on]) =>
      ["label", { class: "nba-tick", title: about },
        ["input", { type: "checkbox", value: name, ...(on ? { checked: "" } : {}) }], name]));
  }

  /** Children, built anew only where they changed. @param {string} what @param {any[]} nodes */
  function list(what, nodes) {
    const place = find(what);
    const now = JSON.stringify(nodes);
    if (place.now === now) return;
    const { activeElement } = /** @type {any} */ (root.getRootNode());
    const at = [...place.querySelectorAll("input, button")].indexOf(activeElement);
    place.now = now;
    place.replaceChildren(...nodes.map(build));
    if (at >= 0) place.querySelectorAll("input, button")[at]?.focus();
  }

  /** @param {string} what @param {string} text */
  function say_(what, text) {
    const node = find(what);
    if (node.textContent !== text) node.textContent = text;
    node.hidden = !text;
  }

  /** @param {string} key @param {string} text */
  function brief(key, text) {
    say_(`.nba-fold-${key} .nba-brief`, text);
  }

  root.addEventListener("click", clicked);
  root.addEventListener("change", changed);
  root.addEventListener("input", typed);
  root.addEventListener("keydown", pressed);
  root.addEventListener("toggle", unfolded, { capture: true });
  root.addEventListener("paste", given);
  root.addEventListener("drop", given);
  root.addEventListener("dragover", (event) => event.preventDefault());
  picker.addEventListener("change", () => {
    shared.attach(picker.files);
    picker.value = "";
  });
  thread.addEventListener("scroll", () => {
    isAtEnd = thread.scrollHeight - thread.scrollTop - thread.clientHeight < 40;
  });
  growth.observe(view.place);
  patch();
  return {
    root, page, patch,
    get view() { return view; },
    /** The conversation is another one, or this view has none yet. @param {any[]} given */
    begin(given) {
      view.close();
      growth.disconnect();
      pictures = given;
      view = createView(runs, thread);
      growth.observe(view.place);
      isAtEnd = true;
    },
    close() {
      view.close();
      growth.disconnect();
      root.remove();
    },
    /** @param {string} key @param {any} node */
    put(key, node) {
      root.querySelector(`[data-key="${CSS.escape(key)}"]`)?.replaceChildren(build(node));
    },
  };
}

/** What all views of the panel in a page share. @param {any} model */
function createShared(model) {
  const shared = {
    /** @type {PanelState} */ state: model.get("state"),
    /** @type {Field[]} */ fields: model.get("fields"),
    /** @type {ReturnType<typeof createPanel>[]} */ panels: [],
    draft: "", error: "", stopping: "", waiting: "", more: 0,
    isLate: false, isSilent: true, gone: false, isClearing: false, timer: 0,
    begun: performance.now(),
    send(/** @type {any} */ message) {
      if (message.kind === "stop" || message.kind === "pause") shared.stopping = message.kind;
      model.send(message);
      shared.patch();
    },
    patch() {
      for (const panel of shared.panels) panel.patch();
    },
    words() {
      const { state } = shared;
      if (shared.gone) return "";
      if (shared.waiting) return shared.isLate ? WAITS : "Sending…";
      if (shared.isSilent && performance.now() - shared.begun > SILENT_MS) return SILENT;
      if (shared.stopping && state.working) return STOPS[shared.stopping];
      return state.status || "Ctrl+Enter sends";
    },
    type(/** @type {string} */ text) {
      shared.draft = text;
      clearTimeout(shared.timer);
      shared.timer = setTimeout(() => shared.send({ kind: "draft", text }), DRAFT_MS);
      shared.patch();
    },
    /** From now until the kernel takes or refuses it. @param {string} kind */
    wait(kind) {
      shared.isClearing = kind === "send";
      const id = Math.random().toString(36).slice(2);
      shared.waiting = id;
      shared.isLate = false;
      setTimeout(() => {
        shared.isLate = shared.waiting === id;
        shared.patch();
      }, LATE_MS);
      return id;
    },
    ask(/** @type {string} */ kind) {
      const [panel] = shared.panels;
      if (shared.waiting || panel.root.querySelector(`[data-do="${kind}"]`).disabled) return;
      clearTimeout(shared.timer);
      shared.send({ kind, id: shared.wait(kind), prompt: kind === "send" ? shared.draft : "" });
    },
    async attach(/** @type {any} */ files) {
      for (const file of files) {
        const isLarge = file.size > FILE_BYTES;
        shared.error = isLarge ? `${file.name} is larger than 7 MB; attach less of it` : "";
        shared.patch();
        if (shared.error) return;
        const reader = new FileReader();
        await new Promise((done) => {
          reader.onloadend = done;
          reader.readAsDataURL(file);
        });
        const data = String(reader.result ?? "").split(",")[1] ?? "";
        shared.send({ kind: "attach", name: file.name, data });
      }
    },
  };
  return shared;
}

/** What the kernel says. @param {any} shared @param {any} message */
function hear(shared, message) {
  const { kind, id, page, run } = message;
  const panels = shared.panels.filter((/** @type {any} */ one) => !page || page === one.page);
  shared.isSilent = false;
  if (kind === "thread") {
    shared.more = message.more;
    shared.draft ||= message.draft;
    for (const panel of panels) panel.begin(message.pictures);
  } else if (kind === "run") {
    if (id === shared.waiting) {
      if (shared.isClearing) shared.draft = "";
      shared.waiting = "";
    }
    shared.stopping = shared.error = "";
    for (const { root, view } of panels) {
      for (const form of root.querySelectorAll(".nba-words")) form.remove();
      view.take({ run, ops: [["done", message.node]] });
    }
    // Somebody is here to be asked.
    if (panels.length) shared.send({ kind: "ready", run });
  } else if (kind === "refused") {
    if (id === shared.waiting) shared.waiting = "";
    shared.draft ||= message.prompt;
    for (const { root } of panels) {
      for (const button of root.querySelectorAll(".nba-words button")) button.disabled = false;
    }
  } else if (kind === "list") {
    for (const panel of panels) panel.put(`${message.key}/list`, message.node);
  } else if (kind === "reply") {
    for (const { root } of panels) reply(root, message);
  } else if (kind === "file" && panels.length) {
    const blob = new Blob([message.text], { type: "text/plain" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = message.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  } else if (message.ops) {
    for (const { view } of panels) view.take(message);
  }
  shared.patch();
}

/** The panel: every view of it in a page shares what is typed. */
KINDS.panel = () => {
  /** @type {any} */
  let shared;
  return {
    /** @param {{ model: any }} given */
    initialize({ model }) {
      shared = createShared(model);
      const heard = (/** @type {any} */ message) => hear(shared, message);
      const changed = () => {
        shared.state = model.get("state");
        if (!shared.state.working) shared.stopping = "";
        shared.patch();
      };
      const leave = watchKernel(model, () => {
        shared.gone = true;
        for (const { view } of shared.panels) view.gone();
        shared.patch();
      });
      model.on("msg:custom", heard);
      model.on("change:state", changed);
      return () => {
        leave();
        model.off("msg:custom", heard);
        model.off("change:state", changed);
      };
    },
    /** @param {{ model: any, el: HTMLElement }} given */
    render({ el }) {
      const panel = createPanel(shared, el);
      shared.panels.push(panel);
      shared.send({ kind: "ready", page: panel.page });
      setTimeout(() => shared.patch(), SILENT_MS);
      return () => {
        shared.panels.splice(shared.panels.indexOf(panel), 1);
        panel.close();
      };
    },
  };
};
