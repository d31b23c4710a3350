"""What a prompt says to the tools that nbagent brings: paths, patterns, quotations, code.

A prompt is read once: what it quotes and the files that it names are put aside and stand in its
text as marks, so that the rules for sentences need not know how a path looks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

_MOST_CHARS = 50_000
_MOST_SAID = 1_500
"""How much is looked at of what remains when quotations are put aside: requests are short."""
_ENDINGS = (
    "md markdown txt rst csv tsv json jsonl yaml yml toml ini cfg conf py pyi ipynb js ts jsx tsx"
    " css html htm xml svg png jpg jpeg gif webp pdf sh bat sql r jl rs go c h cpp java log lock"
    " parquet feather xlsx docx zip gz tex bib env pem key patch diff dat bin sqlite db"
).replace(" ", "|")
_PATH = re.compile(
    r"(?<![\w/@.:*<-])(?:"
    r"@[\w-]+(?:/[\w.~-]+)*/?"
    r"|(?:\.{1,2}/|~/|/)?(?:[\w.~-]+/)+[\w.~-]*"
    rf"|\.?[\w-]+(?:\.[\w-]+)*\.(?:{_ENDINGS})"
    r"|\.[a-z][\w-]+"
    r")(?![\w@])",
    re.IGNORECASE,
)
_NO_PATHS = frozenset(("and/or", "yes/no", "he/she", "read/write", "either/or", "n/a", "w/o"))
_GLOB = re.compile(r"(?<![\w*])[\w./@-]*\*[\w.*{},/?-]*[\w*}]|(?<![\w*])[\w./@-]*\*")
_FENCE = re.compile(r"```[ \t]*(?:[\w+-]*[ \t]*\n)?(?P<v>.*?)```", re.DOTALL)
_QUOTE = re.compile(
    r"`(?P<a>[^`\n]+)`|“(?P<b>[^”\n]+)”|«(?P<c>[^»\n]+)»|\"(?P<d>[^\"\n]+)\""
    r"|(?<![\w\]])[‘'](?P<e>[^'’\n]+)['’](?!\w)"
)
_MARK = re.compile(r"‹(?P<kind>[qpg])(?P<n>\d+)›")
_KINDS = {
    "python": "*.py",
    "markdown": "*.md",
    "csv": "*.csv",
    "json": "*.json",
    "text": "*.txt",
    "yaml": "*.{yaml,yml}",
    "toml": "*.toml",
    "notebook": "*.ipynb",
    "jupyter": "*.ipynb",
    "javascript": "*.js",
    "html": "*.html",
}


@dataclass(slots=True)
class Reading:
    """A prompt with marks: `‹p0›` for a path, `‹q0›` for a quotation, `‹g0›` for a glob."""

    text: str
    aside: dict[str, str] = field(default_factory=dict[str, str])
    code: str | None = None
    """What stands in a fence, else in backticks."""

    @property
    def paths(self) -> list[str]:
        """The paths, in the order of the text."""
        return [self.aside[one.group()] for one in _MARK.finditer(self.text) if one["kind"] == "p"]

    @property
    def quotes(self) -> list[str]:
        """The quotations."""
        return [self.aside[one.group()] for one in _MARK.finditer(self.text) if one["kind"] == "q"]

    @property
    def glob(self) -> str | None:
        """The pattern of file names that it speaks of: `*.py`, `.py files`, `Python files`."""
        for one in _MARK.finditer(self.text):
            if one["kind"] == "g":
                return self.aside[one.group()]
        if match := re.search(r"‹p(\d+)›\s+files?\b", self.text):
            dotted = self.aside[f"‹p{match[1]}›"]
            return f"*{dotted}" if re.fullmatch(r"\.\w{1,8}", dotted) else None
        if match := re.search(r"\b(\w+)\s+files?\b", self.text, re.I):
            return _KINDS.get(match[1].lower())
        return None

    def whole(self, text: str) -> str:
        """A part of the marked text as it was typed, without quotation marks."""
        return _MARK.sub(lambda one: self.aside.get(one.group(), one.group()), text)

    def typed(self, text: str) -> str:
        """A part of the marked text as it was typed; quotations in quotation marks."""

        def give(one: re.Match[str]) -> str:
            value = self.aside.get(one.group(), one.group())
            return f"```\n{value}\n```" if "\n" in value else f"“{value}”"

        marked = re.sub(r"‹q\d+›", give, text)
        return self.whole(marked)

    def put(self, kind: str, value: str) -> str:
        """Put a value aside; gives its mark."""
        mark = f"‹{kind}{len(self.aside)}›"
        self.aside[mark] = value
        return mark


def is_path(text: str) -> bool:
    """Whether a quotation is a path as a whole, also one with spaces."""
    if "\n" in text or len(text) > 300 or "*" in text or text.lower() in _NO_PATHS:
        return False
    if _PATH.fullmatch(text):
        return True
    return bool(re.fullmatch(rf"[\w@][\w ./@~-]*\.(?:{_ENDINGS})", text, re.I))


def is_folder(path: str) -> bool:
    """Whether a path looks like that of a folder: `src/`, `@data`, `out/plots`."""
    if path.endswith("/") or re.fullmatch(r"@[\w-]+", path):
        return True
    last = path.rpartition("/")[2]
    return "/" in path and "." not in last.lstrip(".") and not last.startswith(".")


def read_prompt(prompt: str) -> Reading:
    """Put aside what a prompt quotes and names."""
    reading = Reading("")
    prompt = re.sub(r"[‹›]", " ", prompt[:_MOST_CHARS])
    backticks: list[str] = []

    def fence(one: re.Match[str]) -> str:
        if reading.code is None:
            reading.code = one["v"].strip("\n")
        return reading.put("q", one["v"].strip("\n"))

    def quote(one: re.Match[str]) -> str:
        value = next(group for group in one.groups() if group is not None)
        if one["a"] is not None:
            backticks.append(value.strip())
        kind = "g" if _GLOB.fullmatch(value) and "." in value else "p" if is_path(value) else "q"
        return reading.put(kind, value)

    def path(one: re.Match[str]) -> str:
        value = one.group()
        kept = value.rstrip(".-")
        if not kept.strip("./~") or kept.lower() in _NO_PATHS:
            return value
        return reading.put("p", kept) + value[len(kept) :]

    text = _QUOTE.sub(quote, _FENCE.sub(fence, prompt))
    # Runs of blanks say nothing, and patterns would try each part of them.
    text = re.sub(r" ?\n[ \n]*", "\n", re.sub(r"[^\S\n]+", " ", text))[:_MOST_SAID]
    parts = re.split(r"(‹[qpg]\d+›)", text)
    for position in range(0, len(parts), 2):
        parts[position] = _GLOB.sub(_glob_of(reading), parts[position])
    parts = re.split(r"(‹[qpg]\d+›)", "".join(parts))
    for position in range(0, len(parts), 2):
        parts[position] = _PATH.sub(path, parts[position])
    reading.text = "".join(parts)
    if reading.code is None and backticks:
        reading.code = backticks[0]
    return reading


def _glob_of(reading: Reading) -> Callable[[re.Match[str]], str]:
    def put(one: re.Match[str]) -> str:
        # A lone star is a sum or a list, and `2*3` is no file.
        value = one.group()
        files = "." in value or "/" in value
        return reading.put("g", value) if files and not re.search(r"\d\*\d", value) else value

    return put
