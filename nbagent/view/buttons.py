"""Buttons of finished runs, in live and saved pictures. `notebook/button_actions` handles them."""

from __future__ import annotations

from nbagent.contracts.records import RunRecord
from nbagent.view import run_facts, run_status
from nbagent.view.node import Node, h

# Actions that ask in a form first. The button and the form's button have the same words.
FORM_TITLES = {"continue": "Continue", "retry": "Retry", "fork": "Fork", "compare": "Compare"}


def action_button(verb: str, title: str, *, turn: str | None = None) -> Node:
    """Return a button of a finished run. It is hidden unless the kernel's page actions run."""
    return h("button", "nba-do", data_do=verb, title=title, data_turn=turn)


def fork_button(turn_key: str) -> Node:
    """Return the button that repeats a turn with a different prompt."""
    return action_button("fork", FORM_TITLES["fork"], turn=turn_key)


def answer_box(run: RunRecord) -> Node | None:
    """Return the box for the words that a run waits for; None if it waits for none.

    Hidden like the buttons; it has no text, so that a file without a kernel shows nothing of it.
    """
    if not run_status.waits_for_words(run):
        return None
    is_question = run.stop_reason in ("answered", None)
    label = "Your answer" if is_question else "Further instructions for the model (optional)"
    box = {"rows": "2", "spellcheck": "false", "placeholder": label, "aria_label": label}
    return h(
        "div",
        "nba-do nba-words nba-reply",
        h("textarea", "", data_field="prompt", **box),
        h("button", "nba-do nba-go", type="button", title=FORM_TITLES["continue"], data_do="go"),
        hidden="",
        data_do="continue",
        data_lm_suppress_shortcuts="true",
    )


def run_buttons(run: RunRecord) -> list[Node]:
    """Return the buttons below a finished run."""
    can_continue = run.phase != "Completed" and not run_status.waits_for_words(run)
    verbs = ["continue"] if can_continue else []
    titles = {verb: FORM_TITLES[verb] for verb in [*verbs, "retry", "compare"]}
    answer = run_facts.answering_turn(run)
    titles |= {"copy": "Copy answer"} if answer and answer.text.strip() else {}
    titles |= {"cell": "Copy as cell"}
    return [action_button(verb, title) for verb, title in titles.items()]
