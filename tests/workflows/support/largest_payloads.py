"""Largest examples of all values that cross Temporal, for the largest jobs that the product serves."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.testing import ActivityEnvironment

from activities.pod_recreation import MOST_MOVED
from activities.pods import PodActivities
from rekindle.model import account, explained, node_record
from rekindle.model import stress as stress_values
from rekindle.model.account import Account, Bucket, Holding, Row, Span, Stand, Stretch, TimeReport
from rekindle.model.activities.jobs import (
    EndSession,
    EventRequest,
    JobLook,
    JobRequest,
    PolicyRequest,
    RememberRequest,
    Survey,
    SurveyRequest,
)
from rekindle.model.activities.pods import (
    Backup,
    BackupRequest,
    LeftRequest,
    NewPodsRequest,
    OldPodsRequest,
    PodsRequest,
    Replacement,
    Restart,
    Scheduled,
    StartRequest,
    StopRequest,
    Swap,
    SwapRequest,
    SweepRequest,
)
from rekindle.model.activities.recreation import Held, Recreation, RecreationRequest
from rekindle.model.activities.requests import AskRequest, RecoveryEnd, TerminateRequest, WithdrawRequest
from rekindle.model.activities.standbys import StandbysNow, StandbysRequest
from rekindle.model.activities.targets import FindingsRequest, Found, LinkTargets, ResolveLinksRequest, TargetsRequest
from rekindle.model.approval import Question
from rekindle.model.attachment import Attachment, Progress
from rekindle.model.bounds import fitting
from rekindle.model.cluster import ClusterEvent, JobPhase, JobView, PodPhase
from rekindle.model.contract import Announced, PlatformAnswer, PlatformRequest, Words, WordsRequest, WordsWritten
from rekindle.model.dialogue import FaultRank, Heard, Order, Receipt, Report, ReportKind
from rekindle.model.elastic import Small
from rekindle.model.explained import FactNow, Mark, NodeNow, NodesNow, NodesRequest, PodThere, There
from rekindle.model.fault import (
    EXPECTED_HOLDER,
    HOLDER_LENGTH,
    TRAINING_SIDE,
    Fault,
    FaultKind,
    FaultReport,
    FaultsNow,
    FaultType,
    FaultyRanks,
    ManagerGone,
    Sighting,
)
from rekindle.model.incident import Begun, Incident, ModeRequest, Waited
from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.limits import Limits
from rekindle.model.links import MOST_NODES, MOST_ON_BACKUP, LinksReset, NodeLinks, OnBackup, Placed
from rekindle.model.maintenance import KEPT_MOVES, FailoverRequest, Maintenance, Move, SwitchBack
from rekindle.model.mode import Mode, Outcome
from rekindle.model.node_record import Aside, AsideRequest, AsideResult, Blame, NodeIncident, NodeRecord
from rekindle.model.plan import (
    KEPT_ROWS,
    MOST_ENTRIES,
    MOST_JOBS,
    MOST_LEAVES,
    MOST_LEFT,
    MOST_LINKS,
    Control,
    FailOver,
    Forecast,
    ForecastRow,
    JobMove,
    JobOnLeaf,
    Leaf,
    LeafDone,
    LeafView,
    MoveBack,
    Moved,
    SurveyLeafRequest,
    SwitchPlan,
    Upgrade,
    UpgradeRequest,
    Where,
    Word,
)
from rekindle.model.situation import Phase, PodRef, Situation, Switched
from rekindle.model.sizes import LONGEST_NAME, LONGEST_NOTE, LONGEST_TEXT, MOST_PODS, MOST_RANKS, MOST_STANDBYS
from rekindle.model.spares import (
    MOST_AVOIDED,
    MOST_AVOIDED_BYTES,
    MOST_CLAIMS,
    MOST_FREE,
    MOST_PLACED,
    SpareAnswer,
    SpareClaim,
    SpareClaims,
    SpareNews,
    SpareQuestion,
    SpareView,
    SpareWish,
)
from rekindle.model.state import KEPT_INCIDENTS, Contact, JobState, JobStatus, Registration, Remembered, Standing
from rekindle.model.stress import MOST_TESTED_NODES, OpResult, RankOps, StressRequest, StressResults, StressTargets
from rekindle.model.trace import Trace
from rekindle.model.verdict import Verdict
from rekindle.policy.account import marks
from rekindle.policy.account.ledger import KEPT_SPANS
from rekindle.policy.account.spans import LONGEST_CODE, LONGEST_NODE
from rekindle.policy.detection.devices import DeviceOfRank
from rekindle.policy.detection.pod_ranks import TOLD_PROBLEMS
from rekindle.policy.detection.sighting import sight
from rekindle.policy.modes import cases, contract_words, elastic
from rekindle.policy.modes.cases import Case
from rekindle.policy.modes.eligibility import MOST_REPLACED
from rekindle.policy.modes.mode_table import LAST
from rekindle.policy.modes.requests import MOST_OPS
from rekindle.policy.operations import device_checks
from rekindle.policy.operations.switch_upgrade import TOLD
from rekindle.policy.placement import avoided_nodes, node_records
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.job_views import job as a_job_object
from tests.support.job_views import node as a_node
from tests.support.job_views import pod as a_pod
from workflows import faults, job_reducers
from workflows.incident import LOOKED_AT, IncidentRun
from workflows.job_context import JobContext
from workflows.platform import Platform

NOW = datetime(2026, 7, 27, 12, 0, tzinfo=UTC)


TEXT = "x" * LONGEST_TEXT


NOTE = "x" * LONGEST_NOTE


MOST_MOVES = MOST_JOBS + MOST_LEFT
"""Largest number of moves: jobs of one leaf, and jobs that were left on their backup links before."""


FAILED_PODS = 1_250


STORM = "s" * LONGEST_NOTE


NAME = "a-training-job-with-a-name-of-the-usual-length-of-large-ones"


def a_name(number: int) -> str:
    """Returns a name as long as Kubernetes allows."""
    return f"{NAME}-worker-{number:05}".ljust(LONGEST_NAME, "x")


JOBS = {
    "10,000 ranks, 2 a pod": Job(id=JobId("u" * 36), name=a_name(0), pods=MOST_PODS, ranks_per_pod=2),
    "10,000 ranks, 8 a pod": Job(id=JobId("u" * 36), name=a_name(0), pods=MOST_RANKS // 8, ranks_per_pod=8),
    "5,000 pods": Job(id=JobId("u" * 36), name=a_name(0), pods=MOST_PODS),
}


LINKS = tuple(
    NodeLinks(node=a_name(number), devices=tuple(f"{device:016}" for device in range(MOST_ON_BACKUP // MOST_NODES)), backup=True)
    for number in range(MOST_NODES)
)


PLACED = tuple(
    Placed(
        node=one.node,
        devices=one.devices,
        backup=True,
        ranks=tuple((2 * rank,) for rank in range(place, place + len(one.devices))),
    )
    for place, one in enumerate(LINKS)
)


EVERY_SECOND = tuple(range(0, 2 * MOST_ON_BACKUP, 2))


def leaves(count: int) -> tuple[Leaf, ...]:
    """Returns the leaves of a plan, with as many nodes and links as it may have."""
    each = MOST_LINKS // MOST_ENTRIES
    nodes = [
        NodeLinks(node=a_name(number), devices=tuple(f"{device:016}" for device in range(each)), backup=False)
        for number in range(MOST_ENTRIES)
    ]
    size = MOST_ENTRIES // count
    return tuple(Leaf(name=NOTE, links=tuple(nodes[number * size : (number + 1) * size])) for number in range(count))


def upgrades(request: FailoverRequest) -> list[Any]:
    """Returns the arguments and results of a switch upgrade, each as large as possible."""
    one_leaf = leaves(2)[0]
    entries = sum((leaf.links for leaf in leaves(MOST_LEAVES)), ())
    move = JobMove(job_id="u" * 36, job=a_name(0), leaf=0, maintenance=TEXT[:800], where=Where.LEFT, what=NOTE, reason=NOTE)
    note = Move(at=NOW, what=NOTE)
    done = LeafDone(name=NOTE, returned=MOST_JOBS, skipped=MOST_JOBS, left=MOST_JOBS)
    known = Upgrade(
        switch="s" * 63,
        leaves=(NOTE,) * MOST_LEAVES,
        moves=(move,) * MOST_MOVES,
        done=(done,) * MOST_LEAVES,
        notes=(note,) * KEPT_MOVES,
    )
    plan = SwitchPlan(switch="s" * 63, carries=entries, leaves=leaves(MOST_LEAVES), jobs=(NOTE,) * MOST_JOBS)
    places = [Placed(**dict(one), ranks=tuple((9_999,) for _ in one.devices)) for one in entries]
    each = MOST_ENTRIES // MOST_JOBS
    jobs = tuple(
        JobOnLeaf(
            job_id="u" * 36,
            job=a_name(number),
            maintenance=TEXT[:800],
            move=tuple(places[number * each : (number + 1) * each]),
            busy=NOTE,
            problem=NOTE,
        )
        for number in range(MOST_JOBS)
    )
    row = ForecastRow(leaf=NOTE, job=a_name(0), devices=NOTE, ranks=NOTE, problem=NOTE, info=NOTE)
    return [
        UpgradeRequest(plan=plan, requested_by=NOTE),
        UpgradeRequest(plan=plan.model_copy(update={"carries": ()}), requested_by=NOTE, known=known),
        known,
        Control(word=Word.PROCEED, requested_by=NOTE),
        SurveyLeafRequest(leaf=one_leaf, jobs=(NOTE,) * MOST_JOBS),
        LeafView(jobs=jobs, problems=(NOTE,) * TOLD),
        Forecast(leaves=(NOTE,) * MOST_LEAVES, rows=(row,) * KEPT_ROWS, refused=(NOTE,) * TOLD),
        FailOver(maintenance=TEXT, request=request, whose=NOTE),
        MoveBack(maintenance=TEXT, requested_by=NOTE),
        Moved(problem=NOTE, info=NOTE),
    ]


def long_fault(job: Job, number: int, kind: FaultKind, source: str = "test") -> Fault:
    """Returns a fault with every field as large as possible."""
    return Fault(
        id=f"{'u' * 36}/{number}/{'c' * 80}/2026-01-01T00:00:00+00:00",
        kind=kind,
        pod_ranks=(number,),
        ranks=tuple(job.layout.ranks_of(number)),
        node=a_name(number),
        pod=a_name(number),
        pod_uids=("u" * 36,),
        generation="g" * 36,
        code="c" * 80,
        message=TEXT,
        seen_at=NOW,
        source=source,
    )


def process_fault(ranks: Sequence[int]) -> Fault:
    """Returns a fault of processes as the training side reports it."""
    details = (FaultyRanks(ranks=tuple(ranks), device="d" * 64, code="c" * 80),)
    return Fault(id="processes", kind=FaultKind.PROCESS, ranks=tuple(ranks), details=details, message=TEXT, source=TRAINING_SIDE)


def worst_view(job: Job) -> JobView:
    """Returns a job in which a quarter of the pods failed, the nodes of all others are lost and sub-healthy, and all standbys
    failed."""
    failed = dict.fromkeys(range(0, job.pods, 4), PodPhase.FAILED)
    pods = [
        a_pod(
            number,
            f"{number:08x}".ljust(36, "u"),
            name=a_name(number),
            node=a_name(number),
            phase=failed.get(number, PodPhase.RUNNING),
            message=TEXT,
        )
        for number in range(job.pods)
    ]
    ended = {"node": a_name(0), "phase": PodPhase.FAILED, "message": TEXT}
    standbys = [a_pod(None, "u" * 36, name=a_name(number), standby=True, **ended) for number in range(MOST_STANDBYS)]
    nodes = [a_node(a_name(number), sick="c" * 80, ready="False", words=TEXT) for number in range(1, job.pods, 4)]
    return JobView(job=a_job_object(pods=job.pods, each=job.ranks_per_pod), pods=(*pods, *standbys), nodes=tuple(nodes))


STRESS = StressRequest(nodes={a_name(number): tuple(range(MOST_OPS)) for number in range(MOST_TESTED_NODES)})


def asked_of(job: Job) -> tuple[RankOps, ...]:
    """Returns the requested checks, which differ between neighbouring ranks."""
    return tuple(RankOps(ops=(0, 1, 2)[: 3 - half], ranks=tuple(range(half, job.ranks, 2))) for half in (0, 1))


def results_of(job: Job) -> StressResults:
    """Returns the results of all ranks: every second one has a fault, and all have long texts."""
    codes = {0: "2", 1: "0"}
    said = {
        str(rank): dict.fromkeys(("aic", "hccs", "memory"), OpResult(code=codes[rank % 2], result=TEXT))
        for rank in range(job.ranks)
    }
    return device_checks.told(said, job.ranks)


def findings_of(job: Job) -> stress_values.Tested:
    devices = [
        DeviceOfRank(rank, rank // job.ranks_per_pod, a_name(rank // job.ranks_per_pod), "0", "u") for rank in range(job.ranks)
    ]
    found = device_checks.tested(results_of(job), dict.fromkeys(range(job.ranks), (0, 1, 2)), devices)
    return found.model_copy(update={"failed": TEXT})


def ended(outcome: Outcome) -> Verdict:
    """Returns a verdict without the data of each rank."""
    return Verdict(
        mode=Mode.JOB_RESCHEDULING,
        outcome=outcome,
        reason=TEXT * 3,
        phases=tuple(Phase(name="p" * 60, seconds=1.0, note=TEXT, at=NOW) for _ in range(8)),
        look_at=TEXT,
        restarted_at=NOW,
        switched=(Switched(pod_rank=1, before=pod_ref(1), after=pod_ref(2)),),
    )


def verdict(job: Job) -> Verdict:
    found = (long_fault(job, 1, FaultKind.POD), process_fault(range(0, job.ranks, 2)))
    return ended(Outcome.RECOVERED).with_(tested=findings_of(job), found=found, unread=reports(job)[:1], situation=situation(job))


def situation(job: Job) -> Situation:
    """Returns a situation in which every second rank is faulty, alternately by memory and network, which gives the longest texts.
    All pods but one leave."""
    faulty = tuple(FaultRank(rank=rank, type=FaultType(f"{rank % 4}")) for rank in range(0, job.ranks, 2))
    announced = tuple(FaultRank(rank=rank) for rank in range(0, job.ranks, 2))
    return Situation(
        attempt="u" * 60,
        faulty=faulty,
        reported=faulty,
        announced=announced,
        leaving=tuple(range(1, job.pods)),
        offered=True,
        offers=tuple("s" * 64 for _ in range(32)),
        answer_by=NOW,
        told_on="u" * 36,
        unread=reports(job)[:1],
        heard=tuple(Heard(id="u" * 32, mark="m" * 16) for _ in range(20)),
    )


def pod_ref(number: int) -> PodRef:
    return PodRef(name=a_name(number), uid="u" * 36, node=a_name(number), rank=number)


def reports(job: Job) -> tuple[Report, ...]:
    """Returns reports in which every rank is faulty or isolated."""
    everyone = tuple(FaultRank(rank=rank) for rank in range(job.ranks))
    strategies = tuple("s" * 64 for _ in range(32))
    return (
        Report(kind=ReportKind.STOP_COMPLETE, info="i" * 1000, fault_ranks=everyone),
        Report(kind=ReportKind.STRATEGIES, strategies=strategies, fault_ranks=everyone),
        Report(kind=ReportKind.STRESS, info="i" * 1000, results=results_of(job)),
        Report(kind=ReportKind.STATUS, info="i" * 1000, isolate_ranks=tuple(range(job.ranks))),
    )


def incident_of(number: int, case: Case, policy: SubHealthStrategy) -> Incident:
    """Returns an incident that escalated, and was recovered by a restart."""
    ladder = (ended(Outcome.ESCALATE), ended(Outcome.RECOVERED))
    return Incident(
        number=number,
        summary=case.summary,
        started_at=NOW,
        seconds=1.0,
        verdict=Outcome.RECOVERED,
        ladder=ladder,
        policy_after=policy,
        waits=(Waited(since=NOW, until=NOW),) * 3,
        faults=case.faults,
    )


STRETCH = Stretch(began=1e9 / 3, ended=2e9 / 3, steps=10**9, checkpoint=1e9 / 7, again=1e9 / 7)
HOLDING = Holding(state_bytes=2**63 - 1, checkpoint_every=2**63 - 1)


def worn_account() -> Account:
    """Returns the account of a job with as many incidents as are kept, of which some are not counted yet."""
    everything = dict.fromkeys(Bucket, 1000000000.0 / 3)
    spans = tuple(Span(since=1e9 / 3, until=2e9 / 3, bucket=Bucket.NOT_RECOVERED) for _ in range(30))
    rows = [
        Row(
            number=10**6 + number,
            since=1e9 / 3,
            seconds=1e6 / 3,
            mode=Mode.PROCESS_RESCHEDULING,
            outcome=Outcome.RECOVERED,
            cause="sub_health",
            code="c" * LONGEST_CODE,
            node="n" * LONGEST_NODE,
            standbys=True,
            stopped=1e9 / 3,
            waited=1e6 / 3,
            spans=spans if number >= account.KEPT_ROWS - KEPT_SPANS else (),
            stood=dict(list(everything.items())[:6]),
            again=1e6 / 3,
        )
        for number in range(account.KEPT_ROWS)
    ]
    return Account(
        since=1e9 / 3,
        until=2e9 / 3,
        seconds=everything,
        stands=(Stand(stretch=STRETCH, until=1e9 / 3),) * 5,
        current=STRETCH,
        rows=tuple(rows),
        holding=HOLDING,
        paced=STRETCH,
        marks=(account.Mark(until=1e9 / 3, seconds=everything),) * marks.MOST,
    )


def worn(job: Job, sighting: Sighting) -> JobState:
    """Returns the state of a job with twenty bad incidents and as many requests, which now has all faults again."""
    found = JobState.of(job.model_copy(update={"sub_health": SubHealthStrategy.HOT_SWITCH}))
    answer = verdict(job)
    for number in range(KEPT_INCIDENTS + 1):
        found = bad(found, sighting)
        case = cases.next_case(found.with_(problems=()), NOW)
        assert case
        found = job_reducers.concluded(job_reducers.begun(found, case), case, incident_of(number, case, found.policy))
        found = job_reducers.answered(found, "r" * 36, answer)
    found = found.with_(account=worn_account())
    question = Question(mode=LAST.mode, incident=1, about=NOTE, since=NOW, until=NOW, storm=STORM)
    found = bad(found, sighting).with_(links=(OnBackup(ranks=EVERY_SECOND, maintenance=TEXT),), question=question)
    case = cases.next_case(found.with_(problems=()), NOW)
    assert case
    return elastic.without_missing(job_reducers.judged(found, case, f"given_up: {TEXT}").with_(small=smallest(job)))


def smallest(job: Job) -> Small:
    """Returns the state of a job that has lost every second pod."""
    missing = tuple(range(0, job.pods, 2))
    return Small(
        since=NOW,
        missing=missing,
        nodes=tuple(a_name(number) for number in range(elastic.MOST_NODES)),
        by_hand=True,
        size=999_999,
        attempt="u" * 50,
        old=dict.fromkeys(missing[-elastic.MOST_HOLDERS :], "u" * HOLDER_LENGTH),
        lingering=missing,
        there=missing[: elastic.MOST_THERE],
        hurried=elastic.MOST_HURRIED,
        try_at=NOW,
        last_try=TEXT,
    )


def bad(found: JobState, sighting: Sighting) -> JobState:
    """Adds all faults that the watcher, the training side and operators can report."""
    job = found.job
    problems = tuple(f"pod {a_name(number)} carries no rank" for number in range(TOLD_PROBLEMS + 1))
    found = job_reducers.sighted(found, sighting.model_copy(update={"problems": problems}), NOW, restarting=False)
    of_failed_pods = [rank for pod_rank in range(0, job.pods, 4) for rank in job.layout.ranks_of(pod_rank)]
    found = job_reducers.reported(found, FaultReport(faults=(process_fault(of_failed_pods),)), NOW)
    for number in range(40):
        for kind in (FaultKind.NODE, FaultKind.SUB_HEALTH):
            report = FaultReport(faults=(long_fault(job, number, kind),))
            if not faults.room_problem(found, report):
                found = job_reducers.reported(found, report, NOW)
    return found


def of_a_recovery(job: Job, found: JobState) -> list[Any]:
    """Returns what the job's workflow passes to a mode, and sends to it while it runs."""
    case = cases.next_case(found.with_(problems=(), faults=tuple(Standing(fault=one.fault) for one in found.faults)), NOW)
    assert case
    run = IncidentRun.__new__(IncidentRun)
    run.case, run._known, run._number = case, JobContext(found), 1  # without a workflow
    run._situation, run._platform = situation(job).with_(faults=case.faults), Platform(case, run._known)
    gone = ManagerGone(how=f"manager {'u' * LONGEST_NAME}/{NOW.isoformat()} is another process")
    return [run._context(NOW), FaultsNow(faults=case.faults), gone]


async def answers(job: Job, phase: PodPhase) -> list[Any]:
    """Returns the results of the activities for all pods of a job in one phase."""
    cluster = ScriptedCluster(job, nodes=job.pods)
    for pod in list(cluster.pods_by_name.values()):
        cluster._put(pod.model_copy(update={"status": pod.status.model_copy(update={"phase": phase, "message": TEXT})}))
    pods = PodActivities(cluster)
    restart = Restart(job_id=job.id, generation="g" * 36)
    old = restart.model_copy(update={"youngest": datetime.now(UTC)})
    new = NewPodsRequest(restart=restart, pods=job.pods)
    calls: list[tuple[Callable[..., Any], Any]] = [
        (pods.await_new_running, new),
        (pods.look_at_new_pods, new),
        (pods.await_old_gone, OldPodsRequest(restart=old, within=timedelta(0))),
        (pods.ensure_pods, StartRequest(job_id=job.id, generation="g", avoid_nodes=())),
        (pods.delete_pods, StopRequest(job_id=job.id, grace_seconds=0)),
    ]
    return [await ActivityEnvironment().run(call, request) for call, request in calls]


def spare_wish() -> SpareWish:
    nodes = fitting([a_name(number) for number in range(MOST_AVOIDED)], MOST_AVOIDED_BYTES, MOST_AVOIDED)
    return SpareWish(job=TEXT, incident=1, mode=Mode.PROCESS_RESCHEDULING, pods=MOST_REPLACED, avoid_nodes=nodes, demands=TEXT)


def spares_asked_for(job: Job) -> list[Any]:
    """Returns what the workflow that decides about spare nodes gets, answers and keeps."""
    claim = SpareClaim(job_id=job.id, **spare_wish().model_dump(exclude={"priority"}), since=NOW, until=NOW)
    free = {a_name(number): 8 for number in range(MOST_FREE)}
    view = SpareView(free=free, placed={f"{number:036}": 2 for number in range(MOST_PLACED)})
    return [
        SpareQuestion(claim=claim, view=view),
        claim,
        SpareAnswer(reason=TEXT),
        SpareClaims(claims=(claim,) * MOST_CLAIMS),
    ]


def said_to_others(job: Job, found: JobState) -> list[Any]:
    """Returns what is written for other components, and asked of a platform."""
    every_second = tuple(range(0, job.ranks, 2))
    faults = tuple(one.fault for one in found.faults)
    begun = contract_words.begins(Words(), Mode.PROCESS_RESCHEDULING, found, Situation(faults=faults))
    words = begun.model_copy(update={"faulty": every_second, "leaving": tuple(range(0, job.pods, 2))})
    everything = tuple(FaultRank(rank=rank) for rank in every_second)
    return [
        WordsRequest(job_id=job.id, words=words),
        WordsWritten(restarts=1),
        Announced(ranks=every_second, in_place=True),
        PlatformRequest(job_id=job.id, key=TEXT, confirm=everything, within=timedelta(minutes=1)),
        PlatformAnswer(answered=True, value=TEXT * 9, faults=everything, problem=TEXT * 9),
    ]


async def examples(job: Job) -> list[Any]:
    """Returns the largest value of each type."""
    event = ClusterEvent(name=job.name, kind=job.kind, reason="RecoveryGivenUp", message=TEXT * 2)
    everywhere = [long_fault(job, number, FaultKind.NODE) for number in range(job.pods)]
    avoided = avoided_nodes.to_avoid(everywhere, SubHealthStrategy.IGNORE)
    restart = Restart(job_id=job.id, generation="g" * 36, youngest=NOW)
    sighting = sight(worst_view(job)).model_copy(update={"storm": STORM})
    request = ModeRequest(mode=Mode.LINK_SWITCH, pod_rank=1, links=LINKS, stress=STRESS, requested_by=TEXT, front=TEXT)
    moves = (Move(at=NOW, what=TEXT * 9, outcome=Outcome.RECOVERED, reason=TEXT * 9),) * KEPT_MOVES
    maintenance = Maintenance(job_id=job.id, job=TEXT, on_backup=PLACED, moves=moves)
    found = worn(job, sighting)
    failover = FailoverRequest(job=TEXT, name=TEXT, links=LINKS, requested_by=TEXT, known=maintenance)
    remembered = Remembered(recovery=TEXT, downgrade=TEXT, restarts=(NOW,) * 5)
    looked_at = tuple(fault.node for fault in everywhere[:LOOKED_AT])
    begun = Begun.model_validate(found.history[-1].model_dump())
    largest = [await answers(job, phase) for phase in (PodPhase.PENDING, PodPhase.FAILED)]
    return [
        *of_a_recovery(job, found),
        *said_to_others(job, found),
        *(answer for some in largest for answer in some),
        *reports(job),
        FaultReport(faults=(process_fault(range(0, job.ranks, 2)),)),  # every second rank gives the longest text
        sighting,
        found,
        JobStatus(state=found, running=Mode.JOB_RESCHEDULING, recovery=TEXT, request=TEXT, front=TEXT, begun=begun),
        Contact(ended=TEXT, progress=Progress(incarnation=TEXT, step=1)),
        Registration(job=job, sighting=sighting, remembered=remembered, holders=(EXPECTED_HOLDER * HOLDER_LENGTH,) * job.pods),
        ResolveLinksRequest(job_id=job.id, links=LINKS),
        LinkTargets(links=PLACED, problem=TEXT),
        TargetsRequest(job_id=job.id, stress=STRESS, accepted=(0, 1, 2)),
        StressTargets(asked=asked_of(job), problem=TEXT),
        FindingsRequest(job_id=job.id, asked=asked_of(job), results=results_of(job), why=TEXT),
        Found(tested=findings_of(job), faults=(long_fault(job, 1, FaultKind.POD), process_fault(range(0, job.ranks, 2)))),
        Order(job_id=job.id, uuid="u" * 50, signal_type="s", stress=asked_of(job)),
        maintenance,
        failover,
        *upgrades(failover.model_copy(update={"known": None})),
        SwitchBack(links=LINKS, requested_by=TEXT),
        LinksReset(ranks=EVERY_SECOND, why=TEXT),
        Trace(communication=True, step=True, checkpoint=True, forward=True, loader=True),
        StandbysRequest(job_id=job.id, count=MOST_STANDBYS, avoid_nodes=avoided),
        StandbysNow(standbys=sighting.standbys),
        LeftRequest(job_id=job.id, pod_ranks=tuple(range(job.pods))),
        SweepRequest(
            job_id=job.id,
            pods=tuple(pod_ref(rank) for rank in range(job_reducers.KEPT_PODS)),
            have_left=dict.fromkeys(range(elastic.MOST_HOLDERS), "u" * HOLDER_LENGTH),
        ),
        Survey(exists=True, sighting=sighting, nodes=looked_at),
        SurveyRequest(job_id=job.id, nodes=looked_at),
        RecoveryEnd(settled=True, words=TEXT, verdict=verdict(job)),
        RememberRequest(job_id=job.id, memory=remembered, given_up=TEXT, blame=blame(job), spare=SpareNews(wish=spare_wish())),
        *spares_asked_for(job),
        AsideRequest(node=a_name(1), reason=TEXT, job_id=job.id),
        AsideResult(refused=TEXT),
        NodeRecord(node=a_name(1), incidents=(blame(job).incident,) * node_record.KEPT, aside=Aside(reason=TEXT, until=NOW)),
        WithdrawRequest(job_id=job.id, request_id=TEXT),
        NodesRequest(names=tuple(a_name(number) for number in range(explained.MOST_NODES)), mark=Mark.BROKEN, reason=TEXT[:300]),
        nodes_seen(),
        NodesNow(nodes=nodes_seen().nodes[:1], there=pods_there()),
        verdict(job),
        request,
        Order(job_id=job.id, uuid="u" * 50, signal_type="s", fault_ranks=tuple(FaultRank(rank=r) for r in range(job.ranks))),
        Receipt(info=TEXT),
        Attachment(queue=TEXT, session=TEXT, since=NOW),
        Progress(incarnation=TEXT, step=1),
        account.Ended(name=a_name(1), reason=TEXT, account=worn_account()),
        TimeReport(
            step=10**9,
            ranks=MOST_RANKS,
            now=worn_account().stands[0].stretch,
            before=worn_account().stands[0].stretch,
            holding=HOLDING,
        ),
        AskRequest(job_id=job.id, request=request, request_id=TEXT),
        Backup(old=pod_ref(1), backup=pod_ref(2)),
        Replacement(old=pod_ref(1), backup=pod_ref(2)),
        RecreationRequest(
            job_id=job.id,
            held=tuple(Held(pod_rank=rank, holder="u" * HOLDER_LENGTH, told=True) for rank in range(0, job.pods, 2)),
            lost_nodes=avoided,
            within=Limits().replacement_scheduled,
        ),
        Recreation(
            moved=(Switched(pod_rank=1, before=pod_ref(1), after=pod_ref(2)),) * MOST_MOVED,
            came=tuple(range(0, job.pods, 2)),
            missing=TEXT * 5,
        ),
        BackupRequest(job_id=job.id, pod_rank=1, name_suffix="1", avoid_nodes=avoided, spare=spare_wish()),
        EndSession(job_id=job.id, session=TEXT, reason=TEXT),
        EventRequest(job_id=job.id, event=event),
        JobRequest(job_id=job.id),
        JobLook(phase=JobPhase.RUNNING),
        NewPodsRequest(restart=restart, pods=job.pods),
        OldPodsRequest(restart=restart, within=Limits().pods_stopped),
        PodsRequest(job_id=job.id, pods=(pod_ref(1), pod_ref(2)), within=Limits().pause),
        PolicyRequest(job_id=job.id, strategy="ignore", reason=TEXT),
        Scheduled(node=a_name(1), message=TEXT * 5),
        StartRequest(job_id=job.id, generation="g" * 36, avoid_nodes=avoided, spare=spare_wish()),
        StopRequest(job_id=job.id, grace_seconds=5, lost_nodes=avoided),
        Swap(old_deleted=False, message=TEXT * 5),
        SwapRequest(job_id=job.id, old=pod_ref(1), backup=pod_ref(2)),
        TerminateRequest(workflow_id=TEXT, reason=TEXT),
        (pod_ref(1), pod_ref(2)),
        TEXT,
    ]


def pods_there() -> There:
    """Returns as many pods of jobs as are shown of one node."""
    pod = PodThere(job_id=f"{'n' * 63}.{'j' * 63}", name="p" * 253, uid="u" * 36, pod_rank=9_999)
    return There(cordoned=True, rule="r" * 60, refused="w" * LONGEST_NOTE, pods=(pod,) * explained.MOST_THERE)


def blame(job: Job) -> Blame:
    incident = NodeIncident(
        job_id=job.id, job=job.name, number=1, about=TEXT, at=NOW, within=timedelta(days=1), aside=timedelta(days=1)
    )
    return Blame(nodes=tuple(a_name(number) for number in range(node_records.MOST_BLAMED)), incident=incident)


def nodes_seen() -> NodesNow:
    """Returns as many nodes as a list has, each with all that is shown of it."""
    long = "n" * LONGEST_NOTE
    fact = FactNow(saw="s" * 120, message="m" * 160, since=NOW, devices=("0",) * 8, rule="r" * 60, then="sub-health")
    seen = [
        NodeNow(name=a_name(number), lost=long, silenced=long, isolated=long, facts=(fact,) * explained.FEW_FACTS, more=9)
        for number in range(explained.MOST_NODES)
    ]
    return NodesNow(nodes=tuple(seen), count=5000, more=4900)
