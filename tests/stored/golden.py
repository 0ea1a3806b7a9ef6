"""`python -m tests.stored.golden`: writes the examples of stored formats as this version writes them, where a format has changed.

The files stay for ever: newer code reads what older code has written.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rekindle.model import maintenance, plan
from rekindle.model.account import Account, Bucket, Holding, Mark, Row, Span, Stand, Stretch
from rekindle.model.approval import Question, Unanswered
from rekindle.model.attachment import Attachment, Progress
from rekindle.model.base import Value
from rekindle.model.elastic import Elastic, Resized, Small
from rekindle.model.fault import Decided, Fault, FaultKind, FaultType, FaultyRanks
from rekindle.model.incident import Incident, ModeRequest, Waited
from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.links import OnBackup, Placed
from rekindle.model.maintenance import Maintenance
from rekindle.model.mode import Mode, Outcome
from rekindle.model.plan import Upgrade
from rekindle.model.situation import Handled, Phase, PodRef, Switched
from rekindle.model.standby import Standby, Upkeep
from rekindle.model.state import Again, Answered, Downgrade, GivenUp, JobState, Pending, Refusing, Remembered, Standing, Told
from rekindle.model.trace import Trace
from rekindle.model.verdict import Verdict

FOLDER = Path(__file__).with_name("golden")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD, NEW = PodRef(name="gpt-worker-1", uid="old", node="node-1", rank=1), PodRef(name="gpt-worker-1-hot-0001", uid="new", rank=1)
SLOW = Fault(
    id="uid-of-node-1/plain/sub-healthy/0/1",
    kind=FaultKind.SUB_HEALTH,
    pod_ranks=(1,),
    ranks=(2, 3),
    node="node-1",
    pod="gpt-worker-1",
    pod_uids=("old",),
    accepted_at=NOW,
    decided=Decided(rule="plain/sub-healthy", saw="condition SubHealthy=True", since=NOW, settle=1.0, clear=60.0),
    source="watcher",
)
CRASH = Fault(
    id="processes",
    kind=FaultKind.PROCESS,
    ranks=(3,),
    details=(FaultyRanks(ranks=(3,), type=FaultType.MEMORY, device="1", code="8C084E00"),),
    accepted_at=NOW,
    session="session-1",
    source="training-side",
)
VERDICT = Verdict(
    mode=Mode.HOT_SWITCH,
    outcome=Outcome.RECOVERED,
    reason="training goes on",
    seconds=3.5,
    phases=(Phase(name="training pauses", seconds=0.2, at=NOW),),
    steps_lost=0,
    resumed_at=8,
    switched=(Switched(pod_rank=1, before=OLD, after=NEW),),
    handled=(Handled.of(CRASH),),
    left_behind=(OLD,),
    failed_on=("node-3",),
    again="a node on which they start",
    resized=Resized(left=(1,), nodes=("node-1",), places=((1,),), attempt="uuid"),
    went_on_at=NOW,
)
SMALL = Small(
    since=NOW,
    missing=(1,),
    nodes=("node-1",),
    places=((1,),),
    by_hand=True,
    size=2,
    attempt="uuid",
    old={1: "old"},
    lingering=(1,),
    there=(1,),
    hurried=2,
    tries=2,
    try_at=NOW + timedelta(minutes=1),
    last_try="no spare",
)
REMEMBERED = Remembered(
    job="job",
    incidents=3,
    recovery="recovery/job/3/hot-switch",
    downgrade="no spare",
    policy_before=SubHealthStrategy.HOT_SWITCH,
    restarts=(NOW,),
    left_behind=(OLD,),
    moved=VERDICT.switched,
    links=(OnBackup(ranks=(2, 3), maintenance="link-failover/default.gpt/node-1/1"),),
    given_up=GivenUp(since=NOW, incident=3, mode=Mode.JOB_RESCHEDULING, reason="aborted by ada", aborted=True),
    small=SMALL,
)
ACCOUNT = Account(
    since=100.0,
    until=220.0,
    seconds={Bucket.TRAINING: 100.0, Bucket.START_UP: 10.0, Bucket.REBUILDING: 10.0},
    stands=(Stand(stretch=Stretch(began=220.0, ended=230.0, steps=10, checkpoint=1.0, again=2.0), until=240.0),),
    current=Stretch(began=240.0, ended=250.0, steps=10, missing=0.25),
    step=40,
    stepped_at=111.0,
    holding=Holding(state_bytes=2**30, checkpoint_every=100),
    paced=Stretch(began=240.0, ended=250.0, steps=10),
    marks=(Mark(until=110.0, seconds={Bucket.START_UP: 10.0}),),
    ranks=4,
    rows=(
        Row(
            number=3,
            since=228.0,
            seconds=13.0,
            mode=Mode.HOT_SWITCH,
            outcome=Outcome.RECOVERED,
            cause="sub_health",
            code="0x1",
            node="node-1",
            restarts=True,
            standbys=True,
            stopped=238.0,
            waited=2.0,
            spans=(Span(since=228.0, until=241.0, bucket=Bucket.PODS),),
            stood={Bucket.PODS: 10.0},
            again=2.0,
        ),
    ),
    older_rows=2,
)
STATE = JobState(
    job=Job(
        id=JobId("job"),
        name="gpt",
        pods=2,
        ranks_per_pod=2,
        sub_health=SubHealthStrategy.HOT_SWITCH,
        standbys=1,
        approvals={Mode.HOT_SWITCH: Unanswered.APPROVE},
        elastic=Elastic(least=1, wait=timedelta(seconds=60)),
    ),
    small=SMALL,
    registered=True,
    introduced=True,
    attachment=Attachment(queue="gateway/gateway-0", session="session-1", since=NOW, client="10.0.0.5"),
    replaced=("session-0",),
    progress=Progress(incarnation="life-1", step=7, steps_lost=2, session="session-1", ranks=4),
    downgrade=Downgrade(reason="no spare", since=NOW, before=SubHealthStrategy.HOT_SWITCH),
    holders=("aaaaaaaa", "bbbbbbbb"),
    faults=(
        Standing(fault=SLOW, judged="ignored", well_since=NOW + timedelta(seconds=5)),
        Standing(fault=CRASH, told=(Told(ranks=(3,), at=NOW),)),
    ),
    again=Again(at=NOW, tries=2, judges=True),
    storm="30 of 100 nodes are unhealthy, the mark is 20%",
    tried_again=NOW,
    question=Question(
        mode=Mode.HOT_SWITCH,
        incident=4,
        about="sub-health node-1",
        since=NOW,
        until=NOW + timedelta(minutes=5),
        storm="30 of 100 nodes are unhealthy, the mark is 20%",
    ),
    given_up=GivenUp(
        since=NOW,
        incident=3,
        mode=Mode.JOB_RESCHEDULING,
        reason="pods do not run",
        stopped=True,
        limited=True,
        pods="its pods stay",
    ),
    reports=("report-1",),
    problems=("pods a and b both carry pod rank 1",),
    request=Pending(id="request-2", request=ModeRequest(job="gpt", mode=Mode.HOT_SWITCH, pod_rank=1, requested_by="ada")),
    answers=(Answered(id="request-1", verdict=VERDICT),),
    incidents=3,
    history=(
        Incident(
            number=3,
            summary="sub-health node-1",
            started_at=NOW,
            seconds=4.0,
            verdict=Outcome.RECOVERED,
            ladder=(VERDICT,),
            policy_after=SubHealthStrategy.HOT_SWITCH,
            waits=(Waited(since=NOW, until=NOW + timedelta(seconds=2)),),
            faults=(SLOW,),
        ),
    ),
    restarts=(NOW,),
    repairs=(NOW,),
    refusing=(Refusing(node="node-3", at=NOW),),
    left_behind=(OLD,),
    links=REMEMBERED.links,
    standbys=(Standby(name="gpt-standby-0", uid="standby", node="node-2", runs=True),),
    upkeep=Upkeep(tried_at=NOW, tries=1),
    account=ACCOUNT,
    trace=Trace(step=True),
)

MAINTENANCE = Maintenance(
    job_id="job",
    job="gpt",
    stage=maintenance.Stage.ON_BACKUP,
    on_backup=(Placed(node="node-1", devices=("0",), backup=True, ranks=((2, 3),)),),
    since=NOW,
    asked=1,
    moves=(maintenance.Move(at=NOW, what="node-1: 0", outcome=Outcome.RECOVERED, reason="training goes on"),),
)
UPGRADE = Upgrade(
    switch="spine-1",
    stage=plan.Stage.FREE,
    leaf=1,
    leaves=("leaf-0", "leaf-1"),
    moves=(),
    stopped=True,
    notes=MAINTENANCE.moves,
)

FORMATS: dict[str, Value] = {"job-state": STATE, "remembered": REMEMBERED, "maintenance": MAINTENANCE, "upgrade": UPGRADE}
"""Examples as this version writes them, by the name of their format: what crosses the runs of workflows, or stands on a job."""


def schema(name: str) -> dict[str, Any]:
    """Returns the format as JSON Schema, without its documentation."""
    found: dict[str, Any] = _plain(type(FORMATS[name]).model_json_schema(mode="serialization"))
    return found


def _plain(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _plain(value) for key, value in part.items() if key not in ("description", "title")}
    return [_plain(value) for value in part] if isinstance(part, list) else part


def versions(name: str) -> list[Path]:
    """Returns the files of a format, the newest last."""
    return sorted(FOLDER.glob(f"{name}-*.json"))


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, example in FORMATS.items():
        known = versions(name)
        content = {"schema": schema(name), "example": json.loads(example.model_dump_json())}
        if known and json.loads(known[-1].read_text()) == content:
            continue
        file = FOLDER / f"{name}-{len(known) + 1:03d}.json"
        file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        print(f"written: {file.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
