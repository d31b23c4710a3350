"""A server in a package of its own: one row, with a wire of nbagent."""

from __future__ import annotations

from nbagent.providers.keys import KeyHeader
from nbagent.providers.server_row import Server
from nbagent.providers.server_wires import chat_wires
from nbagent.providers.wires.chat_profiles import Profile

SERVER = Server(
    name="rowserver",
    wires=chat_wires,
    default_base_url="https://row.example.org/llm/v3",
    key_variables=("ROWSERVER_TOKEN",),
    base_url_variables=("ROWSERVER_URL",),
    key_header=KeyHeader("X-Row-Token", "Token "),
    default_model="row-1",
    price_name="openai",
    telemetry_name="row.server",
    quirks=Profile(
        max_tokens_field="max_completion_tokens",
        effort_style="thinking",
        accepts_schema=False,
        schema_mode="never",
        asks_for_usage=False,
    ),
)
