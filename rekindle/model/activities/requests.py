"""Arguments and results of activities that ask a job's workflow for a mode, withdraw the request, or end a recovery."""

from datetime import datetime

from rekindle.model.base import Value
from rekindle.model.incident import ModeRequest
from rekindle.model.verdict import Verdict


class RecoveryEnd(Value):
    """Result of a recovery that an earlier workflow of the job had started."""

    settled: bool
    """True if the recovery ended by itself and left nothing to clean up."""

    words: str
    verdict: Verdict | None = None
    """Verdict of the recovery. None: it was cancelled before it did anything, or nothing is known about it."""

    known: bool = True
    """True if such a recovery exists or existed."""

    began: datetime | None = None
    """Time at which it began. None: unknown, as with a worker of an earlier version."""


class AskRequest(Value):
    job_id: str
    request: ModeRequest
    request_id: str
    """Id of the update. A repeated request with the same id is answered, but starts nothing again."""


class WithdrawRequest(Value):
    job_id: str
    request_id: str


class TerminateRequest(Value):
    workflow_id: str
    reason: str
