"""What is known of a training job when it is registered."""

from enum import StrEnum
from typing import NewType, Self

from pydantic import Field, model_validator

from rekindle.model.base import Value
from rekindle.model.bounds import Note
from rekindle.model.layout import Layout
from rekindle.model.limits import Limits
from rekindle.model.sizes import size_problem

JobId = NewType("JobId", str)
"""UID of the job object; `MINDX_TASK_ID` in its pods and `jobId` on the wire."""


class TrainingSide(StrEnum):
    """What runs in the job's pods and answers orders."""

    REKINDLE = "rekindle"
    MINDIO = "mindio"


class Framework(StrEnum):
    PYTORCH = "pytorch"
    MINDSPORE = "mindspore"
    TENSORFLOW = "tensorflow"


class Capability(StrEnum):
    """What the training side says of itself; absent means no."""

    REPLACE_RANK_0 = "replace_rank_0"
    MULTIMODAL = "multimodal"
    WATCHDOG = "watchdog"
    SINGLE_OPERATOR = "single_operator"
    MEGATRON = "megatron"
    TASKD_PROCESS = "taskd_process"
    """`TASKD_PROCESS_ENABLE=on` stands in its pods."""


class Trait(StrEnum):
    """What a kind of job has of its own beside how it is restarted and counted; the row of the kind says it."""

    MINDIO = "mindio"
    """Its controller makes pods for MindIO, and makes them anew."""
    NO_STANDBYS = "no_standbys"
    """Its pods are somebody else's to make."""
    FIRST_WORD_HOLDS = "first_word_holds"
    """Its pods speak for it by turns: what it said when it was registered holds."""


TRAITS_BEFORE = {"AscendJob": (Trait.MINDIO, Trait.NO_STANDBYS), "Pods": (Trait.NO_STANDBYS, Trait.FIRST_WORD_HOLDS)}
"""By kind, of jobs that are read from histories and memories which do not say any."""


class SubHealthStrategy(StrEnum):
    """Value of the job's label `subHealthyStrategy`."""

    IGNORE = "ignore"
    GRACE_EXIT = "graceExit"
    FORCE_EXIT = "forceExit"
    HOT_SWITCH = "hotSwitch"


class ManagerLost(StrEnum):
    """What is done when the manager of a MindIO job is lost: its successor knows no rank, and reports no fault of one. When the
    next checkpoint is written cannot be seen, so that nothing can wait for it."""

    LEAVE = "leave"
    """It is shown; training goes on."""
    RESTART = "restart"
    """All pods start anew, at once. For jobs whose pods nobody else starts anew: that brings another manager as well."""


class Drain(StrEnum):
    """What becomes of a job on a node that is to be left, where its pod cannot move by a hot switch."""

    WAIT = "wait"
    """It trains on where it is, and the drain waits; the switch is tried again."""
    RESCHEDULE = "reschedule"
    """All its pods start anew elsewhere."""
    LET_GO = "let-go"
    """It trains on where it is, and nothing keeps its pod from being evicted."""


class NoSpare(StrEnum):
    """Policy for a sub-healthy pod that finds no spare."""

    IGNORE = "ignore"
    """Sub-health is ignored from then on. Source: ClusterD."""
    WAIT = "wait"
    """The policy stays, and the switch is tried again."""


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
    """Pods with ranks. The job's manager is not one of them."""

    ranks_per_pod: int = 1

    sub_health: SubHealthStrategy = SubHealthStrategy.IGNORE
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    limits: Limits = Limits()
    manager_lost: ManagerLost = ManagerLost.LEAVE
    drain: Drain = Drain.WAIT
    no_spare: NoSpare = NoSpare.IGNORE
    standbys: int = 0
    """How many pods without a rank are to stand by on spare nodes."""

    queue: Note = ""
    """Who else decides when its pods run, in words; empty: nobody does."""

    unmovable: Note = ""
    """Reason why no other pod can take the place of one of its pods, in words; empty: one can."""

    admitted: bool = False
    """True: its backups are pods that we make, and that somebody may refuse."""

    observe: bool = False
    """It is decided and shown what would be done for the job; nothing is ordered and nothing is written."""

    def can(self, capability: Capability) -> bool:
        return capability in self.capabilities

    def has(self, trait: Trait) -> bool:
        return trait in self.traits

    @property
    def layout(self) -> Layout:
        return Layout(self.pods, self.ranks_per_pod)

    @property
    def ranks(self) -> int:
        """World size."""
        return self.layout.ranks

    @property
    def no_restart(self) -> str:
        """Why all its pods cannot start anew, and what works; empty: they can."""
        return no_restart(self.queue) if self.queue else ""

    @model_validator(mode="after")
    def _has_a_size_that_we_serve(self) -> Self:
        if problem := size_problem(self.pods, self.ranks_per_pod):
            raise ValueError(problem)
        return self


def no_restart(queue: str) -> str:
    """Why a job is not restarted whose pods somebody else lets run, and what works."""
    return (
        f"the job is not restarted: {queue} decides when its pods run, starts again by itself what a restart suspends, and may "
        "bring the pods back where they were; a hot switch works"
    )
