"""A notebook keeps its runs in JupyterLab and Notebook 7: renamed, restarted, copied."""

from __future__ import annotations

import pytest
from jupyter_apps import IN_LAB, App, Notebook, OpenNotebook, Server, opened
from playwright.sync_api import Browser

SETUP = """
%load_ext nbagent
import nbagent
from nbagent import offline
offline.script(["first answer", "second answer"] * 9, name="two")
"""
ASK, CONTINUE, SHOW = 1, 2, 3
CELLS = [
    SETUP,
    "%%agent --model offline:two --tools none\nFirst?",
    "%%agent --continue\nAnd then?",
    "%agent show last\nprint(len(nbagent.open_run('last').messages))",
]


def restart(notebook: Notebook) -> None:
    notebook.page.evaluate("() => nbt.current().sessionContext.restartKernel()")
    notebook.wait_idle()
    notebook.run(0)


def rename(notebook: Notebook, name: str) -> None:
    """Rename the open notebook, as the dialog of the app does."""
    notebook.page.evaluate("name => nbt.current().context.rename(name)", name)
    folder = notebook.name.partition("/")[0]
    notebook.name = f"{folder}/{name}"
    notebook.page.wait_for_function(
        "path => nbt.current().context.path === path", arg=notebook.name
    )


@pytest.mark.proof
@IN_LAB
def test_a_renamed_notebook_goes_on_and_its_copy_does_not(
    app: App, open_notebook: OpenNotebook, server: Server, chromium: Browser
) -> None:
    notebook = open_notebook(CELLS, app)
    notebook.run(0, ASK)
    assert "first answer" in notebook.text(ASK)
    # Before a save, the file has no output of the run; the restarted kernel keeps its id.
    rename(notebook, "renamed.ipynb")
    restart(notebook)
    notebook.run(SHOW)
    assert notebook.error(SHOW) == ""
    assert "first answer" in notebook.text(SHOW)
    notebook.run(CONTINUE)
    assert notebook.error(CONTINUE) == ""
    assert "And then?" in notebook.text(CONTINUE)
    # With another kernel only the file tells.
    notebook.save()
    rename(notebook, "again.ipynb")
    copy = notebook.page.evaluate(
        "async path => (await window.jupyterapp.serviceManager.contents.copy(path,"
        " path.split('/')[0])).path",
        notebook.name,
    )
    notebook.page.evaluate(
        "async () => { const one = nbt.current().sessionContext;"
        " await one.shutdown(); await one.startKernel(); }"
    )
    notebook.wait_idle()
    notebook.run(0, SHOW)
    assert notebook.error(SHOW) == ""
    assert "And then?" in notebook.text(SHOW)
    # The cell that had continued replaces its answer.
    notebook.run(CONTINUE, SHOW)
    assert notebook.outputs(SHOW)[-1]["text"] == "4\n"
    with opened(chromium, server, copy, app) as other:
        other.run(0, CONTINUE)
        assert "there is no run of this notebook yet" in other.error(CONTINUE)
        other.run(ASK, CONTINUE)
        assert other.error(CONTINUE) == ""
