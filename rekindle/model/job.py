"""Description of a training job at its registration."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NewType, Self

from pydantic import Field, model_validator

from rekindle.model.approval import Unanswered
from rekindle.model.base import Value
from rekindle.model.bounds import Note
from rekindle.model.elastic import Elastic
from rekindle.model.keys import FAULT_RETRY_TIMES, HOT_RESET, HOT_RESET_ON, POD_RESCHEDULING
from rekindle.model.layout import Layout
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode
from rekindle.model.sizes import size_problem
from rekindle.model.training_side import CONTROLLER_RECREATES, TrainingSide

JobId = NewType("JobId", str)
"""UID of the job object; `MINDX_TASK_ID` in its pods and `jobId` on the wire."""


MOST_RETRY_TIMES = 100
"""Largest value of the label `fault-retry-times`. Source: the Kubernetes contract."""


class Framework(StrEnum):
    PYTORCH = "pytorch"
    MINDSPORE = "mindspore"
    TENSORFLOW = "tensorflow"


class Capability(StrEnum):
    """Capability that the training side declares. An absent one counts as not available."""

    REPLACE_RANK_0 = "replace_rank_0"
    MULTIMODAL = "multimodal"
    WATCHDOG = "watchdog"
    SINGLE_OPERATOR = "single_operator"
    MEGATRON = "megatron"
    TASKD_PROCESS = "taskd_process"
    """`TASKD_PROCESS_ENABLE=on` is set in the pods."""


class Trait(StrEnum):
    """Property of a kind of job, besides how it is restarted and counted. Declared by the table of kinds."""

    CONTROLLER_RECREATES = CONTROLLER_RECREATES
    """The job's controller creates pods for its training side, and recreates them."""
    NO_STANDBYS = "no_standbys"
    """Rekindle does not create pods of this kind, so that there are no standbys."""
    FIRST_WORD_HOLDS = "first_word_holds"
    """The pods describe the job in turn, so that the description at its registration stays in force."""
    CONTRACT_WORDS = "contract_words"
    """Components of MindCluster read in labels, annotations and ConfigMaps how a recovery of the job goes."""


TRAITS_BEFORE = {
    "AscendJob": (Trait.CONTROLLER_RECREATES, Trait.NO_STANDBYS),
    "Pods": (Trait.NO_STANDBYS, Trait.FIRST_WORD_HOLDS),
}
"""Traits by kind, for jobs in histories and memories that were written before traits were stored."""


class SubHealthStrategy(StrEnum):
    """Value of the job's label `subHealthyStrategy`."""

    IGNORE = "ignore"
    GRACE_EXIT = "graceExit"
    FORCE_EXIT = "forceExit"
    HOT_SWITCH = "hotSwitch"


class ManagerLost(StrEnum):
    """Action when the manager is lost and its successor knows no rank, so that no fault of a rank is reported. The time of the
    next checkpoint is unknown, so that nothing can wait for it."""

    LEAVE = "leave"
    """The loss is shown and training continues."""
    RESTART = "restart"
    """All pods are recreated at once, which also brings a new manager. For jobs whose pods no other component recreates."""


class Drain(StrEnum):
    """Action for a pod on a node that is drained, if a hot switch cannot move the pod."""

    WAIT = "wait"
    """Training continues on the node and the drain waits. The hot switch is retried."""
    RESCHEDULE = "reschedule"
    """All pods of the job are recreated on other nodes."""
    LET_GO = "let-go"
    """Training continues on the node, and nothing prevents the eviction of the pod."""


class NoSpare(StrEnum):
    """Action for a sub-healthy pod that finds no spare node."""

    IGNORE = "ignore"
    """Sub-health is ignored from then on. Source: ClusterD."""
    WAIT = "wait"
    """The policy stays in force and the switch is retried."""


class Job(Value):
    """One training job, as its `TrainingJob` workflow keeps it."""

    id: JobId
    name: str
    namespace: str = "default"
    kind: str = "LocalJob"
    """Kind of the job object: LocalJob, AscendJob, ..."""

    traits: tuple[Trait, ...] = Field(default_factory=lambda known: TRAITS_BEFORE.get(known["kind"], ()))

    framework: Framework = Framework.PYTORCH
    training_side: TrainingSide = TrainingSide.REKINDLE
    capabilities: tuple[Capability, ...] = ()
    pods: int
    """Number of pods with ranks. The pod of the job's manager is not counted."""

    ranks_per_pod: int = 1

    sub_health: SubHealthStrategy = SubHealthStrategy.IGNORE
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    limits: Limits = Limits()
    manager_lost: ManagerLost = ManagerLost.LEAVE
    drain: Drain = Drain.WAIT
    no_spare: NoSpare = NoSpare.IGNORE
    approvals: dict[Mode, Unanswered] = {}
    """Modes that need the approval of a person, each with the action when nobody answers in time."""

    priority: int | None = None
    """Priority of the job where spare nodes are fewer than recoveries need. None: that of its pods counts."""

    elastic: Elastic | None = None
    """Sizes with which the job may train. None: its owner allows no other size than the one it was started with."""

    standbys: int = 0
    """Number of pods without a rank that stand by on spare nodes."""

    queue: Note = ""
    """Component that also decides when the job's pods run, such as a queue. Empty: none does."""

    unmovable: Note = ""
    """Reason why no other pod can replace a pod of the job. Empty: one can."""

    admitted: bool = False
    """True if backup pods of the job are created by Rekindle, and an admission controller may reject them."""

    refilled: bool = False
    """True if the job's controller creates another pod at once for each one that is deleted, so that a smaller size frees no
    node."""

    graceful_tolerance: bool = False
    """True if the job asks for graceful fault tolerance (`hotReset=1`), so that it is only restarted as a whole."""

    observe: bool = False
    """True if Rekindle only decides and shows what it would do for the job. It gives no orders and writes nothing."""

    def can(self, capability: Capability) -> bool:
        return capability in self.capabilities

    def has(self, trait: Trait) -> bool:
        return trait in self.traits

    @property
    def layout(self) -> Layout:
        return Layout(self.pods, self.ranks_per_pod, self.elastic.pods if self.elastic else 1)

    @property
    def ranks(self) -> int:
        """Number of ranks of the job (world size)."""
        return self.layout.ranks

    @property
    def retries(self) -> int | None:
        """Number of restarts of the job for which no cause is known (label `fault-retry-times`). None: the owner sets none."""
        said = self.labels.get(FAULT_RETRY_TIMES)
        return None if said is None else retry_times(said)

    @property
    def pod_rescheduling(self) -> bool:
        """True if only the faulty pods are to be replaced where no cheaper mode helps (label `pod-rescheduling`)."""
        return self.labels.get(POD_RESCHEDULING) == "on"

    @property
    def no_restart(self) -> str:
        """Reason why the job cannot be restarted as a whole, and what can be done instead. Empty: it can be."""
        return no_restart(self.queue) if self.queue else ""

    @model_validator(mode="after")
    def _has_a_size_that_we_serve(self) -> Self:
        if problem := size_problem(self.pods, self.ranks_per_pod):
            raise ValueError(problem)
        return self


def retry_times(said: str) -> int | None:
    """Returns the value of the label `fault-retry-times`. None: it is not accepted."""
    return int(said) if said.isascii() and said.isdigit() and len(said) < 4 and int(said) <= MOST_RETRY_TIMES else None


def asks_for_graceful_tolerance(*said: Mapping[str, str]) -> bool:
    """Returns whether labels, annotations or an environment ask for graceful fault tolerance."""
    return any(one.get(HOT_RESET) == HOT_RESET_ON for one in said)


def no_restart(queue: str) -> str:
    """Returns why a job is not restarted if `queue` decides when its pods run, and what can be done instead."""
    return (
        f"the job is not restarted: {queue} decides when its pods run, starts again by itself what a restart suspends, and may "
        "bring the pods back where they were; a hot switch works"
    )
