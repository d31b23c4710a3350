// The live view: pictures of runs below each other, some running. The kernel draws: it sends nodes
// (`put`), more text (`add`) or the whole picture (`done`).

// After a person scrolled or typed, the page does not scroll by itself for this long.
const BUSY_MS = 1500;
const MOVING_MS = 50;
// Where a person wants no motion, seconds tick and tenths do not.
const TICK_MS = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : 100;
/** @type {Record<string, string>} */
const STOPS = { stop: "Stopping…", pause: "Pausing after this turn…" };
const PAUSING_BATCH = "Pausing when the running cases have ended…";

/** Format a running clock, as `format_duration` in view/words.py does. @param {number} ms */
function seconds(ms) {
  if (ms >= 600000) return `${Math.floor(ms / 60000)} min ${Math.floor((ms % 60000) / 1000)} s`;
  return `${(ms / 1000).toFixed(ms < 99950 ? 1 : 0)} s`;
}

/** Update clocks and the growing bar. @param {Element} root */
function updateClocks(root) {
  for (const head of /** @type {any} */ (root.querySelectorAll("[data-since]"))) {
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

/** The kernel has ended: mark a running run as interrupted. @param {any} head */
function markInterrupted(head) {
  const root = head.closest("[data-run]");
  head.removeAttribute("data-since");
  for (const button of head.querySelectorAll("[data-do]")) button.remove();
  const [mark, phase] = head.querySelectorAll(".nba-mark, .nba-phase");
  mark.className = "nba-mark nba-bad";
  phase.textContent = "Interrupted";
  for (const outcome of root.querySelectorAll(".nba-busy .nba-res, .nba-pending")) {
    outcome.textContent = "… interrupted";
  }
  const next = root.closest(".nba-batch")
    ? ["run the cell again; only the missing cases are run"]
    : ["continue with ", ["code", {}, "%agent resume"], " in a new kernel"];
  root.append(build(["div", { class: "nba-end" }, "The kernel is gone: ", ...next]));
}

/** Functions that draw the rows of a large picture themselves, by the class of its root.
 * @type {Record<string, (root: any, send: Send, before?: any) => LargePicture>} */
const LARGE = {};

/** Create a view. Its DOM can move to another `el`.
 * @param {{ send: Send, pictures: () => Picture[] }} shared @param {HTMLElement} el */
function createView({ send, pictures }, el) {
  const place = el.appendChild(build(["div", { class: "nba-view" }]));
  // A head is rebuilt on every change, and screen readers miss a new live region: keep one element.
  const announcer = place.appendChild(build(["div", { class: "nba-announcer", role: "status" }]));
  /** Folds that the person opened or closed, by run and key. @type {Map<string, boolean>} */
  const foldChoices = new Map();
  /** Runs that ended here: an op that comes late would show them running again. */
  const ended = new Set();
  /** Ops that wait while a question is open. @type {{ run: string, op: Op }[]} */
  let queued = [];
  const listening = new AbortController();
  const { signal } = listening;
  let lastInputAt = -Infinity;
  /** Large pictures by run. @type {Map<string, LargePicture>} */
  const large = new Map();
  /** @type {any} */
  let focused = null;
  const questions = createQuestions(place, send, applyQueued);

  const rootOf = (/** @type {string} */ run) =>
    place.querySelector(`[data-run="${CSS.escape(run)}"]`);

  /** @param {OpsMessage} message */
  function applyOps({ run, ops }) {
    for (const op of ops) {
      const isNow = canApply(op);
      if (isNow) apply(run, op);
      // Also after the queued picture of its whole turn, which shows an older state of the part.
      if (!isNow || isPartOfQueued(run, op)) queued.push({ run, op });
    }
    applyQueued();
    updateClocks(place);
  }

  /** True if an op may be applied now. While a question is open, only its own card may change:
   * otherwise the buttons could move under the mouse. One that is not armed yet may move: it takes
   * no click. @param {Op} op */
  function canApply([kind, key]) {
    const open = questions.open();
    return kind === "done" || !open.length || open.some(({ dataset }) =>
      key === dataset.key || key.startsWith(`${dataset.question}/`));
  }

  /** @param {string} run @param {Op} op */
  function isPartOfQueued(run, [, key]) {
    return queued.some(({ run: other, op: [kind, whole] }) =>
      kind === "put" && other === run && String(key).startsWith(`${whole}/`));
  }

  function applyQueued() {
    if (questions.open().length) return;
    for (const { run, op } of queued.splice(0)) apply(run, op);
  }

  /** @param {string} run @param {Op} op */
  function apply(run, op) {
    if (op[0] === "done") return drawWhole(run, op[1]);
    if (op[0] === "put" && large.get(run)?.put(op[1], op[2])) return;
    const root = rootOf(run);
    if (!root || ended.has(run)) return;
    const old = keyed(root, op[1]);
    if (op[0] === "put") return draw(run, op[2], old, keyed(root, op[3]));
    const last = old?.lastChild;
    if (last instanceof Text) last.appendData(op[2]);
    else old?.append(op[2]);
  }

  /** @param {string} run @param {Picture} node */
  function drawWhole(run, node) {
    const old = rootOf(run);
    queued = queued.filter((item) => item.run !== run);
    const wasRunning = old?.querySelector("[data-since]");
    draw(run, node, old, place);
    if (rootOf(run)?.querySelector("[data-since]")) ended.delete(run);
    else if (wasRunning) ended.add(run);
  }

  /** Build a node and put it in place of `old`, else at the end of `parent`.
   * @param {string} run @param {Picture} node @param {any} old @param {any} parent */
  function draw(run, node, old, parent) {
    if (!old && !parent) return;
    const fresh = build(node);
    restoreFolds(run, fresh, old);
    if (old) replace(old, fresh);
    else parent.append(fresh);
    drawLarge(fresh);
    questions.prepare(fresh, performance.now() - lastInputAt > BUSY_MS);
    announce(fresh);
  }

  /** Let a large picture draw its rows; what a person chose in the one before stays.
   * @param {any} root */
  function drawLarge(root) {
    const name = [...root.classList ?? []].find((word) => Object.hasOwn(LARGE, word));
    if (!name) return;
    const { run } = root.dataset;
    const before = large.get(run);
    before?.end();
    large.set(run, LARGE[name](root, send, before?.choices));
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
    const active = read ?? place.getRootNode().activeElement;
    for (const fold of [fresh, ...fresh.querySelectorAll("details")]) {
      const { key } = fold.dataset;
      if (!key || fold.localName !== "details") continue;
      const before = old?.dataset.key === key ? old : keyed(old ?? null, key);
      const wish = foldChoices.get(`${run} ${key}`);
      if (wish !== undefined) fold.open = wish;
      else if (before?.open && active && before.contains(active)) fold.open = true;
    }
  }

  /** @param {any} fold */
  function onFold(fold) {
    const [run, { key }, open] = [runOf(fold), fold.dataset, !fold.open];
    foldChoices.set(`${run} ${key}`, open);
    send({ kind: "fold", run, key, open });
  }

  /** Stop or pause a run. @param {any} button */
  function stop(button) {
    const action = button.dataset.do;
    const isBatch = button.closest(".nba-batch");
    button.disabled = true;
    button.textContent = isBatch && action === "pause" ? PAUSING_BATCH : STOPS[action];
    if (action === "stop") button.previousElementSibling?.remove();
    send({ kind: action, run: runOf(button) });
  }

  /** @param {any} button */
  function review(button) {
    const { value, dataset } = button;
    const fields = fieldsOf(/** @type {Element} */ (button.closest(".nba-review")));
    send({ kind: dataset.do, run: runOf(button), place: dataset.turn, value, fields });
  }

  function onKernelDead() {
    for (const head of place.querySelectorAll("[data-since]")) {
      questions.disable(head.closest("[data-run]"));
      markInterrupted(head);
    }
    for (const root of place.querySelectorAll(".nba-review")) {
      for (const button of root.querySelectorAll("button")) button.disabled = true;
      root.append(build(["div", { class: "nba-end" },
        "The kernel is gone: run the cell again; your labels are kept"]));
    }
    for (const cases of large.values()) {
      cases.say("The kernel is gone: run the cell again; your labels are kept");
    }
    applyQueued();
  }

  place.append(...pictures().map(build));
  for (const root of place.children) drawLarge(root);
  questions.prepare(place, true);
  listenForClicks(place, {
    // The others are buttons of finished runs.
    owns: (button) => !button.matches(".nba-do, .nba-words *"),
    actions: { ...questions.actions, stop, pause: stop, label: review, skip: review, back: review },
    otherwise: (button) => large.get(runOf(button))?.onClick(button),
    onFold,
  }, signal);
  place.addEventListener("input", (/** @type {any} */ { target }) => {
    const form = target.closest("[data-question] .nba-edit");
    if (form) questions.preview(form);
  });
  place.addEventListener("keydown", pressByKey);
  place.addEventListener("focusin", (/** @type {any} */ { target }) => { focused = target; });
  // A moved element loses the focus. Keep it for a moment, so that `move` can restore it.
  place.addEventListener("focusout", () => setTimeout(() => {
    if (place.getRootNode().activeElement !== focused) focused = null;
  }, MOVING_MS));
  for (const kind of ["wheel", "touchmove", "keydown"]) {
    document.addEventListener(kind, (event) => {
      // Keys that run a cell are no sign of work elsewhere on the page.
      const { key = "" } = /** @type {any} */ (event);
      if (!/Enter|Shift|Control|Meta/.test(key)) lastInputAt = performance.now();
    }, { capture: true, passive: true, signal });
  }
  const timer = setInterval(() => updateClocks(place), TICK_MS);
  updateClocks(place);
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
      for (const picture of large.values()) picture.end();
      listening.abort();
      place.remove();
    },
  };
}
