"""A server's fault as a cell shows it: one readable line, an output that counts as an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from magic_shell import MagicShell
from servers.dialects import DIALECTS
from servers.hostile_bodies import TABLES
from servers.hostile_server import HostileServer

_MODELS = {wire.name: wire.model for wire in DIALECTS}
_SHOWN = [
    *(("chat", name) for name in ("401", "400 lines and controls", "web page", "too deep")),
    *(("chat", name) for name in ("reset after the first token", "silence after a part")),
    ("anthropic", "inside: Anthropic: overloaded"),
    ("google", "error: Gemini: day"),
]


@pytest.fixture
def server() -> Iterator[HostileServer]:
    faults = {str(n): TABLES[wire][name].serve for n, (wire, name) in enumerate(_SHOWN)}
    with HostileServer(faults) as running:
        yield running


@pytest.mark.parametrize(("wire", "name"), _SHOWN)
def test_a_fault_is_one_line_in_its_cell_and_the_next_cell_works(
    shell: MagicShell,
    server: HostileServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    wire: str,
    name: str,
) -> None:
    monkeypatch.setenv("HOSTILE_KEY", "sk-hostile-0123456789abcdefghij")
    asked = f"--model {_MODELS[wire]} --key-variable HOSTILE_KEY"
    case = TABLES[wire][name]
    url = server.url(str(_SHOWN.index((wire, name))))
    error = shell.refused(f"%%agent {asked} --base-url {url} --timeout 0.7", "Hello?")
    assert error.code == case.code
    (line,) = error._render_traceback_()  # pyright: ignore[reportPrivateUsage]
    assert line.isprintable()
    assert line.startswith(f"{case.code}: ")
    assert 'File "' not in capsys.readouterr().out
    assert shell.user_ns["_run"].turns[0].text == case.text
    fine = shell.agent(f"{asked} --base-url {server.url('good')} --timeout 10")
    assert fine.text == "fine"
