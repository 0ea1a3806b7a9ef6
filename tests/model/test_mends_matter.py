"""The model finds a defect that is put back, so its verdicts are not blind."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from temporalio import workflow

from rekindle.model.verdict import Verdict
from rekindle.policy.modes import ladder
from tests.model import test_operations as operations
from tests.model.test_entity import EXAMPLES, SEEDS
from tests.model.world.plane import ControlPlane
from tests.model.world.walk import Walk, kinds
from workflows import attachments, faults, hot_switch, link_failover
from workflows.device_check import StressTest
from workflows.hot_switch import HotSwitch
from workflows.incident import IncidentRun
from workflows.job_rescheduling import JobRescheduling
from workflows.leftover_pods import LeftoverPods
from workflows.link_failover import LinkFailover
from workflows.mode import Ends, ModeWorkflow
from workflows.process_level import ProcessLevel
from workflows.process_rescheduling import ProcessRescheduling

Patch = Callable[[pytest.MonkeyPatch], None]


def a_withdrawal_ends_the_incident(patch: pytest.MonkeyPatch) -> None:
    """Ends the incident with a withdrawal, even before the restart that has to follow."""
    patch.setattr(IncidentRun, "withdraw", lambda run, _: run.end())


def former_lives_are_believed(patch: pytest.MonkeyPatch) -> None:
    """Lets a restart forget which streams were of the life before it."""
    patch.setattr(attachments, "restarted", lambda state: state)


def streams_are_forgotten_with_a_restart(patch: pytest.MonkeyPatch) -> None:
    """Lets the workflow that restarts the job forget all streams: their reports are those of strangers to it."""
    patch.setattr(attachments, "restarted", lambda state: state.with_(former=(), replaced=(), detached=(), client=""))


def any_step_is_of_the_new_life(patch: pytest.MonkeyPatch) -> None:
    """Counts every reported step as one of the new life."""
    patch.setattr(JobRescheduling, "_is_of_the_new_life", lambda *_: True)


def two_pods_of_one_rank_block_every_mode(patch: pytest.MonkeyPatch) -> None:
    """Blocks every mode while two pods have one rank, also the mode that would delete one. The deletion is not retried."""
    what_is_left_behind_stays(patch)
    patch.setattr(ladder, "blocked", lambda state, _: "; ".join(state.problems[:1]))


def what_is_left_behind_stays(patch: pytest.MonkeyPatch) -> None:
    """Treats a clean-up as done without running it, so that it is not retried."""

    async def swept(leftovers: LeftoverPods, interrupted: object) -> bool:
        leftovers._at = None
        return True

    patch.setattr(LeftoverPods, "sweep", swept)


def new_pods_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Skips the look at new pods while the training side takes them over."""

    async def looked(mode: ProcessRescheduling) -> None:
        return

    patch.setattr(ProcessRescheduling, "_look", looked)


def a_second_fault_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Forgets a second fault: a repair that failed for it is not tried for both."""

    async def hit(mode: ProcessLevel) -> bool:
        return False

    patch.setattr(ProcessLevel, "is_hit_again", hit)


def a_repair_is_over_with_its_workflow(patch: pytest.MonkeyPatch) -> None:
    """Ends a repair with its workflow, also for reports after the one that training continues."""
    original = ModeWorkflow.close

    async def close(mode: ModeWorkflow, verdict: Verdict, *, cancelled: bool) -> Verdict:
        mode.went_on_at = mode.went_on_at and workflow.now()
        return await original(mode, verdict, cancelled=cancelled)

    patch.setattr(ModeWorkflow, "close", close)


def a_rank_is_told_of_once(patch: pytest.MonkeyPatch) -> None:
    """Ignores a second fault of a rank that is being recovered."""
    original = faults.reported
    patch.setattr(faults, "reported", lambda *told, **_: original(*told))


def a_fault_behind_the_pause_is_a_failure(patch: pytest.MonkeyPatch) -> None:
    """Lets a hot switch fail for a fault after the pause, so that the job is restarted at once."""

    async def failure(_: HotSwitch, reason: str) -> Ends:
        return hot_switch._escalate(reason)

    patch.setattr(HotSwitch, "_failure", failure)


def a_refusal_is_asked_again_each_second(patch: pytest.MonkeyPatch) -> None:
    """Repeats a refused request each second, whatever the refusal is, and as if each time were the first."""
    patch.setattr(link_failover, "ABSENCE", link_failover.PATIENCE)
    patch.setattr(link_failover, "LONGEST_ABSENT", 4 * link_failover.ABSENT)
    patch.setattr(link_failover, "PATIENCE", timedelta(minutes=3))
    original = link_failover._NotMoved.__init__

    def passing(error: link_failover._NotMoved, *said: str, **_: bool) -> None:
        original(error, *said)

    patch.setattr(link_failover._NotMoved, "__init__", passing)


def what_was_not_answered_is_undone(patch: pytest.MonkeyPatch) -> None:
    """Undoes a maintenance that was not answered, without looking where its links are."""

    async def done(*_: object) -> bool:
        return False

    patch.setattr(LinkFailover, "_is_done", done)


def each_call_is_a_report(patch: pytest.MonkeyPatch) -> None:
    """Recovers the second report of one fault as well."""
    patch.setattr(ControlPlane, "id_of", staticmethod(lambda _: ""))


def agents_stay_held(patch: pytest.MonkeyPatch) -> None:
    """Leaves agents held where a stress test finds something."""

    async def nothing(_: StressTest) -> None:
        return

    patch.setattr(StressTest, "compensate", nothing)


def an_order_of_a_receipt_is_believed(patch: pytest.MonkeyPatch) -> None:
    """Takes the order for written, whatever happens to its gateway."""

    async def believed(mode: ProcessLevel) -> None:
        mode.told_first = None

    patch.setattr(ProcessLevel, "_until_carried_out", believed)


DEFECTS: tuple[tuple[Patch, str, str], ...] = (
    (
        a_withdrawal_ends_the_incident,
        "a front that is cancelled behind the pause does not cancel the restart that has to follow",
        "given up",
    ),
    (former_lives_are_believed, "the report of a crash arrives when the restart that it led to is over", "needless"),
    (streams_are_forgotten_with_a_restart, "the report of a crash arrives when the restart that it led to is over", "needless"),
    (any_step_is_of_the_new_life, "the first step of the old life arrives while the new one starts", "untrue"),
    (
        two_pods_of_one_rank_block_every_mode,
        "an old pod that was left behind does not keep a lost node from being recovered",
        "dead",
    ),
    (what_is_left_behind_stays, "an old pod that could not be deleted is deleted later", "left behind"),
    (new_pods_are_not_looked_at, "a new pod vanishes before it has taken over", "costly"),
    (a_second_fault_is_forgotten, "a rank dies while another one starts again in its pod", "costly"),
    (a_fault_behind_the_pause_is_a_failure, "a rank that stays dies in the rebuild of a hot switch", "costly"),
    (
        a_repair_is_over_with_its_workflow,
        "another rank dies while the pod that took over is made the rank's own",
        "forgotten",
    ),
    (a_refusal_is_asked_again_each_second, "a second maintenance of the same links is refused", "restless"),
    (
        what_was_not_answered_is_undone,
        "a job has moved links when its workflow is terminated, and its stream is away",
        "not its own",
    ),
    (each_call_is_a_report, "a process dies, and its report is sent again before the first one is stored", "twice"),
    (an_order_of_a_receipt_is_believed, "a gateway dies with the order of a receipt", "costly"),
    (agents_stay_held, "a stress test finds a fault, and the agents of MindIO may start processes again", "held"),
    (a_rank_is_told_of_once, "a rank that was recovered dies again while its new pod is made its own", "forgotten"),
)


@pytest.mark.parametrize(("put_back", "name", "finds"), DEFECTS, ids=[put_back.__name__ for put_back, _, _ in DEFECTS])
def test_a_defect_that_is_put_back_is_found(put_back: Patch, name: str, finds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example that proved the correction finds the defect again, for some seed."""
    put_back(monkeypatch)
    one = next(one for one in (*EXAMPLES, *operations.EXAMPLES) if one.name == name)
    assert any(finds in kinds(Walk(replace(one.script, seed=seed)).run()) for seed in range(SEEDS))
