"""Values of the words of the contract at each moment."""

import pytest

from rekindle.model.contract import Announced, FaultLabel, PlatformAnswer, Status, Words
from rekindle.model.dialogue import Strategy
from rekindle.model.fault import TRAINING_SIDE, Fault, FaultKind, FaultType, FaultyRanks
from rekindle.model.job import Job, JobId, Trait
from rekindle.model.keys import PLATFORM_STRATEGY
from rekindle.model.mode import FAULT_MODES, Mode, Outcome
from rekindle.model.situation import Situation
from rekindle.model.state import JobState
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import contract_words, platform_choice
from rekindle.policy.modes.chances import chances

JOB = Job(id=JobId("j"), name="j", pods=3, ranks_per_pod=2, kind="AscendJob", traits=(Trait.CONTRACT_WORDS,))
STATE = JobState(job=JOB, holders=("a", "b", "?"))


def process_fault(*ranks: int, kind: FaultType = FaultType.OTHER) -> Fault:
    details = (FaultyRanks(ranks=ranks, type=kind),)
    return Fault(id="f", kind=FaultKind.PROCESS, ranks=ranks, details=details, source=TRAINING_SIDE)


@pytest.mark.parametrize(
    ("mode", "flushes", "leaving"),
    [
        (Mode.HOT_SWITCH, False, ()),
        (Mode.LINK_SWITCH, False, ()),
        (Mode.STRESS_TEST, True, (1,)),
        (Mode.ONLINE_RETRY, True, ()),
        (Mode.IN_PLACE, True, ()),
        (Mode.PROCESS_RESCHEDULING, True, (1,)),
        (Mode.DYING_GASP, True, (1,)),
        (Mode.POD_RESCHEDULING, True, (1,)),
        (Mode.JOB_RESCHEDULING, False, ()),
    ],
)
def test_each_mode_begins_with_its_words(mode: Mode, flushes: bool, leaving: tuple[int, ...]) -> None:
    """Modes that announce faults collect them first. Devices are released for pods that leave."""
    found = contract_words.begins(Words(), mode, STATE, Situation(faults=(process_fault(3),)))
    assert (found.flushing, found.leaving) == (flushes, leaving)


def test_pods_are_called_after_their_own_faults() -> None:
    """A pod with faults of one retryable type is one of a retry. Pods whose holder is unknown have no label."""
    faults = (process_fault(0, kind=FaultType.MEMORY), process_fault(2, 3), process_fault(5))
    found = contract_words.begins(Words(), Mode.IN_PLACE, STATE, Situation(faults=faults))
    assert found.labels == {"a": FaultLabel.RETRY, "b": FaultLabel.SOFTWARE}


def test_a_second_mode_does_not_collect_faults_again() -> None:
    """The first mode has announced ranks: they stay named, as after a repair that failed."""
    announced = contract_words.announced(Words(flushing=True), Announced(ranks=(3,)))
    found = contract_words.begins(announced, Mode.DYING_GASP, STATE, Situation(faults=(process_fault(3),)))
    assert (found.flushing, found.faulty) == (False, (3,))


@pytest.mark.parametrize(
    ("mode", "ordered", "outcome", "saved", "status"),
    [
        (Mode.ONLINE_RETRY, Strategy.RETRY, Outcome.RECOVERED, False, Status.RETRY_SUCCESS),
        (Mode.ONLINE_RETRY, Strategy.RETRY, Outcome.ESCALATE, False, Status.RETRY_FAILED),
        (Mode.IN_PLACE, Strategy.RECOVER, Outcome.RECOVERED, False, Status.RECOVER_SUCCESS),
        (Mode.PROCESS_RESCHEDULING, Strategy.RECOVER, Outcome.ESCALATE, False, Status.RECOVER_FAILED),
        (Mode.DYING_GASP, Strategy.DUMP, Outcome.ESCALATE, True, Status.DUMP_SUCCESS),
        (Mode.DYING_GASP, Strategy.DUMP, Outcome.ESCALATE, False, Status.DUMP_FAILED),
        (Mode.DYING_GASP, Strategy.RECOVER, Outcome.ESCALATE, False, None),
        (Mode.HOT_SWITCH, Strategy.RECOVER, Outcome.RECOVERED, False, None),
    ],
)
def test_a_result_is_told_of_a_strategy_that_was_ordered(
    mode: Mode, ordered: Strategy, outcome: Outcome, saved: bool, status: Status | None
) -> None:
    """A mode that ended before its order has no result."""
    verdict = Verdict(mode=mode, outcome=outcome, reason="r", saved=saved)
    assert contract_words.ended(Words(), verdict, (ordered,)).status is status


@pytest.mark.parametrize(
    ("said", "allowed"),
    [
        ("retry", {Mode.ONLINE_RETRY, Mode.DYING_GASP, Mode.POD_RESCHEDULING, Mode.JOB_RESCHEDULING}),
        ("recover", set(FAULT_MODES) - {Mode.HOT_SWITCH, Mode.ONLINE_RETRY}),
        (" exit ", {Mode.POD_RESCHEDULING, Mode.JOB_RESCHEDULING}),
        ("dump", {Mode.DYING_GASP, Mode.POD_RESCHEDULING, Mode.JOB_RESCHEDULING}),
        ("", set(FAULT_MODES)),
        ("RECOVER", set(FAULT_MODES)),
    ],
)
def test_a_platform_never_denies_the_restart(said: str, allowed: set[Mode]) -> None:
    """A word that is not accepted denies nothing: the job's own strategies hold."""
    denied = platform_choice.denied(PlatformAnswer(answered=True, value=said))
    assert set(FAULT_MODES) - set(denied) == allowed


def test_a_platform_that_decides_is_named_where_modes_are_explained() -> None:
    """Modes that repair processes begin when it has allowed them. A hot switch and a restart need no word of it."""
    job = JOB.model_copy(update={"annotations": {PLATFORM_STRATEGY: ""}})
    asked = {chance.mode for chance in chances(JobState(job=job)) if chance.asked}
    assert asked == set(FAULT_MODES) - {Mode.HOT_SWITCH, Mode.JOB_RESCHEDULING}
    assert not any(chance.asked for chance in chances(STATE))
