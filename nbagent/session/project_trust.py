"""What a repository's files would decide if the person allowed it."""

from __future__ import annotations

from nbagent.settings.trust import TrustItem


def trust_items() -> list[TrustItem]:
    """List what the files of this project would decide."""
    return []
