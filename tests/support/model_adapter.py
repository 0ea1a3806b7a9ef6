"""Where the model of the entity meets names of the control plane: workflows, updates, payloads, what the intake tells."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rekindle.ids import ErrorTypes, Queries, Updates, Workflows, job_workflow, request_workflow, runs_mode
from rekindle.model import keys
from rekindle.model.cluster import (
    JobView,
)
from rekindle.model.fault import TRAINING_SIDE, Fault, FaultKind, FaultReport, FaultType, FaultyRanks
from rekindle.model.limits import Limits
from rekindle.model.recovery import (
    Attachment,
    FaultRank,
    ModeRequest,
    Outcome,
    Progress,
    RecoveryContext,
    Report,
    ReportKind,
    Verdict,
)
from rekindle.model.state import JobState, JobStatus
from rekindle.policy import intake
from rekindle.policy.cases import TOO_OFTEN
from rekindle.policy.intake import Acknowledged, End, News, Register, Shown
from rekindle.policy.modes import LAST
from tests.support.driver import Driver
from tests.support.driver_runs import PAYLOADS, Answer, Run
from tests.support.model_messages import Message
from tests.support.model_training import RANKS
from workflows.hot_switch import HotSwitch
from workflows.in_place import InPlaceRecovery
from workflows.online_retry import OnlineRetry
from workflows.process_rescheduling import ProcessRescheduling
from workflows.rescheduling import JobRescheduling
from workflows.training_job import TrainingJob

JOB = "job-1"
ENTITY = job_workflow(JOB)
WORKFLOWS = (TrainingJob, HotSwitch, OnlineRetry, InPlaceRecovery, ProcessRescheduling, JobRescheduling)
MODES = {
    Workflows.HOT_SWITCH: "hot switch",
    Workflows.ONLINE_RETRY: "retry",
    Workflows.IN_PLACE: "in place",
    Workflows.PROCESS_RESCHEDULING: "elsewhere",
    Workflows.JOB_RESCHEDULING: "restart",
}
"""What the model calls the modes."""

RECOVERIES = {"stopped": ReportKind.STOP_COMPLETE, "offers": ReportKind.STRATEGIES, "status": ReportKind.STATUS}
"""Messages that answer orders of a recovery of processes."""

BETWEEN_MODES, ELSEWHERE = ErrorTypes.BETWEEN_MODES, ErrorTypes.REPORT_ELSEWHERE
STREAM_IS_OVER = ErrorTypes.ATTACHMENT_OVER
STREAM_IS_MISSING = ErrorTypes.ATTACHMENT_MISSING
SETTLED = (Outcome.RECOVERED, Outcome.IGNORED, Outcome.REFUSED)
LABELS = {keys.SUB_HEALTHY_STRATEGY: "hotSwitch", keys.PROCESS_RECOVER_ENABLE: "on"}


@dataclass(frozen=True)
class Call:
    """An update of the entity."""

    name: str
    arguments: tuple[Any, ...] = ()
    update_id: str = ""
    starts: JobState | None = None
    """It starts the entity where there is none."""


# ---- what clients send


def front(driver: Driver, mode: str, rank: int, name: str) -> None:
    """A client starts a mode by itself."""
    kind = next(kind for kind, known in MODES.items() if known == mode)
    pod_rank = rank if kind == Workflows.HOT_SWITCH else None
    asked = ModeRequest(job=JOB, pod_rank=pod_rank, force=True, requested_by=name)
    driver.start(kind, front_id(name), asked)


def front_id(name: str) -> str:
    return request_workflow(JOB, name)


def lift() -> Call:
    return Call(Updates.LIFT)


def call_of(message: Message, now: datetime) -> Call:
    """A message of the training side to the entity."""
    if message.kind == "attach":
        progress = Progress(incarnation=message.life, step=1, steps_lost=1) if message.life else None
        here = Attachment(queue=message.queue, session=message.session, since=now, client=message.client, progress=progress)
        return Call(Updates.ATTACH, (here,))
    if message.kind == "detach":
        return Call(Updates.DETACH, (message.session,))
    if message.kind == "first step":
        return Call(Updates.PROGRESS, (Progress(incarnation=message.life, step=1, steps_lost=1, session=message.session),))
    told = dict(message.faulty)
    ranks = tuple(sorted(told)) or tuple(rank * RANKS + i for rank in message.ranks for i in range(RANKS))
    details = tuple(
        FaultyRanks(ranks=of, type=kind) for kind in FaultType if (of := tuple(rank for rank in told if told[rank] == kind))
    )
    fault = Fault(
        id="processes",
        kind=FaultKind.PROCESS,
        ranks=ranks,
        details=details,
        message="reported by the training side",
        session=message.session,
        source=TRAINING_SIDE,
    )
    return Call(Updates.REPORT_FAULTS, (FaultReport(faults=(fault,)),))


def report_of(message: Message) -> Call | None:
    """A message that answers an order; None: it answers none."""
    if message.kind == "pause":
        return Call(Updates.REPORT, (Report(kind=ReportKind.STRATEGIES, strategies=message.offers),))
    if message.kind == "resumed":
        report = Report(kind=ReportKind.STATUS, code=message.code, strategy=message.strategy, info=message.strategy)
        return Call(Updates.REPORT, (report,))
    if message.kind in RECOVERIES:
        faulty = tuple(FaultRank(rank=rank, type=FaultType(kind)) for rank, kind in message.faulty)
        answer = Report(
            kind=RECOVERIES[message.kind],
            code=message.code,
            info=message.words,
            fault_ranks=faulty,
            strategies=message.offers,
            strategy=message.strategy if message.kind == "status" else "",
        )
        return Call(Updates.REPORT, (answer,))
    return None


# ---- what a model looks at


@dataclass(frozen=True)
class Ended:
    """An incident that is over."""

    summary: str
    seconds: float
    began: datetime
    tried: tuple[str, ...]
    given_up: str
    """Why; empty: it was not."""
    needs_a_person: bool
    """It was given up on purpose: a job that dies again and again is not restarted for ever."""
    cancelled: bool


@dataclass(frozen=True)
class Seen:
    """The entity, as its query shows it."""

    waiting: tuple[str, ...]
    session: str
    incidents: tuple[Ended, ...]


def seen(driver: Driver) -> Seen:
    state = driver.query(ENTITY, Queries.STATUS, JobStatus).state
    waiting = (
        *(f"{one.fault.id}: {one.fault.message} ({one.judged})" for one in state.faults),
        *(f"request for {waiting.request.mode}" for waiting in (state.request,) if waiting),
        *(f"lost recovery {lost}" for lost in (state.lost_recovery,) if lost),
        *state.problems,
    )
    incidents = tuple(
        Ended(
            summary=one.summary,
            seconds=one.seconds,
            began=one.started_at,
            tried=tuple(f"{verdict.mode} {verdict.outcome}: {verdict.reason}" for verdict in one.ladder),
            given_up=one.ladder[-1].reason if one.verdict is Outcome.GIVEN_UP else "",
            needs_a_person=one.ladder[-1].reason == TOO_OFTEN,
            cancelled=one.verdict is Outcome.CANCELLED,
        )
        for one in state.history
    )
    return Seen(waiting=waiting, session=state.attachment.session if state.attachment else "", incidents=incidents)


def verdict_of(run: Run) -> Verdict | None:
    """Of a mode that is over; None: it failed, or was cancelled."""
    if run.status != "completed" or run.result is None:
        return None
    verdict: Verdict = PAYLOADS.from_payloads([run.result], [Verdict])[0]
    return verdict


def unheard(run: Run) -> tuple[str, str] | None:
    """The attempt of a mode, and the order in it, that ended since no report came; None: it did not."""
    verdict = verdict_of(run)
    if verdict is None or verdict.situation is None or "no report of " not in verdict.reason:
        return None
    what = verdict.reason.split("no report of ")[1].split(" within")[0]
    return verdict.situation.attempt, {"stop complete": "stop_train", "strategies": "on_global_rank"}.get(what, what)


def says_recovered(run: Run) -> bool:
    """Whether a mode ended with this verdict."""
    verdict = verdict_of(run)
    return verdict is not None and verdict.outcome is Outcome.RECOVERED


def was_cancelled(run: Run) -> bool:
    """Whether whoever asked was told that nothing of what was asked for is done."""
    verdict = verdict_of(run)
    if run.status == "cancelled":
        return not runs_mode(run.id, LAST.mode)  # half-way it leaves the job without pods
    return verdict is not None and verdict.outcome is Outcome.CANCELLED


def is_settled(run: Run) -> bool:
    """Whether a recovery came to an end that leaves nothing behind."""
    verdict = verdict_of(run)
    if run.status == "cancelled":
        return not runs_mode(run.id, LAST.mode)  # half-way it leaves the job without pods
    return verdict is not None and verdict.outcome in SETTLED


def is_first_mode(run: Run) -> bool:
    """Whether no mode was tried before it in its incident."""
    return not run.argument(RecoveryContext, 1).situation.tried


def is_of_strangers(run: Run, introduced: Collection[str]) -> bool:
    """Whether it is about processes of sessions only of which the entity was never told: a late word of an old life is taken for
    one of the new, see the known weaknesses. What it has forgotten is no excuse."""
    faults = run.argument(RecoveryContext, 1).situation.faults
    return bool(faults) and not any(fault.session in ("", *introduced) for fault in faults)


# ---- what the intake tells


class Intake:
    """The real intake, as the watcher's reconciler uses it. A new watcher remembers nothing."""

    def __init__(self) -> None:
        self._shown: Shown | None = None
        self._acknowledged = Acknowledged()
        self._sent: News | None = None

    def look(self, view: JobView) -> None:
        self._shown = intake.shown(view, Limits())

    def forget(self) -> None:
        """The job's workflow is lost."""
        self._acknowledged = intake.forgotten(self._acknowledged)

    def due(self) -> News | None:
        """What is to be told now."""
        return intake.due(self._shown, self._acknowledged) if self._shown else None

    def is_urgent(self, news: News) -> bool:
        return intake.is_urgent(news, self._acknowledged)

    def repeats(self, news: News) -> bool:
        """Whether it was sent before, and nobody knows whether it was taken."""
        return news == self._sent

    def sends(self, news: News) -> Call:
        self._sent = news
        if isinstance(news, Register):
            return Call(Updates.REGISTER, (news.registration,), starts=JobState.of(news.registration.job))
        return Call(Updates.END, (news.reason,)) if isinstance(news, End) else Call(Updates.SIGHTING, (news.sighting,))

    def answered(self, news: News, answer: Answer) -> bool:
        """Whether there is no need to wait before the next one."""
        known = self._acknowledged
        if answer.kind == "again":
            self._acknowledged = intake.unconfirmed(known, news)
            return False
        self._sent = None
        if answer.kind == "not found":
            assert self._shown is not None
            self._acknowledged = intake.unknown(self._shown, known, news)
            return not isinstance(news, Register)
        taken = answer.kind in ("", "accepted last")
        self._acknowledged = intake.acknowledge(known, news) if taken else intake.decline(known, news)
        return True
