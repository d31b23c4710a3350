"""State of a run and the reason of its end, in words: status, error, advice. Pure functions."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.records import RunInfo
from nbagent.view.text_format import one_line, sanitize_value

Tone = Literal["ok", "live", "waits", "bad"]

_ERROR_CHARS = 600
_ERROR_HELP: dict[str, str] = {
    "LLM_AUTH_FAILED": "%agent doctor shows which key was found for this model, and where",
    "LLM_TIMEOUT": "%agent resume tries again; --timeout SECONDS gives it more time",
    "LLM_RATE_LIMITED": "Wait a little, then continue with %agent resume",
    "LLM_QUOTA_EXCEEDED": "The account needs credit; --model NAME uses another model",
    "LLM_CONTEXT_OVERFLOW": "%agent resume --trim tool-results shortens old results; "
    "--model NAME uses a model with a larger context",
    "LLM_HTTP_ERROR": "%agent doctor shows the settings; %agent resume tries again",
    "LLM_BAD_RESPONSE": "%agent resume tries again; --model NAME uses another model",
    "UNKNOWN": "%agent resume tries again; %agent doctor shows the settings",
    "ENGINE_INTERRUPTED": "Continue with %agent resume",
    "ENGINE_ABORTED": "Continue with %agent resume",
}

_RESUME = re.compile(r"%agent resume\b(?! \S*[./@]| DOCUMENT)")
"""Advice to resume a run, not the document of a workflow."""
_TRY_AGAIN = re.compile(r"[;,.]? (?:please )?try again(?: later)?\.?$", re.IGNORECASE)
"""What a server advises where our own advice says it, too."""


class Status(NamedTuple):
    """State of a run in one word. The mark says the same without colour."""

    word: str
    tone: Tone
    mark: str


_ANSWERED = Status("Answered", "ok", "✓")


def status_of(run: RunInfo) -> Status:
    """Return the state of a run in words."""
    code, reason = run.error.code if run.error else "", run.stop_reason
    if run.phase == "Running":
        return Status("Running", "live", "…")
    if run.phase == "Completed":
        return Status("Completed", "ok", "✓")
    if run.phase == "Failed":
        if reason == "stopped":
            return Status("Stopped", "waits", "■")
        if code == "ENGINE_INTERRUPTED":
            return Status("Interrupted", "bad", "✕")
        limit = ": limit of requests" if reason == "max_turns" else ""
        return Status(f"Failed{limit}", "bad", "✕")
    if reason in ("answered", None):
        return Status("Waiting for you", "waits", "‖") if run.workflow else _ANSWERED
    too_long = code == "LLM_CONTEXT_OVERFLOW"
    why = {
        "max_turns": ": limit of turns",
        "loop_detected": ": repeated calls",
        "budget": ": budget used up",
        "length": ": the request is too long" if too_long else ": answer cut at its length",
        "content_filter": ": content filter",
    }
    return Status(f"Paused{why.get(reason, '')}", "waits", "‖")


def is_unfinished(run: RunInfo) -> bool:
    """True if the run ended without an answer, by a stop, a limit or an error."""
    if run.phase == "WaitingUser":
        return run.stop_reason not in ("answered", None)
    return run.phase == "Failed"


def waits_for_words(run: RunInfo) -> bool:
    """True if the run waits for the person's words: at a workflow's step, a limit, a cut answer.

    A paused run, such as a retry whose calls wait, only waits for Continue.
    """
    is_paused = run.stop_reason == "stopped"
    return run.phase == "WaitingUser" and not is_paused and status_of(run) != _ANSWERED


def next_step(run: RunInfo) -> str:
    """Command that continues a run, for outputs without buttons."""
    if run.phase in ("Running", "Completed"):
        return ""
    return f"continue with {'%agent resume' if is_unfinished(run) else '%%agent --continue'}"


def answer_note(run: RunInfo) -> str:
    """Note that the answer is incomplete; else empty."""
    is_part = run.phase == "Failed" or run.stop_reason in ("length", "content_filter")
    return "incomplete answer" if is_part else ""


def ending_text(run: RunInfo) -> str:
    """One line: why the run ended without an answer and what to do next; else empty."""
    status = status_of(run)
    if run.error is None:
        return ""
    if status.word == "Stopped":
        return f"■ Stopped. {_naming(run, _ERROR_HELP['ENGINE_ABORTED'])}"
    is_own = run.error.code.startswith("ENGINE_")  # another message may be a server's
    message = _naming(run, error_text(run.error)) if is_own else error_text(run.error)
    if "tries again" in error_help(run.error):  # said once
        message = _TRY_AGAIN.sub("", message)
    text = f"{'✕' if status.tone == 'bad' else status.mark} {message}"
    help_words = _naming(run, error_help(run.error))
    period = "" if text.endswith((".", "!", "?")) else "."
    return f"{text}{period} {help_words}" if help_words else text


def _naming(run: RunInfo, advice: str) -> str:
    """Name the run in the advice to resume: alone, the command resumes the last run."""
    return _RESUME.sub(f"%agent resume {run.id[:8]}", advice)


def error_text(error: ErrorInfo | None) -> str:
    """Return `CODE: message`, empty without an error. A message of a server is one line."""
    if error is None:
        return ""
    text = sanitize_value(f"{error.code}: {error.message}")
    # The message of an overflow has our own lines on what takes the room.
    is_from_server = error.code in _ERROR_HELP and error.code != "LLM_CONTEXT_OVERFLOW"
    return one_line(text, _ERROR_CHARS) if is_from_server else text


def error_help(error: ErrorInfo) -> str:
    """Advice on an error; empty if the message has its own."""
    # Codes of the engine only: a server's message may contain any text, also "%agent".
    own = "%agent " if error.code.startswith("ENGINE_") else "Nothing is lost: "
    return "" if own in error.message else _ERROR_HELP.get(error.code, "")
