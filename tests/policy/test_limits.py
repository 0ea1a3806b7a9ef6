"""Limits of waits: times that a workflow can add to the present one."""

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from rekindle.model.limits import LONGEST, Limits
from rekindle.policy.modes.mode_table import MODES

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("name", sorted(Limits.model_fields))
def test_a_limit_that_ends_after_all_dates_is_refused(name: str) -> None:
    """Each task of the job's workflow would fail when the limit is added to the present time, so that nothing is recovered."""
    with pytest.raises(ValidationError, match="must be at most P3650D, ten years"):
        Limits.model_validate({name: LONGEST + timedelta(seconds=1)})
    with pytest.raises(ValidationError, match="must be at most P3650D, ten years"):
        Limits.model_validate({name: "P999999999D"})


def test_the_deadline_of_each_mode_is_a_date() -> None:
    """Deadlines are sums of many limits, and growth waits for five times its limit."""
    together = {"old_pod_deleted", "settle", "release", "look"}  # which others have to exceed
    limits = Limits.model_validate({name: LONGEST for name in Limits.model_fields if name not in together})
    for row in MODES:
        assert NOW + (row.deadline(limits) or timedelta(0)) >= NOW
    assert NOW + 5 * limits.grow_again > NOW
