"""nbagent: run an agent in a notebook cell, watch every turn, keep every turn as data.

    %load_ext nbagent

    %%agent --tools population
    Which of Oslo and Bergen is larger?

The public names are listed in `__init__.pyi` and imported when they are first used;
`import nbagent` itself imports nothing heavy.
"""

from __future__ import annotations

import sys
from typing import Any, cast

if sys.platform == "emscripten":
    raise ImportError(
        "nbagent needs threads and sockets, and Python in the browser (Pyodide, JupyterLite) has "
        "none; use a Jupyter server"
    )

import lazy_loader

from nbagent.contracts.version import __version__ as __version__

# lazy_loader has no types, and type checkers read the stub instead of this `__all__`.
_resolve, _, _names = cast("Any", lazy_loader.attach_stub(__name__, __file__))
__all__ = sorted([*_names, "events", "judges", "offline", "plot"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    # Modules under another name than their own: the stub cannot say where they are.
    if name == "events":
        from nbagent.contracts import events as module
    elif name == "judges":
        from nbagent.lab import judge_templates as module
    elif name == "offline":
        from nbagent.providers import offline as module
    elif name == "plot":
        from nbagent import charts as module
    elif name == "testing":  # needs pytest
        import nbagent.testing as module
    elif name in _names or name.startswith("_"):
        return _resolve(name)
    else:
        raise _no_attribute(name)
    globals()[name] = module
    return module


def _no_attribute(name: str) -> AttributeError:
    # Late: only an error needs it, and `import nbagent` stays light.
    from nbagent.contracts.nearest import nearest_hint

    hint = nearest_hint(name, __all__) or "; dir(nbagent) lists its names"
    return AttributeError(f"nbagent has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    """List the public names only: this is what Tab offers."""
    return [*__all__, "__version__", "testing"]


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext nbagent`: register `%agent` and `%%agent`."""
    # Late: IPython is imported only where somebody loads the extension.
    from nbagent.notebook.magics import register

    register(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """`%unload_ext nbagent`: remove the magics and their completion; runs and store stay."""
    from nbagent.notebook.magics import unregister

    unregister(ipython)
