"""Makes the cassettes of notebooks/ anew: the requests that their notebooks ask today.

`python tests/notebooks/make_cassette.py [providers] [lab]`, then `make_outputs.py`. With `lab` the
baseline of its gate is made anew, too.

No provider is asked: while the notebook runs in mode `auto`, something else answers in place of the
servers. For `providers` these are the answers that stand in the file, which were written by hand;
each model gives its own in their order. For `lab` it is the program `refund_model`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from make_outputs import NOTEBOOKS, beside, clean_environment, executed

from nbagent.contracts.model import ChatRequest, ChatResponse

KEYS = (
    *("OPENAI", "AZURE_OPENAI", "ANTHROPIC", "GEMINI", "DEEPSEEK", "OPENROUTER", "GROQ"),
    *("MISTRAL", "LLM"),
)


def by_hand() -> Callable[[str, ChatRequest], ChatResponse]:
    """The answers of providers.jsonl, in their order."""
    from nbagent.providers.cassette.file import Cassette

    answers: defaultdict[tuple[str, str], list[ChatResponse]] = defaultdict(list)
    for _, one in Cassette(NOTEBOOKS / "providers.jsonl").newest(1_000):
        answers[one.request.provider, one.request.model].append(one.response)
    return lambda provider, request: answers[provider, request.model].pop(0)


def by_program() -> Callable[[str, ChatRequest], ChatResponse]:
    """Answers for the models of lab.ipynb."""
    import refund_model

    return lambda provider, request: refund_model.answer(request)


ANSWERS = {"providers": by_hand, "lab": by_program}
"""By notebook and cassette, who answers in place of the servers."""


def install(name: str) -> None:
    """In the notebook's kernel: nothing is sent from now on, and each provider has a key."""
    import os

    from nbagent.contracts.deltas import Delta
    from nbagent.providers.client import WireClient
    from nbagent.providers.offline.stream import response_deltas

    os.environ.update({f"{key}_API_KEY": "never-sent-anywhere" for key in KEYS})
    answer = ANSWERS[name]()

    async def send(
        self: WireClient, request: ChatRequest, *, stream: bool
    ) -> AsyncGenerator[Delta]:
        for delta in response_deltas(answer(self.provider, request)):
            yield delta

    WireClient.send = send


def make(name: str, folder: Path) -> Path:
    """Run the notebook in mode `auto` in a folder, and keep what it records there."""

    def records(source: str) -> str:
        here = str(Path(__file__).parent)
        first = f"import sys; sys.path.insert(0, {here!r})\n"
        first += f"from make_cassette import install; install({name!r})\n"
        source = source.replace('cache="replay"', 'cache="auto"')
        return source.replace("%load_ext nbagent", f"{first}%load_ext nbagent")

    beside(folder, cassettes=False)
    executed(NOTEBOOKS / f"{name}.ipynb", folder, change=records)
    made = folder / f"{name}.jsonl"
    lines = made.read_bytes().splitlines(keepends=True)
    if name == "lab":  # asked side by side, so in any order
        made.write_bytes(b"".join(sorted(lines)))
    elif len(lines) != (NOTEBOOKS / made.name).read_bytes().count(b"\n"):
        raise SystemExit(f"{len(lines)} answers were recorded, others are written; look why")
    print(f"{made.name}: {len(lines)} answers, {made.stat().st_size:,} bytes")
    return made


_SAVE = "import runpy; runpy.run_path('gate.py')['batch'].wait().save('baseline.json')"


def make_baseline(folder: Path) -> Path:
    """Ask the batch of gate.py, from the cassette, and save it as its baseline."""
    beside(folder)
    environment = clean_environment(folder)
    subprocess.run([sys.executable, "-c", _SAVE], cwd=folder, env=environment, check=True)
    return folder / "baseline.json"


if __name__ == "__main__":
    for one in sys.argv[1:] or ANSWERS:
        with tempfile.TemporaryDirectory() as place:
            made_anew = make(one, Path(place)).read_bytes()
        (NOTEBOOKS / f"{one}.jsonl").write_bytes(made_anew)
        if one == "lab":
            with tempfile.TemporaryDirectory() as place:
                baseline = make_baseline(Path(place)).read_bytes()
            (NOTEBOOKS / "baseline.json").write_bytes(baseline)
