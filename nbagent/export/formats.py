"""The formats that a run can be exported in: one table, read by Python, magic, shell and panel.

A new format is one row here. Renderers are imported when a row is used: the shell and the
completion of a line read only the names, and must not load what draws or encodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbagent.contracts.messages import Message
    from nbagent.contracts.records import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSource:
    """The run to export. Known secrets are already hidden in it."""

    record: RunRecord
    load_messages: Callable[[], Sequence[Message]]
    """Load the whole conversation, the part of earlier runs included."""
    content: bool = False
    """Spans contain messages, arguments and results."""
    is_own: bool = True
    """The run is in the store of this project, so a cell can refer to its parent by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    """One row of the table."""

    title: str
    ending: str
    """Ending of a file's name, without the first dot."""
    render: Callable[[ExportSource], str]
    in_panel: bool = False
    """The panel has a button for it."""


def _markdown(source: ExportSource) -> str:
    from nbagent.export.documents import markdown_document

    return markdown_document(source.record)


def _html(source: ExportSource) -> str:
    from nbagent.export.documents import html_document

    return html_document(source.record)


def _json_lines(source: ExportSource) -> str:
    from nbagent.export.json_lines import json_lines

    return json_lines(source.record)


def _fine_tuning(source: ExportSource) -> str:
    from nbagent.export.fine_tuning import training_line

    record = source.record
    # The last turn has the prompt and tools under which the last answer was given.
    request = record.turns[-1].request if record.turns else None
    system = record.system_prompts.get(request.system_sha, "") if request else ""
    tools = record.toolsets.get(request.toolset_sha, ()) if request else ()
    return training_line(source.load_messages(), system, tools)


def _cell(source: ExportSource) -> str:
    from nbagent.export.cell import cell_text

    return cell_text(source.record, is_own=source.is_own)


def _otel(source: ExportSource) -> str:
    from nbagent.export.otel import otlp_json, spans_of

    messages = source.load_messages() if source.content else None
    return otlp_json(source.record, spans_of(source.record, messages))


FORMATS: dict[str, ExportFormat] = {
    "md": ExportFormat(title="Markdown", ending="md", render=_markdown, in_panel=True),
    "html": ExportFormat(title="HTML", ending="html", render=_html, in_panel=True),
    "jsonl": ExportFormat(title="JSON Lines", ending="jsonl", render=_json_lines, in_panel=True),
    "openai": ExportFormat(
        title="Fine-tuning", ending="openai.jsonl", render=_fine_tuning, in_panel=True
    ),
    "cell": ExportFormat(title="%%agent cell", ending="py", render=_cell),
    "otel": ExportFormat(title="OpenTelemetry", ending="otlp.json", render=_otel),
}
