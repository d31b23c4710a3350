"""JavaScript of our pages: files of the folder `notebook/page`, joined to one text.

Pages of a kernel and files without one share them.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files

from nbagent.view.node import closed_lists

_COMMENT = re.compile(r"/\*\*.*?\*/|^\s*//[^\n]*\n", re.DOTALL | re.MULTILINE)


@cache
def page_code(*names: str) -> str:
    """Join files of the package `notebook`, such as `page/build.js`, without their comments.

    The first line is the closed lists of `view.node`, by which `build` makes elements.
    """
    # Comments are for readers of the files: each page gets all of the code.
    code = _COMMENT.sub("", "\n".join(map(read_page_file, names)))
    return f"const LISTS = {json.dumps(closed_lists(), separators=(',', ':'))};\n{code}"


def read_page_file(name: str) -> str:
    """Read a file of the package `notebook`, as data: nothing of it is imported."""
    return files("nbagent").joinpath("notebook", *name.split("/")).read_text("utf-8")
