"""marimo: no magics and no Jupyter kernel; a run shows itself by `_repr_html_`."""

from __future__ import annotations

import pytest
from environments import MakeEnvironment
from front_ends import shows

_APP = """
import marimo

app = marimo.App()


@app.cell
def _():
    import nbagent

    @nbagent.tool
    def area(city: str) -> float:
        "Area of a city."
        return 450 + 4.1

    run = nbagent.Agent("offline:demo", tools=[area]).run("Which area has Oslo?")
    run
    return


if __name__ == "__main__":
    app.run()
"""


@pytest.mark.proof
@shows("marimo: `Agent.run`", "headless", "saved form reads")
def test_marimo_shows_the_picture_of_a_run(environment: MakeEnvironment) -> None:
    made = environment("marimo", files={"app.py": _APP})
    made.run("marimo", "export", "html", "app.py", "-o", "app.html")
    page = (made.work / "app.html").read_text("utf-8")
    assert "454.1" in page
    assert "nba-run" in page
