// Runs in the page. The kernel draws: it sends nodes (`put`), more text (`add`) and the whole
// (`done`). They are built here, and clicks go back. The DOM is the state: what a
// person unfolded, typed or has the focus on stays. `panel.js` is appended to this text.

/** @typedef {string | [string, Record<string, string>, ...any[]]} Picture a node of view/node.py */
/** @typedef {{ send: (message: any) => void, pictures: () => Picture[] }} Shared */

// The closed lists of view/node.py. What is not in them is not built.
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
// What comes up under a finger that is already on its way down is not an answer.
const ARMED_MS = 300;
// A person who scrolled or typed so lately is not to be moved.
const BUSY_MS = 1500;
const PREVIEW_MS = 300;
const MOVING_MS = 50;
const TICK_MS = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : 100;
/** @type {Record<string, string>} */
const SENT = { once: "Allowed once", session: "Allowed for this session", deny: "Denied" };
/** @type {Record<string, string>} */
const STOPS = { stop: "Stopping…", pause: "Pausing after this turn…" };

const PAUSING_BATCH = "Pausing when the runs at work have ended…";
/** What keys do in a review, by the button that they stand for. @type {Record<string, string>} */
const REVIEW_KEYS = { 0: '[data-do="skip"]', Backspace: '[data-do="back"]' };
for (let n = 1; n <= 5; n++) REVIEW_KEYS[n] = `[data-do="label"][value="${n}"]`;

/** The node as DOM: text stays text. @param {Picture} node @returns {any} */
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

/** As `seconds` in view/words.py, for the clock. @param {number} ms */
function seconds(ms) {
  if (ms >= 600000) return `${Math.floor(ms / 60000)} min ${Math.floor((ms % 60000) / 1000)} s`;
  return `${(ms / 1000).toFixed(ms < 99950 ? 1 : 0)} s`;
}

/** @param {Element | null} root @param {string} key @returns {any} */
function keyed(root, key) {
  return root && key ? root.querySelector(`[data-key="${CSS.escape(key)}"]`) : root;
}

/** Put a fresh element in the place of an old one; the focus stays where it was in it.
 * @param {any} old @param {any} fresh */
function replace(old, fresh) {
  const active = old.getRootNode().activeElement;
  const had = active && old.contains(active) ? active : null;
  const what = had?.dataset.do ? `[data-do="${had.dataset.do}"]` : had?.localName;
  const nth = had ? [...old.querySelectorAll(what)].indexOf(had) : -1;
  old.replaceWith(fresh);
  if (!had) return;
  const twin = fresh.querySelectorAll(what)[nth];
  const line = fresh.closest("details")?.querySelector("summary");
  (twin ?? line ?? fresh).focus({ preventScroll: true });
}

async function toClipboard(/** @type {string} */ text, /** @type {HTMLElement} */ source) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Plain http to another machine, or a frame that may not: the older way, by a selection.
    document.getSelection()?.selectAllChildren(source);
    return document.execCommand("copy");
  }
}

/** Call back when the kernel ends, where the front end tells (JupyterLab, Notebook 7).
 * @param {any} model @param {() => void} gone @returns {() => void} the end of watching */
function watchKernel(model, gone) {
  const kernel = model.widget_manager?.kernel;
  const heard = (/** @type {any} */ _kernel, /** @type {string} */ status) =>
    /dead|restarting|terminating/.test(status) && gone();
  kernel?.statusChanged?.connect(heard);
  kernel?.disposed?.connect(gone);
  return () => {
    kernel?.statusChanged?.disconnect(heard);
    kernel?.disposed?.disconnect(gone);
  };
}

// What a person does to a run that is over, in the panel as in every output.

/** A button was clicked. The first click of one with a form brings it: the kernel sends it.
 * @param {any} button @param {Shared["send"]} send */
function act(button, send) {
  const root = button.closest("[data-run]");
  const form = button.closest(".nba-words");
  const { do: what, turn } = (form ?? button).dataset;
  if (what === "sort") return sortRows(button.closest("th"));
  if (what === "copy") return copy(root, button);
  if (button.dataset.do === "cancel") return form.remove();
  if (form) button.disabled = true;
  const fields = form ? fieldsOf(form) : undefined;
  const { kernel: at } = root.closest("[data-kernel]").dataset;
  send({ kind: "act", do: what, run: root.dataset.run, at, turn, fields });
}

function fieldsOf(/** @type {any} */ form) {
  const fields = [...form.querySelectorAll("[data-field]")];
  return Object.fromEntries(fields.map(({ dataset, value }) => [dataset.field, value]));
}

/** Copy what is beside a button, else the answer. @param {any} root @param {any} button */
async function copy(root, button) {
  const code = button.closest(".nba-code");
  const source = code?.querySelector("pre, table") ?? root.querySelector(".nba-answer");
  const isCopied = await toClipboard(source.innerText, source);
  say(root, isCopied ? `Copied ${code ? "it" : "the answer"}` : "Selected: press Ctrl+C");
}

/** What the kernel answers: words, a text for the clipboard, a form to fill in, a list of runs.
 * @param {any} message */
async function reply({ run, at, said, text, form, list }) {
  const kernel = `[data-kernel="${CSS.escape(at)}"]`;
  const which = `:is(${kernel}[data-run="${CSS.escape(run)}"], ${kernel}:not([data-run]))`;
  // A docked output shows the same run once more.
  const root = document.querySelector(`${which}:focus-within`) ?? document.querySelector(which);
  if (!root) return;
  if (form) return ask(root, build(form));
  if (list) return root.querySelector("table").replaceWith(build(list).querySelector("table"));
  const filled = root.querySelector(".nba-words");
  if (!said) return filled?.remove();
  for (const button of filled?.querySelectorAll("button") ?? []) button.disabled = false;
  const line = say(root, said);
  if (!text) return;
  const source = line.appendChild(build(["pre", {}, text]));
  if (await toClipboard(text, source)) source.remove();
  else line.firstChild.data = "Selected: press Ctrl+C";
}

/** Put a form below its button. */
function ask(/** @type {any} */ root, /** @type {any} */ form) {
  root.querySelector(".nba-words")?.remove();
  const { do: what, turn } = form.dataset;
  const of = turn ? `[data-turn="${CSS.escape(turn)}"]` : ":not([data-turn])";
  const button = root.querySelector(`[data-do="${what}"]${of}`);
  (button.closest(".nba-foot") ?? button).after(form);
  form.querySelector("[data-field]").focus();
}

function say(/** @type {any} */ root, /** @type {string} */ words) {
  let line = root.querySelector(":scope > .nba-said");
  line ??= root.appendChild(build(["div", { class: "nba-said", "aria-live": "polite" }]));
  line.textContent = words;
  return line;
}

/** Sort a table by a column: the largest first, then the smallest. @param {any} head */
function sortRows(head) {
  const isDown = head.ariaSort !== "descending";
  for (const one of head.parentElement.children) one.ariaSort = null;
  head.ariaSort = isDown ? "descending" : "ascending";
  const body = head.closest("table").tBodies[0];
  const of = (/** @type {any} */ row) => {
    const cell = row.cells[head.cellIndex];
    return cell.getAttribute("value") ?? cell.textContent;
  };
  const rows = [...body.rows].sort((a, b) => of(a) - of(b) || of(a).localeCompare(of(b)));
  body.append(...(isDown ? rows.reverse() : rows));
}

/** Show the rows that have the words of a field. @param {any} field */
function filterRows(field) {
  const words = field.value.trim().toLowerCase();
  for (const row of field.closest("[data-kernel]").querySelectorAll("tbody tr")) {
    row.hidden = !row.textContent.toLowerCase().includes(words);
  }
}

// The live view.

/** One view: the pictures of runs below each other, some at work. Its DOM may move to another `el`.
 * @param {Shared} shared @param {HTMLElement} el */
function createView(shared, el) {
  const place = el.appendChild(build(["div", { class: "nba-view" }]));
  // A head is built anew whenever it changes: what is read out has a place of its own, that stays.
  const voice = place.appendChild(build(["div", { class: "nba-voice", role: "status" }]));
  /** What the person folded or unfolded, by run and key. @type {Map<string, boolean>} */
  const touched = new Map();
  /** What was answered, by the question's id. @type {Map<string, string>} */
  const answered = new Map();
  /** What waits while a question is open. @type {{ run: string, op: any[] }[]} */
  let held = [];
  const leaving = new AbortController();
  let moved = -Infinity;
  let typing = 0;
  /** @type {any} */
  let focused = null;

  const rootOf = (/** @type {string} */ run) =>
    place.querySelector(`[data-run="${CSS.escape(run)}"]`);
  const runOf = (/** @type {any} */ node) => node.closest("[data-run]").dataset.run;
  const asks = () => [...place.querySelectorAll("[data-question].nba-armed:not(.nba-sent)")];

  /** @param {{ run: string, ops: any[][] }} message */
  function take({ run, ops }) {
    for (const op of ops) {
      if (mayGoOn(op)) apply(run, op);
      else held.push({ run, op });
    }
    settle();
    tick();
  }

  /** Nothing moves under the mouse: while a question is open, its own card only.
   * @param {any[]} op */
  function mayGoOn([kind, key]) {
    const open = asks();
    return kind === "done" || !open.length || open.some(({ dataset }) =>
      key === dataset.key || key.startsWith(`${dataset.question}/`));
  }

  function settle() {
    if (asks().length) return;
    for (const { run, op } of held.splice(0)) apply(run, op);
  }

  function apply(/** @type {string} */ run, /** @type {any[]} */ [kind, key, value, parent]) {
    const isAll = kind === "done";
    const old = isAll ? rootOf(run) : keyed(rootOf(run), key);
    if (kind === "add") {
      const last = old?.lastChild;
      return last instanceof Text ? last.appendData(value) : old?.append(value);
    }
    if (isAll) held = held.filter((one) => one.run !== run);
    const fresh = build(isAll ? key : value);
    refold(run, fresh, old);
    if (old) replace(old, fresh);
    else (isAll ? place : keyed(rootOf(run), parent))?.append(fresh);
    begin(fresh);
    readOut(fresh);
  }

  /** The state and what is waited for, when they change. @param {any} fresh */
  function readOut(fresh) {
    const said = [...fresh.querySelectorAll(".nba-phase, .nba-activity")];
    const words = said.map((one) => one.textContent).filter(Boolean).join(": ");
    if (words && voice.textContent !== words) voice.textContent = words;
  }

  /** Folds stay as the person left them; what they read or type in is not folded away.
   * @param {string} run @param {any} fresh @param {any} old */
  function refold(run, fresh, old) {
    const selection = document.getSelection();
    const read = selection?.isCollapsed === false ? selection.anchorNode : null;
    const active = read ?? /** @type {any} */ (place.getRootNode()).activeElement;
    for (const fold of [fresh, ...fresh.querySelectorAll("details")]) {
      const { key } = fold.dataset;
      if (!key || fold.localName !== "details") continue;
      const before = old?.dataset.key === key ? old : keyed(old ?? null, key);
      const wish = touched.get(`${run} ${key}`);
      if (wish !== undefined) fold.open = wish;
      else if (before?.open && active && before.contains(active)) fold.open = true;
    }
  }

  /** What is new to the person: questions are unfolded, in sight, and armed. @param {any} fresh */
  function begin(fresh) {
    const all = [fresh, ...fresh.querySelectorAll("[data-question]")];
    for (const ask of all.filter((one) => one.dataset.question)) {
      for (let fold = ask.closest("details"); fold; fold = fold.parentElement.closest("details")) {
        fold.open = true;
      }
      if (answered.has(ask.dataset.question)) {
        setSent(ask, true);
        continue;
      }
      if (!asks().length && performance.now() - moved > BUSY_MS) {
        ask.querySelector(".nba-row")?.scrollIntoView({ block: "nearest" });
        ask.firstElementChild.scrollIntoView({ block: "nearest" });
      }
      setTimeout(() => ask.classList.add("nba-armed"), ARMED_MS);
    }
    // The kernel could not take an answer, and says why: it is asked again.
    const ask = fresh.matches(".nba-said:not(:empty)") && fresh.closest("[data-question]");
    if (!ask) return;
    answered.delete(ask.dataset.question);
    setSent(ask, false);
  }

  function setSent(/** @type {any} */ ask, /** @type {boolean} */ isSent) {
    ask.classList.toggle("nba-sent", isSent);
    for (const one of ask.querySelectorAll("button, textarea, input")) one.disabled = isSent;
    const words = answered.get(ask.dataset.question);
    if (words) ask.querySelector(".nba-said").textContent = words;
  }

  function sent(/** @type {any} */ ask, /** @type {string} */ choice) {
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
    sent(ask, choice);
  }

  /** Close a form, with its fields as they were. @param {any} form */
  function cancel(form) {
    for (const field of form.querySelectorAll("[data-field]")) field.value = field.defaultValue;
    form.open = false;
    form.querySelector("summary").focus();
    if (form.matches(".nba-edit")) preview(form);
  }

  /** What the call would do follows the edit. @param {any} form */
  function preview(form) {
    const ask = form.closest("[data-question]");
    const message = { kind: "preview", run: runOf(ask), question: ask.dataset.question };
    clearTimeout(typing);
    typing = setTimeout(() => shared.send({ ...message, fields: fieldsOf(form) }), PREVIEW_MS);
  }

  function clicked(/** @type {any} */ { target, detail }) {
    const button = target.closest("button[data-do]");
    const fold = target.closest("summary")?.parentElement;
    if (!button && fold?.dataset.key) {
      const [run, key, open] = [runOf(fold), fold.dataset.key, !fold.open];
      touched.set(`${run} ${key}`, open);
      shared.send({ kind: "fold", run, key, open });
    }
    // The second click of a double click was meant for what stood there before.
    if (!button || detail > 1) return;
    const what = button.dataset.do;
    const ask = button.closest("[data-question]");
    if (what in STOPS) {
      const isBatch = button.closest(".nba-batch");
      button.disabled = true;
      button.textContent = isBatch && what === "pause" ? PAUSING_BATCH : STOPS[what];
      if (what === "stop") button.previousElementSibling?.remove();
      shared.send({ kind: what, run: runOf(button) });
    } else if (what === "answer_all") {
      const all = [...button.closest("[data-run]").querySelectorAll(".nba-ask:not(.nba-sent)")];
      // By name: one that the page does not show yet is not meant.
      const questions = all.map((one) => one.dataset.question);
      shared.send({ kind: "answer_all", run: runOf(button), questions });
      for (const one of all) sent(one, "once");
      button.disabled = true;
    } else if (button.closest(".nba-review")) {
      const { value, dataset } = button;
      shared.send({ kind: what, run: runOf(button), place: dataset.turn, value });
    } else if (ask?.matches(".nba-armed:not(.nba-sent)")) {
      answer(ask, button);
    }
    settle();
  }

  function pressed(/** @type {any} */ event) {
    const review = event.target.closest(".nba-review");
    const isPlain = !event.repeat && !event.ctrlKey && !event.altKey && !event.metaKey;
    if (review && isPlain && Object.hasOwn(REVIEW_KEYS, event.key)) {
      event.preventDefault();
      review.querySelector(REVIEW_KEYS[event.key])?.click();
    }
    const form = event.target.matches("input") && event.target.closest(".nba-deny");
    if (!form || event.isComposing || event.key !== "Enter") return;
    // Else the same key would fold the turn, whose line gets the focus.
    event.preventDefault();
    form.querySelector("[data-do]").click();
  }

  /** What changes by the time alone. */
  function tick() {
    for (const head of /** @type {any} */ (place.querySelectorAll("[data-since]"))) {
      const since = performance.now() - (head.drawn ??= performance.now());
      for (const clock of head.querySelectorAll("[data-clock]")) {
        // Below 0 it counts down.
        const from = Number(clock.dataset.clock);
        const ms = from < 0 ? Math.max(0, -from - since) : from + since;
        if (from < 0 || ms >= 1000) clock.textContent = seconds(ms);
      }
      const piece = head.querySelector("[data-grows]");
      if (piece) piece.style.flexGrow = String(Math.round(Number(piece.dataset.grows) + since));
    }
  }

  /** The kernel has ended: so has what was at work. */
  function gone() {
    for (const head of place.querySelectorAll("[data-since]")) {
      const root = /** @type {Element} */ (head.closest("[data-run]"));
      head.removeAttribute("data-since");
      for (const one of head.querySelectorAll("[data-do]")) one.remove();
      const [mark, phase] = head.querySelectorAll(".nba-mark, .nba-phase");
      mark.className = "nba-mark nba-bad";
      phase.textContent = "Interrupted";
      for (const one of root.querySelectorAll(".nba-busy .nba-res, .nba-pending")) {
        one.textContent = "… interrupted";
      }
      for (const one of root.querySelectorAll("[data-question]")) setSent(one, true);
      const next = root.closest(".nba-batch")
        ? ["run the cell again, only what is missing is asked"]
        : [["code", {}, "%agent resume"], " goes on, in the new kernel"];
      root.append(build(["div", { class: "nba-end" }, "The kernel is gone: ", ...next]));
    }
    for (const root of place.querySelectorAll(".nba-review")) {
      for (const one of root.querySelectorAll("button")) one.disabled = true;
      root.append(build(["div", { class: "nba-end" },
        "The kernel is gone: run the cell again, the labels are kept"]));
    }
    settle();
  }

  place.append(...shared.pictures().map(build));
  begin(place);
  place.addEventListener("click", clicked);
  place.addEventListener("input", (/** @type {any} */ { target }) => {
    if (target.closest("[data-question] .nba-edit")) preview(target.closest(".nba-edit"));
  });
  place.addEventListener("keydown", pressed);
  place.addEventListener("focusin", ({ target }) => { focused = target; });
  // What is taken out of the page loses the focus, too, and has it again where it goes.
  place.addEventListener("focusout", () => setTimeout(() => {
    if (/** @type {any} */ (place.getRootNode()).activeElement !== focused) focused = null;
  }, MOVING_MS));
  for (const kind of ["wheel", "touchmove", "keydown"]) {
    document.addEventListener(kind, (event) => {
      // What starts a cell is no work elsewhere.
      const { key = "" } = /** @type {any} */ (event);
      if (!/Enter|Shift|Control|Meta/.test(key)) moved = performance.now();
    }, { capture: true, passive: true, signal: leaving.signal });
  }
  const timer = setInterval(tick, TICK_MS);
  tick();
  return {
    place, take, gone,
    /** @param {HTMLElement} to */
    move(to) {
      const had = document.activeElement === document.body ? focused : null;
      to.append(place);
      // Not yet: the front end puts `to` into the page in a moment.
      setTimeout(() => had?.focus({ preventScroll: true }));
    },
    close() {
      clearInterval(timer);
      leaving.abort();
      place.remove();
    },
  };
}

// What a widget of ours is, by its `kind`. anywidget gives `initialize` and `render` different
// `model` objects: what they share is in here.

/** The runs of one output, at work. */
function runWidget() {
  /** @type {Map<number, { view: ReturnType<typeof createView>, el: HTMLElement }>} */
  const pages = new Map();
  let nth = 0;
  return {
    /** @param {{ model: any }} given */
    initialize({ model }) {
      const heard = (/** @type {any} */ message) => {
        for (const [page, { view }] of pages) {
          if (!message.page || message.page === page) view.take(message);
        }
      };
      const leave = watchKernel(model, () => pages.forEach(({ view }) => view.gone()));
      model.on("msg:custom", heard);
      model.send({ kind: "ready" });
      return () => {
        model.off("msg:custom", heard);
        leave();
      };
    },
    /** @param {{ model: any, el: HTMLElement }} given */
    render({ model, el }) {
      const close = (/** @type {number} */ page) => () => {
        if (pages.get(page)?.el !== el) return;
        pages.get(page)?.view.close();
        pages.delete(page);
      };
      // An output that is drawn anew has lost its old element: what stood there goes on in the new.
      for (const [page, old] of pages) {
        if (old.el.parentNode) continue;
        old.view.move(el);
        old.el = el;
        return close(page);
      }
      const send = (/** @type {any} */ message) => model.send(message);
      const view = createView({ send, pictures: () => model.get("pictures") }, el);
      const page = Date.now() * 1000 + ++nth;
      pages.set(page, { view, el });
      // What was sent before this view was there is missing from it.
      send({ kind: "ready", page });
      return close(page);
    },
  };
}

/** The buttons of runs that are over, in every output of the page, while the kernel lives. */
function pageActions() {
  return {
    /** @param {{ model: any }} given */
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
      const leaving = new AbortController();
      const heard = (/** @type {string} */ kind, /** @type {(event: any) => void} */ hears) =>
        document.addEventListener(kind, hears, { capture: true, signal: leaving.signal });
      heard("click", ({ target, detail }) => {
        const button = target.closest("button:is(.nba-do, .nba-words *)");
        if (button?.closest(ours) && detail < 2) act(button, (message) => model.send(message));
      });
      heard("input", ({ target }) => {
        if (target.matches(search)) filterRows(target);
      });
      heard("keydown", ({ target, key }) => {
        if (key !== "Enter" || !target.matches(search)) return;
        const { kernel: at } = target.closest(ours).dataset;
        model.send({ kind: "act", do: "search", at, fields: { search: target.value } });
      });
      model.on("msg:custom", reply);
      model.send({ kind: "ready" });
      const end = () => {
        leaving.abort();
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
  const chosen = (/** @type {any} */ model) => (widget ??= KINDS[model.get("kind")]());
  return {
    initialize: (/** @type {any} */ given) => chosen(given.model).initialize(given),
    render: (/** @type {any} */ given) => chosen(given.model).render?.(given),
  };
};
