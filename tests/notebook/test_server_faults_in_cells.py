"""A server's fault as a cell shows it: one readable line, an output that counts as an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from magic_shell import MagicShell
from servers.hostile_bodies import BODIES, ERROR_OBJECTS
from servers.hostile_cases import CUT, FRAMING, SILENCES, STATUSES, Case
from servers.hostile_server import HostileServer

_TABLE: dict[str, Case] = {**STATUSES, **FRAMING, **BODIES, **ERROR_OBJECTS, **CUT, **SILENCES}
_SHOWN = [
    "401",
    "404",
    "429 for 1e9 s",
    "400 lines and controls",
    "307 to another host",
    "binary garbage",
    "web page",
    "too deep",
    "error object: overloaded",
    "reset after the first token",
    "silence after a part",
]


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with HostileServer({str(n): _TABLE[name].serve for n, name in enumerate(_SHOWN)}) as running:
        yield running


@pytest.mark.parametrize("name", _SHOWN)
def test_a_fault_is_one_line_in_its_cell_and_the_next_cell_works(
    shell: MagicShell, server: HostileServer, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    case = _TABLE[name]
    url = server.url(str(_SHOWN.index(name)))
    error = shell.refused(f"%%agent --model openai:m --base-url {url} --timeout 0.7", "Hello?")
    assert error.code == case.code
    (line,) = error._render_traceback_()  # pyright: ignore[reportPrivateUsage]
    assert line.isprintable()
    assert line.startswith(f"{case.code}: ")
    assert 'File "' not in capsys.readouterr().out
    assert shell.user_ns["_run"].turns[0].text == case.text
    fine = shell.agent(f"--model openai:m --base-url {server.url('good')} --timeout 10")
    assert fine.text == "fine"
