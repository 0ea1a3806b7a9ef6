"""Adapter of the entity's model to names of the control plane: workflows, updates, payloads, news of the intake."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalio.api.failure.v1 import Failure

from rekindle.ids import ErrorTypes, Queries, Signals, Updates, Workflows, job_workflow, request_workflow, runs_mode
from rekindle.model import keys
from rekindle.model.attachment import Attachment, Progress
from rekindle.model.cluster import (
    JobView,
)
from rekindle.model.dialogue import FaultRank, Receipt, Report, ReportKind
from rekindle.model.fault import TRAINING_SIDE, Fault, FaultKind, FaultReport, FaultType, FaultyRanks
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.limits import Limits
from rekindle.model.links import NodeLinks
from rekindle.model.maintenance import FailoverRequest, Maintenance, Stage, SwitchBack
from rekindle.model.mode import Outcome
from rekindle.model.state import JobState, JobStatus
from rekindle.model.stress import OpResult, StressRequest
from rekindle.model.verdict import Verdict
from rekindle.policy.detection import watcher_updates
from rekindle.policy.detection.watcher_updates import Acknowledged, End, News, Register, Shown
from rekindle.policy.modes import elastic
from rekindle.policy.modes.cases import TOO_OFTEN
from rekindle.policy.modes.mode_table import LAST, row_of
from rekindle.policy.operations import device_checks
from tests.model.world.driver import Driver
from tests.model.world.driver_runs import PAYLOADS, Answer, Run
from tests.model.world.messages import Message
from tests.model.world.training import RANKS
from workflows.device_check import StressTest
from workflows.dying_gasp import DyingGasp
from workflows.elastic_training import ElasticTraining
from workflows.hot_switch import HotSwitch
from workflows.in_place import InPlaceRecovery
from workflows.job_rescheduling import JobRescheduling
from workflows.link_failover import LinkFailover
from workflows.link_switch import LinkSwitch
from workflows.online_retry import OnlineRetry
from workflows.pod_rescheduling import PodRescheduling
from workflows.process_rescheduling import ProcessRescheduling
from workflows.scaling import Scaling
from workflows.training_job import TrainingJob

JOB = "job-1"
ENTITY = job_workflow(JOB)
RECOVERING = (HotSwitch, OnlineRetry, InPlaceRecovery, ProcessRescheduling, DyingGasp, PodRescheduling, JobRescheduling)
WORKFLOWS = (TrainingJob, *RECOVERING, ElasticTraining, Scaling, LinkSwitch, StressTest, LinkFailover)
MODES = {
    Workflows.HOT_SWITCH: "hot switch",
    Workflows.ONLINE_RETRY: "retry",
    Workflows.IN_PLACE: "in place",
    Workflows.PROCESS_RESCHEDULING: "elsewhere",
    Workflows.ELASTIC_TRAINING: "smaller",
    Workflows.SCALING: "size",
    Workflows.DYING_GASP: "saving",
    Workflows.POD_RESCHEDULING: "pods again",
    Workflows.JOB_RESCHEDULING: "restart",
    Workflows.LINK_SWITCH: "link switch",
    Workflows.STRESS_TEST: "stress test",
}
"""Names of the modes in the model."""

RECOVERIES = {"stopped": ReportKind.STOP_COMPLETE, "offers": ReportKind.STRATEGIES, "status": ReportKind.STATUS}
"""Messages that answer orders of a recovery of processes."""

SIZES = ("downgrade", "upgrade")
"""Strategies that change the size of a job."""

ON_OPERATIONS = ("link switch", "stress test")
"""Modes that run operations on a job that trains."""

OF_OPERATIONS = {
    "stood": ReportKind.STOP_COMPLETE,
    "switched": ReportKind.LINKS,
    "tested": ReportKind.STRESS,
    "went on": ReportKind.STATUS,
}
"""Messages that answer orders of an operation."""

UNHEARD = {
    "no report of the pause": "stood",
    "no report of the switch": "switched",
    "no report of the test": "tested",
    "no report that training goes on": "went on",
}
"""Text of a verdict for a missing message, and the kind of that message."""

BETWEEN_MODES, ELSEWHERE = ErrorTypes.BETWEEN_MODES, ErrorTypes.REPORT_ELSEWHERE
NOT_REGISTERED = ErrorTypes.NOT_REGISTERED
STREAM_IS_OVER = ErrorTypes.ATTACHMENT_OVER
STREAM_IS_MISSING = ErrorTypes.ATTACHMENT_MISSING
SETTLED = (Outcome.RECOVERED, Outcome.IGNORED, Outcome.REFUSED)
LABELS = {keys.SUB_HEALTHY_STRATEGY: "hotSwitch", keys.PROCESS_RECOVER_ENABLE: "on"}


@dataclass(frozen=True)
class Call:
    """Update of the entity."""

    name: str
    arguments: tuple[Any, ...] = ()
    update_id: str = ""
    starts: JobState | None = None
    """State with which the entity is started if it does not run; None: it is not started."""


# ---- what clients send


def front(driver: Driver, mode: str, rank: int, name: str, node: str = "", *, backup: bool = True) -> None:
    """Starts a mode as a client does.

    Args:
        node: node of the rank's pod.
        backup: True to move the links to the backup, False to move them back.
    """
    kind = next(kind for kind, known in MODES.items() if known == mode)
    asked = ModeRequest(job=JOB, force=True, requested_by=name)
    if kind == Workflows.HOT_SWITCH:
        asked = asked.model_copy(update={"pod_rank": rank})
    elif kind == Workflows.STRESS_TEST:
        asked = asked.model_copy(update={"stress": StressRequest(nodes={node: (0, 1)})})
    elif kind == Workflows.SCALING:
        asked = asked.model_copy(update={"replicas": rank + 1})
    elif kind == Workflows.LINK_SWITCH:
        asked = asked.model_copy(update={"links": links_of(node, backup=backup)})
    driver.start(kind, front_id(name), asked)


def fail_over(driver: Driver, node: str, maintenance: str) -> None:
    """Starts a maintenance of both devices of a node."""
    asked = FailoverRequest(job=JOB, links=links_of(node, backup=True), requested_by="a person")
    driver.start(Workflows.LINK_FAILOVER, maintenance, asked)


def maintenance_id(number: int) -> str:
    return f"link-failover/default.gpt/{number}/{JOB}"


def switch_back(driver: Driver, maintenance: str) -> None:
    driver.signal(maintenance, Signals.SWITCHBACK, SwitchBack(requested_by="a person"))


def is_maintenance(run: Run) -> bool:
    return bool(run.definition.name == Workflows.LINK_FAILOVER)


def is_at_rest(driver: Driver, maintenance: Run) -> bool:
    """Returns whether the run is a maintenance that waits for its switchback."""
    return is_maintenance(maintenance) and _known(driver, maintenance).stage is Stage.ON_BACKUP


def moved_by(driver: Driver, maintenance: Run) -> frozenset[int]:
    """Returns the ranks that are on their backup links, as the maintenance knows; empty if it has ended."""
    if maintenance.status != "running":
        return frozenset()
    return frozenset(rank for one in _known(driver, maintenance).on_backup for ranks in one.ranks for rank in ranks)


def _known(driver: Driver, maintenance: Run) -> Maintenance:
    known: Maintenance = driver.query(maintenance.id, Queries.STATUS, Maintenance)
    return known


def asked_by(run: Run) -> str:
    """Returns the name of the front or maintenance that requested a mode; empty: faults are its reason."""
    return str(run.argument(RecoveryContext, 1).front)


def links_of(node: str, *, backup: bool) -> tuple[NodeLinks, ...]:
    """Returns the links of both devices of a node."""
    return (NodeLinks(node=node, devices=("0", "1"), backup=backup),)


def front_id(name: str) -> str:
    return request_workflow(JOB, name)


def lift() -> Call:
    return Call(Updates.LIFT)


def retry() -> Call:
    return Call(Updates.RETRY, ("a person",))


def call_of(message: Message, now: datetime) -> Call:
    """Returns the update of the entity for a message of the training side."""
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
    return Call(Updates.REPORT_FAULTS, (FaultReport(faults=(fault,), takes_order=bool(message.session)),))


def report_of(message: Message) -> Call | None:
    """Returns the update for a message that answers an order; None: it answers none."""
    if message.kind == "pause":
        return Call(Updates.REPORT, (Report(kind=ReportKind.STRATEGIES, strategies=message.offers),))
    if message.kind == "resumed":
        report = Report(kind=ReportKind.STATUS, code=message.code, strategy=message.strategy, info=message.strategy)
        return Call(Updates.REPORT, (report,))
    if message.kind in OF_OPERATIONS:
        return Call(Updates.REPORT, (_of_operation(message),))
    if message.kind in RECOVERIES:
        faulty = tuple(FaultRank(rank=rank, type=FaultType(kind)) for rank, kind in message.faulty)
        answer = Report(
            kind=RECOVERIES[message.kind],
            code=message.code,
            info=message.words,
            fault_ranks=faulty,
            strategies=message.offers,
            strategy=message.strategy if message.kind == "status" else "",
            attempt=message.answers[0] if message.strategy in SIZES else "",
        )
        return Call(Updates.REPORT, (answer,))
    return None


def _of_operation(message: Message) -> Report:
    """Returns the report of an operation. MindIO names no attempt, and reports an operation only by a code."""
    kind, attempt = OF_OPERATIONS[message.kind], "" if message.once or message.kind == "stood" else message.answers[0]
    said = {str(rank): {f"check {i}": OpResult(code=code) for i, code in enumerate(codes)} for rank, codes in message.codes}
    return Report(
        kind=kind,
        code=message.code,
        info=message.words,
        strategy=message.strategy,
        attempt=attempt,
        results=device_checks.told(said, ranks=10_000) if kind is ReportKind.STRESS else None,
    )


# ---- what a model looks at


@dataclass(frozen=True)
class Ended:
    """Ended incident."""

    summary: str
    seconds: float
    began: datetime
    tried: tuple[str, ...]
    given_up: str
    """Reason why it was given up; empty: it was not."""
    needs_a_person: bool
    """True if it was given up on purpose: a job that dies repeatedly is not restarted for ever."""
    cancelled: bool


@dataclass(frozen=True)
class Seen:
    """State of the entity, as its query shows it."""

    waiting: tuple[str, ...]
    session: str
    incidents: tuple[Ended, ...]
    links: frozenset[int]
    """Ranks that use their backup links."""
    moved: dict[str, frozenset[int]]
    """Ranks on their backup links, by the maintenance that moved them."""
    missing: tuple[int, ...]
    """Pod ranks that have left."""
    grows: bool
    """True if the job is to grow by itself."""


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
            needs_a_person=one.ladder[-1].reason.endswith(TOO_OFTEN),
            cancelled=one.verdict is Outcome.CANCELLED,
        )
        for one in state.history
    )
    moved = {one.maintenance: frozenset(one.ranks) for one in state.links}
    return Seen(
        waiting=waiting,
        session=state.attachment.session if state.attachment else "",
        incidents=incidents,
        links=frozenset().union(*moved.values()),
        moved=moved,
        missing=elastic.missing_of(state.small),
        grows=state.small is not None and elastic.grows(state.job, state.small),
    )


def receipt_of(answer: Answer) -> Receipt | None:
    """Returns the receipt of the entity for faults; None: it refused them."""
    if answer.value is None:
        return None
    receipt: Receipt = PAYLOADS.from_payloads([answer.value], [Receipt])[0]
    return receipt


def verdict_of(run: Run) -> Verdict | None:
    """Returns the verdict of an ended mode; None: it failed, or was cancelled."""
    if run.status != "completed" or run.result is None:
        return None
    verdict: Verdict = PAYLOADS.from_payloads([run.result], [Verdict])[0]
    return verdict


def unheard(run: Run) -> tuple[str, str] | None:
    """Returns the attempt and order of a mode that ended because no report came; None: it ended otherwise."""
    verdict = verdict_of(run)
    if verdict is None or verdict.situation is None or "no report of " not in verdict.reason:
        return None
    what = verdict.reason.split("no report of ")[1].split(" within")[0]
    if what.startswith("the "):
        return None
    return verdict.situation.attempt, {"stop complete": "stop_train", "strategies": "on_global_rank"}.get(what, what)


def unheard_in_operation(run: Run) -> str:
    """Returns the kind of the message that an operation did not receive in time; empty: it received all."""
    verdict = verdict_of(run)
    return next((kind for words, kind in UNHEARD.items() if verdict and words in verdict.reason), "")


def says_recovered(run: Run) -> bool:
    """Returns whether a mode ended with the verdict `recovered`."""
    verdict = verdict_of(run)
    return verdict is not None and verdict.outcome is Outcome.RECOVERED


def was_answered(failure: Failure) -> bool:
    """Returns whether a front failed because of the answer it received, and not by itself."""
    return failure.HasField("activity_failure_info") or failure.application_failure_info.type == ErrorTypes.REQUEST_INVALID


def is_by_itself(run: Run) -> bool:
    """Returns whether the order to continue could not be delivered, so that training continues by itself without a report."""
    verdict = verdict_of(run)
    return verdict is not None and "goes on by itself" in verdict.reason


def was_cancelled(run: Run) -> bool:
    """Returns whether the requester was informed that nothing of the request will be done."""
    verdict = verdict_of(run)
    if run.status == "cancelled":
        return not runs_mode(run.id, LAST.mode)  # half-way it leaves the job without pods
    return verdict is not None and verdict.outcome is Outcome.CANCELLED


def is_settled(run: Run) -> bool:
    """Returns whether a recovery ended completely, so that nothing of it remains."""
    verdict = verdict_of(run)
    if run.status == "cancelled":
        return not runs_mode(run.id, LAST.mode)  # half-way it leaves the job without pods
    return verdict is not None and verdict.outcome in SETTLED


def has_waited_only(run: Run) -> bool:
    """Returns whether a change of the size ended before it ordered anything, so that training is as it was."""
    ordered = (activity.name for activity in run.activities.values())
    return run.definition.name == Workflows.SCALING and run.status == "terminated" and "deliver_order" not in ordered


def is_first_mode(run: Run) -> bool:
    """Returns whether no mode was tried before it in its incident."""
    return not run.argument(RecoveryContext, 1).situation.tried


def is_behind_operation(run: Run) -> bool:
    """Returns whether only operations were tried before it."""
    return {MODES.get(runs) for runs in _tried(run)} <= set(ON_OPERATIONS)


def _tried(run: Run) -> set[str]:
    return {row_of(mode).workflow for mode in run.argument(RecoveryContext, 1).situation.tried}


def is_of_training_side(run: Run) -> bool:
    """Returns whether it was started only because of reports of the training side."""
    faults = run.argument(RecoveryContext, 1).situation.faults
    return bool(faults) and all(fault.source == TRAINING_SIDE for fault in faults)


def is_of_strangers(run: Run, introduced: Collection[str]) -> bool:
    """Returns whether its faults are only of sessions that were never introduced to the entity.

    A late message of an old life is taken for one of the new life, see `docs/known-limits.md`. Sessions that the entity has
    forgotten do not count as strangers.
    """
    faults = run.argument(RecoveryContext, 1).situation.faults
    return bool(faults) and not any(fault.session in ("", *introduced) for fault in faults)


# ---- what the intake sends


class Intake:
    """Real intake, used as by the watcher's reconciler. A new watcher remembers nothing."""

    def __init__(self) -> None:
        self._shown: Shown | None = None
        self._acknowledged = Acknowledged()
        self._sent: News | None = None

    def look(self, view: JobView) -> None:
        self._shown = watcher_updates.shown(view, Limits())

    def forget(self) -> None:
        """Resets what was acknowledged, because the job's workflow is lost."""
        self._acknowledged = watcher_updates.forgotten(self._acknowledged)

    def due(self) -> News | None:
        """Returns the news that are due now; None: there are none."""
        return watcher_updates.due(self._shown, self._acknowledged) if self._shown else None

    def is_urgent(self, news: News) -> bool:
        return watcher_updates.is_urgent(news, self._acknowledged)

    def repeats(self, news: News) -> bool:
        """Returns whether the news were sent before and it is unknown whether they were applied."""
        return news == self._sent

    def sends(self, news: News) -> Call:
        self._sent = news
        if isinstance(news, Register):
            return Call(Updates.REGISTER, (news.registration,), starts=JobState.of(news.registration.job))
        return Call(Updates.END, (news.reason,)) if isinstance(news, End) else Call(Updates.SIGHTING, (news.sighting,))

    def answered(self, news: News, answer: Answer) -> bool:
        """Processes the answer to news. Returns whether the next update can follow without a pause."""
        known = self._acknowledged
        if answer.kind == "again":
            self._acknowledged = watcher_updates.unconfirmed(known, news)
            return False
        self._sent = None
        if answer.kind == "not found":
            assert self._shown is not None
            self._acknowledged = watcher_updates.unknown(self._shown, known, news)
            return not isinstance(news, Register)
        taken = answer.kind in ("", "accepted last")
        self._acknowledged = watcher_updates.acknowledge(known, news) if taken else watcher_updates.decline(known, news)
        return True
