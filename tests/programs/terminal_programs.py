"""Programs that a person types into, each in a pseudo terminal; and a window of qtconsole."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pexpect
from environments import Environment
from notebook_tools import AREA

AREA_TOOLS = f"""
import os, time
import nbagent

{AREA}

@nbagent.tool
def nap(city: str) -> str:
    "Nap in a city, until somebody wakes it."
    for _ in range(3000):
        if os.path.exists("wake"):
            os.remove("wake")
            return "was woken"
        time.sleep(0.02)
    return "slept"
"""
"""Module `area_tools` beside the program."""
BEGIN, END = "<<<<", ">>>>"
"""Marks around the text of qtconsole's window; see `qtconsole_window`."""
_WHERE_IS_THE_CURSOR, _CURSOR_IS_HERE = "\x1b[6n", "\x1b[1;1R"
_CONTROLS = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()].|[\r\x07\x08]"
)


def agent_cell(options: str, prompt: str) -> str:
    """A cell of one line that runs an agent: no program has to understand an open block."""
    return f'get_ipython().run_cell_magic("agent", "-m offline:demo {options}", "{prompt}")'


class Terminal:
    """A program at work; everything that it ever wrote can be waited for."""

    def __init__(self, made: Environment, *command: str, wait_s: float = 30, **more: str) -> None:
        (made.work / "area_tools.py").write_text(AREA_TOOLS, "utf-8")
        self.work = made.work
        self._child: Any = pexpect.spawn(
            str(made.scripts / command[0]),
            [*command[1:]],
            env=made.environ(**more),
            cwd=str(made.work),
            encoding="utf-8",
            codec_errors="replace",
            dimensions=(60, 160),
            timeout=wait_s,
        )
        self._text = ""
        self._position = 0
        """Position in `text` behind what was waited for."""
        self._n_cells = 0

    @property
    def text(self) -> str:
        """What it wrote, without control characters."""
        return _CONTROLS.sub("", self._text)

    def run(self, code: str) -> None:
        """Type a cell of one line."""
        self._child.send(f"{code}\r")

    def answer(self, text: str) -> None:
        """Type the answer to a question."""
        self._child.send(f"{text}\r")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._child.sendintr()

    @contextmanager
    def cell(self, code: str) -> Generator[None]:
        """Run a cell of one line at the next prompt, and wait until it is over."""
        self._n_cells += 1
        self.wait_for(rf"In \[{self._n_cells}\]:")
        self.run(code)
        yield
        self.wait_for(rf"In \[{self._n_cells + 1}\]:", moves=False)

    def wait_for(self, pattern: str, *, moves: bool = True) -> None:
        """Wait until it has written a pattern, behind what was waited for before."""
        end = time.monotonic() + self._child.timeout
        while True:
            if match := re.compile(pattern).search(self.text, self._position):
                self._position = match.end() if moves else self._position
                return
            try:
                left_s = max(0.0, end - time.monotonic())
                self._read(left_s)
            except (pexpect.TIMEOUT, pexpect.EOF) as error:
                message = f"{pattern!r} was not written:\n{self.text[self._position :]}"
                raise AssertionError(message) from error

    def _read(self, within_s: float) -> None:
        piece = self._child.read_nonblocking(65536, timeout=within_s)
        self._text += piece
        # A program that asks where the cursor is waits for the answer of its terminal.
        self._child.send(_CURSOR_IS_HERE * piece.count(_WHERE_IS_THE_CURSOR))

    def wake(self) -> None:
        """End the nap of the tool."""
        Path(self.work, "wake").touch()

    def close(self) -> None:
        """End the program."""
        self._child.close(force=True)


class Euporie(Terminal):
    """The console of euporie. It writes what has changed of its screen: of a prompt its number."""

    @contextmanager
    def cell(self, code: str) -> Generator[None]:
        """Run a cell, and wait until it has printed that it is over."""
        self._n_cells += 1
        if self._n_cells == 1:
            self.wait_for(r"In \[1\]:")
        begin = self._position
        self.run(f"{code}; print('end of', {self._n_cells})")
        yield
        end, self._position = self._position, begin
        self.wait_for(f"end of {self._n_cells}")
        # An answer is shown after what its cell prints.
        self._position = max(end, self._position)


class QtWindow(Terminal):
    """A window of qtconsole, without a screen. Its text is read from its widget."""

    def __init__(self, made: Environment, **how: Any) -> None:
        driver = str(Path(__file__).with_name("qtconsole_window.py"))
        super().__init__(made, "python", driver, QT_QPA_PLATFORM="offscreen", **how)
        self._child.setecho(False)

    @property
    def text(self) -> str:
        whole = self._text.rpartition(END)[0]
        return whole.rpartition(BEGIN)[2].replace("\r\n", "\n").replace("\u2029", "\n")

    def _say(self, *command: str) -> None:
        self._child.sendline(json.dumps(command))

    def run(self, code: str) -> None:
        self._say("run", code)

    def answer(self, text: str) -> None:
        self._say("answer", text)

    def interrupt(self) -> None:
        self._say("interrupt")

    def close(self) -> None:
        self._say("end")
        self._child.expect(pexpect.EOF)
        super().close()
