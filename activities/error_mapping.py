"""Translates our errors to those of Temporal. This is the only place where that is done."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from rekindle.errors import ClusterUnavailable, RekindleError


@contextmanager
def translating_errors() -> Iterator[None]:
    """Converts an error of `rekindle.errors` to an ApplicationError with a stable type that says whether a retry may help.

    A retryable error is expected, and not logged as an alarm.
    """
    try:
        yield
    except RekindleError as error:
        wait = error.retry_after if isinstance(error, ClusterUnavailable) else None
        raise ApplicationError(
            str(error),
            type=error.type,
            non_retryable=not error.retryable,
            next_retry_delay=timedelta(seconds=wait) if wait is not None else None,
            category=ApplicationErrorCategory.BENIGN if error.retryable else ApplicationErrorCategory.UNSPECIFIED,
        ) from error
