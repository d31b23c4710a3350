"""Separate `<think>…</think>` from the answer, also if a tag arrives in pieces.

Splits text only; which servers need it is in their profiles and wires.
"""

from __future__ import annotations

_TAGS = {
    "<think>": "</think>",  # Qwen, DeepSeek and most others.
    "<thinking>": "</thinking>",  # Some fine-tunes.
    "<thought>": "</thought>",  # Gemini behind its OpenAI-compatible URL.
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",  # Seed-OSS
    "[THINK]": "[/THINK]",  # Magistral
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command A
    "◁think▷": "◁/think▷",  # Kimi-VL
}
_MAX_PENDING_CHARS = 200
"""Spaces held back at most, because a closing tag may follow; reasoning is shown without them."""
_MAX_INDENTATION_CHARS = 200
"""Of the first line; a flood of spaces before it is no indentation."""


def last_indentation(blank: str) -> str:
    """Return the spaces after the last newline of a blank text."""
    return blank[blank.rfind("\n") + 1 :][:_MAX_INDENTATION_CHARS]


class ThinkTags:
    """Splits `<think>…</think>` off the beginning of an answer while it arrives.

    For servers that leave a model's reasoning in its text (vLLM without `--reasoning-parser`, LM
    Studio by default). A tag anywhere else is text: the answer may talk about such tags.

    Args:
        over: True if nothing is split.
    """

    def __init__(self, *, over: bool) -> None:
        self.done = over
        """Nothing is split any more."""
        self.closed = False
        """A closing tag has come."""
        self._closing = ""
        self._raw: list[str] = []
        self._pending = ""
        self._at_start = True

    @property
    def unclosed(self) -> str:
        """Text from an opening tag that is not closed yet; else empty."""
        return "" if self.done else "".join(self._raw)

    def feed(self, piece: str) -> tuple[str, str]:
        """Take a piece of text; return new reasoning and new text. Call it until `done`."""
        text = self._pending + piece
        if self._closing:
            self._raw.append(piece)
            return self._split_reasoning(text)
        stripped = text.lstrip()
        for tag, closing in _TAGS.items():
            if stripped.startswith(tag):
                self._closing = closing
                self._raw.append(stripped)
                return self._split_reasoning(stripped[len(tag) :])
        if any(tag.startswith(stripped) for tag in _TAGS):
            self._pending = last_indentation(text[: len(text) - len(stripped)]) + stripped
            return "", ""
        self._pending, self.done = "", True
        return "", text

    def flush(self) -> tuple[str, str]:
        """Return the reasoning and the text held back, at the end of the answer."""
        pending, self._pending, self.done = self._pending, "", True
        return (pending.rstrip(), "") if self._closing else ("", pending)

    def _split_reasoning(self, text: str) -> tuple[str, str]:
        end, rest = text.find(self._closing), ""
        if end >= 0:
            shown, rest = text[:end].rstrip(), text[end + len(self._closing) :]
            self._pending, self.done, self.closed = "", True, True
        else:
            # The last characters may be the start of the closing tag.
            begun = max(n for n in range(len(self._closing)) if text.endswith(self._closing[:n]))
            shown = text[: len(text) - begun]
            if len(text) - len(shown.rstrip()) <= _MAX_PENDING_CHARS:
                shown = shown.rstrip()
            self._pending = text[len(shown) :]
        if self._at_start:
            shown = shown.lstrip()
            self._at_start = not shown
        return shown, rest
