// Questions about calls: nothing moves under the mouse, and an answer is sent once.

// A question takes no click in its first moment: the click was meant for what was there before.
const ARMED_MS = 300;
// A preview asks the kernel to prepare the call again, so not at each key.
const PREVIEW_MS = 300;
// The button of an edit: the effect is shown before it can be allowed.
const ALLOW_EDITED = "Allow with these arguments";
const SHOW_EFFECT = "Show the effect…";
/** @type {Record<string, string>} */
const SENT = { once: "Allowed once", session: "Allowed for the session", deny: "Denied" };

/** @param {any} node @returns {string} */
function runOf(node) {
  return node.closest("[data-run]").dataset.run;
}

/** The questions below an element, and the answers that were sent. `onClosed` is called when none is
 * open any more.
 * @param {Element} root @param {Send} send @param {() => void} onClosed */
function createQuestions(root, send, onClosed) {
  /** Texts of sent answers, by the id of the question. @type {Map<string, string>} */
  const answered = new Map();
  let typing = 0;

  /** @returns {any[]} */
  const open = () => [...root.querySelectorAll("[data-question].nba-armed:not(.nba-sent)")];

  /** Disable a question, or enable it again. @param {any} ask @param {boolean} isSent */
  function setSent(ask, isSent) {
    ask.classList.toggle("nba-sent", isSent);
    for (const control of ask.querySelectorAll("button, textarea, input")) {
      control.disabled = isSent;
    }
    const words = answered.get(ask.dataset.question);
    if (words) ask.querySelector(".nba-said").textContent = words;
  }

  /** @param {any} ask @param {string} choice */
  function markSent(ask, choice) {
    if (ask.contains(ask.getRootNode().activeElement)) {
      const line = ask.parentElement.closest("details")?.querySelector("summary");
      line?.focus({ preventScroll: true });
    }
    answered.set(ask.dataset.question, `${SENT[choice]}: sent`);
    setSent(ask, true);
  }

  /** Request a preview of the call with the edited arguments. @param {any} form */
  function preview(form) {
    const ask = form.closest("[data-question]");
    const [run, { question }] = [runOf(ask), ask.dataset];
    clearTimeout(typing);
    // A host may have to show what the edited call would do, before the person can allow it.
    const button = form.querySelector('[data-do="once"]');
    if (form.open && ask.matches(".nba-effect")) button.textContent = SHOW_EFFECT;
    typing = setTimeout(
      () => send({ kind: "preview", run, question, fields: fieldsOf(form) }), PREVIEW_MS);
  }

  /** Send the choice of a button. @param {any} button */
  function answer(button) {
    const ask = button.closest("[data-question]");
    if (!ask?.matches(".nba-armed:not(.nba-sent)")) return;
    const choice = button.dataset.do;
    const form = button.closest(".nba-edit, .nba-deny");
    if (button.textContent === SHOW_EFFECT) {
      preview(form);
      return;
    }
    const message = { run: runOf(ask), question: ask.dataset.question, choice };
    const fields = form && fieldsOf(form);
    if (choice === "deny") send({ kind: "answer", ...message, reason: fields?.reason ?? "" });
    else send({ kind: "answer", ...message, ...(form ? { fields } : {}) });
    markSent(ask, choice);
    onClosed();
  }

  /** Allow each call that the page shows. @param {any} button */
  function answerAll(button) {
    const shown = [...button.closest("[data-run]").querySelectorAll(".nba-ask:not(.nba-sent)")];
    // Named one by one: a question that the page does not show yet must not be allowed.
    const questions = shown.map((ask) => ask.dataset.question);
    send({ kind: "answer_all", run: runOf(button), questions });
    for (const ask of shown) markSent(ask, "once");
    button.disabled = true;
    onClosed();
  }

  /** Close the form of a button and reset its fields. @param {any} button */
  function cancel(button) {
    const form = button.closest(".nba-edit, .nba-deny");
    if (!form) return;
    for (const field of form.querySelectorAll("[data-field]")) field.value = field.defaultValue;
    form.open = false;
    form.querySelector("summary").focus();
    // The card still shows the preview of the edited arguments.
    if (form.matches(".nba-edit")) preview(form);
  }

  /** Arm the questions of a new node, unfold them and scroll them into view.
   * @param {any} fresh @param {boolean} mayScroll */
  function prepare(fresh, mayScroll) {
    const nodes = [fresh, ...fresh.querySelectorAll("[data-question]")];
    for (const ask of nodes.filter(({ dataset }) => dataset.question)) {
      for (let fold = ask.closest("details"); fold; fold = fold.parentElement.closest("details")) {
        fold.open = true;
      }
      if (answered.has(ask.dataset.question)) {
        setSent(ask, true);
        continue;
      }
      // No scrolling away from another question that the person may be reading.
      if (!open().length && mayScroll) {
        ask.querySelector(".nba-row")?.scrollIntoView({ block: "nearest" });
        ask.firstElementChild?.scrollIntoView({ block: "nearest" });
      }
      setTimeout(() => ask.classList.add("nba-armed"), ARMED_MS);
    }
    const edit = fresh.matches(".nba-pieces") && fresh.closest("[data-question]");
    const button = edit && edit.querySelector('.nba-edit [data-do="once"]');
    if (button) button.textContent = ALLOW_EDITED;
    // The kernel rejected an answer and gives the reason: enable the question again.
    const ask = fresh.matches(".nba-said:not(:empty)") && fresh.closest("[data-question]");
    if (!ask) return;
    answered.delete(ask.dataset.question);
    setSent(ask, false);
  }

  return {
    open, prepare, preview,
    actions: { once: answer, session: answer, deny: answer, cancel, answer_all: answerAll },
    /** The kernel has ended: nobody can be answered. @param {Element} run */
    disable(run) {
      for (const ask of run.querySelectorAll("[data-question]")) setSent(ask, true);
    },
  };
}
