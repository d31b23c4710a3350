"""A question to the person about one tool call: its nodes, its text, and how an answer is read.

All of the call is shown, each thing once: a piece of the preview (a diff, the code) stands in the
place of the arguments that it holds. When somebody is asked belongs to the session.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nbagent.contracts.approval import PersonAnswer, PreviewPiece, Question
from nbagent.contracts.canonical import json_object, load_json
from nbagent.contracts.messages import MAX_DEPTH, is_storable_json
from nbagent.contracts.secrets import redact
from nbagent.view.node import Node, h, line
from nbagent.view.words import arguments_in_short, escapes_shown, json_text, tool_title, visible

REASON_CHARS = 2_000
_ALL_CHARS = 10**9
"""Nothing of a call is cut."""
_SHORT_CHARS = 76
_LONG_LINES = 14
"""A text of more lines has a bar to scroll it by; its label says how many there are."""
_MOST_LINES = 24
"""More than this in all would push the buttons out of sight: they stand above."""
_TOO_MUCH = f"a number is too large, or there are more than {MAX_DEPTH} levels of lists and objects"
_PROMPT = "Allow? [y]es once, for the [s]ession, [e]dit, [n]o: "


# What is shown


def whole(text: str) -> str:
    """All of a text, with everything visible that hides, reorders or draws; secrets hidden.

    Unlike `visible`, which drops escapes and what they hold (a colour, a title, an address),
    nothing that is written or run is missing from it.
    """
    return visible(escapes_shown(text))


def field_text(value: Any, *, one_line: bool = False) -> str:
    """An argument to edit: a string as it is, anything else as JSON; secrets hidden.

    A string with hidden characters is JSON too, so that its escapes say what is in it.
    """
    if _is_raw(value):
        return value
    text = redact(json_text(value, enough=0 if one_line else _ALL_CHARS))
    hidden = {c for c in set(text) if c > "~" and visible(c) != c}
    return text.translate({ord(c): json.dumps(c)[1:-1] for c in hidden})


def _is_raw(value: object) -> bool:
    # A text area turns every line end into one newline.
    return isinstance(value, str) and whole(value) == value and "\r" not in value


def _title(question: Question) -> str:
    return whole(tool_title(question.tool, question.display_name))


def _reasons(question: Question) -> list[str]:
    return [whole(words) for words in (question.summary, question.why) if words]


def _rows(question: Question) -> list[tuple[str, str]]:
    """The arguments that no piece of the preview shows: strings as text, others as JSON."""
    shown = {name for piece in question.pieces for name in piece.replaced_arguments}
    given = ((name, value) for name, value in question.arguments.items() if name not in shown)
    return [
        (whole(n), whole(v if isinstance(v, str) else json_text(v, enough=_ALL_CHARS)))
        for n, v in given
    ]


def _n_lines(text: str) -> int:
    return text.rstrip("\n").count("\n") + 1


def _labelled(piece: PreviewPiece) -> tuple[str, str]:
    n = _n_lines(piece.text)
    return whole(piece.label) + (f" · all {n:,} lines" if n > _LONG_LINES else ""), whole(
        piece.text
    )


# As nodes


def question_node(question: Question, question_id: str) -> Node:
    """The card of a call that waits for the person: all of the call, and the ways to answer."""
    rows = _rows(question)
    texts = [_table(rows), preview_node(question_id, question.pieces)]
    shown = [*(text for _, text in rows), *(piece.text for piece in question.pieces)]
    answers = [_answers(question), said_node(question_id, "")]
    is_long = sum(map(_n_lines, shown)) > _MOST_LINES
    needs = f"{_title(question)} needs your approval"
    name = h("span", "", h("code", "nba-call", _title(question)), " needs your approval")
    host = "" if question.host == "functions" else whole(question.host)
    return h(
        "div",
        "nba-card nba-ask",
        h("div", "nba-top", name, h("span", "nba-num", host) if host else None),
        line("nba-why", whole(question.summary)),
        why_node(question_id, question.why),
        *(answers + texts if is_long else texts + answers),
        data_key=f"{question.turn_id}/tool/{question.tool_call_id}",
        data_question=question_id,
        role="group",
        aria_label=needs,
        # JupyterLab would take Enter for its own.
        data_lm_suppress_shortcuts="true",
    )


def asks_node(questions: Sequence[tuple[str, Question]]) -> Node:
    """Several open questions in one list, to be allowed together; empty for fewer than two."""
    if len(questions) < 2:
        return h("div", "nba-asks", data_key="asks")  # it has its place above the turns
    calls = [
        h("li", "", h("code", "nba-call", _title(q)), f"({arguments_in_short(q.arguments)})")
        for _, q in questions
    ]
    words = h("strong", "", f"{len(calls)} calls need your approval")
    allow = h("button", "", "Allow all", data_do="answer_all", title="each of them, this time")
    row = h("div", "nba-row", words, allow)
    return h("div", "nba-asks", row, h("ul", "", *calls), data_key="asks", role="group")


def why_node(question_id: str, why: str) -> Node:
    """What the call would do in one line, and the rule that asks."""
    return h("div", "nba-why", whole(why), data_key=f"{question_id}/why")


def preview_node(question_id: str, pieces: Sequence[PreviewPiece]) -> Node:
    """What the call would do, as its host sees it: facts in a table, a diff or code below."""
    shown = [_table([_labelled(piece) for piece in pieces if piece.kind == "text"])]
    for piece in pieces:
        if piece.kind != "text":
            label, text = _labelled(piece)
            shown += [h("div", "nba-lab", label), _block(label, text, is_diff=piece.kind == "diff")]
    return h("div", "nba-pieces", *shown, data_key=f"{question_id}/pieces")


def said_node(question_id: str, words: str) -> Node:
    """What the kernel says to an answer that it cannot take."""
    return h("div", "nba-said", words, data_key=f"{question_id}/said", aria_live="polite")


def _table(rows: Sequence[tuple[str, str]]) -> Node | None:
    cells = [
        h("tr", "", h("th", "", name, scope="row"), h("td", "", _block(name, text)))
        for name, text in rows
    ]
    return h("table", "nba-args", *cells) if cells else None


def _block(label: str, text: str, *, is_diff: bool = False) -> Node:
    """All of a text; one that has to be scrolled can be reached by the keyboard."""
    if not is_diff and "\n" not in text and len(text) <= _SHORT_CHARS:
        return h("code", "", text)
    lines = _diff_lines(text) if is_diff else [text]
    if _n_lines(text) <= _LONG_LINES and len(text) <= _LONG_LINES * 100:
        return h("pre", "", *lines)
    return h("pre", "", *lines, tabindex="0", role="region", aria_label=label)


def _diff_lines(text: str) -> list[Node]:
    """The lines of a diff: the signs stay, the colours only help. Neighbours of a kind are one."""
    found: list[tuple[str, list[str]]] = []
    for row in text.removesuffix("\n").split("\n"):
        is_head = row.startswith(("@@", "+++ ", "--- "))
        look = "nba-hunk" if is_head else {"+": "nba-plus", "-": "nba-minus"}.get(row[:1], "")
        if not found or found[-1][0] != look:
            found.append((look, []))
        found[-1][1].append(f"{row}\n")
    return [h("span", look, "".join(lines)) for look, lines in found]


def _answers(question: Question) -> Node:
    once = h("button", "nba-go", "Allow once", data_do="once", title="this call, this time")
    scope, words = whole(question.scope), "Allow for this session"
    session = h("button", "", words, data_do="session", title=scope) if scope else None
    fields = [_field(name, value) for name, value in question.arguments.items()]
    edit = _form("nba-edit", "Edit…", fields, "once", "Allow with these arguments")
    reason = h("label", "", "reason, which the model is told", h("input", "", data_field="reason"))
    deny = _form("nba-deny", "Deny…", [reason], "deny", "Deny")
    covers = h("small", "", scope) if scope else None
    return h("div", "nba-row", once, session, covers, edit if fields else None, deny)


def _form(cls: str, name: str, fields: Sequence[Node], do: str, words: str) -> Node:
    """A fold with fields; what its button sends are these fields."""
    sends, leaves = ("nba-go", words, do), ("", "Cancel", "cancel")
    buttons = [h("button", cls, words, data_do=do) for cls, words, do in (sends, leaves)]
    return h("details", cls, h("summary", "", name), *fields, h("div", "nba-row", *buttons))


def _field(name: str, value: Any) -> Node:
    name, text = whole(name), field_text(value)
    rows = str(min(16, _n_lines(text)))
    area = h("textarea", "", text, data_field=name, rows=rows, spellcheck="false")
    return h("label", "", name if _is_raw(value) else f"{name} (as JSON)", area)


# Answers


def read_answer(message: Mapping[str, Any], question: Question) -> PersonAnswer | str | None:
    """What a page's `answer` message says: an answer, what is wrong with its arguments, or None.

    Args:
        message: `{"choice": …, "reason"?: text, "fields"?: {argument: text}}`, from anybody.
        question: the one that it names.
    """
    choice: Any = message.get("choice")
    reason = message.get("reason", "")
    offered = ("once", "session", "deny") if question.scope else ("once", "deny")
    if choice not in offered or not isinstance(reason, str):
        return None
    if choice == "deny":
        return PersonAnswer(choice="deny", reason=_said_reason(reason))
    arguments = read_fields(message.get("fields", {}), question)
    if not isinstance(arguments, dict):
        return arguments
    if arguments == question.arguments:
        return PersonAnswer(choice=choice)
    # Other arguments are another call, which an answer for the session does not cover.
    return PersonAnswer(choice="once", arguments=arguments)


def read_fields(fields: object, question: Question) -> dict[str, Any] | str | None:
    """The arguments as a person edited them, what is wrong with them, or None for what is no edit.

    Also of a `preview` message: `controls.preview` takes what this gives.
    """
    given, names = json_object(fields), {whole(name): name for name in question.arguments}
    if given is None:
        return None
    made = {**question.arguments}
    for field, text in given.items():
        if field not in names or not isinstance(text, str):
            return None
        before = made[names[field]]
        if text != field_text(before):
            try:
                made[names[field]] = text if _is_raw(before) else _read_json(text)
            except ValueError as error:
                return f"{field}: {error}"
    return made


def _read_json(text: str) -> Any:
    try:
        value = load_json(text)
    except RecursionError:
        raise ValueError(_TOO_MUCH) from None
    except ValueError as error:
        words = f"this is not JSON, in which a text has double quotes ({whole(str(error))})"
        raise ValueError(words) from None
    if not is_storable_json([value]):
        raise ValueError(_TOO_MUCH)
    return value


def _said_reason(text: str) -> str:
    """A reason as the model gets it."""
    return redact(text).strip()[:REASON_CHARS]


# In a terminal


def question_text(question: Question) -> str:
    """A question as plain text: nothing left out, nothing hidden."""
    lines = [f"? {_title(question)} needs your approval", *(f"  {w}" for w in _reasons(question))]
    for name, text in [*_rows(question), *map(_labelled, question.pieces)]:
        if "\n" not in text and len(text) <= _SHORT_CHARS:
            lines.append(f"  {name}: {text}")
        else:
            lines += [f"  {name}:", *(f"    {line}" for line in text.rstrip("\n").split("\n"))]
    if question.scope:
        lines.append(f"  for the session: {whole(question.scope)}")
    return "\n".join(lines)


def ask_by_input(question: Question) -> PersonAnswer:
    """Ask where there are no buttons: print the whole question, and read what is typed.

    Raises:
        EOFError: nobody types here.
        KeyboardInterrupt: the person stops the run.
    """
    # What streamed before may have left its line open.
    print(f"\n{question_text(question)}", flush=True)
    prompt = _PROMPT if question.scope else _PROMPT.replace(" for the [s]ession,", "")
    while True:
        word = input(prompt).strip().lower()
        if word in ("y", "yes"):
            return PersonAnswer(choice="once")
        if word in ("s", "session") and question.scope:
            return PersonAnswer(choice="session")
        if word in ("n", "no"):
            return PersonAnswer(
                choice="deny", reason=_said_reason(input("Reason, for the model: "))
            )
        if word not in ("e", "edit"):
            print(f"Type y, {'s, ' * bool(question.scope)}e or n.", flush=True)
        elif (arguments := _typed_arguments(question)) is not None:
            return PersonAnswer(choice="once", arguments=arguments)


def _typed_arguments(question: Question) -> dict[str, Any] | None:
    """Arguments to use instead, as one line of JSON; None when the person typed nothing."""
    print(f"The arguments now:\n{field_text(question.arguments, one_line=True)}", flush=True)
    while text := input("Arguments as JSON, on one line (empty: as they were): ").strip():
        try:
            given = json_object(_read_json(text))
            if given is not None:
                return given
            print("Not taken: the arguments have to be one JSON object: { … }", flush=True)
        except ValueError as error:
            print(f"Not taken: {error}", flush=True)
    return None
