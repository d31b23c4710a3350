// Buttons of finished runs and of lists, in every output of the page.

/** The form that a click opened. The box of a run that waits for words stays. */
const FORM = ".nba-words:not(.nba-reply)";

/** The surface of the buttons below `ours`. @param {string} ours @param {Send} send
 * @returns {Surface} */
function actionSurface(ours, send) {
  return {
    owns: (button) => button.matches(".nba-do, .nba-words *") && button.closest(ours),
    actions: {
      sort: (button) => sortRows(button.closest("th")),
      copy: (button) => copyBeside(button.closest("[data-run]"), button),
      cancel: (button) => button.closest(".nba-words").remove(),
    },
    otherwise: (button) => sendAction(button, send),
  };
}

/** Send a click. For an action with a form, the kernel answers the first click with the form.
 * @param {any} button @param {Send} send */
function sendAction(button, send) {
  const root = button.closest("[data-run]");
  const form = button.closest(".nba-words");
  const { do: action, turn } = (form ?? button).dataset;
  if (form) button.disabled = true;
  const fields = form ? fieldsOf(form) : undefined;
  const { kernel: at } = root.closest("[data-kernel]").dataset;
  send({ kind: "act", do: action, run: root.dataset.run, at, turn, fields, tab: TAB });
}

/** Copy the code or table beside a button, else the answer.
 * @param {any} root @param {any} button */
async function copyBeside(root, button) {
  const code = button.closest(".nba-code");
  const source = code?.querySelector("pre, table") ?? root.querySelector(".nba-answer");
  const isCopied = await toClipboard(source.innerText, source);
  showMessage(root, isCopied ? `Copied ${code ? "it" : "the answer"}` : "Selected: press Ctrl+C");
}

/** Show the kernel's reply to a click in this page. @param {ReplyMessage} message */
async function showReply({ run, at, tab, said, text, form, list }) {
  // Another page has the same widget: a reply would take the words that a person types there.
  if (tab && tab !== TAB) return;
  const kernel = `[data-kernel="${CSS.escape(at)}"]`;
  const which = `:is(${kernel}[data-run="${CSS.escape(run)}"], ${kernel}:not([data-run]))`;
  // A docked output shows the same run a second time: prefer the copy with the focus.
  const root = document.querySelector(`${which}:focus-within`) ?? document.querySelector(which);
  if (!root) return;
  if (form) return showForm(root, build(form));
  if (list) return root.querySelector("table")?.replaceWith(build(list).querySelector("table"));
  if (!said) return root.querySelector(FORM)?.remove();
  const sent = /** @type {NodeListOf<HTMLButtonElement>} */ (
    root.querySelectorAll(".nba-words button"));
  for (const button of sent) button.disabled = false;
  const line = showMessage(root, said);
  if (!text) return;
  const source = line.appendChild(build(["pre", {}, text]));
  if (await toClipboard(text, source)) source.remove();
  else line.firstChild.data = "Selected: press Ctrl+C";
}

/** Insert a form below its button and focus its first field.
 * @param {Element} root @param {any} form */
function showForm(root, form) {
  root.querySelector(FORM)?.remove();
  const { do: action, turn } = form.dataset;
  const of = turn ? `[data-turn="${CSS.escape(turn)}"]` : ":not([data-turn])";
  const button = root.querySelector(`[data-do="${CSS.escape(action)}"]${of}`);
  (button?.closest(".nba-foot") ?? button ?? root.lastElementChild)?.after(form);
  (form.querySelector("[data-field]") ?? form.querySelector(".nba-go"))?.focus();
}

/** @param {Element} root @param {string} text @returns {any} */
function showMessage(root, text) {
  let line = root.querySelector(":scope > .nba-said");
  line ??= root.appendChild(build(["div", { class: "nba-said", "aria-live": "polite" }]));
  if (line) line.textContent = text;
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
