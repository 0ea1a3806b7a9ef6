"""The border between our errors and Temporal's: the one place where the one becomes the other."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from rekindle.errors import ClusterUnavailable, RekindleError


@contextmanager
def translating_errors() -> Iterator[None]:
    """Turns an error of our tree into an ApplicationError whose type is stable and which says whether a retry may help. What is
    retried is expected to happen, and no alarm."""
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
