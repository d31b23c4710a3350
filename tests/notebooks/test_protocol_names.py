"""`protocol.ipynb`: each name of the protocol stands in a table, and each name beside it exists."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import pytest
from make_outputs import NOTEBOOKS

import nbagent
from nbagent.settings.options import RunOptions

CELLS: list[dict[str, Any]] = json.loads((NOTEBOOKS / "protocol.ipynb").read_text("utf-8"))["cells"]
TEXT = "\n".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
ROWS = [
    [column.strip() for column in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if line.startswith("| `") or re.match(r"\| [a-z]", line)
]
NAMES = sorted(
    {
        name
        for row in ROWS
        if row[:2] != ["protocol", "nbagent"]
        for name in re.findall("`([^`]+)`", row[1])
    }
)
TOOLS = {
    *("fs.read", "fs.search", "fs.list", "fs.write", "fs.apply_patch"),
    *("list_skills", "get_skill", "run_python_script"),
}
PARAMETERS = {*inspect.signature(nbagent.Agent.run).parameters, *RunOptions.rows(), "tools"}
PROTOCOL = re.findall(
    r"\S+",
    """
executeAgent success response iterations messages MAX_ITERATIONS buildSystemPrompt
processCriticalActions getToolDefinitions executeToolCall tool_choice on_tool_call SkillsRunner
LlmAdapter chatCompletions ToolHost getVisibleTools ExecutionEngine EngineResult phase assistantText
error EngineTurn toolRuns stopReason ENGINE_ABORTED ENGINE_LOOP_DETECTED maxTurns isWorkflowComplete
LLM_AUTH_FAILED LLM_TIMEOUT LLM_RATE_LIMITED LLM_HTTP_ERROR LLM_BAD_RESPONSE UNKNOWN
ENOENT E_SANDBOX_VIOLATION E_READ_LIMIT E_WRITE_LIMIT E_INVALID_FRONTMATTER E_SCHEMA_VALIDATION
E_INVALID_TRANSITION E_PRECONDITION_FAILED E_INTERNAL
ChatRequest ChatResponse Message ToolDefinition ToolCall ToolResult ChatStreamChunk TokenUsage
LLMClient chatStream listModels ProviderConfig LLMError content toolCalls thinking finishReason
temperature thinkingBudget signal SystemToolPolicy PromptComposer
RUN_DIRECTIVE NODE_BRIEF USER_INPUT autopilot intent @project @pkg @state updateFrontmatter
FsReadResult fs.read fs.search fs.list fs.write fs.apply_patch
list_skills get_skill run_python_script LLM_API_KEY
ExecutionResult apiKey baseUrl organizationId projectId defaultModel headers FinishReason
MessageRole
ParameterDefinition toolCallDelta promptTokens completionTokens totalTokens cachedTokens RunPhase
LlmAdapterConfig LlmAdapterResult LlmAdapterError argumentsJson packageId projectRoot runId
phaseBefore uiAfter toolName durationMs UpdateFrontmatterOperation updatedAt ifMatchSha256
OpenAIChatMessage ChatCompletionsRequest FsSearchResult FsListResult FsWriteResult
FsApplyPatchResult maxRetries execute_tool
""",
)


def exists(name: str) -> bool:
    """True if a name of the right column can be used as it is written."""
    if name.endswith("="):
        return name[:-1] in PARAMETERS
    if name.startswith("tools="):
        return True
    head, *path = name.split(".")
    if head != "nbagent":
        return name in TOOLS or name.startswith("%%agent --")
    value: Any = nbagent
    for part in path:
        fields = getattr(value, "model_fields", {}), getattr(value, "__dataclass_fields__", {})
        if any(part in names for names in fields):
            return part == path[-1]
        is_class = inspect.isclass(value)
        value = (
            inspect.getattr_static(value, part, None) if is_class else getattr(value, part, None)
        )
        if value is None:
            return False
    return bool(path)


@pytest.mark.parametrize("name", NAMES)
def test_each_name_beside_the_protocol_exists(name: str) -> None:
    assert exists(name)


def test_a_name_that_does_not_exist_is_found_out() -> None:
    wrong = ("nbagent.Nothing", "nbagent.Run.nothing", "nothing=", "fs.nothing", "nbagent")
    assert not any(map(exists, wrong))
    assert len(NAMES) > 50


@pytest.mark.parametrize("name", PROTOCOL)
def test_each_name_of_the_protocol_stands_in_the_left_column(name: str) -> None:
    assert any(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", row[0]) for row in ROWS)
