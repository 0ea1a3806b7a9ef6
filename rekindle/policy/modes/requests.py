"""Validates requests and faults before anything is started. Used by the validators of `TrainingJob`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from pydantic import ValidationError

from rekindle.errors import BadInput
from rekindle.model.base import Value
from rekindle.model.bounds import cut, few
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.incident import ModeRequest
from rekindle.model.job import Job
from rekindle.model.keys import ELASTIC
from rekindle.model.links import MOST_NODES, NodeLinks
from rekindle.model.mode import Mode
from rekindle.model.problems import did_you_mean, problems
from rekindle.model.state import JobState
from rekindle.model.stress import MOST_TESTED_NODES, StressRequest
from rekindle.policy.modes import elastic, ladder, observe_only
from rekindle.policy.modes.eligibility import MOST_REPLACED
from rekindle.policy.modes.mode_table import About, row_of
from rekindle.policy.training_sides.table import side_of

Input = TypeVar("Input", bound=Value)

LONGEST_ID = 1_000
"""Maximum number of bytes of a request's id. It is the id of an update, for which the server has this limit."""

MOST_OPS = 16
"""Maximum number of operations of one node in a request. There are three different ones."""

MOST_VALUES = 20_000
"""Maximum number of values in an input. The largest accepted ones have some thousands. The validation of a million would exceed
the time that a workflow has."""

REFILLED = (
    "a smaller size would free no node: the controller of this {kind} creates another pod at once for each one that leaves. "
    "Stop the job, and start it with fewer pods from its last checkpoint"
)
"""Reason why a person cannot make a job smaller."""

QUOTED = 80
"""Maximum number of bytes of a wrong input in an error message."""


def read(given: object) -> ModeRequest:
    """Returns the request that a client wrote.

    Raises:
        BadInput: names each wrong field.
    """
    return read_as(ModeRequest, given, '{"pod_rank": 1}')


def mode_named(given: object) -> Mode:
    """Returns the mode that a program names: `Mode.IN_PLACE`, its value, or `in-place` as on the command line.

    Raises:
        BadInput: there is no mode with that name.
    """
    names = {name.lower().replace("_", "-"): mode for name, mode in Mode.__members__.items()}
    spelled = {**names, **{mode.replace(" ", "-"): mode for mode in Mode}}
    wanted = str(given).lower().replace("_", "-").replace(" ", "-")
    if wanted not in spelled:
        guess = did_you_mean(wanted, spelled)
        raise BadInput(f"mode: {cut(repr(given), QUOTED)} is no mode{guess} (accepted: {', '.join(names)})")
    return spelled[wanted]


def read_as(kind: type[Input], given: object, example: str) -> Input:
    """Returns the input of a workflow that a client wrote. Unknown fields are rejected, except in the input of a later run of a
    workflow.

    Args:
        example: an example of such an input, as JSON.

    Raises:
        BadInput: names each wrong field.
    """
    if not isinstance(given, Mapping | kind):
        raise BadInput(f"the input must be one JSON object, such as {example} (got {cut(repr(given), QUOTED)})")
    if isinstance(given, Mapping) and not _is_small(given):
        raise BadInput(f"the input has more than {MOST_VALUES} values, which is more than any {kind.__name__} needs")
    try:
        return kind.model_validate(given, extra="ignore" if _is_of_a_run(given) else "forbid")
    except ValidationError as error:
        raise BadInput(few(problems(error, kind), between="; ")) from error


def problem_of(kind: type[Input], given: object, example: str) -> str:
    """Returns the error in an input that `read_as` reads. Empty: there is none."""
    try:
        read_as(kind, given, example)
    except BadInput as error:
        return str(error)
    return ""


def retry_problem(state: JobState) -> str:
    """Returns why there is nothing to try again. Empty: the job was given up, or a fault of it is left alone."""
    if state.job.observe:
        return observe_only.ONLY
    if state.given_up or any(one.judged for one in state.faults):
        return ""
    return f"job {state.job.name} was not given up, and no fault of it is left alone"


def _is_of_a_run(given: object) -> bool:
    """Returns whether a workflow continued as new with this input. Its code may have been newer."""
    return isinstance(given, Mapping) and given.get("known") is not None


def _is_small(given: Mapping[object, object]) -> bool:
    todo: list[object] = [given]
    count = 0
    while todo and count <= MOST_VALUES:
        inside = todo.pop()
        count += len(inside) if isinstance(inside, Mapping | list) else 0
        todo.extend(inside.values() if isinstance(inside, Mapping) else inside if isinstance(inside, list) else ())
    return count <= MOST_VALUES


def invalid(state: JobState, given: object) -> str:
    """Returns the error in a request, with what is accepted. Empty: there is none."""
    try:
        request = read(given)
    except BadInput as error:
        return str(error)
    if request.mode is None:
        return f"mode: missing, accepted are {', '.join(Mode)}"
    about = row_of(request.mode).about
    problem = links_problem(request.links) if about is About.LINKS else _no_links(request)
    problem = problem or (stress_problem(request.stress) if about is About.CHECKS else _no_stress(request))
    problem = problem or _replicas_problem(state, request, about)
    return problem or _pod_rank_problem(state, request, about)


def _replicas_problem(state: JobState, request: ModeRequest, about: About) -> str:
    job, wanted, most = state.job, request.replicas, state.job.layout.replicas
    if about is not About.SIZE:
        return "" if wanted is None else f"replicas: not accepted, since a {request.mode} keeps the number of pods"
    least = job.elastic.least if job.elastic else 1
    accepted = f"accepted are {least} to {most}"
    if wanted is None:
        return f"replicas: missing, {accepted}"
    if job.elastic and wanted < least:
        return f"replicas: {wanted} is below the least size of job {job.name} (annotation {ELASTIC}), {accepted}"
    if not 0 < wanted <= most:
        return f"replicas: {wanted} is not a size of job {job.name}, which was started with {most}, {accepted}"
    return ""


def _pod_rank_problem(state: JobState, request: ModeRequest, about: About) -> str:
    if about is not About.POD:
        return "" if request.pod_rank is None else f"pod_rank: not accepted, since {request.mode} concerns {about.value}"
    last = state.job.pods - 1
    if request.pod_rank is None:
        return f"pod_rank: missing, accepted are 0 to {last}"
    if not 0 <= request.pod_rank <= last:
        return f"pod_rank: {request.pod_rank} is not a pod rank of job {state.job.name}, accepted are 0 to {last}"
    return ""


def _no_links(request: ModeRequest) -> str:
    return f"links: not accepted, since a {request.mode} moves none" if request.links else ""


def _no_stress(request: ModeRequest) -> str:
    return f"stress: not accepted, since a {request.mode} tests nothing" if request.stress else ""


def stress_problem(stress: StressRequest | None) -> str:
    """Returns the error in a list of nodes and checks, regardless of the job. Empty: there is none."""
    if stress is None or not (stress.nodes or stress.all_nodes):
        return 'stress: missing, accepted are nodes with their operations, such as {"nodes": {"node-1": [0, 1]}}'
    if len(stress.nodes) > MOST_TESTED_NODES:
        return f"stress.nodes: {len(stress.nodes)}, accepted are at most {MOST_TESTED_NODES} nodes, or all_nodes"
    if any(len(ops) > MOST_OPS for ops in (stress.all_nodes, *stress.nodes.values())):
        return f"stress: accepted are at most {MOST_OPS} operations for a node"
    return ""


def links_problem(links: Sequence[NodeLinks]) -> str:
    """Returns the error in a list of devices, regardless of the job. Empty: there is none."""
    if not links:
        return 'links: missing, accepted are 1 or more nodes, such as {"node": "node-1", "devices": ["0"], "backup": true}'
    if len({one.node for one in links}) > MOST_NODES:
        return f"links: {len(links)} entries, accepted are at most {MOST_NODES} nodes at once"
    named = Counter((one.node, device) for one in links for device in one.devices)
    twice = next((name for name, count in named.items() if count > 1), None)
    return f"links: device {twice[1]} of {twice[0]} is named twice, accepted is each device once" if twice else ""


def withdrawal_problem(request_id: str) -> str:
    """Returns why there can be no request with this id. Empty: there can be. The id is stored, since the withdrawal may arrive
    before the request."""
    return "" if len(request_id.encode()) <= LONGEST_ID else f"the id of a request has at most {LONGEST_ID} bytes"


def trace_problem(state: JobState) -> str:
    """Returns why the measurements of the job's ranks cannot be switched. Empty: they can be."""
    side = side_of(state.job)
    return "" if side.has_tracing else f"job {state.job.name} trains with {side.label}, which has no switches of tracing"


def refused(state: JobState, request: ModeRequest) -> str:
    """Returns why a valid request cannot be served now. Empty: it can be."""
    assert request.mode is not None
    if state.job.observe:
        return observe_only.ONLY
    if blocker := ladder.blocked(state, request.mode):
        return blocker
    if row_of(request.mode).about is About.SIZE and (why := _size_refused(state, request)):
        return why
    if row_of(request.mode).about is About.POD and not request.force and not _is_sub_healthy(state, request.pod_rank):
        return f"pod rank {request.pod_rank} is healthy: it was not reported as sub-healthy (force moves it all the same)"
    return ladder.as_requested(state, request).refused


def _size_refused(state: JobState, request: ModeRequest) -> str:
    now, side = elastic.present(state.job, state.small), side_of(state.job)
    if request.replicas == now:
        return f"job {state.job.name} has {now} replicas already"
    if request.replicas is not None and request.replicas < now and not side.scales_at_will:
        return f"{side.label} goes on with fewer replicas only after a fault"
    if request.replicas is not None and request.replicas < now and state.job.refilled:
        return REFILLED.format(kind=state.job.kind)
    if side.returns_at_once and now < (request.replicas or 0) < state.job.layout.replicas:
        return f"{side.label} takes all missing replicas back together: accepted is {state.job.layout.replicas}"
    pods = MOST_REPLACED + (len(state.small.there) if state.small else 0)
    most = now + max(1, pods // state.job.layout.pods_per_replica)
    if (request.replicas or 0) > most and not side.controller_recreates:
        return f"at most {MOST_REPLACED} pods are created for one request: accepted is {most}, and more with the next one"
    return ""


def _is_sub_healthy(state: JobState, pod_rank: int | None) -> bool:
    sub_healths = (one.fault for one in state.faults if one.fault.kind is FaultKind.SUB_HEALTH)
    return any(pod_rank in fault.pod_ranks for fault in sub_healths)


def fault_problem(job: Job, faults: Iterable[Fault]) -> str:
    """Returns the error in faults that do not fit the job. Empty: there is none."""
    for fault in faults:
        if fault.kind is FaultKind.SUB_HEALTH and not fault.pod_ranks:
            return f"pod_ranks: missing, a sub-health is of pod ranks, accepted are 0 to {job.pods - 1}"
        told = [*fault.ranks, *(rank for detail in fault.details for rank in detail.ranks)]
        if wrong := [rank for rank in told if not 0 <= rank < job.ranks]:
            return f"ranks: {wrong[0]} is not a rank of job {job.name}, accepted are 0 to {job.ranks - 1}"
        if wrong := [rank for rank in fault.pod_ranks if not 0 <= rank < job.pods]:
            return f"pod_ranks: {wrong[0]} is not a pod rank of job {job.name}, accepted are 0 to {job.pods - 1}"
    return ""
