"""Largest examples of all values that cross Temporal, for the largest jobs that the product serves."""

from typing import Any

from activities.pod_recreation import MOST_MOVED
from rekindle.model import account, explained, node_record
from rekindle.model.account import TimeReport
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
from rekindle.model.attachment import Attachment, Progress
from rekindle.model.cluster import ClusterEvent, JobPhase, PodPhase
from rekindle.model.dialogue import FaultRank, Order, Receipt
from rekindle.model.explained import Mark, NodesNow, NodesRequest
from rekindle.model.fault import (
    EXPECTED_HOLDER,
    HOLDER_LENGTH,
    FaultKind,
    FaultReport,
)
from rekindle.model.incident import Begun, ModeRequest
from rekindle.model.job import Job, SubHealthStrategy
from rekindle.model.limits import Limits
from rekindle.model.links import LinksReset
from rekindle.model.maintenance import KEPT_MOVES, FailoverRequest, Maintenance, Move, SwitchBack
from rekindle.model.mode import Mode, Outcome
from rekindle.model.node_record import Aside, AsideRequest, AsideResult, NodeRecord
from rekindle.model.situation import Switched
from rekindle.model.sizes import MOST_RANKS, MOST_STANDBYS
from rekindle.model.spares import (
    SpareNews,
)
from rekindle.model.state import Contact, JobStatus, Registration, Remembered
from rekindle.model.stress import StressTargets
from rekindle.model.trace import Trace
from rekindle.policy.detection.sighting import sight
from rekindle.policy.modes import elastic
from rekindle.policy.placement import avoided_nodes
from tests.workflows.support.largest.accounts import HOLDING, worn_account
from tests.workflows.support.largest.common import NOW, STORM, TEXT, a_name, long_fault, pod_ref, process_fault, worst_view
from tests.workflows.support.largest.device_checks import STRESS, asked_of, findings_of, results_of
from tests.workflows.support.largest.links import EVERY_SECOND, LINKS, PLACED, upgrades
from tests.workflows.support.largest.nodes import blame, nodes_seen, pods_there
from tests.workflows.support.largest.pods import answers, spare_wish, spares_asked_for
from tests.workflows.support.largest.recoveries import reports, verdict
from tests.workflows.support.largest.states import of_a_recovery, said_to_others, worn
from workflows import job_reducers
from workflows.incident import LOOKED_AT


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
