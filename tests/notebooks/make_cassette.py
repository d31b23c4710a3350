"""Makes the requests of notebooks/providers.jsonl anew: those that providers.ipynb asks today.

`python tests/notebooks/make_cassette.py`, then `make_outputs.py`.

No provider is asked. The answers were written by hand and stay as they stand in the file: each
model gives its own in their order, in place of its server, while the notebook runs in mode `auto`.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import AsyncGenerator
from pathlib import Path

from make_outputs import NOTEBOOKS, executed

NOTEBOOK = NOTEBOOKS / "providers.ipynb"
CASSETTE = NOTEBOOKS / "providers.jsonl"
KEYS = (
    *("OPENAI", "AZURE_OPENAI", "ANTHROPIC", "GEMINI", "DEEPSEEK", "OPENROUTER", "GROQ"),
    *("MISTRAL", "LLM"),
)


def install() -> None:
    """In the notebook's kernel: nothing is sent from now on, and each provider has a key."""
    import os

    from nbagent.contracts.chat import ChatChunk, ChatRequest, ChatResponse
    from nbagent.providers.exchange import WireClient
    from nbagent.providers.offline.stream import response_chunks
    from nbagent.providers.replay import Cassette

    os.environ.update({f"{name}_API_KEY": "never-sent-anywhere" for name in KEYS})
    answers: defaultdict[tuple[str, str], list[ChatResponse]] = defaultdict(list)
    for _, one in Cassette(CASSETTE).newest(1_000):
        answers[one.request.provider, one.request.model].append(one.response)

    async def chat_stream(self: WireClient, request: ChatRequest) -> AsyncGenerator[ChatChunk]:
        for chunk in response_chunks(answers[self.provider, request.model].pop(0)):
            yield chunk

    WireClient.chat_stream = chat_stream


def make(cassette: Path) -> None:
    """Run the notebook in mode `auto`, and keep what it records."""

    def records(source: str) -> str:
        here = str(Path(__file__).parent)
        first = f"import sys; sys.path.insert(0, {here!r})\n"
        first += "from make_cassette import install; install()\n"
        source = source.replace('cache="replay"', 'cache="auto"')
        return source.replace("%load_ext nbagent", f"{first}%load_ext nbagent")

    with tempfile.TemporaryDirectory() as folder:
        executed(NOTEBOOK, Path(folder), change=records)
        text = (Path(folder) / cassette.name).read_text("utf-8")
    made, written = text.count("\n"), CASSETTE.read_text("utf-8").count("\n")
    if made != written:
        raise SystemExit(f"{made} answers were recorded, {written} are written; look why")
    cassette.write_text(text, "utf-8")
    print(f"{cassette.name}: {made} answers, {len(text):,} bytes")


if __name__ == "__main__":
    make(CASSETTE)
