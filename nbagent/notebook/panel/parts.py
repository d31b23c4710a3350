"""The panel's own widgets: the box for the prompt, a person's words, fields that hide keys.

What is typed into the box reaches the kernel as a message when it is sent, never as a trait: a
trait stays, and a notebook may be saved with it.
"""

# ipywidgets and anywidget have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, TypedDict, cast

import anywidget
import ipywidgets
import traitlets

from nbagent.contracts.secrets import redact, register_environment
from nbagent.view.words import clean, cut

SAID_CHARS = 20_000
"""More of a prompt is not shown above its run; the run has all of it."""
Message = dict[str, Any]


class BoxState(TypedDict):
    """What the kernel tells the box. All of it may be saved with the notebook."""

    working: bool
    can_continue: bool
    goes_on: bool
    """Whether the next prompt belongs to a conversation that is there."""
    status: str
    error: str
    system: str
    """The system prompt, filtered."""
    hints: dict[str, str]
    """What fields of the form mean, by their labels."""


@cache
def source() -> str:
    """The module without comments and indents."""
    text = files("nbagent.notebook.panel").joinpath("parts.js").read_text("utf-8")
    text = re.sub(r"/\*\*.*?\*/", "", text, flags=re.DOTALL)
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


@cache
def sheet(name: str) -> str:
    """A style sheet without comments and line ends."""
    text = files("nbagent.notebook.panel").joinpath(f"{name}.css").read_text("utf-8")
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)).strip()


def filtered(text: object) -> str:
    """What a person typed, without the keys of the environment, also those of this moment."""
    register_environment()
    return redact(str(text))


class Part(anywidget.AnyWidget):
    """A widget whose form is in `parts.js`, by its kind."""

    _esm = source()
    kind = traitlets.Unicode().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)

    @property
    def comm_id(self) -> str:
        """The id that the front end's messages to this widget carry."""
        return str(cast("Any", self).model_id)


class Said(Part):
    """A person's words, above the run that they began."""

    def __init__(self, text: str, who: str) -> None:
        shown, note = cut(clean(text), SAID_CHARS, has_all="the run")
        super().__init__(kind="said", state={"who": who, "text": f"{shown}\n{note}".rstrip("\n")})


class Box(Part):
    """The prompt box: takes what is typed, says what becomes of it."""

    _css = sheet("parts")

    def __init__(self, state: BoxState, hear: Callable[[Message], None]) -> None:
        """Show a box.

        Args:
            state: how it begins.
            hear: called with each message of the front end, in whichever thread it arrives.
        """
        self._hear = hear
        super().__init__(kind="box", state=state)
        self.on_msg(lambda _widget, content, _buffers: self.act(content))

    def act(self, content: object) -> None:
        """Take a message of the front end that came another way than the widget's own."""
        if isinstance(content, dict):
            self._hear(cast("Message", content))

    def taken(self, asked: str) -> None:
        """What was asked is under way: the box is emptied."""
        self.send({"kind": "taken", "id": asked})

    def refused(self, asked: str, prompt: str) -> None:
        """What was asked is not done: what was typed stays, also in a page that was reloaded."""
        self.send({"kind": "refused", "id": asked, "prompt": filtered(prompt)})

    def heard(self) -> None:
        """Somebody is there."""
        self.send({"kind": "here"})


class Field(ipywidgets.Text):
    """A line of text that never keeps a key, not even for the echo to other pages."""

    value = traitlets.Unicode("").tag(sync=True, echo_update=False)

    @traitlets.validate("value")
    def _filter(self, proposal: Any) -> str:
        return filtered(proposal["value"])


class ChoiceField(ipywidgets.Combobox):
    """A `Field` with suggestions."""

    value = traitlets.Unicode("").tag(sync=True, echo_update=False)

    @traitlets.validate("value")
    def _filter(self, proposal: Any) -> str:
        return filtered(proposal["value"])
