"""Parameters that a server refused: left out or changed from then on, per server and model.

Only remembers and applies; the adapter tells the person (`dropped_params`, a notice).
"""

from __future__ import annotations

import re
from typing import Any

from nbagent.contracts.errors import ModelError

_FIXED = frozenset({"model", "stream"})
_REFUSED = re.compile(
    r"unsupport|not support|unrecogni[sz]ed|unknown|unexpected|extra_forbidden|extra inputs"
    r"|extra fields|not permitted|not allowed|not accept|unavailable|deprecated",
    re.I,
)
_TWINS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
_MOST_KNOWN = 256


class Refusals:
    """What one model on one server does not take."""

    def __init__(self) -> None:
        self._dropped: set[str] = set()
        self._renamed: dict[str, str] = {}
        self._no_effort_with_tools = False

    @staticmethod
    def of(base_url: str, model: str) -> Refusals:
        """What this process has learnt about this model."""
        key = (base_url, model)
        if key not in _known and len(_known) >= _MOST_KNOWN:
            del _known[next(iter(_known))]
        return _known.setdefault(key, Refusals())

    def apply(self, params: dict[str, Any], *, tools: bool) -> tuple[str, ...]:
        """Change the parameters in place; returns the names that are not sent as asked."""
        changed: list[str] = []
        for name, twin in self._renamed.items():
            if name in params:
                params[twin] = params.pop(name)
        for name in self._dropped & params.keys():
            del params[name]
            changed.append(name)
        if self._no_effort_with_tools and tools and params.get("reasoning_effort") != "none":
            params["reasoning_effort"] = "none"
            changed.append("reasoning_effort")
        return tuple(sorted(changed))

    def learn(self, error: ModelError, params: dict[str, Any], *, tools: bool) -> str | None:
        """Draw a lesson from a 400: what will be done differently, or None if there is none.

        Args:
            params: what was sent, after `apply`.
        """
        if error.status not in (400, 422) or error.code != "LLM_HTTP_ERROR":
            return None
        name = self._named(error, params)
        if self._is_effort_rule(error, name) and tools:
            if params.get("reasoning_effort") == "none":
                return None
            self._no_effort_with_tools = True
            return "reasoning_effort was set to none: this model takes tools only without reasoning"
        if name is None or name not in params or not _REFUSED.search(error.message):
            return None
        twin = _TWINS.get(name)
        if twin and name not in self._renamed.values():
            self._renamed[name] = twin
            return f"{name} is sent as {twin}: the server refused it under the first name"
        self._dropped.add(name)
        return f"{name} was left out: the server refused it"

    @staticmethod
    def _named(error: ModelError, params: dict[str, Any]) -> str | None:
        param = re.split(r"[.\[]", str(error.details.get("param") or ""))[0]
        if param:
            return param
        names = sorted(params.keys() - _FIXED, key=len, reverse=True)
        for name in names:
            if re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", error.message):
                return name
        return None

    @staticmethod
    def _is_effort_rule(error: ModelError, name: str | None) -> bool:
        # OpenAI, gpt-5.5 and later: 400, param reasoning_effort, "use /v1/responses instead".
        return name == "reasoning_effort" and "/v1/responses" in error.message


_known: dict[tuple[str, str], Refusals] = {}
