"""Separates `<think>…</think>` in a text from the answer, also where a tag arrives in pieces."""

from __future__ import annotations

_OPENING = ("<think>", "<thinking>", "<thought>")
"""Qwen, DeepSeek and most others; some fine-tunes; Gemini behind its OpenAI door."""


_MOST_HELD = 200
"""Characters held back because they may belong to a closing tag."""


class ThinkTags:
    """Splits `<think>…</think>` off the beginning of an answer while it arrives.

    For servers that leave a model's reasoning in its text. A tag anywhere else is text.

    Args:
        over: nothing is split (any more): a tag behind the beginning is text.
    """

    def __init__(self, *, over: bool) -> None:
        self.over = over
        self._closing = ""
        self._written: list[str] = []
        self._held = ""
        self._fresh = True

    @property
    def unclosed(self) -> str:
        """All that was written from a tag on that is not closed so far; else empty."""
        return "" if self.over else "".join(self._written)

    def feed(self, piece: str) -> tuple[str, str]:
        """What of the text so far is known to be reasoning, and what to be text; until `over`."""
        text = self._held + piece
        if self._closing:
            self._written.append(piece)
            return self._inside(text)
        # Blank lines before the first word are dropped from an answer anyway.
        text = text.lstrip()
        for tag in _OPENING:
            if text.startswith(tag):
                self._closing = f"</{tag[1:]}"
                self._written.append(text)
                return self._inside(text[len(tag) :])
        if any(tag.startswith(text) for tag in _OPENING):
            self._held = text
            return "", ""
        self._held, self.over = "", True
        return "", text

    def flush(self) -> tuple[str, str]:
        """What was held back, at the end of the answer."""
        held, self._held, self.over = self._held, "", True
        return (held.rstrip(), "") if self._closing else ("", held)

    def _inside(self, text: str) -> tuple[str, str]:
        end, rest = text.find(self._closing), ""
        if end >= 0:
            shown, rest = text[:end].rstrip(), text[end + len(self._closing) :]
            self._held, self.over = "", True
        else:
            # Characters at the end that may be the start of the closing tag.
            begun = max(n for n in range(len(self._closing)) if text.endswith(self._closing[:n]))
            shown = text[: len(text) - begun]
            if len(text) - len(shown.rstrip()) <= _MOST_HELD:
                shown = shown.rstrip()
            self._held = text[len(shown) :]
        if self._fresh:
            shown = shown.lstrip()
            self._fresh = not shown
        return shown, rest
