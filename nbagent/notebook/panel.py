"""The panel: a prompt box, a form and a conversation beside the cells. `panel()` opens it.

One widget, and one panel for a kernel however often it is shown. What is typed comes as messages
and is kept by the kernel, never in a trait: a notebook may be saved with those. A click only asks:
the kernel's main thread begins the run when it is free, and no cell is held up.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, cast

import anywidget
import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import display

from nbagent.contracts.chat import TextPart
from nbagent.contracts.errors import NbagentError, UsageError, error_from_info
from nbagent.contracts.ports import RunControls
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import redact_cut, register_environment
from nbagent.notebook import actions, kernel, surface
from nbagent.notebook.actions import Click
from nbagent.notebook.clicks import later, start_by_click
from nbagent.notebook.complete import package_names
from nbagent.notebook.panel_form import Form, filtered, models_row, setter
from nbagent.notebook.panel_saved import HEADLESS, lineage, saved, totals
from nbagent.notebook.run_view import LiveView, comm_id, listen, script, sheet
from nbagent.notebook.template import evaluate, render
from nbagent.providers.choice import choose_model
from nbagent.providers.registry import find_provider
from nbagent.run import Run
from nbagent.session.clients import listings
from nbagent.session.frontend import frontend
from nbagent.session.prepare import Ask
from nbagent.session.stores import current_store
from nbagent.settings import effective, provider_of
from nbagent.view.cell import cell_text
from nbagent.view.labels import is_unfinished, status_of
from nbagent.view.node import Node, h
from nbagent.view.picture import picture
from nbagent.view.words import one_line, visible

Told = dict[str, Any]
"""A message of the page; hostile until it was read by `_text`."""
SHOWN = 30
"""So many runs of a conversation stand on the page at first."""
LISTED = 200
_LOOKED_AT = 5_000
_DRAFT_CHARS = 100_000
_EXPORTS = ("md", "html", "jsonl")
FORGOTTEN = "All of this conversation was forgotten; the next prompt begins a new one"
_WIDGET = "application/vnd.jupyter.widget-view+json"
_SAVED = "nbagent-panel-saved"


class PanelWidget(anywidget.AnyWidget):
    """The widget. Its state has no pictures: a page asks for them when it is ready."""

    _esm = script("panel.js")
    _css = sheet("panel.css")
    kind = traitlets.Unicode("panel").tag(sync=True)
    fields = traitlets.List().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)


class Panel:
    """The panel of this kernel: one conversation at a time, shown in as many places as wanted."""

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._lock = threading.RLock()
        self._form = Form()
        self._runs: dict[str, RunRecord] = {}
        """The conversation, oldest first."""
        self._live: LiveView | None = None
        """The view of the run that is at work."""
        self._working = self._error = self._told = self._draft = self._usual = ""
        self._asked: dict[str, str] = {}
        """What was sent and has not begun yet: prompts by the ids of the messages."""
        self.widget = PanelWidget(fields=Form.fields())
        listen(self.widget, self.heard)
        surface.when_forgotten(self.forget)
        if (shell := get_ipython()) is not None:
            shell.events.register("post_run_cell", lambda _result: self._later(self._refresh))

    # Shown

    def show(self) -> None:
        """Display the panel below the cell that runs now, and its saved form."""
        # What a tool prints goes to the cell where the panel was shown last.
        self._context = contextvars.copy_context()
        self._refresh()
        view = {"version_major": 2, "version_minor": 0, "model_id": comm_id(self.widget)}
        display({_WIDGET: view}, raw=True)  # elsewhere the saved form below says all
        self._save(update=False)

    def _save(self, *, update: bool = True) -> None:
        bundle, metadata = saved([*self._runs.values()])
        display(bundle, raw=True, display_id=_SAVED, update=update, metadata=metadata)

    def _push(self, error: str | None = None) -> None:
        """Tell every page how things stand. Any thread."""
        with self._lock:
            self._error = self._error if error is None else error
            last = self._last
            free = not self._working
            self.widget.state = {
                **self._form.state(),
                "working": self._working,
                "can_continue": free and last is not None and is_unfinished(last),
                "goes_on": last is not None,
                "usual": last.model if last else self._usual,
                "status": self._told if free else "At work",
                "error": self._error,
                "totals": totals([*self._runs.values()]),
            }

    @property
    def _last(self) -> RunRecord | None:
        """The run that the next words go on from."""
        kept = (run for run in reversed(self._runs.values()) if run.turns or run.messages)
        return next(kept, None)

    def _refresh(self) -> None:
        """The notebook may have other tools than before."""
        try:
            self._usual = effective().model or choose_model(os.environ).model_id
            self._form.offer(frontend().namespace())
            self._push()
        except NbagentError as error:
            self._fail(error)

    def _thread(self, page: str = "", n: int = SHOWN) -> None:
        """Send the conversation to one page, or to all."""
        drawn = [self._picture(run) for run in [*self._runs.values()][-n:]]
        more = max(0, len(self._runs) - n)
        told = {"page": page, "draft": self._draft, "pictures": drawn, "more": more}
        self.widget.send({"kind": "thread", **told})

    def _picture(self, run: RunRecord) -> Node:
        if self._live is not None and run.id == self._working:
            return self._live.picture()
        return picture(run)

    # Heard

    def heard(self, content: object) -> None:
        """A message of a page, in whichever thread it arrived: also while a cell runs."""
        told = cast("Told", content) if isinstance(content, dict) else {}
        try:
            self._context.copy().run(self._do, told)
        except Exception as error:
            self._fail(error)

    def _do(self, told: Told) -> None:
        name, value = _text(told, "name"), _text(told, "value")
        match told.get("kind"):
            case "ready" if told.get("page"):
                self._ready(told)
            case "draft":
                self._draft = filtered(_text(told, "text")[:_DRAFT_CHARS])
            case "field" | "tick" | "attach" | "detach":
                self._fill(told, name, value)
            case "send":
                self._ask(told)
            case "continue":
                self._ask(told, Click("continue", last.id) if (last := self._last) else None)
            case "stop" | "pause" as kind:
                self._stop(kind)
            case "act":
                self._act(told)
            case "open":
                self._open_run(value)
            case "new":
                self._begin(())
            case "more":
                self._thread(_text(told, "page"), len(self._runs))
            case "packages":
                self._list_packages()
            case "models":
                self._aside(lambda: self._list_models(value))
            case "runs":
                self._aside(lambda: self._list_runs(_text(told, "text")))
            case "export":
                self._aside(lambda: self._export(value, _text(told, "page")))
            case _:
                live = self._live
                if live is not None and told.get("run") == self._working:
                    live.heard(told)

    def _ready(self, told: Told) -> None:
        self._thread(_text(told, "page"))
        if self._live is not None:
            # After it: what was sent meanwhile is in the picture that this brings.
            self._live.heard({"kind": "ready", "page": told.get("page")})

    def _fill(self, told: Told, name: str, value: str) -> None:
        """The form was changed."""
        match told["kind"]:
            case "field":
                self._form.set(name, value)
            case "tick":
                self._form.tick(name, told.get("on") is True)
            case "attach":
                self._form.attach(name, _text(told, "data"))
            case _:
                self._form.detach(value)
        self._push("")

    def _stop(self, kind: str) -> None:
        with self._lock:
            live, withdrawn = self._live, dict(self._asked)
            self._asked.clear()
        for asked, prompt in withdrawn.items():
            self._refused(asked, prompt)
        if live is not None:
            live.heard({"kind": kind})

    def _act(self, told: Told) -> None:
        """A button in a picture."""
        click = actions.read_click(told)
        run = self._runs.get(click.run_id) if click else None
        if click is None or run is None or self._working:
            return
        if not click.has_form and (form := actions.form_of(click, run, most=1)):
            self._reply(told, form=form)
        elif click.do in ("continue", "fork", "retry"):
            self._ask({**told, **click.fields}, click, run)
        elif click.do == "compare":
            self._aside(lambda: self._compare(told, run, click.fields.get("other", "")))
        elif click.do == "cell":
            self._reply(told, said="Copied: paste it into a cell", text=cell_text(run))

    def _reply(self, told: Told, **said: object) -> None:
        base = {"kind": "reply", "page": _text(told, "page"), "run": _text(told, "run")}
        self.widget.send({**base, **said})

    def _ask(self, told: Told, click: Click | None = None, run: RunRecord | None = None) -> None:
        asked, prompt = _text(told, "id"), _text(told, "prompt")
        self._asked[asked] = prompt
        start_by_click(
            lambda: self._wanted(asked, click, run or self._last),
            show=partial(self._open, asked, prompt),
            failed=lambda error: self._not_begun(asked, prompt, error),
            context=self._context,
        )

    # Done, in the kernel's main thread

    def _wanted(self, asked: str, click: Click | None, parent: RunRecord | None) -> Ask:
        prompt = self._asked.pop(asked, None)
        if prompt is None:
            raise _Withdrawn
        if self._working:
            raise UsageError("a run of this panel is still at work; stop it or wait for its end")
        self._refresh()
        options, dropped = self._form.options(parent)
        rendered = render(prompt, _evaluate)
        attached = [part for parts in self._form.attached.values() for part in parts]
        walks = options.workflow or options.document or (parent and parent.workflow)
        is_silent = not rendered.prompt.strip() and not attached
        parts = rendered.parts or (TextPart(text=rendered.prompt),)
        if click is not None and parent is not None:
            words = {} if is_silent else {"prompt": rendered.prompt}
            base = actions.asked(replace(click, fields=words), parent)
        else:
            base = Ask(
                prompt=None if is_silent and walks else rendered.prompt,
                kind="continue" if parent else "resume" if options.document else "start",
                parent_id=parent.id if parent else None,
            )
        return replace(
            base,
            parts=(*parts, *attached) if attached else rendered.parts,
            template=prompt if rendered.expressions else None,
            options=options,
            dropped=dropped,
        )

    def _open(self, asked: str, prompt: str, run: RunRecord, controls: RunControls) -> LiveView:
        """The view of a run that begins."""
        ended = partial(self._ended, prompt, controls)
        live = LiveView(run, controls, send=self.widget.send, ended=ended)
        with self._lock:
            self._live, self._working, self._told = live, run.id, ""
            self._draft = "" if self._draft.strip() == filtered(prompt).strip() else self._draft
            self._runs[run.id] = run
            self._form.detach_all()
            self._push("")
        self.widget.send({"kind": "run", "run": run.id, "node": live.picture(), "id": asked})
        return live

    def _not_begun(self, asked: str, prompt: str, error: Exception) -> None:
        if not isinstance(error, _Withdrawn):
            self._refused(asked, prompt)
            self._fail(error)

    def _refused(self, asked: str, prompt: str) -> None:
        """What was asked is not done: its words go back, also to a page that was loaded anew."""
        self.widget.send({"kind": "refused", "id": asked, "prompt": filtered(prompt)})

    def _ended(self, prompt: str, controls: RunControls, run: RunRecord) -> None:
        """The run that was at work is over, or broke before it had begun. Any thread."""
        words = ""
        is_lost = run.phase == "Running"
        if is_lost:  # nothing of it is kept, and only its controls know why
            run = getattr(controls, "record", run)
            words = self._error_words(error_from_info(run.error)) if run.error else "It broke off."
            self.widget.send({"run": run.id, "ops": [["done", picture(run, actions=False)]]})
            self._refused("", prompt)
        with self._lock:
            self._live, self._working = None, ""
            self._runs[run.id] = run
            if is_lost:
                del self._runs[run.id]
            self._push(words)
        self._later(self._settle)

    def _settle(self) -> None:
        self._refresh()
        self._save()

    def _later(self, work: Callable[[], object]) -> None:
        later(work, failed=self._fail, context=self._context)

    def _fail(self, error: Exception) -> None:
        self._push(self._error_words(error))

    # Other things that a page wants: done beside the kernel, which may be busy

    def _aside(self, work: Callable[[], object]) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception as error:
                self._fail(error)

        threading.Thread(target=self._context.copy().run, args=(guarded,), daemon=True).start()

    def _show_list(self, key: str, *rows: Node) -> None:
        self.widget.send({"kind": "list", "key": key, "node": h("div", "nba-rows", *rows)})

    def _list_models(self, provider: str) -> None:
        offers = sorted(listings(provider or None), key=lambda offer: not offer.reachable)
        self._show_list("models", *map(models_row, offers))

    def _list_packages(self) -> None:
        rows = [setter("workflow", name, name) for name in package_names()]
        self._show_list("packages", *(rows or ["No packages in this project."]))

    def _list_runs(self, text: str) -> None:
        words = text.casefold().split()
        found: list[Node] = []
        for run in current_store().runs(limit=_LOOKED_AT):
            said = status_of(run).word
            prompt = one_line(visible(run.prompt), 120) or "(no prompt)"
            facts = [run.name or "", run.session, run.model, said]
            known = " ".join([run.id, run.prompt, *facts]).casefold()
            if run.stop_reason and all(word in known for word in words):
                when = run.started_at.astimezone().strftime("%d %b %H:%M")
                about = " · ".join(visible(fact) for fact in (when, *facts) if fact)
                given = {"type": "button", "data_do": "open", "value": run.id}
                line = h("button", "nba-open", prompt, h("small", "", about), **given)
                found.append(line)
            if len(found) == LISTED:
                break
        self._show_list("runs", *(found or ["No run has these words."]))

    def _open_run(self, run_id: str) -> None:
        """Show a run, with those that it goes on from; the next words go on."""
        if self._working:
            return
        runs = lineage(run_id)
        self._begin(runs)
        self._form.fill(runs[-1], frontend().namespace())
        self._push()

    def _begin(self, runs: Sequence[RunRecord], told: str = "") -> None:
        if self._working:
            return
        with self._lock:
            self._runs = {run.id: run for run in runs}
            self._told = told
            self._push("")
        self._thread()
        self._later(self._settle)

    def _compare(self, told: Told, run: RunRecord, other: str) -> None:
        records = [current_store().load(other), run]
        made = import_module("nbagent.view.compare").compare_node(records)
        node = h("div", "nba-compared", made, data_key="compared")
        self.widget.send({"run": run.id, "ops": [["put", "compared", node, ""]]})
        self._reply(told)

    def _export(self, ending: str, page: str) -> None:
        """Give the page the conversation's last run as a file."""
        last = self._last
        if last is None or ending not in _EXPORTS:
            raise UsageError("there is nothing to export yet")
        text = Run(last, current_store()).export(ending)
        name = f"run-{last.id[:8]}.{ending}"
        self.widget.send({"kind": "file", "page": page, "name": name, "text": text})

    def forget(self, run_ids: tuple[str, ...]) -> None:
        """Runs were deleted: they go from the page, and the conversation goes on without them."""
        left = [run for run in self._runs.values() if run.id not in run_ids]
        if len(left) < len(self._runs):
            self._begin(left, "" if left else FORGOTTEN)

    def _error_words(self, error: Exception) -> str:
        """One line that says what is wrong and what to do about it here."""
        if not isinstance(error, NbagentError):
            said = f"nbagent itself failed: {type(error).__name__}: {error}"
        elif error.code == "LLM_AUTH_FAILED" and (name := self._provider()):
            variables = " or ".join(find_provider(name).key_variables)
            said = (
                f"{name} needs a key: set {variables} in the environment before the kernel starts, "
                "or choose another model below; offline:demo needs none"
            )
        else:
            said = error.message
        return " ".join(visible(redact_cut(said)).splitlines())

    def _provider(self) -> str:
        return provider_of(self._form.values["model"] or "") or ""


class _Withdrawn(Exception):
    """A prompt was taken back before its run began."""


def _text(told: Told, name: str) -> str:
    """A text of a message; nothing where there is none."""
    found = told.get(name)
    return found if isinstance(found, str) else ""


def _evaluate(expression: str) -> object:
    return evaluate(get_ipython() or _NoShell(), expression)


class _NoShell:
    """Stands for the shell where there is none: the frontend's names."""

    def __init__(self) -> None:
        self.user_ns = self.user_global_ns = dict(frontend().namespace())


_panel: Panel | None = None


def panel_of_this_kernel() -> Panel:
    """The panel, made when it is first wanted."""
    global _panel
    _panel = _panel or Panel()
    return _panel


def panel() -> None:
    """Open the panel below this cell; `%agent panel` is the same.

    A kernel has one panel. Called again, it shows the same one with its conversation once more.

    Raises:
        UsageError: this is no notebook.
    """
    if not kernel.in_kernel():
        raise UsageError(
            "the panel needs a notebook: run nbagent.panel() in a cell of JupyterLab or "
            "Notebook 7; in a script write nbagent.Agent(model=…).run('…'), in a terminal %%agent"
        )
    register_environment()
    if kernel.is_headless():
        display(saved((), HEADLESS)[0], raw=True)
    else:
        panel_of_this_kernel().show()
