"""What one test of the session set for the process does not hold in the next one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from session.approval_stage import done

import nbagent
from nbagent.session.front import use_front


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No front, no rules, nothing done."""
    done.clear()
    use_front(None)
    yield
    use_front(None)
    nbagent.configure(allow=None, ask=None, deny=None, hide=None)
