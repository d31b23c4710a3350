// The panel: a conversation, a prompt box, its settings. Appended to `live.js`, whose views draw the
// runs and whose page actions handle the buttons below them. Typed text is sent as messages, never
// as a trait: traits are saved with the notebook.

/** @typedef {{ name: string, label: string, hint: string, help: string,
 *   kind: "text" | "number" | "choice" | "switch", choices?: string[], min?: string, max?: string,
 *   step?: string }} Field */
/** @typedef {{ working: string, can_continue: boolean, goes_on: boolean, waits: boolean,
 *   beside: boolean, notice: string, status: string, error: string, totals: string, usual: string,
 *   values: Record<string, string>, defaults: Record<string, string>, tools: [string, string, boolean][],
 *   attached: [string, number][] }} PanelState */

const DRAFT_MS = 400;
// A long draft is sent less often: a message has all of it.
const DRAFT_CHARS_PER_MS = 250;
const FIND_MS = 200;
// A free kernel takes a prompt sooner; after this time it is probably busy.
const LATE_MS = 700;
const SILENT_MS = 4000;
const LOOK_MS = 500;
// A front end with the extension opens the tab sooner.
const SIDECAR_MS = 3000;
// Limit of one file: a message to the kernel holds at most 10 MiB, and base64 adds a third.
const FILE_BYTES = 7000000;
// The kernel refuses longer names.
const NAME_CHARS = 200;
const WAITS =
  "Waiting: a cell is running. The prompt is sent as soon as the kernel is free.";
const SILENT =
  "No answer from a kernel yet. If it was restarted, run the cell again for a new panel.";
const GONE =
  "The kernel of this panel is gone. Run the cell again for a new one; runs that ended are kept.";
const NO_SIDECAR =
  "This front end cannot show the panel at the right, so it stays below this cell. JupyterLab can, " +
  "with the package sidecar installed where it runs; reload the page after that.";
const OPTIONS = ["temperature", "max_tokens", "reasoning", "max_turns", "max_total_tokens",
  "max_cost_usd", "base_url", "session", "template"];
const WORKFLOW = ["workflow", "document", "agent", "autopilot"];
/** Container of the package sidecar, at the right of JupyterLab. */
const SIDECAR = ".jupyterlab-sidecar";
/** The run to export. */
const EXPORTED = ".nba-drawer-export select";
/** Value of a select whose number is typed beside it. */
const TOKENS = "#";

/** @param {string} action @param {string} label @param {Record<string, string>} more */
function panelButton(action, label, more = {}) {
  return ["button", { type: "button", "data-do": action, ...more }, label];
}

/** Button that opens a drawer of its bar. @param {string} key @param {string} label */
function panelOpener(key, label) {
  const looks = { class: `nba-opener nba-opener-${key}`, "aria-expanded": "false" };
  return ["button", { type: "button", "data-do": "drawer", value: key, ...looks },
    ["span", {}, label], ["span", { class: "nba-brief" }]];
}

/** @param {string} key @param {...any} children */
function panelDrawer(key, ...children) {
  return ["div", { class: `nba-drawer nba-drawer-${key}`, "data-key": key, hidden: "" },
    ...children];
}

/** Container of a list that the kernel sends. @param {string} key */
function panelList(key) {
  return ["div", { "data-key": `${key}/list`, "aria-live": "off" }, "Loading…"];
}

/** One field of the settings. @param {Field} field */
function panelField({ name, label, kind, hint, help, choices = [] }) {
  const common = { "data-field": name, title: help };
  const input = (/** @type {string} */ type) => ["input", { type, placeholder: hint,
    spellcheck: "false", ...common }];
  if (kind === "switch") {
    return ["label", { class: "nba-field nba-tick" }, ["input", { type: "checkbox", ...common }],
      label];
  }
  if (kind !== "choice") {
    return ["label", { class: "nba-field" }, ["span", {}, label], input(kind)];
  }
  const options = [["option", { value: "" }, hint], ...choices.map((word) =>
    ["option", { value: word }, word]), ["option", { value: TOKENS }, "number of tokens…"]];
  return ["div", { class: "nba-field" }, ["label", {}, ["span", {}, label],
    ["select", common, ...options]], ["input", { type: "number", hidden: "", placeholder: "tokens",
      "aria-label": `${label}: tokens`, ...common }]];
}

/**
 * The parts of the panel that do not change.
 * @param {Field[]} fields
 * @param {[string, string][]} formats Word and title of each export button.
 */
function panelLayout(fields, formats) {
  const of = (/** @type {string[]} */ names) => ["div", { class: "nba-fields" },
    ...fields.filter(({ name }) => names.includes(name)).map(panelField)];
  const exports = formats.map(([value, label]) => panelButton("export", label, { value }));
  return ["div", { class: "nba-panel", "data-lm-suppress-shortcuts": "true" },
    ["div", { class: "nba-elsewhere" }, "The panel is open at the right. ",
      panelButton("below", "Show it here")],
    ["div", { class: "nba-hint" }],
    ["div", { class: "nba-bar-of-drawers" },
      ["div", { class: "nba-row nba-panel-head" },
        ["span", { class: "nba-totals" }],
        panelOpener("runs", "Runs"), panelOpener("session", "Session"),
        panelOpener("batches", "Batches"), panelOpener("export", "Export"), panelButton("new", "New conversation")],
      panelDrawer("runs", ["input", { type: "search", "aria-label": "Search the runs",
        placeholder: "text in prompts, answers or results; a name, a model, a state" }],
        panelList("runs")),
      panelDrawer("session", panelList("session")),
      panelDrawer("batches", panelList("batches")),
      panelDrawer("export", ["div", { class: "nba-row" },
        ["select", { "aria-label": "Run to export" }], ...exports,
        ["span", { class: "nba-nothing" }, "Nothing to export yet"]])],
    panelButton("more", "", { title: "Show the whole conversation" }),
    ["div", { class: "nba-thread", role: "group", "aria-label": "Conversation", tabindex: "0" }],
    ["div", { class: "nba-wrong", role: "alert" }],
    ["div", { class: "nba-box nba-bar-of-drawers" },
      ["div", { class: "nba-row nba-settings", role: "group", "aria-label": "Settings" },
        panelOpener("models", "Model"), panelOpener("tools", "Tools"),
        panelOpener("system", "System prompt"), panelOpener("options", "Options"),
        panelOpener("packages", "Workflow")],
      panelDrawer("models", of(["model"]), panelList("models")),
      panelDrawer("tools", ["div", { class: "nba-ticks" }]),
      panelDrawer("system",
        ["textarea", { rows: "4", "aria-label": "System prompt", "data-field": "system" }]),
      panelDrawer("options", of(OPTIONS)),
      panelDrawer("packages", of(WORKFLOW), panelList("packages")),
      ["textarea", { rows: "3", "aria-label": "Prompt", "data-field": "prompt" }],
      ["div", { class: "nba-chips" }],
      ["div", { class: "nba-row" },
        panelButton("send", "Send", { title: "Ctrl+Enter", class: "nba-go" }),
        panelButton("files", "Attach…", { title: "Attach files or images, or drop or paste them" }),
        panelButton("continue", "Continue", { title: "Continue where the run stopped" }),
        panelButton("stop", "■ Stop", { title: "Stop the run of this panel" }),
        panelButton("pause", "‖ Pause", { title: "Pause when this turn is over" }),
        ["span", { class: "nba-status", role: "status", "aria-live": "polite" }]],
      ["div", { class: "nba-dropzone", "aria-hidden": "true" }, "Drop the files to attach them"]]];
}

/** One view of the panel. @param {any} shared @param {HTMLElement} el */
function createPanel(shared, el) {
  const root = el.appendChild(build(panelLayout(shared.fields, shared.formats)));
  const find = (/** @type {string} */ selector) =>
    /** @type {any} */ (root.querySelector(selector));
  const all = (/** @type {string} */ selector) =>
    /** @type {any[]} */ ([...root.querySelectorAll(selector)]);
  const thread = find(".nba-thread");
  const prompt = find('[data-field="prompt"]');
  const search = find("[type=search]");
  const page = Math.random().toString(36).slice(2);
  const picker = Object.assign(document.createElement("input"), { type: "file", multiple: true });
  const send = (/** @type {any} */ message) => shared.send({ ...message, page });
  /** @type {Record<string, string>} */
  const labels = Object.fromEntries(
    shared.fields.map((/** @type {Field} */ { name, label }) => [name, label.toLowerCase()]));
  /** @type {ReturnType<typeof createView> | null} */
  let view = null;
  let wait = 0;
  /** Another view of this page is the panel; this one is a line. */
  let isAside = false;
  /** Lists that changed while the person was at them. @type {Set<string>} */
  const outdated = new Set();

  for (const { name, min, max, step } of shared.fields) {
    if (step) Object.assign(find(`[data-field="${name}"]`), { min, max, step });
  }

  /** Show another conversation. @param {any[]} pictures */
  function begin(pictures) {
    view?.close();
    view = createView({ pictures: () => pictures, send }, thread);
    // The style sheet reverses the list, so 0 is its end. A page over all cases has its head above.
    thread.scrollTop = thread.querySelector(".nba-cases") ? -thread.scrollHeight : 0;
  }

  // Drawers: below the buttons of their bar, so that no button moves under the mouse.

  /** @param {any} opener @param {boolean} isOpen */
  function setDrawer(opener, isOpen) {
    const drawer = find(`.nba-drawer-${opener.value}`);
    if (!isOpen && drawer.contains(root.getRootNode().activeElement)) opener.focus();
    opener.ariaExpanded = String(isOpen);
    drawer.hidden = !isOpen;
  }

  /** Open a drawer and close the others of its bar; or close it. @param {any} opener */
  function toggleDrawer(opener) {
    const isOpen = opener.ariaExpanded !== "true";
    for (const other of opener.parentElement.querySelectorAll(".nba-opener")) {
      if (other !== opener) setDrawer(other, false);
    }
    setDrawer(opener, isOpen);
    if (isOpen && keyed(root, `${opener.value}/list`)) ask(opener.value);
    shared.patch();
  }

  /** @param {any} target an element in a drawer @returns {any} its button */
  function openerOf(target) {
    const drawer = target.closest(".nba-drawer");
    return drawer && find(`.nba-opener-${drawer.dataset.key}`);
  }

  /** @param {any} button a button in a drawer */
  function closeDrawer(button) {
    setDrawer(openerOf(button), false);
  }

  /** Ask the kernel for a list. @param {string} name */
  function ask(name) {
    send({ kind: "list", name, value: name === "runs" ? search.value : "" });
  }

  /** Update the open lists. One that the person is at waits: its rows would move under the mouse. */
  function onListsChanged() {
    for (const { dataset } of all(".nba-drawer:not([hidden])")) {
      if (["runs", "session", "batches", "packages"].includes(dataset.key)) outdated.add(dataset.key);
    }
    askOutdated();
  }

  function askOutdated() {
    for (const key of outdated) {
      if (keyed(root, `${key}/list`).matches(":hover, :focus-within")) continue;
      outdated.delete(key);
      ask(key);
    }
  }

  /** Show only the models that contain the typed text. */
  function filterModels() {
    const words = find('[data-field="model"]').value.trim().toLowerCase();
    for (const row of all('[data-key="models/list"] .nba-rows > div')) {
      const buttons = [...row.querySelectorAll('[data-do="set"]')];
      for (const button of buttons) button.hidden = !button.value.toLowerCase().includes(words);
      row.hidden = buttons.length > 0 && buttons.every(({ hidden }) => hidden);
    }
  }

  // Events

  /** Buttons of the panel itself; those of the runs are answered by the page's actions.
   * @type {Surface} */
  const surface = {
    owns: (button) => !button.closest(".nba-view"),
    actions: {
      files: () => picker.click(),
      drawer: toggleDrawer,
      send: () => shared.ask("send"),
      continue: () => shared.ask("continue"),
      list: ({ dataset, value }) => send({ kind: "list", name: dataset.field, value }),
      set: (button) => {
        send({ kind: "field", name: button.dataset.field, value: button.value });
        closeDrawer(button);
      },
      open: (button) => {
        send({ kind: "open", value: button.value });
        closeDrawer(button);
      },
      cases: (button) => {
        send({ kind: "open", name: "batch", value: button.value });
        closeDrawer(button);
      },
      show: (button) => {
        send({ kind: "open", value: button.dataset.run });
        closeDrawer(button);
      },
      export: (button) => {
        send({ kind: "export", value: button.value, run: find(EXPORTED).value });
        closeDrawer(button);
      },
    },
    otherwise: ({ dataset, value }) => send({ kind: dataset.do, value }),
  };

  /** @param {any} event */
  function onChange({ target }) {
    const { field } = target.dataset;
    if (target.closest(".nba-ticks")) {
      const ticked = all(".nba-ticks :checked").map(({ value }) => value);
      const tools = shared.state.tools.map((/** @type {any[]} */ [name, about]) =>
        [name, about, ticked.includes(name)]);
      shared.state = { ...shared.state, tools };
      send({ kind: "field", name: "tools", value: ticked.join(",") });
    } else if (field && target !== prompt && !target.closest(".nba-view")) {
      onField(target, field);
    }
  }

  /** @param {any} target @param {string} name */
  function onField(target, name) {
    if (target.validity.badInput) {
      shared.error = `${labels[name]}: expected a number`;
      return shared.patch();
    }
    shared.error = "";
    if (target.value === TOKENS) {
      const number = target.closest(".nba-field").querySelector("input");
      number.hidden = false;
      return number.focus();
    }
    const isSwitch = target.type === "checkbox";
    const value = isSwitch ? (target.checked ? "on" : "off") : target.value;
    // At once: until the kernel has answered, the field would show its value of before.
    shared.state = { ...shared.state, values: { ...shared.state.values, [name]: value } };
    send({ kind: "field", name, value });
  }

  /** @param {any} event */
  function onInput({ target }) {
    if (target === prompt) shared.type(prompt.value);
    if (target.dataset.field === "model") filterModels();
    if (target !== search) return;
    clearTimeout(wait);
    wait = setTimeout(() => ask("runs"), FIND_MS);
  }

  /** Handle keys here only: JupyterLab's shortcuts would act on the cell. @param {any} event */
  function onKeyDown(event) {
    event.stopPropagation();
    const { target, key } = event;
    const opener = key === "Escape" && openerOf(target);
    if (opener) closeDrawer(target);
    if (target !== prompt || key !== "Enter" || event.isComposing) return;
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    shared.ask("send");
  }

  /** @param {any} event */
  function onPaste(event) {
    const { files, types } = event.clipboardData;
    // Cells of a spreadsheet are text with a picture of it.
    if (!files.length || types.includes("text/plain")) return;
    event.preventDefault();
    shared.attach(files, true);
  }

  /** @param {any} event */
  function onDrag(event) {
    if (!event.dataTransfer?.types.includes("Files")) return;
    // Without it the browser opens a dropped file in place of the notebook.
    event.preventDefault();
    const isOut = event.type === "dragleave" && !root.contains(event.relatedTarget);
    root.classList.toggle("nba-dropping", event.type !== "drop" && !isOut && !shared.isDead);
    if (event.type === "drop" && !shared.isDead) shared.attach(event.dataTransfer.files);
  }

  // Updates

  /** Enable and show the buttons. */
  function patchButtons() {
    const { state, waiting, isDead } = shared;
    const { values } = state;
    const isFree = !state.working && !waiting && !isDead;
    const isAny = shared.draft.trim() || state.attached.length || values.workflow ||
      values.document;
    const isAtWork = !isDead && Boolean(state.working || waiting);
    /** Per button: enabled, visible. @type {Record<string, any[]>} */
    const buttons = {
      send: [isFree && isAny], files: [!isDead], new: [isFree], more: [!isDead, shared.more],
      continue: [isFree, (state.can_continue || state.waits) && !isAtWork],
      stop: [shared.stopping !== "stop", isAtWork],
      pause: [!shared.stopping, state.working && !isDead],
    };
    for (const [action, [isEnabled, isVisible = true]] of Object.entries(buttons)) {
      const button = find(`:not(.nba-view *)[data-do="${action}"]`);
      button.disabled = !isEnabled;
      button.hidden = !isVisible;
    }
  }

  /** Fill the settings with the kernel's values, but not the field in which the person types. */
  function patchFields() {
    const { values } = shared.state;
    const active = root.getRootNode().activeElement;
    for (const field of all(".nba-drawer [data-field]:not(button)")) {
      const value = values[field.dataset.field] ?? "";
      const select = field.closest(".nba-field")?.querySelector("select");
      if (select && select === active) continue;
      const isTokens = select && /^\d+$/.test(value);
      if (select && field !== select && field !== active) field.hidden = !isTokens;
      const shown = field === select && isTokens ? TOKENS : value;
      if (field.type === "checkbox") field.checked = value === "on";
      else if (field !== active && field.value !== shown) field.value = shown;
    }
  }

  /** Offer the ended runs of the conversation for export. */
  function patchExport() {
    const runs = all(".nba-thread .nba-run[data-run]:not(:has([data-since]))").reverse()
      .filter(({ dataset }) => !dataset.run.includes(" "));
    const select = find(EXPORTED);
    const { value } = select;
    list(EXPORTED, runs.map((run) => {
      const words = run.querySelector(".nba-prompt")?.textContent ?? "";
      return ["option", { value: run.dataset.run }, words.slice(0, 80) || run.dataset.run];
    }));
    if (runs.some(({ dataset }) => dataset.run === value)) find(EXPORTED).value = value;
    find(EXPORTED).hidden = !runs.length;
    find(".nba-nothing").hidden = runs.length > 0;
    for (const button of all('[data-do="export"]')) button.disabled = !runs.length;
  }

  /** Be a line while the panel is at the right of this page. */
  function patchPosition() {
    if (!root.isConnected) return;
    const isElsewhere = shared.isElsewhere(root);
    root.classList.toggle("nba-aside", isElsewhere);
    if (isElsewhere === isAside) return;
    isAside = isElsewhere;
    // The runs must be in the page once: a reply to one of their buttons looks for it.
    if (isAside) begin([]);
    else send({ kind: "ready" });
  }

  /** Update everything that the kernel or the person changed. */
  function patch() {
    const { state, waiting, isDead } = shared;
    const { values } = state;
    patchPosition();
    patchButtons();
    patchFields();
    patchExport();
    askOutdated();
    if (prompt.value !== shared.draft) prompt.value = shared.draft;
    prompt.readOnly = Boolean(waiting);
    prompt.placeholder = state.waits ? "Your answer…" :
      state.goes_on ? "Say more…" : "Ask something…";
    find('input[data-field="model"]').placeholder = state.usual;
    write('[data-do="more"]', `Show ${shared.more} earlier runs`);
    write(".nba-status", shared.words());
    write(".nba-wrong", isDead ? GONE : shared.error || state.error);
    write(".nba-hint", shared.hint());
    write(".nba-totals", state.totals || "nbagent panel");
    list(".nba-ticks", state.tools.map((/** @type {any[]} */ [name, about, on]) =>
      ["label", { class: "nba-tick", title: about },
        ["input", { type: "checkbox", value: name, ...(on ? { checked: "" } : {}) }], name]));
    list(".nba-chips", state.attached.map((/** @type {any[]} */ [name, size]) =>
      ["span", { class: "nba-chip" }, `${name} · ${Math.ceil(size / 1000)} kB `,
        panelButton("detach", "×", { value: name, "aria-label": `Remove ${name}` })]));
    const ticked = state.tools.filter((/** @type {any[]} */ [, , on]) => on);
    const set = OPTIONS.filter((name) => values[name] && shared.isChanged(name));
    brief("models", values.model || state.usual);
    brief("tools", ticked.map((/** @type {any[]} */ [name]) => name).join(", ") || "none");
    brief("system", values.system.trim().slice(0, 60));
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
    write(`.nba-opener-${key} .nba-brief`, text ?? "");
  }

  listenForClicks(root, surface, new AbortController().signal);
  const handlers = { change: onChange, input: onInput, keydown: onKeyDown,
    paste: onPaste, drop: onDrag, dragover: onDrag, dragleave: onDrag };
  for (const [name, handler] of Object.entries(handlers)) {
    root.addEventListener(name, handler);
  }
  picker.addEventListener("change", () => {
    shared.attach(picker.files);
    picker.value = "";
  });
  begin([]);
  patch();
  return {
    root, page, patch, begin, onListsChanged, filterModels,
    get view() { return view; },
    get isAside() { return isAside; },
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
    /** True once a view of this page was at the right. */ wasBeside: false,
    besideSince: performance.now(),
    send(/** @type {any} */ message) {
      if (shared.isDead) return; // its comm is closed: sending would raise
      if (message.kind in STOPS) shared.stopping = message.kind;
      model.send(message);
      shared.patch();
    },
    patch() {
      for (const panel of shared.panels) panel.patch();
    },
    /** True if a view is to be a line, because another one is at the right.
     * @param {Element} root */
    isElsewhere(root) {
      if (!shared.state.beside || root.closest(SIDECAR)) return false;
      if (shared.panels.some(({ root: other }) => other.isConnected && other.closest(SIDECAR))) {
        shared.wasBeside = true;
        return true;
      }
      // Not there yet; or the person closed the tab.
      return !shared.wasBeside && performance.now() - shared.besideSince < SIDECAR_MS;
    },
    hint() {
      const { notice, beside } = shared.state;
      const isLate = performance.now() - shared.besideSince > SIDECAR_MS;
      return notice || (beside && !shared.wasBeside && isLate ? NO_SIDECAR : "");
    },
    /** @param {string} name */
    isChanged(name) {
      return shared.state.values[name] !== shared.state.defaults[name];
    },
    words() {
      const { state } = shared;
      const ms = performance.now() - since;
      if (shared.isDead) return "";
      if (shared.waiting) return ms > LATE_MS ? WAITS : "Sending…";
      if (shared.isSilent && ms > SILENT_MS) return SILENT;
      return (state.working && STOPS[shared.stopping]) || state.status ||
        "Ctrl+Enter sends, Enter is a new line";
    },
    type(/** @type {string} */ text) {
      shared.draft = text;
      clearTimeout(typing);
      const late = Math.max(DRAFT_MS, text.length / DRAFT_CHARS_PER_MS);
      typing = setTimeout(() => shared.send({ kind: "draft", text }), late);
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
    /** @param {any} files @param {boolean} isPasted */
    attach(files, isPasted = false) {
      const large = [...files].filter(({ size }) => size > FILE_BYTES).map(({ name }) => name);
      shared.error = large.length ? `${large.join(", ").slice(0, 200)}: larger than 7 MB; attach a ` +
        "smaller file" : "";
      for (const file of files) {
        if (file.size > FILE_BYTES) continue;
        const reader = new FileReader();
        const name = isPasted ? shared.pastedName(file.name) : file.name;
        reader.onload = () => {
          const data = String(reader.result).split(",")[1] ?? "";
          shared.send({ kind: "attach", name: name.slice(0, NAME_CHARS), data });
        };
        reader.onerror = () => {
          shared.error = `${name} cannot be read; a folder cannot be attached`;
          shared.patch();
        };
        reader.readAsDataURL(file);
      }
      shared.patch();
    },
    /** All pasted images have one name: number them. @param {string} name */
    pastedName(name) {
      const names = shared.state.attached.map(([attached]) => attached);
      let number = 1;
      let numbered = name;
      while (names.includes(numbered)) numbered = name.replace(/(\.\w+)?$/, `-${++number}$1`);
      return numbered;
    },
  };
  return shared;
}

/** Handle a message of the kernel. @param {any} shared @param {any} message */
function onKernelMessage(shared, message) {
  const { kind, id, page } = message;
  const isOurs = Boolean(id) && id === shared.waiting;
  const panels = shared.panels.filter((/** @type {any} */ panel) =>
    !panel.isAside && (!page || page === panel.page));
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
    for (const { root, filterModels } of panels) {
      keyed(root, `${message.key}/list`)?.replaceChildren(build(message.node));
      const { activeElement } = /** @type {Document} */ (root.getRootNode());
      if (activeElement?.matches('[data-field="model"]')) filterModels();
    }
  } else if (kind === "lists") {
    for (const panel of panels) panel.onListsChanged();
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
        const { beside } = shared.state;
        shared.state = model.get("state");
        if (shared.state.beside && !beside) {
          shared.besideSince = performance.now();
          shared.wasBeside = false;
        }
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
      // The front end inserts `el` into the page after this call.
      requestAnimationFrame(shared.patch);
      return () => {
        shared.panels.splice(shared.panels.indexOf(panel), 1);
        panel.close();
        shared.patch();
      };
    },
  };
};
