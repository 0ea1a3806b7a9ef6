"""Labels, annotations and ConfigMaps in which MindCluster's components read of a recovery, and the dialogue with a platform that
decides in annotations. Source: the Kubernetes contract, as ClusterD writes it."""

from datetime import timedelta
from enum import StrEnum

from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text
from rekindle.model.dialogue import FaultRanks
from rekindle.model.ranks import Ranks


class FaultLabel(StrEnum):
    """Value of a pod's label `fault-type` for faults that its processes report."""

    SOFTWARE = "software"
    RETRY = "retry-fault"


class Status(StrEnum):
    """Value of the annotation `ProcessRecoverStatus`: how the last strategy ended."""

    RETRY_SUCCESS = "retry-success"
    RETRY_FAILED = "retry-failed"
    RECOVER_SUCCESS = "recover-success"
    RECOVER_FAILED = "recover-failed"
    DUMP_SUCCESS = "dump-success"
    DUMP_FAILED = "dump-failed"
    EXIT_COMPLETED = "exit-completed"


class Words(Value):
    """Words of the contract about a job, as they hold now."""

    flushing: bool = False
    """`FaultFlushing` of the reset-config: faults are collected, and not announced yet."""

    faulty: Ranks = ()
    """`RankList` of the reset-config: announced ranks."""

    in_place: bool = False
    """`RestartFaultProcess` of the reset-config: the announced ranks start again in their pods."""

    leaving: Ranks = ()
    """Pod ranks whose devices other nodes of a super pod must release (ConfigMap `fault-job-info`)."""

    labels: dict[str, FaultLabel] = {}
    """Labels `fault-type`, by the first `HOLDER_LENGTH` characters of the pod's UID, as in `Sighting.holders`."""

    status: Status | None = None
    """Annotation `ProcessRecoverStatus`. None: it is left as it is."""

    restarts: int | None = None
    """`RetryTime` of the reset-config. None: it is left as it is."""

    over: bool = False
    """True if no recovery is running: everything that belongs to one is removed, and nothing stays on `pause`."""


class WordsRequest(Value):
    job_id: str
    words: Words


class WordsWritten(Value):
    restarts: int | None = None
    """`RetryTime` of the reset-config. None: the job has no usable reset-config."""


class Announced(Value):
    """Signal from a mode: these ranks are announced to the training side as faulty."""

    ranks: Ranks
    in_place: bool = False


class PlatformRequest(Value):
    """Question to the platform that decides about a job. It answers with an annotation of the job's PodGroup."""

    job_id: str
    key: Text
    """Annotation that the platform writes."""

    confirm: FaultRanks = ()
    """Faults to write into `ProcessConfirmFault` first. Empty: nothing is written."""

    within: timedelta


class PlatformAnswer(Value):
    answered: bool = False
    """False: the platform has not answered within the limit, or was not asked."""

    value: Text = ""
    """Value of the annotation."""

    faults: FaultRanks = ()
    """Faults in the value, if it was asked for faults."""

    problem: Note = ""
    """Reason why the platform was not asked, or why its answer is not used. Empty: there is none."""
