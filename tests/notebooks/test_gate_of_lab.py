"""The gate of lab.ipynb, as a forge runs it: committed files, without a store, a key, a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kernels import clean_environment
from make_outputs import beside


# nbval runs the committed gate, too: it is a cell of lab.ipynb.
@pytest.mark.parametrize(
    ("prompt", "exit_code", "words"),
    [
        pytest.param(
            "V2", 1, "m35  exact 1 → 0           198.76\n\nand 16 more rows", id="a weaker prompt"
        ),
        pytest.param("V3", 0, "exact not worse", id="as committed", marks=pytest.mark.proof),
        pytest.param(
            'f"{V3} Please."', 1, "60 of 60 cases", id="not recorded", marks=pytest.mark.proof
        ),
    ],
)
def test_gate_is_green_until_the_prompt_gets_worse(
    prompt: str, exit_code: int, words: str, tmp_path: Path
) -> None:
    beside(tmp_path)
    gate = tmp_path / "gate.py"
    text = gate.read_text("utf-8")
    assert "system=V3," in text
    changed = text.replace("import V3", "import V2, V3").replace("system=V3", f"system={prompt}")
    gate.write_text(changed, "utf-8")
    environment = clean_environment(tmp_path)
    del environment["NBAGENT_HOME"]
    done = subprocess.run(
        [sys.executable, "-m", "nbagent", "check", "gate.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == exit_code, f"{done.stdout}\n{done.stderr}"
    assert words in done.stdout
