"""A review as a front end with buttons gets it."""

from __future__ import annotations

from typing import Any

from frontends import StandIn

from nbagent.session.frontend import PersonReview, use_frontend


class Buttons(StandIn):
    """A front end that shows a review."""

    shown: PersonReview

    def review(self, review: PersonReview) -> bool:
        self.shown = review
        return True


def review(batch: Any, **options: Any) -> PersonReview:
    """The review that `batch.review` gives a front end."""
    buttons = Buttons()
    use_frontend(buttons)
    batch.review(**options)
    return buttons.shown
