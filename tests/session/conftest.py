"""What one test of the session set for the process does not hold in the next one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from session.approval_stage import done

import nbagent
from nbagent.session.frontend import use_frontend


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No front, no rules, nothing done."""
    done.clear()
    use_frontend(None)
    yield
    use_frontend(None)
    nbagent.configure(allow=None, ask=None, deny=None, hide=None)
