"""What a streamed run costs on a real kernel's iopub: messages and bytes, no browser."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernels import LiveKernel
from servers.model_server import ModelServer, Reply

# jupyter_client's methods have no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

TEXT_CHARS = 37_000
DELTAS = 10_000
MOST_MESSAGES = 500
MOST_BYTES = 400_000
OPENING_BYTES = 42_000
"""The view's code and style, once for each run."""
SECONDS = 20
"""10,000 deltas at 500 a second."""


class Traffic:
    """What came on iopub while one cell ran."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes: Counter[str] = Counter()
        """By the type of the message."""
        self.last: dict[str, Any] = {}
        """The last message of each type."""
        self.seconds = 0.0


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[LiveKernel]:
    """A kernel with nbagent loaded. The client answers `input()`, as a front end does."""
    started = LiveKernel(tmp_path)
    started.run("%load_ext nbagent\nimport nbagent, nbagent.notebook.surface")
    yield started
    started.close()


def watched(kernel: LiveKernel, code: str) -> Traffic:
    """Run a cell and weigh every message on iopub until it is idle."""
    client = kernel.client
    traffic = Traffic()
    began = time.monotonic()
    cell = kernel.send(code, stdin=True)
    while True:
        # As it is on the wire: jupyter_client's own reading drops the sizes.
        frames: list[Any] = client.iopub_channel.socket.recv_multipart()
        _, parts = client.session.feed_identities(frames)
        message: Any = client.session.deserialize(parts)
        kind = str(message["msg_type"])
        traffic.messages += 1
        traffic.bytes[kind] += sum(len(part) for part in parts)
        traffic.last[kind] = message["content"]
        if message["parent_header"].get("msg_id") != cell:
            continue
        assert kind != "error", message["content"]
        if kind == "status" and message["content"]["execution_state"] == "idle":
            traffic.seconds = time.monotonic() - began
            return traffic


@pytest.mark.parametrize(
    "part",
    [pytest.param(0.2, id="a-fifth"), pytest.param(1.0, id="whole", marks=pytest.mark.proof)],
)
def test_ten_thousand_deltas_stay_within_their_messages_and_bytes(
    part: float, kernel: LiveKernel, figures: list[str]
) -> None:
    word = "word of it. "
    text = (word * (TEXT_CHARS // len(word)))[: int(TEXT_CHARS * part)]
    deltas = int(DELTAS * part)
    with ModelServer([Reply(text=text, deltas=deltas, between_s=0.0015)]) as server:
        cell = f"%%agent --model openai:little --base-url {server.url} --tools none\nTalk"
        traffic = watched(kernel, cell)
    opening, swap = traffic.bytes["comm_open"], traffic.bytes["update_display_data"]
    streaming = traffic.bytes.total() - opening - swap
    figures.append(
        f"iopub  {deltas:,} deltas in {traffic.seconds:.1f} s: {traffic.messages} messages; "
        f"opening {opening / 1e6:.3f}, streaming {streaming / 1e6:.3f}, swap {swap / 1e6:.3f} MB"
    )
    assert text.strip() in traffic.last["update_display_data"]["data"]["text/plain"]
    # What streams goes with the seconds that a busy machine takes; the goals are for 20 s.
    share = max(part, traffic.seconds / SECONDS)
    assert traffic.messages <= MOST_MESSAGES * share + 20
    assert streaming <= (MOST_BYTES - OPENING_BYTES) * share
    assert opening <= OPENING_BYTES
    # Three forms and the record, each with the text once, and the style sheet.
    assert swap <= 5 * len(text) + OPENING_BYTES
