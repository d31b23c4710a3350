// Widgets by `kind`. anywidget passes different `model` objects to `initialize` and `render`, so
// each widget keeps the state that both share.

/** Widget of one output with running runs. @returns {Widget} */
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
    initialize({ model }) {
      const onMessage = (/** @type {OpsMessage | BelowMessage} */ message) => {
        if ("below" in message) return hideBelow(message.below);
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
    render({ model, el }) {
      const close = (/** @type {number} */ page) => () => {
        // The view has moved to another element: the end of its old one must not close it.
        if (pages.get(page)?.el !== el) return;
        pages.get(page)?.view.close();
        pages.delete(page);
        // The kernel learns that this page applied its last update of the display.
        if (!isDead) send({ kind: "closed", page, tab: TAB });
      };
      const send = (/** @type {PageMessage} */ message) => model.send(message);
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

/** Rules that show the buttons of a kernel while it lives. @param {string} ours */
function buttonStyles(ours) {
  return `
    .nba-words, .nba-run > .nba-said { padding: 2px 14px 8px; }
    .nba-words :is(.nba-lab, textarea) { display: block; box-sizing: border-box; width: 100%; }
    .nba-words button { margin: 6px 6px 0 0; }
    .nba-words textarea { font: inherit; }
    ${ours} .nba-do { display: inline-block !important; }
    ${ours} .nba-reply { display: block !important; padding-top: 8px; }
    ${ours}:has(~ .nba-run) .nba-reply, /* it was continued below */
    .nba-panel ${ours} .nba-reply /* the panel has a box of its own */
      { display: none !important; }
    .widget-output ${ours} .nba-do:not([data-do=copy], [data-do=cell]) /* takes no updates */
      { display: none !important; }
    ${ours} th .nba-do { border: 0 !important; padding: 0 2px !important; }
    ${ours} .nba-scrolls { max-height: 420px; overflow: auto; }
    ${ours} [type="search"] { width: 24em; max-width: 100%; }`;
}

/** Handles the buttons of finished runs in every output of the page while the kernel is alive.
 * @returns {Widget} */
function pageActions() {
  return {
    initialize({ model }) {
      const ours = `[data-kernel^="${CSS.escape(model.get("kernel"))}-"]`;
      const search = `${ours} [type="search"]`;
      const sheet = document.head.appendChild(document.createElement("style"));
      sheet.textContent = buttonStyles(ours);
      const listening = new AbortController();
      const send = (/** @type {PageMessage} */ message) => model.send(message);
      const listen = (/** @type {string} */ kind, /** @type {(event: any) => void} */ handler) =>
        document.addEventListener(kind, handler, { capture: true, signal: listening.signal });
      listenForClicks(document, actionSurface(ours, send), listening.signal);
      listen("input", ({ target }) => {
        if (target.matches(search)) filterRows(target);
      });
      listen("keydown", (event) => {
        const { target, key } = event;
        sendWordsByKey(event, ours);
        if (key !== "Enter" || !target.matches(search)) return;
        const { kernel: at } = target.closest(ours).dataset;
        send({ kind: "act", do: "search", at, tab: TAB, fields: { search: target.value } });
      });
      model.on("msg:custom", showReply);
      send({ kind: "ready", tab: TAB });
      const end = () => {
        listening.abort();
        sheet.remove();
      };
      const leave = watchKernel(model, end);
      return () => {
        model.off("msg:custom", showReply);
        leave();
        end();
      };
    },
  };
}

/** @type {Record<string, () => Widget>} */
const KINDS = { run: runWidget, actions: pageActions };
