"""The modules of `live/` → the one module that a widget carries, by joining them in their order.

Each is an ES module that imports from those before it; there is no bundler and no build step.
"""

from __future__ import annotations

import re
from importlib.resources import files

MODULES = ("dom", "copying", "parts", "turn", "head", "run", "ops", "widget")
"""From the ground up. `shapes.js` has types only. All share one scope: a name stands once."""

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |const |class )", re.MULTILINE)


def joined() -> str:
    """One module without comments and indents: it travels with every run."""
    folder = files("nbagent.notebook").joinpath("live")
    texts = (folder.joinpath(f"{name}.js").read_text("utf-8") for name in MODULES)
    text = "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts)
    text = re.sub(r"/\*\*.*?\*/", "", text, flags=re.DOTALL)
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))
