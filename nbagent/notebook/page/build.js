// Nodes of the kernel → DOM. The DOM is the state: folds, typed text and the focus of the person
// stay.

/** Id of this page: each widget of it has a copy of this module. @type {string} */
const TAB = (/** @type {any} */ (globalThis)[Symbol.for("nbagent.tab")] ??=
  `${Date.now()}-${Math.random()}`);
const TAGS = new Set(LISTS.tags);
const ATTRIBUTES = new Set(LISTS.attributes);
const VALUES = new Map(Object.entries(LISTS.values).map(
  ([name, pattern]) => [name, new RegExp(`^(?:${pattern})$`)]));

/** Build a node as DOM. Text becomes a text node, never markup.
 * @param {Picture} node @returns {any} */
function build(node) {
  if (typeof node === "string") return document.createTextNode(node);
  const [tag, attributes, ...children] = node;
  const made = document.createElement(TAGS.has(tag) ? tag : "span");
  for (const [name, value] of Object.entries(attributes)) {
    const pattern = VALUES.get(name);
    if (pattern ? pattern.test(value) : ATTRIBUTES.has(name)) made.setAttribute(name, value);
  }
  if (made.hasAttribute("href")) {
    made.setAttribute("target", "_blank");
    made.setAttribute("rel", "noopener noreferrer nofollow");
  }
  made.append(...children.map(build));
  return made;
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

/** Texts of the fields below a form. @param {Element} form @returns {Fields} */
function fieldsOf(form) {
  const fields = [.../** @type {NodeListOf<any>} */ (form.querySelectorAll("[data-field]"))];
  return Object.fromEntries(fields.map(({ dataset, value }) => [dataset.field, value]));
}

/** @param {string} text @param {HTMLElement} source */
async function toClipboard(text, source) {
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
 * @param {Model} model @param {() => void} onDead @returns {() => void} stops watching */
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
