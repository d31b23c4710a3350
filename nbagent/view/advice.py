"""Advice on what to do next, for a script or a shell, where nobody can type a magic.

All texts are written for a notebook; the front end of a script and the commands of a shell change
them here, where they are printed.
"""

from __future__ import annotations

import re

# In this order: the first pattern is the end of a sentence that names both forms.
_MAGICS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), python)
    for pattern, python in (
        (r" \(in a shell: `python -m nbagent [^`]*`\)", ""),
        # `doctor compact` and `doctor --drop-backup` are only in a notebook.
        (
            r"%agent (doctor(?! compact| --drop-backup)|trust|runs|show|export)\b",
            r"python -m nbagent \1",
        ),
        (r"%%agent --continue(?: [0-9a-f]{8}\b)?", 'RUN.resume("…")'),
        (r"%agent resume(?: [0-9a-f]{8})? --trim tool-results", 'RUN.resume(trim="tool-results")'),
        # A document is resumed by its name.
        (
            r"%agent resume(?: [0-9a-f]{8}\b)?(?! [^\s`]*\.md| DOCUMENT| [^\s`]*[/@])",
            "RUN.resume()",
        ),
        (r"%%agent --model PROVIDER:MODEL", 'nbagent.Agent(model="PROVIDER:MODEL")'),
        (r"(?<!`)--model NAME", "model=NAME"),
        (r"--timeout SECONDS", "timeout_s=SECONDS"),
        (
            r"add --no-template after %%agent or %agent \(in Python: [^“)]*\)[^)]*\)",
            "use Agent(…, template=False)",
        ),
    )
)


_TEMPLATE_IN_PANEL = re.compile(
    r"add --no-template after %%agent.*?; in the panel: (“off” in the field “Template”)\)"
)


def for_panel(text: str) -> str:
    """Replace the magics in an advice by the field of the panel that does the same."""
    return _TEMPLATE_IN_PANEL.sub(r"choose \1", text)


def without_magics(text: str, run: str = "run") -> str:
    """Replace the magics in an advice by what a script or a shell has instead.

    Args:
        text: the advice.
        run: an expression for the run that it is about.
    """
    for pattern, python in _MAGICS:
        text = pattern.sub(python, text)
    return text.replace("RUN.resume(", f"{run}.resume(")
