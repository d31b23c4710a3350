"""The modules of `live/` → the one module that a widget carries, by joining them in their order.

Each is an ES module that imports from those before it; there is no bundler and no build step.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

MODULES = ("dom", "copying", "asking", "parts", "turn", "head", "run", "ops", "widget")
"""From the ground up. `shapes.js` has types only. All share one scope: a name stands once."""

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |const |class )", re.MULTILINE)

# Texts and patterns stay as they are; around an operator or a bracket no space means anything.
_TOKEN = re.compile(
    r"""(?P<kept>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`"""
    r"""|/(?![*/\s])(?:\\.|\[(?:\\.|[^\]\n])*\]|[^/\\\n])+/[a-z]*)"""
    r"""|[\s;]*(?P<end>\})[ ]*|[ ]+(?P<sum>[-+])[ ]+(?![-+])"""
    r"""|\s*(?P<open>=>|[!=]==|&&|\|\||\?\?|[*<>=?:,;({\[|&!])\s*|[ ]*(?P<close>[)\]])[ ]*"""
)


@cache
def joined() -> str:
    """One module without comments, indents and spaces: it travels with every run."""
    folder = files("nbagent.notebook").joinpath("live")
    texts = (folder.joinpath(f"{name}.js").read_text("utf-8") for name in MODULES)
    text = "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts)
    text = re.sub(r"/\*\*.*?\*/", "", text, flags=re.DOTALL)
    lines = (line.strip() for line in text.splitlines())
    text = "\n".join(line for line in lines if line and not line.startswith("//"))
    return _TOKEN.sub(_squeezed, text)


def _squeezed(match: re.Match[str]) -> str:
    token = next(filter(None, match.groups()))
    # In the JSON of a message a double quote takes two bytes.
    simple = token[0] == '"' and not {"'", "\\"} & {*token}
    return f"'{token[1:-1]}'" if simple else token


@cache
def question_style() -> str:
    """The style sheet of questions, which a saved picture has none of."""
    text = files("nbagent.notebook").joinpath("live_question.css").read_text("utf-8")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"\s+", " ", text)
    return re.sub(r"\s*([{};,>])\s*", r"\1", text).strip()
