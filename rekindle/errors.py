"""Defines all errors of Rekindle as one tree.

    RekindleError
    |-- BadInput             a value that is not accepted; names the field. The sender must change it.
    |-- Refused              a request that cannot be served now; the reason says when it can. Nothing was touched.
    |   `-- Busy             something else has to end first
    |-- NotMoved             links could not be moved; training was paused for it, and the reason says how it is now
    |-- Unavailable          Temporal, the cluster or the gateway did not answer. Trying again may help.
    |-- NotAttached          the job's stream is not at this gateway. Trying again may help.
    `-- ClusterError         the cluster's answer to one request
        |-- NotFound         no such object
        |-- Conflict         the object is not what the request assumed
        |-- Invalid          the cluster refuses the object; trying again does not help
        |-- Withheld         another component refuses the request, gives the reason, and may accept it later
        |-- SpareTaken       another job gets the spare node, and the message says why
        |-- Forbidden        our identity may not do this; the message names verb, resource and namespace
        |-- ClusterUnavailable   no answer; trying again may help
        `-- WatchExpired     the watch broke: list again, watch again

`type` is the stable name under which an error crosses Temporal (`ApplicationError.type`); `retryable` says whether the same call
may be tried again.
"""

from typing import ClassVar


class RekindleError(Exception):
    type: ClassVar[str] = "rekindle"
    retryable: ClassVar[bool] = False


class BadInput(RekindleError):
    """A value is wrong. The message names the field, what was wrong and what is accepted."""

    type = "input.invalid"


class Refused(RekindleError):
    """A request was refused; nothing was touched."""

    type = "request.refused"


class Busy(Refused):
    """Another operation has to end first; the same request may succeed then."""

    type = "request.busy"


class NotMoved(RekindleError):
    """Links were to be moved and were not. The reason says why, and how training goes on."""

    type = "links.not_moved"


class Unavailable(RekindleError):
    type = "service.unavailable"
    retryable = True

    def __init__(self, message: str, reason: str = "") -> None:
        """Args:
        reason: word for programs, such as `TemporalForbidden`; empty: there is none.
        """
        super().__init__(message)
        self.reason = reason


class NotAttached(RekindleError):
    type = "training_side.not_attached"
    retryable = True


class ClusterError(RekindleError):
    type = "cluster"


class NotFound(ClusterError):
    type = "cluster.not_found"


class Conflict(ClusterError):
    type = "cluster.conflict"
    retryable = True


class Invalid(ClusterError):
    type = "cluster.invalid"


class Withheld(ClusterError):
    """Refusal that is not retried automatically. The caller gets the reason at once, and decides how long to wait."""

    type = "cluster.withheld"


class SpareTaken(ClusterError):
    """Refusal of a pod, since another recovery gets the spare node. The caller decides whether it waits."""

    type = "cluster.spare_taken"


class Forbidden(ClusterError):
    type = "cluster.forbidden"


class ClusterUnavailable(ClusterError):
    type = "cluster.unavailable"
    retryable = True

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        """Args:
        retry_after: seconds that the cluster asks for before the next try.
        """
        super().__init__(message)
        self.retry_after = retry_after


class WatchExpired(ClusterError):
    type = "cluster.watch_expired"
    retryable = True


MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""Exceptions that Python raises for data whose shape the reader does not expect.

Each process catches them in one place, where an invalid object of another party must not stop the work for all others.
"""
