"""The border between our errors and Temporal's: the one place where the one becomes the other."""

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from rekindle.errors import RekindleError


@contextmanager
def crossing() -> Iterator[None]:
    """Turns an error of our tree into an ApplicationError whose type is stable and which says whether a retry may help. What is
    retried is expected to happen, and no alarm."""
    try:
        yield
    except RekindleError as error:
        raise ApplicationError(
            str(error),
            type=error.type,
            non_retryable=not error.retryable,
            category=ApplicationErrorCategory.BENIGN if error.retryable else ApplicationErrorCategory.UNSPECIFIED,
        ) from error
