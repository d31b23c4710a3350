"""An output with a live view: one widget, the pages' messages, and the saved picture at the end.

Runs, batches and reviews are shown in it. The folder `page` is the part in the page.
"""

# ipywidgets and anywidget have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import anywidget
import traitlets

from nbagent.notebook import comms
from nbagent.notebook.live_updates import Shown
from nbagent.notebook.messages import Message, read_message
from nbagent.notebook.outputs import Output
from nbagent.notebook.page_module import script, stylesheet
from nbagent.notebook.page_proof import FinalDisplay
from nbagent.view.node import Node

_MAX_KEPT_VIEWS = 3
"""Replaced views whose widget stays open, since a reloaded page may show them again."""


@dataclass(frozen=True, slots=True, eq=False)
class _ReplacedView:
    """A live view that was replaced by a saved picture."""

    output: Output
    widget: LiveWidget


_replaced: list[_ReplacedView] = []


class LiveWidget(anywidget.AnyWidget):
    """Widget of a live view. While it changes, only ops are sent; a newly loaded page gets all."""

    _esm = script()
    _css = stylesheet()
    kind = traitlets.Unicode("run").tag(sync=True)
    pictures = traitlets.List().tag(sync=True)

    def __init__(self, pictures: Callable[[], list[Node]]) -> None:
        """Show the present pictures, which `pictures` draws. It is called from any thread."""
        self._current_pictures = pictures
        super().__init__(pictures=pictures())

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """Return the state for a page, always with the present pictures."""
        # Bypass the trait: its notification would send the pictures a second time.
        if key is None or "pictures" in key:
            self._trait_values["pictures"] = self._current_pictures()
        return cast("dict[str, Any]", super().get_state(key, drop_defaults))


def comm_id(widget: object) -> str:
    """Return the id of a widget's comm."""
    return str(cast("Any", widget).model_id)


def listen(widget: Any, on_message: Callable[[object], object]) -> None:
    """Hand what a page says to `on_message`, also while a cell runs; see `comms.register`."""
    widget.on_msg(lambda _widget, content, _buffers: on_message(content))
    comms.register(comm_id(widget), on_message)


class LiveOutput:
    """One output in which pages show something live, until its saved picture replaces it."""

    def __init__(
        self,
        output: Output,
        shown: Shown,
        *,
        above: int = 0,
        widget: type[LiveWidget] = LiveWidget,
    ) -> None:
        """Show it below the output's first parts; `show` displays it.

        Args:
            output: the output.
            shown: what pages show.
            above: number of the output's parts that are drawn above it.
            widget: class of the widget, with the code that its page needs.
        """
        self.output, self.shown, self.above = output, shown, above
        self.display = FinalDisplay(output)
        """Brings the end to the front end."""
        self.widget = widget(lambda: [*output.nodes(above), shown.picture()])
        shown.updates.send = self.send
        listen(self.widget, self.on_message)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the pages. Any thread."""
        self.widget.send(message)

    def show(self, html: str, text: str, metadata: Mapping[str, Any] | None = None) -> None:
        """Display the widget, or change what a file that is saved now has beside it.

        Args:
            html: the present picture, without buttons.
            text: the same in one line.
            metadata: of the output.
        """
        if self.output.is_shown and not self.display.may_update:
            return
        model = "" if self.display.shows_no_widgets else comm_id(self.widget)
        show_live = partial(self.output.show_live, model, html=html, text=text, metadata=metadata)
        self.output.context.copy().run(show_live)

    def on_message(self, content: object) -> None:
        """Handle what a page says. Any thread, untrusted."""
        message = read_message(content)
        if message is None:
            return
        if message.kind in ("ready", "closed"):
            if message.run in ("", self.shown.key):
                self._on_page(message)
        else:
            self.shown.on_message(message)

    def _on_page(self, message: Message) -> None:
        # Without a page it is a model that no output shows, such as that of an untrusted notebook.
        if message.page == "":
            return
        if message.kind == "ready":
            self.display.page_ready(message.page)
            self.shown.on_pages(True)
            self.shown.updates.page_ready(message.page)
            if self.display.is_below:
                self._hide_if_below()
        else:
            self.display.page_closed(message.page, message.tab)
            self.shown.on_pages(self.display.has_open_page)

    def end(self, show_saved: Callable[[], object]) -> None:
        """Replace the widget by the saved picture, which `show_saved` displays. On the loop."""
        self.display.end(partial(self._show_end, show_saved))

    def _show_end(self, show_saved: Callable[[], object]) -> None:
        if self.display.is_below:
            self._hide_if_below()
        show_saved()
        retire(self.output, self.widget)

    def _hide_if_below(self) -> None:
        """Let a page that did not apply the update hide its view: the end is shown below it."""
        with suppress(Exception):
            self.widget.send({"below": self.output.id})


def retire(output: Output, widget: LiveWidget) -> None:
    """Retire a live view that was replaced by a saved picture."""
    if any(view.widget is widget for view in _replaced):
        return  # its end was shown a second time, below
    # Keep the model open for a while: a reloaded page asks for it.
    _replaced.append(_ReplacedView(output, widget))
    # In a box no saved picture arrives: the page keeps showing the widget.
    spare = [view for view in _replaced if not view.output.is_boxed]
    for view in spare[:-_MAX_KEPT_VIEWS]:
        _close(view)


def close_views(run_id: str) -> None:
    """Close replaced views of a deleted run: their widget models still hold its pictures."""
    for view in [view for view in _replaced if any(run_id in part for part in view.output.parts)]:
        _close(view)


def _close(view: _ReplacedView) -> None:
    _replaced.remove(view)
    comms.unregister(comm_id(view.widget))
    view.widget.close()
