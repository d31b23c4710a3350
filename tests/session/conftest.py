"""Nothing is done yet where a test of the session begins."""

from __future__ import annotations

import pytest
from session.approval_stage import done


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    """What the tools of the stage did is forgotten."""
    done.clear()
