"""The view's module as it is sent: joined, with one export and nothing to evaluate."""

from __future__ import annotations

import re

from nbagent.notebook import live_source


def test_what_is_sent_has_one_export_and_nothing_to_import_or_evaluate() -> None:
    joined = live_source.joined()
    assert re.findall(r"\bexport\b.{10}", joined) == ["export default()"]
    assert re.findall(r"\bimport\b", joined) == []
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "eval(",
        "Function(",
        "document.write",
    ):
        assert word not in joined
    assert len(joined) < 27_000
