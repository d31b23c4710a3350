// Runs in the page. The kernel draws: it sends nodes (`put`), more text (`add`) or the whole
// picture (`done`). This file builds them as DOM and sends clicks back. The DOM is the state:
// folds, typed text and focus of the person stay. `panel.js` is appended to this text.

/** @typedef {string | [string, Record<string, string>, ...any[]]} Picture a node of view/node.py */
/** @typedef {{ send: (message: any) => void, pictures: () => Picture[] }} Shared */

// The closed lists of view/node.py; a test compares them. Nothing else is built.
const TAGS = new Set((
  "div span p b i em strong s small sub sup del ins code pre kbd h3 h4 h5 h6 ul ol li blockquote " +
  "a br hr img table caption thead tbody tr th td details summary progress section header footer " +
  "button textarea input select option label"
).split(" "));
const ATTRIBUTES = new Set((
  "class title role open hidden disabled checked selected start align scope colspan alt value " +
  "max type rows placeholder tabindex spellcheck aria-label aria-hidden aria-live aria-expanded " +
  "aria-invalid data-key data-do data-field data-run data-turn data-kernel data-question " +
  "data-since data-clock data-grows data-lm-suppress-shortcuts"
).split(" "));
/** @type {Record<string, RegExp>} */
const VALUES = {
  href: /^(?:https?|mailto):.+$/is,
  src: /^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}$/,
  style: /^flex-grow:\d+$/,
};
// A question takes no click in its first moment: the click was meant for what was there before.
const ARMED_MS = 300;
// After a person scrolled or typed, the page does not scroll by itself for this long.
const BUSY_MS = 1500;
// A preview asks the kernel to prepare the call again, so not at each key.
const PREVIEW_MS = 300;
const MOVING_MS = 50;
// Where a person wants no motion, seconds tick and tenths do not.
const TICK_MS = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : 100;
/** @type {Record<string, string>} */
const SENT = { once: "Allowed once", session: "Allowed for the session", deny: "Denied" };
/** @type {Record<string, string>} */
const STOPS = { stop: "Stopping…", pause: "Pausing after this turn…" };

const PAUSING_BATCH = "Pausing when the running cases have ended…";
/** Keys of a review and the buttons that they press. @type {Record<string, string>} */
const REVIEW_KEYS = { 0: '[data-do="skip"]', Backspace: '[data-do="back"]' };
for (let n = 1; n <= 5; n++) REVIEW_KEYS[n] = `[data-do="label"][value="${n}"]`;

/** Id of this page: each widget of it has a copy of this module. @type {string} */
const TAB = (/** @type {any} */ (globalThis)[Symbol.for("nbagent.tab")] ??=
  `${Date.now()}-${Math.random()}`);

/** Build a node as DOM. Text becomes a text node, never markup.
 * @param {Picture} node @returns {any} */
function build(node) {
  if (typeof node === "string") return document.createTextNode(node);
  const [tag, attributes, ...children] = node;
  const made = document.createElement(TAGS.has(tag) ? tag : "span");
  for (const [name, value] of Object.entries(attributes)) {
    const pattern = Object.hasOwn(VALUES, name) ? VALUES[name] : null;
    if (pattern ? pattern.test(value) : ATTRIBUTES.has(name)) made.setAttribute(name, value);
  }
  if (made.hasAttribute("href")) {
    made.setAttribute("target", "_blank");
    made.setAttribute("rel", "noopener noreferrer nofollow");
  }
  made.append(...children.map(build));
  return made;
}

/** Format a running clock, as `format_duration` in view/words.py does. @param {number} ms */
function seconds(ms) {
  if (ms >= 600000) return `${Math.floor(ms / 60000)} min ${Math.floor((ms % 60000) / 1000)} s`;
  return `${(ms / 1000).toFixed(ms < 99950 ? 1 : 0)} s`;
}

/** @param {Element | null} root @param {string} key @returns {any} */
function keyed(root, key) {
  return root && key ? root.querySelector(`[data-key="${CSS.escape(key)}"]`) : root;
}

/** Replace an element by a fresh one and move the focus to the same control in it.
 * @param {any} old @param {any} fresh */
function replace(old, fresh) {
  const active = old.getRootNode().activeElement;
  const focused = active && old.contains(active) ? active : null;
  const selector = focused?.dataset.do ? `[data-do="${focused.dataset.do}"]` : focused?.localName;
  const nth = focused ? [...old.querySelectorAll(selector)].indexOf(focused) : -1;
  old.replaceWith(fresh);
  if (!focused) return;
  const twin = fresh.querySelectorAll(selector)[nth];
  const line = fresh.closest("details")?.querySelector("summary");
  (twin ?? line ?? fresh).focus({ preventScroll: true });
}

async function toClipboard(/** @type {string} */ text, /** @type {HTMLElement} */ source) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // The clipboard API is missing on plain http to another machine and in some frames: use a
    // selection, which the person can copy if the command is refused too.
    document.getSelection()?.selectAllChildren(source);
    return document.execCommand("copy");
  }
}

/** Call back when the kernel ends, if the front end tells (JupyterLab, Notebook 7).
 * @param {any} model @param {() => void} onDead @returns {() => void} stops watching */
function watchKernel(model, onDead) {
  const kernel = model.widget_manager?.kernel;
  const onStatus = (/** @type {any} */ _kernel, /** @type {string} */ status) =>
    /dead|restarting|terminating/.test(status) && onDead();
  kernel?.statusChanged?.connect(onStatus);
  kernel?.disposed?.connect(onDead);
  return () => {
    kernel?.statusChanged?.disconnect(onStatus);
    kernel?.disposed?.disconnect(onDead);
  };
}

// Actions on a finished run, in the panel and in every output.

/** Send a click. For an action with a form, the kernel answers the first click with the form.
 * @param {any} button @param {Shared["send"]} send */
function sendAction(button, send) {
  const root = button.closest("[data-run]");
  const form = button.closest(".nba-words");
  const { do: action, turn } = (form ?? button).dataset;
  if (action === "sort") return sortRows(button.closest("th"));
  if (action === "copy") return copy(root, button);
  if (button.dataset.do === "cancel") return form.remove();
  if (form) button.disabled = true;
  const fields = form ? fieldsOf(form) : undefined;
  const { kernel: at } = root.closest("[data-kernel]").dataset;
  send({ kind: "act", do: action, run: root.dataset.run, at, turn, fields, tab: TAB });
}

function fieldsOf(/** @type {any} */ form) {
  const fields = [...form.querySelectorAll("[data-field]")];
  return Object.fromEntries(fields.map(({ dataset, value }) => [dataset.field, value]));
}

/** Copy the code or table beside a button, else the answer.
 * @param {any} root @param {any} button */
async function copy(root, button) {
  const code = button.closest(".nba-code");
  const source = code?.querySelector("pre, table") ?? root.querySelector(".nba-answer");
  const isCopied = await toClipboard(source.innerText, source);
  showMessage(root, isCopied ? `Copied ${code ? "it" : "the answer"}` : "Selected: press Ctrl+C");
}

/** Show the kernel's reply: a message, a text for the clipboard, a form, or a list of runs.
 * @param {any} message */
async function reply({ run, at, said, text, form, list }) {
  const kernel = `[data-kernel="${CSS.escape(at)}"]`;
  const which = `:is(${kernel}[data-run="${CSS.escape(run)}"], ${kernel}:not([data-run]))`;
  // A docked output shows the same run a second time: prefer the copy with the focus.
  const root = document.querySelector(`${which}:focus-within`) ?? document.querySelector(which);
  if (!root) return;
  if (form) return showForm(root, build(form));
  if (list) return root.querySelector("table").replaceWith(build(list).querySelector("table"));
  const filled = root.querySelector(".nba-words");
  if (!said) return filled?.remove();
  for (const button of filled?.querySelectorAll("button") ?? []) button.disabled = false;
  const line = showMessage(root, said);
  if (!text) return;
  const source = line.appendChild(build(["pre", {}, text]));
  if (await toClipboard(text, source)) source.remove();
  else line.firstChild.data = "Selected: press Ctrl+C";
}

/** Insert a form below its button and focus its first field. */
function showForm(/** @type {any} */ root, /** @type {any} */ form) {
  root.querySelector(".nba-words")?.remove();
  const { do: action, turn } = form.dataset;
  const of = turn ? `[data-turn="${CSS.escape(turn)}"]` : ":not([data-turn])";
  const button = root.querySelector(`[data-do="${action}"]${of}`);
  (button.closest(".nba-foot") ?? button).after(form);
  form.querySelector("[data-field]").focus();
}

function showMessage(/** @type {any} */ root, /** @type {string} */ text) {
  let line = root.querySelector(":scope > .nba-said");
  line ??= root.appendChild(build(["div", { class: "nba-said", "aria-live": "polite" }]));
  line.textContent = text;
  return line;
}

/** Sort a table by a column: the largest first, then the smallest. @param {any} head */
function sortRows(head) {
  const isDown = head.ariaSort !== "descending";
  for (const other of head.parentElement.children) other.ariaSort = null;
  head.ariaSort = isDown ? "descending" : "ascending";
  const body = head.closest("table").tBodies[0];
  const of = (/** @type {any} */ row) => {
    const cell = row.cells[head.cellIndex];
    return cell.getAttribute("value") ?? cell.textContent;
  };
  // The difference of texts is NaN, which is falsy: they are compared as texts.
  const rows = [...body.rows].sort((a, b) => of(a) - of(b) || of(a).localeCompare(of(b)));
  body.append(...(isDown ? rows.reverse() : rows));
}

/** Hide the rows that do not contain the text of a field. @param {any} field */
function filterRows(field) {
  const words = field.value.trim().toLowerCase();
  for (const row of field.closest("[data-kernel]").querySelectorAll("tbody tr")) {
    row.hidden = !row.textContent.toLowerCase().includes(words);
  }
}

// The live view.

/** Create a view: pictures of runs below each other, some running. Its DOM can move to another
 * `el`.
 * @param {Shared} shared @param {HTMLElement} el */
function createView(shared, el) {
  const place = el.appendChild(build(["div", { class: "nba-view" }]));
  // A head is rebuilt on every change, and screen readers miss a new live region: keep one element.
  const announcer = place.appendChild(build(["div", { class: "nba-announcer", role: "status" }]));
  /** Folds that the person opened or closed, by run and key. @type {Map<string, boolean>} */
  const foldChoices = new Map();
  /** Texts of sent answers, by the id of the question. @type {Map<string, string>} */
  const answered = new Map();
  /** Ops that wait while a question is open. @type {{ run: string, op: any[] }[]} */
  let queued = [];
  const listening = new AbortController();
  let lastInputAt = -Infinity;
  let typing = 0;
  /** @type {any} */
  let focused = null;

  const rootOf = (/** @type {string} */ run) =>
    place.querySelector(`[data-run="${CSS.escape(run)}"]`);
  const runOf = (/** @type {any} */ node) => node.closest("[data-run]").dataset.run;
  const openQuestions = () =>
    [...place.querySelectorAll("[data-question].nba-armed:not(.nba-sent)")];

  /** @param {{ run: string, ops: any[][] }} message */
  function applyOps({ run, ops }) {
    for (const op of ops) {
      if (canApply(op)) apply(run, op);
      else queued.push({ run, op });
    }
    applyQueued();
    tick();
  }

  /** True if an op may be applied now. While a question is open, only its own card may change:
   * otherwise the buttons could move under the mouse. One that is not armed yet may move: it takes
   * no click. @param {any[]} op */
  function canApply([kind, key]) {
    const open = openQuestions();
    return kind === "done" || !open.length || open.some(({ dataset }) =>
      key === dataset.key || key.startsWith(`${dataset.question}/`));
  }

  function applyQueued() {
    if (openQuestions().length) return;
    for (const { run, op } of queued.splice(0)) apply(run, op);
  }

  function apply(/** @type {string} */ run, /** @type {any[]} */ [kind, key, value, parent]) {
    const isAll = kind === "done";
    const old = isAll ? rootOf(run) : keyed(rootOf(run), key);
    if (kind === "add") {
      const last = old?.lastChild;
      return last instanceof Text ? last.appendData(value) : old?.append(value);
    }
    if (isAll) queued = queued.filter((item) => item.run !== run);
    const fresh = build(isAll ? key : value);
    restoreFolds(run, fresh, old);
    if (old) replace(old, fresh);
    else (isAll ? place : keyed(rootOf(run), parent))?.append(fresh);
    prepare(fresh);
    announce(fresh);
  }

  /** Let screen readers read the state and the current wait when they change. @param {any} fresh */
  function announce(fresh) {
    const parts = [...fresh.querySelectorAll(".nba-phase, .nba-activity")];
    const words = parts.map((part) => part.textContent).filter(Boolean).join(": ");
    if (words && announcer.textContent !== words) announcer.textContent = words;
  }

  /** Keep folds as the person left them, and open those in which the person selects or types.
   * @param {string} run @param {any} fresh @param {any} old */
  function restoreFolds(run, fresh, old) {
    const selection = document.getSelection();
    const read = selection?.isCollapsed === false ? selection.anchorNode : null;
    const active = read ?? /** @type {any} */ (place.getRootNode()).activeElement;
    for (const fold of [fresh, ...fresh.querySelectorAll("details")]) {
      const { key } = fold.dataset;
      if (!key || fold.localName !== "details") continue;
      const before = old?.dataset.key === key ? old : keyed(old ?? null, key);
      const wish = foldChoices.get(`${run} ${key}`);
      if (wish !== undefined) fold.open = wish;
      else if (before?.open && active && before.contains(active)) fold.open = true;
    }
  }

  /** Prepare a new node: unfold its questions, scroll them into view, arm them.
   * @param {any} fresh */
  function prepare(fresh) {
    const all = [fresh, ...fresh.querySelectorAll("[data-question]")];
    for (const ask of all.filter((node) => node.dataset.question)) {
      for (let fold = ask.closest("details"); fold; fold = fold.parentElement.closest("details")) {
        fold.open = true;
      }
      if (answered.has(ask.dataset.question)) {
        setSent(ask, true);
        continue;
      }
      // No scrolling away from another question that the person may be reading.
      if (!openQuestions().length && performance.now() - lastInputAt > BUSY_MS) {
        ask.querySelector(".nba-row")?.scrollIntoView({ block: "nearest" });
        ask.firstElementChild.scrollIntoView({ block: "nearest" });
      }
      setTimeout(() => ask.classList.add("nba-armed"), ARMED_MS);
    }
    // The kernel rejected an answer and gives the reason: enable the question again.
    const ask = fresh.matches(".nba-said:not(:empty)") && fresh.closest("[data-question]");
    if (!ask) return;
    answered.delete(ask.dataset.question);
    setSent(ask, false);
  }

  function setSent(/** @type {any} */ ask, /** @type {boolean} */ isSent) {
    ask.classList.toggle("nba-sent", isSent);
    for (const control of ask.querySelectorAll("button, textarea, input")) {
      control.disabled = isSent;
    }
    const words = answered.get(ask.dataset.question);
    if (words) ask.querySelector(".nba-said").textContent = words;
  }

  function markSent(/** @type {any} */ ask, /** @type {string} */ choice) {
    if (ask.contains(ask.getRootNode().activeElement)) {
      const line = ask.parentElement.closest("details")?.querySelector("summary");
      line?.focus({ preventScroll: true });
    }
    answered.set(ask.dataset.question, `${SENT[choice]}: sent`);
    setSent(ask, true);
  }

  function answer(/** @type {any} */ ask, /** @type {any} */ button) {
    const choice = button.dataset.do;
    const form = button.closest(".nba-edit, .nba-deny");
    if (choice === "cancel") return cancel(form);
    const message = { kind: "answer", run: runOf(ask), question: ask.dataset.question, choice };
    const fields = form && fieldsOf(form);
    if (choice === "deny") shared.send({ ...message, reason: fields?.reason ?? "" });
    else shared.send(form ? { ...message, fields } : message);
    markSent(ask, choice);
  }

  /** Close a form and reset its fields. @param {any} form */
  function cancel(form) {
    for (const field of form.querySelectorAll("[data-field]")) field.value = field.defaultValue;
    form.open = false;
    form.querySelector("summary").focus();
    // The card still shows the preview of the edited arguments.
    if (form.matches(".nba-edit")) preview(form);
  }

  /** Request a preview of the call with the edited arguments. @param {any} form */
  function preview(form) {
    const ask = form.closest("[data-question]");
    const message = { kind: "preview", run: runOf(ask), question: ask.dataset.question };
    clearTimeout(typing);
    typing = setTimeout(() => shared.send({ ...message, fields: fieldsOf(form) }), PREVIEW_MS);
  }

  function onClick(/** @type {any} */ { target, detail }) {
    const button = target.closest("button[data-do]");
    const fold = target.closest("summary")?.parentElement;
    if (!button && fold?.dataset.key) {
      const [run, key, open] = [runOf(fold), fold.dataset.key, !fold.open];
      foldChoices.set(`${run} ${key}`, open);
      shared.send({ kind: "fold", run, key, open });
    }
    // The second click of a double click was meant for the button that was here before.
    if (!button || detail > 1) return;
    const action = button.dataset.do;
    const ask = button.closest("[data-question]");
    if (action in STOPS) {
      const isBatch = button.closest(".nba-batch");
      button.disabled = true;
      button.textContent = isBatch && action === "pause" ? PAUSING_BATCH : STOPS[action];
      if (action === "stop") button.previousElementSibling?.remove();
      shared.send({ kind: action, run: runOf(button) });
    } else if (action === "answer_all") {
      const all = [...button.closest("[data-run]").querySelectorAll(".nba-ask:not(.nba-sent)")];
      // Named one by one: a question that the page does not show yet must not be allowed.
      const questions = all.map((question) => question.dataset.question);
      shared.send({ kind: "answer_all", run: runOf(button), questions });
      for (const question of all) markSent(question, "once");
      button.disabled = true;
    } else if (button.closest(".nba-review")) {
      const { value, dataset } = button;
      shared.send({ kind: action, run: runOf(button), place: dataset.turn, value });
    } else if (ask?.matches(".nba-armed:not(.nba-sent)")) {
      answer(ask, button);
    }
    applyQueued();
  }

  function onKeyDown(/** @type {any} */ event) {
    const review = event.target.closest(".nba-review");
    const isPlain = !event.repeat && !event.ctrlKey && !event.altKey && !event.metaKey;
    if (review && isPlain && Object.hasOwn(REVIEW_KEYS, event.key)) {
      event.preventDefault();
      review.querySelector(REVIEW_KEYS[event.key])?.click();
    }
    const form = event.target.matches("input") && event.target.closest(".nba-deny");
    if (!form || event.isComposing || event.key !== "Enter") return;
    // Otherwise the same key press would fold the turn, whose line gets the focus.
    event.preventDefault();
    form.querySelector("[data-do]").click();
  }

  /** Update clocks and the growing bar. */
  function tick() {
    for (const head of /** @type {any} */ (place.querySelectorAll("[data-since]"))) {
      const since = performance.now() - (head.drawn ??= performance.now());
      for (const clock of head.querySelectorAll("[data-clock]")) {
        // A negative start counts down.
        const from = Number(clock.dataset.clock);
        const ms = from < 0 ? Math.max(0, -from - since) : from + since;
        if (from < 0 || ms >= 1000) clock.textContent = seconds(ms);
      }
      const piece = head.querySelector("[data-grows]");
      if (piece) piece.style.flexGrow = String(Math.round(Number(piece.dataset.grows) + since));
    }
  }

  /** The kernel has ended: mark the running runs as interrupted. */
  function onKernelDead() {
    for (const head of place.querySelectorAll("[data-since]")) {
      const root = /** @type {Element} */ (head.closest("[data-run]"));
      head.removeAttribute("data-since");
      for (const button of head.querySelectorAll("[data-do]")) button.remove();
      const [mark, phase] = head.querySelectorAll(".nba-mark, .nba-phase");
      mark.className = "nba-mark nba-bad";
      phase.textContent = "Interrupted";
      for (const outcome of root.querySelectorAll(".nba-busy .nba-res, .nba-pending")) {
        outcome.textContent = "… interrupted";
      }
      for (const question of root.querySelectorAll("[data-question]")) setSent(question, true);
      const next = root.closest(".nba-batch")
        ? ["run the cell again; only the missing cases are run"]
        : ["continue with ", ["code", {}, "%agent resume"], " in a new kernel"];
      root.append(build(["div", { class: "nba-end" }, "The kernel is gone: ", ...next]));
    }
    for (const root of place.querySelectorAll(".nba-review")) {
      for (const button of root.querySelectorAll("button")) button.disabled = true;
      root.append(build(["div", { class: "nba-end" },
        "The kernel is gone: run the cell again; your labels are kept"]));
    }
    applyQueued();
  }

  place.append(...shared.pictures().map(build));
  prepare(place);
  place.addEventListener("click", onClick);
  place.addEventListener("input", (/** @type {any} */ { target }) => {
    if (target.closest("[data-question] .nba-edit")) preview(target.closest(".nba-edit"));
  });
  place.addEventListener("keydown", onKeyDown);
  place.addEventListener("focusin", ({ target }) => { focused = target; });
  // A moved element loses the focus. Keep it for a moment, so that `move` can restore it.
  place.addEventListener("focusout", () => setTimeout(() => {
    if (/** @type {any} */ (place.getRootNode()).activeElement !== focused) focused = null;
  }, MOVING_MS));
  for (const kind of ["wheel", "touchmove", "keydown"]) {
    document.addEventListener(kind, (event) => {
      // Keys that run a cell are no sign of work elsewhere on the page.
      const { key = "" } = /** @type {any} */ (event);
      if (!/Enter|Shift|Control|Meta/.test(key)) lastInputAt = performance.now();
    }, { capture: true, passive: true, signal: listening.signal });
  }
  const timer = setInterval(tick, TICK_MS);
  tick();
  return {
    place, applyOps, onKernelDead,
    /** @param {HTMLElement} to */
    move(to) {
      const had = document.activeElement === document.body ? focused : null;
      to.append(place);
      // Later: the front end inserts `to` into the page after this call.
      setTimeout(() => had?.focus({ preventScroll: true }));
    },
    close() {
      clearInterval(timer);
      listening.abort();
      place.remove();
    },
  };
}

// Widgets by `kind`. anywidget passes different `model` objects to `initialize` and `render`, so
// each widget keeps the state that both share.

/** Widget of one output with running runs. */
function runWidget() {
  /** @type {Map<number, { view: ReturnType<typeof createView>, el: HTMLElement }>} */
  const pages = new Map();
  let nth = 0;
  let isDead = false;

  /** The run is shown again in a display below: hide the views once it is in this page.
   * @param {string} at */
  function hideBelow(at) {
    const saved = `[data-kernel="${CSS.escape(at)}"]`;
    const isHere = () =>
      [...document.querySelectorAll(saved)].some((node) => !node.closest(".nba-view"));
    const hide = () => pages.forEach(({ view }) => { view.place.hidden = true; });
    if (isHere()) return hide();
    const watch = new MutationObserver(() => {
      if (!isHere()) return;
      watch.disconnect();
      hide();
    });
    watch.observe(document.body, { childList: true, subtree: true });
  }

  return {
    /** @param {{ model: any }} context */
    initialize({ model }) {
      const onMessage = (/** @type {any} */ message) => {
        if (message.below) return hideBelow(message.below);
        for (const [page, { view }] of pages) {
          if (!message.page || message.page === page) view.applyOps(message);
        }
      };
      const leave = watchKernel(model, () => {
        isDead = true;
        pages.forEach(({ view }) => view.onKernelDead());
      });
      model.on("msg:custom", onMessage);
      model.send({ kind: "ready" });
      return () => {
        model.off("msg:custom", onMessage);
        leave();
      };
    },
    /** @param {{ model: any, el: HTMLElement }} context */
    render({ model, el }) {
      const close = (/** @type {number} */ page) => () => {
        // The view has moved to another element: the end of its old one must not close it.
        if (pages.get(page)?.el !== el) return;
        pages.get(page)?.view.close();
        pages.delete(page);
        // The kernel learns that this page applied its last update of the display.
        if (!isDead) send({ kind: "closed", page, tab: TAB });
      };
      const send = (/** @type {any} */ message) => model.send(message);
      // A front end that redraws an output drops the old element: move its view to the new one.
      for (const [page, old] of pages) {
        if (old.el.parentNode) continue;
        old.view.move(el);
        old.el = el;
        return close(page);
      }
      const view = createView({ send, pictures: () => model.get("pictures") }, el);
      // Unique in all tabs and after a reload: a picture for one view must reach no other.
      const page = Date.now() * 1000 + ++nth;
      pages.set(page, { view, el });
      // Ask for the whole picture: ops sent before this view existed are missing from it.
      send({ kind: "ready", page });
      return close(page);
    },
  };
}

/** Handles the buttons of finished runs in every output of the page while the kernel is alive. */
function pageActions() {
  return {
    /** @param {{ model: any }} context */
    initialize({ model }) {
      const ours = `[data-kernel^="${CSS.escape(model.get("kernel"))}-"]`;
      const search = `${ours} [type="search"]`;
      const sheet = document.head.appendChild(document.createElement("style"));
      sheet.textContent = `
        .nba-words, .nba-run > .nba-said { padding: 2px 14px 8px; }
        .nba-words :is(.nba-lab, textarea) { display: block; box-sizing: border-box; width: 100%; }
        .nba-words button { margin: 6px 6px 0 0; }
        ${ours} .nba-do { display: inline-block !important; }
        .widget-output ${ours} .nba-do:not([data-do=copy], [data-do=cell]) /* takes no updates */
          { display: none !important; }
        ${ours} th .nba-do { border: 0 !important; padding: 0 2px !important; }
        ${ours} .nba-scrolls { max-height: 420px; overflow: auto; }
        ${search} { width: 24em; max-width: 100%; }`;
      const listening = new AbortController();
      const listen = (/** @type {string} */ kind, /** @type {(event: any) => void} */ handler) =>
        document.addEventListener(kind, handler, { capture: true, signal: listening.signal });
      listen("click", ({ target, detail }) => {
        const button = target.closest("button:is(.nba-do, .nba-words *)");
        if (!button?.closest(ours) || detail > 1) return;
        sendAction(button, (/** @type {any} */ message) => model.send(message));
      });
      listen("input", ({ target }) => {
        if (target.matches(search)) filterRows(target);
      });
      listen("keydown", ({ target, key }) => {
        if (key !== "Enter" || !target.matches(search)) return;
        const { kernel: at } = target.closest(ours).dataset;
        model.send({ kind: "act", do: "search", at, tab: TAB, fields: { search: target.value } });
      });
      model.on("msg:custom", reply);
      model.send({ kind: "ready", tab: TAB });
      const end = () => {
        listening.abort();
        sheet.remove();
      };
      const leave = watchKernel(model, end);
      return () => {
        model.off("msg:custom", reply);
        leave();
        end();
      };
    },
  };
}

/** @type {Record<string, () => { initialize: any, render?: any }>} */
const KINDS = { run: runWidget, actions: pageActions };

export default () => {
  /** @type {any} */
  let widget;
  const widgetOf = (/** @type {any} */ model) => (widget ??= KINDS[model.get("kind")]());
  return {
    initialize: (/** @type {any} */ context) => widgetOf(context.model).initialize(context),
    render: (/** @type {any} */ context) => widgetOf(context.model).render?.(context),
  };
};
