"""The form of the panel: its widgets, their order and their words. What they do is in `runs`."""

# ipywidgets has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

from nbagent.notebook.panel.choices import LIMITS, Choices, Offered
from nbagent.notebook.panel.parts import Box, BoxState, ChoiceField, Field, Message
from nbagent.view.words import one_line, visible

_PICK = ("reopen one …", "")


class Form:
    """All widgets of the panel. Its methods are called on the kernel's main thread."""

    def __init__(
        self,
        box: BoxState,
        *,
        hear: Callable[[Message], None],
        reopen: Callable[[str], None],
        begin_anew: Callable[[], None],
    ) -> None:
        self.box = Box(box, hear)
        self.totals = _label("", "nba-panel-totals")
        self.note = _label("", "nba-panel-note")
        self.talk = ipywidgets.VBox([])
        self.talk.add_class("nba-panel-talk")
        self._model = ChoiceField(description="Model", ensure_option=False, continuous_update=False)
        _classes(self._model, "nba-field", "nba-field-model")
        self._limits = {
            name: Field(description=label, placeholder="none", continuous_update=False)
            for name, label in LIMITS.items()
        }
        for widget in self._limits.values():
            _classes(widget, "nba-field", "nba-field-short")
        self.runs: Any = ipywidgets.Dropdown(options=[_PICK], description="Last runs")
        _classes(self.runs, "nba-field", "nba-field-runs")
        self._new = ipywidgets.Button(description="New conversation")
        _classes(self._new, "nba-new")
        self._tools = ipywidgets.HBox([])
        _classes(self._tools, "nba-panel-tools")
        self._ticks: dict[str, Any] = {}
        self._listed: tuple[str, ...] = ()
        self._reopen = reopen
        self.runs.observe(self._picked, names="value")
        self._new.on_click(lambda _button: begin_anew())
        self.root = self._laid_out()

    def _laid_out(self) -> Any:
        head = ipywidgets.HBox([self.totals, self.runs, self._new])
        _classes(head, "nba-panel-head")
        form = ipywidgets.HBox([self._model, *self._limits.values(), self._tools])
        _classes(form, "nba-panel-form")
        root = ipywidgets.VBox([head, self.note, self.talk, self.box, form])
        _classes(root, "nba-panel")
        return root

    def choices(self) -> Choices:
        """What stands in the fields."""
        return Choices(
            model=str(self._model.value),
            system=str(self.box.state["system"]),
            limits={name: str(widget.value) for name, widget in self._limits.items()},
            offered=tuple(self._ticks),
            unticked=self.unticked,
        )

    @property
    def unticked(self) -> frozenset[str]:
        """The tools that the model shall not have."""
        return frozenset(name for name, tick in self._ticks.items() if not tick.value)

    def fill(self, choices: Choices) -> None:
        """Write values into the fields; the system prompt is the box's own."""
        self._model.value = choices.model
        for name, widget in self._limits.items():
            widget.value = choices.limits[name]

    def suggest(self, models: Sequence[str], default: str) -> None:
        """Model ids to choose from, and the one that is asked when none is chosen."""
        options = tuple(dict.fromkeys(model for model in models if model))
        if self._model.options != options:
            self._model.options = options
        self._model.placeholder = visible(default)

    def offer(self, tools: Sequence[Offered], unticked: frozenset[str], trouble: str = "") -> None:
        """The list of tools; what is there already keeps its widget."""
        kept = {tool.name: self._ticks.get(tool.name) for tool in tools}
        gone = [tick for name, tick in self._ticks.items() if name not in kept]
        self._ticks = {}
        for tool in tools:
            tick = kept[tool.name]
            if tick is None:
                tick = ipywidgets.Checkbox(description=tool.name, indent=False)
                _classes(tick, "nba-tool")
            tick.value = tool.name not in unticked
            tick.tooltip = one_line(visible(tool.about), 200)
            self._ticks[tool.name] = tick
        words = trouble or ("Tools" if tools else "No tools: put @nbagent.tool above a function")
        if (words, *self._ticks) != self._listed:
            self._listed = (words, *self._ticks)
            self._tools.children = (_label(words), *self._ticks.values())
        for tick in gone:
            tick.close()

    def list_runs(self, runs: Sequence[tuple[str, str]]) -> None:
        """The last runs to reopen: words and id of each."""
        options = (_PICK, *runs)
        if self.runs.options != options:
            self.runs.options = options

    def hold(self, held: bool) -> None:
        """While a run is at work, no other one is opened and none is begun anew."""
        self.runs.disabled = self._new.disabled = held

    def _picked(self, change: Any) -> None:
        if change["new"]:
            run_id = str(change["new"])
            self.runs.value = ""
            self._reopen(run_id)


def _label(text: str, *classes: str) -> Any:
    label = ipywidgets.Label(text)
    _classes(label, *classes)
    return label


def _classes(widget: Any, *names: str) -> None:
    for name in names:
        widget.add_class(name)
