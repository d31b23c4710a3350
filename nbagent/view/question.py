"""Question to the person about one tool call: its nodes, its text, and reading the answer.

All of the call is shown, each part once: a piece of the preview (a diff, the code) replaces the
arguments that it contains. The session decides when to ask.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nbagent.contracts.approval import PersonAnswer, PreviewPiece, Question
from nbagent.contracts.canonical import canonical_json, json_object, load_json
from nbagent.contracts.messages import MAX_DEPTH, is_storable_json
from nbagent.contracts.secrets import redact
from nbagent.view.node import Node, h, line
from nbagent.view.text_format import (
    json_text,
    sanitize_value,
    show_escapes,
    summarize_arguments,
    tool_title,
)

REASON_CHARS = 2_000
_NO_LIMIT = 10**9
"""Questions show all of a call: nothing is cut."""
_SHORT_CHARS = 76
_LONG_LINES = 14
"""A longer text scrolls, and its label gives the number of lines."""
_MAX_LINES_ABOVE_BUTTONS = 24
"""With more lines in total, the buttons are above the texts; below they would be out of sight."""
_TOO_LARGE = f"a number is too large, or lists and objects are nested more than {MAX_DEPTH} levels"
_PROMPT = "Allow? [y]es once, for the [s]ession, [e]dit, [n]o: "


# Texts


def sanitize_exact(text: str) -> str:
    """Show all of a text: escapes and hidden characters become visible, secrets are hidden.

    Unlike `sanitize_value`, which drops terminal escapes with their content (a colour, a title, an
    address), it omits nothing that a call would write or run.
    """
    return sanitize_value(show_escapes(text))


def field_text(value: Any, *, one_line: bool = False) -> str:
    """Return an argument for editing: a string unchanged, other values as JSON; secrets hidden.

    A string with hidden characters is JSON too: its escapes make them visible and editable.
    """
    if _is_raw(value):
        return value
    text = redact(json_text(value, enough=0 if one_line else _NO_LIMIT))
    hidden = {c for c in set(text) if c > "~" and sanitize_value(c) != c}
    return text.translate({ord(c): json.dumps(c)[1:-1] for c in hidden})


def _is_raw(value: object) -> bool:
    # A browser's text area turns every line end into \n, so \r would be lost.
    return isinstance(value, str) and sanitize_exact(value) == value and "\r" not in value


def _title(question: Question) -> str:
    return sanitize_exact(tool_title(question.tool, question.display_name))


def _reasons(question: Question) -> list[str]:
    return [sanitize_exact(text) for text in (question.summary, question.why) if text]


def _argument_rows(question: Question) -> list[tuple[str, str]]:
    """Arguments that no piece of the preview shows: strings as text, others as JSON."""
    shown = {name for piece in question.pieces for name in piece.replaced_arguments}
    others = ((name, value) for name, value in question.arguments.items() if name not in shown)
    return [
        (
            sanitize_exact(n),
            sanitize_exact(v if isinstance(v, str) else json_text(v, enough=_NO_LIMIT)),
        )
        for n, v in others
    ]


def _n_lines(text: str) -> int:
    return text.rstrip("\n").count("\n") + 1


def _labelled_piece(piece: PreviewPiece) -> tuple[str, str]:
    n = _n_lines(piece.text)
    return sanitize_exact(piece.label) + (
        f" · all {n:,} lines" if n > _LONG_LINES else ""
    ), sanitize_exact(piece.text)


# As nodes


def question_node(question: Question, question_id: str) -> Node:
    """Draw the card of a call that waits for approval: all of the call, and the buttons."""
    rows = _argument_rows(question)
    texts = [_table(rows), preview_node(question_id, question.pieces)]
    shown = [*(text for _, text in rows), *(piece.text for piece in question.pieces)]
    answers = [_answer_buttons(question), answer_error_node(question_id, "")]
    is_long = sum(map(_n_lines, shown)) > _MAX_LINES_ABOVE_BUTTONS
    needs = f"{_title(question)} needs your approval"
    name = h("span", "", h("code", "nba-call", _title(question)), " needs your approval")
    host = "" if question.host == "functions" else sanitize_exact(question.host)
    return h(
        "div",
        f"nba-card nba-ask{' nba-effect' if _has_effect(question) else ''}",
        h("div", "nba-top", name, h("span", "nba-num", host) if host else None),
        line("nba-why", sanitize_exact(question.summary)),
        why_node(question_id, question.why),
        *(answers + texts if is_long else texts + answers),
        data_key=f"{question.turn_id}/tool/{question.tool_call_id}",
        data_question=question_id,
        role="group",
        aria_label=needs,
        # Otherwise JupyterLab handles Enter as its own shortcut.
        data_lm_suppress_shortcuts="true",
    )


def _has_effect(question: Question) -> bool:
    """True if the preview shows more than the arguments, so an edit changes what it shows."""
    shown = {name for piece in question.pieces for name in piece.replaced_arguments}
    shows_effect = not all(piece.replaced_arguments for piece in question.pieces)
    return bool(question.pieces) and (shows_effect or not shown >= question.arguments.keys())


def open_questions_node(questions: Sequence[tuple[str, Question]]) -> Node:
    """Draw open questions as a list with "Allow all"; empty for fewer than two."""
    if len(questions) < 2:
        return h(
            "div", "nba-asks", data_key="asks"
        )  # kept empty, so that its position above the turns is fixed
    calls = [
        h("li", "", h("code", "nba-call", _title(q)), f"({summarize_arguments(q.arguments)})")
        for _, q in questions
    ]
    title = h("strong", "", f"{len(calls)} calls need your approval")
    allow = h(
        "button", "", "Allow all", data_do="answer_all", title="allow each of these calls once"
    )
    row = h("div", "nba-row", title, allow)
    return h("div", "nba-asks", row, h("ul", "", *calls), data_key="asks", role="group")


def why_node(question_id: str, why: str) -> Node:
    """Draw the reason of a question: the effect of the call, and the rule that asks."""
    return h("div", "nba-why", sanitize_exact(why), data_key=f"{question_id}/why")


def preview_node(question_id: str, pieces: Sequence[PreviewPiece]) -> Node:
    """Draw the host's preview of a call: facts in a table, a diff or code below."""
    shown = [_table([_labelled_piece(piece) for piece in pieces if piece.kind == "text"])]
    for piece in pieces:
        if piece.kind != "text":
            label, text = _labelled_piece(piece)
            shown += [h("div", "nba-lab", label), _block(label, text, is_diff=piece.kind == "diff")]
    return h("div", "nba-pieces", *shown, data_key=f"{question_id}/pieces")


def answer_error_node(question_id: str, text: str) -> Node:
    """Draw why the kernel rejected an answer; empty if it did not."""
    return h("div", "nba-said", text, data_key=f"{question_id}/said", aria_live="polite")


def _table(rows: Sequence[tuple[str, str]]) -> Node | None:
    cells = [
        h("tr", "", h("th", "", name, scope="row"), h("td", "", _block(name, text)))
        for name, text in rows
    ]
    return h("table", "nba-args", *cells) if cells else None


def _block(label: str, text: str, *, is_diff: bool = False) -> Node:
    """Draw all of a text; a scrolling one can be focused by the keyboard."""
    if not is_diff and "\n" not in text and len(text) <= _SHORT_CHARS:
        return h("code", "", text)
    lines = _diff_lines(text) if is_diff else [text]
    if _n_lines(text) <= _LONG_LINES and len(text) <= _LONG_LINES * 100:
        return h("pre", "", *lines)
    return h("pre", "", *lines, tabindex="0", role="region", aria_label=label)


def _diff_lines(text: str) -> list[Node]:
    """Draw a diff: signs and colours, with adjacent lines of one kind in one node."""
    groups: list[tuple[str, list[str]]] = []
    for row in text.removesuffix("\n").split("\n"):
        is_head = row.startswith(("@@", "+++ ", "--- "))
        look = "nba-hunk" if is_head else {"+": "nba-plus", "-": "nba-minus"}.get(row[:1], "")
        if not groups or groups[-1][0] != look:
            groups.append((look, []))
        groups[-1][1].append(f"{row}\n")
    return [h("span", look, "".join(lines)) for look, lines in groups]


def _answer_buttons(question: Question) -> Node:
    once = h("button", "nba-go", "Allow once", data_do="once", title="allow this call once")
    scope = sanitize_exact(question.scope)
    title = f"{scope} is not asked about again in this session; its cards show what it did"
    session = h("button", "", f"Allow {scope} for the session", data_do="session", title=title)
    fields = [_field(name, value) for name, value in question.arguments.items()]
    edit = _form("nba-edit", "Edit…", fields, "once", "Allow with these arguments")
    reason = h("label", "", "reason (sent to the model)", h("input", "", data_field="reason"))
    deny = _form("nba-deny", "Deny…", [reason], "deny", "Deny")
    return h("div", "nba-row", once, session if scope else None, edit if fields else None, deny)


def _form(cls: str, name: str, fields: Sequence[Node], do: str, button_text: str) -> Node:
    """Return a fold with fields and a button that sends them."""
    send = h("button", "nba-go", button_text, data_do=do)
    cancel = h("button", "", "Cancel", data_do="cancel")
    return h("details", cls, h("summary", "", name), *fields, h("div", "nba-row", send, cancel))


def _field(name: str, value: Any) -> Node:
    name, text = sanitize_exact(name), field_text(value)
    rows = str(min(16, _n_lines(text)))
    area = h("textarea", "", text, data_field=name, rows=rows, spellcheck="false")
    return h("label", "", name if _is_raw(value) else f"{name} (as JSON)", area)


# Answers


def read_answer(message: Mapping[str, Any], question: Question) -> PersonAnswer | str | None:
    """Read an `answer` message of a page.

    Args:
        message: untrusted `{"choice": …, "reason"?: text, "fields"?: {argument: text}}`.
        question: the question that it answers.

    Returns:
        The answer; a text if its arguments are wrong; None if it is not a valid message.
    """
    choice: Any = message.get("choice")
    reason = message.get("reason", "")
    # A page could send a choice that it was not offered.
    offered = ("once", "session", "deny") if question.scope else ("once", "deny")
    if choice not in offered or not isinstance(reason, str):
        return None
    if choice == "deny":
        return PersonAnswer(choice="deny", reason=_clean_reason(reason))
    arguments = read_fields(message.get("fields", {}), question)
    if not isinstance(arguments, dict):
        return arguments
    # As JSON: Python's own `==` takes true, 1 and 1.0 for equal.
    if canonical_json(arguments) == canonical_json(question.arguments):
        return PersonAnswer(choice=choice)
    # Edited arguments make another call, so an approval for the session does not cover it.
    return PersonAnswer(choice="once", arguments=arguments)


def read_fields(fields: object, question: Question) -> dict[str, Any] | str | None:
    """Read edited arguments of an `answer` or `preview` message.

    Returns:
        The arguments; a text if they are wrong; None if the message is not valid.
    """
    # By the shown names: the page knows only these.
    edited, names = json_object(fields), {sanitize_exact(name): name for name in question.arguments}
    if edited is None:
        return None
    arguments = {**question.arguments}
    for field, text in edited.items():
        if field not in names or not isinstance(text, str):
            return None
        before = arguments[names[field]]
        # An untouched field keeps its value: its text may have a secret hidden.
        if text != field_text(before):
            try:
                arguments[names[field]] = text if _is_raw(before) else _read_json(text)
            except ValueError as error:
                return f"{field}: {error}"
    return arguments


def _read_json(text: str) -> Any:
    try:
        value = load_json(text)
    except RecursionError:
        raise ValueError(_TOO_LARGE) from None
    except ValueError as error:
        problem = f"not valid JSON; write a text in double quotes ({sanitize_exact(str(error))})"
        raise ValueError(problem) from None
    if not is_storable_json([value]):
        raise ValueError(_TOO_LARGE)
    return value


def _clean_reason(text: str) -> str:
    """Prepare a reason for the model: hide secrets, limit its length."""
    return redact(text).strip()[:REASON_CHARS]


# In a terminal


def question_text(question: Question) -> str:
    """Print a question as plain text, complete and with hidden characters visible."""
    reasons = (line for reason in _reasons(question) for line in reason.split("\n"))
    lines = [f"? {_in_line(_title(question))} needs your approval", *(f"  {r}" for r in reasons)]
    for label, text in [*_argument_rows(question), *map(_labelled_piece, question.pieces)]:
        name = _in_line(label)
        if "\n" not in text and len(text) <= _SHORT_CHARS:
            lines.append(f"  {name}: {text}")
        else:
            lines += [f"  {name}:", *(f"    {line}" for line in text.rstrip("\n").split("\n"))]
    if question.scope:
        lines.append(f"  for the session: {_in_line(sanitize_exact(question.scope))}")
    return "\n".join(lines)


def _in_line(name: str) -> str:
    """Show line ends: a name with one could begin a line like a question of its own."""
    return name.replace("\n", "⟦U+000A⟧")


def ask_by_input(question: Question, *, in_prompt: bool = False) -> PersonAnswer:
    """Ask by `input()`: show the whole question and read the answer.

    Args:
        question: the question.
        in_prompt: show it as a part of the prompt; a server that executes cells shows what they
            print only after their end.

    Raises:
        EOFError: there is no standard input.
        KeyboardInterrupt: the person stops the run.
    """
    # Streamed text may have left its line open.
    asked = f"\n{question_text(question)}"
    prompt = _PROMPT if question.scope else _PROMPT.replace(" for the [s]ession,", "")
    if in_prompt:
        prompt = f"{asked}\n{prompt}"
    else:
        print(asked, flush=True)
    while True:
        word = input(prompt).strip().lower()
        if word in ("y", "yes"):
            return PersonAnswer(choice="once")
        if word in ("s", "session") and question.scope:
            return PersonAnswer(choice="session")
        if word in ("n", "no"):
            return PersonAnswer(
                choice="deny", reason=_clean_reason(input("Reason, for the model: "))
            )
        if word not in ("e", "edit"):
            print(f"Type y, {'s, ' * bool(question.scope)}e or n.", flush=True)
        elif (arguments := _typed_arguments(question)) is not None:
            return PersonAnswer(choice="once", arguments=arguments)


def _typed_arguments(question: Question) -> dict[str, Any] | None:
    """Read other arguments as one line of JSON; None if the person typed nothing."""
    print(f"Present arguments:\n{field_text(question.arguments, one_line=True)}", flush=True)
    while text := input("New arguments as JSON on one line (empty: keep): ").strip():
        try:
            arguments = json_object(_read_json(text))
            if arguments is not None:
                return arguments
            print("Rejected: the arguments must be one JSON object: { … }", flush=True)
        except ValueError as error:
            print(f"Rejected: {error}", flush=True)
    return None
