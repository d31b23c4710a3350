// Clicks and keys → actions. Every button of nbagent in the page is read here.

/** Keys of a review and the buttons that they press. @type {Record<string, string>} */
const REVIEW_KEYS = { 0: '[data-do="skip"]', Backspace: '[data-do="back"]' };
for (let n = 1; n <= 5; n++) REVIEW_KEYS[n] = `[data-do="label"][value="${n}"]`;

/** Read the clicks below a root: find the button and the surface's action for it.
 * @param {Element | Document} root @param {Surface} surface @param {AbortSignal} signal */
function listenForClicks(root, { owns, actions, otherwise, onFold }, signal) {
  const onClick = (/** @type {any} */ { target, detail }) => {
    if (!(target instanceof Element)) return;
    const button = target.closest("button[data-do]");
    const fold = target.closest("summary")?.parentElement;
    if (!button && fold?.dataset.key) onFold?.(fold);
    // The second click of a double click was meant for the button that was here before.
    if (!(button instanceof HTMLElement) || detail > 1 || !owns(button)) return;
    const name = button.dataset.do ?? "";
    const action = Object.hasOwn(actions, name) ? actions[name] : otherwise;
    action?.(button);
  };
  root.addEventListener("click", onClick, { capture: true, signal });
}

/** Send the words of a form below a run by Ctrl+Enter. @param {any} event @param {string} ours */
function sendWordsByKey({ target, key, ctrlKey, metaKey, isComposing }, ours) {
  if (key !== "Enter" || isComposing || !(ctrlKey || metaKey)) return;
  if (!target.matches(`${ours} .nba-words textarea`)) return;
  target.closest(".nba-words").querySelector('[data-do="go"]').click();
}

/** Press the buttons of a review by its keys, and the button of a reason's form by Enter.
 * @param {any} event */
function pressByKey(event) {
  const { target, key } = event;
  const review = target.closest(".nba-review");
  const isPlain = !event.repeat && !event.ctrlKey && !event.altKey && !event.metaKey;
  if (review && isPlain && !target.matches("input") && Object.hasOwn(REVIEW_KEYS, key)) {
    event.preventDefault();
    review.querySelector(REVIEW_KEYS[key])?.click();
  }
  const form = target.matches("input") && target.closest(".nba-deny");
  if (!form || event.isComposing || key !== "Enter") return;
  // Otherwise the same key press would fold the turn, whose line gets the focus.
  event.preventDefault();
  form.querySelector("[data-do]").click();
}
