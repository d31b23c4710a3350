"""IPython of the test's own: runs code over a plain dict of names, as a notebook does.

It is not the IPython of the process, so that runs are not shown as in a notebook.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from nbagent.contracts.tools import RunCode
from nbagent.notebook.run_code import run_code


@functools.cache
def _shell() -> Any:
    config = Config()
    config.HistoryManager.enabled = False
    # The home of this process may be that of one test.
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shell: Any = InteractiveShell(config=config, ipython_dir=folder)
    shell.restore_sys_module_state()
    return shell


class _Module:
    """Its dict is the namespace."""


def runs_code(names: dict[str, Any]) -> RunCode:
    """Runs code in these names."""
    shell, module = _shell(), _Module()
    module.__dict__ = names
    shell.user_module, shell.user_ns = module, names
    return functools.partial(run_code, shell)
