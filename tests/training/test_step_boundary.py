"""The gate between the training loop and the manager, without processes."""

import threading

from rekindle_training.processor.gate import Check, Gate, Go, Join, Pause, Stand
from rekindle_wire.training_pb2 import Leave, Rebuild, StressTest


def opened(completed: int = 0) -> Gate:
    gate = Gate()
    gate.complete(completed)
    gate.open()
    return gate


def test_a_gate_is_shut_until_the_first_generation() -> None:
    """A process that belongs to no generation begins no step: its first wish is to join one."""
    gate = Gate()
    waiting: list[object] = []
    loop = threading.Thread(target=lambda: waiting.append(gate.wait()))
    loop.start()
    join = Join(1, Rebuild(world_size=4))
    gate.join(join)
    loop.join()
    assert waiting == [join]


def test_a_held_loop_stands_at_the_boundary_that_was_agreed_on() -> None:
    """A rank that has completed fewer steps runs on to the agreed step. It reports once that it waits there, and continues when
    it is allowed to."""
    gate = opened(completed=4)
    gate.expect(100)
    assert gate.wait() == Go()
    assert gate.hold() == (5, 100)
    gate.complete(5)
    gate.pause_at(6)
    assert gate.wait() == Go()
    gate.complete(6)
    assert gate.wait() == Pause()
    gate.open()
    assert gate.wait() == Go()


def test_a_check_begins_where_the_loop_stands() -> None:
    """A check begins once, and only while the loop is held. A check that comes for a loop that goes on is not remembered."""
    check = Check(StressTest(id="test/0"))
    gate = opened(completed=4)
    gate.check(check)
    gate.hold()
    gate.pause_at(4)
    assert gate.wait() == Pause()
    gate.check(check)
    assert gate.wait() == check
    gate.check(check)
    gate.open()
    assert gate.wait() == Go()


def test_no_step_begins_between_the_question_and_the_agreement() -> None:
    """A loop that was asked where it stands does not go on. The agreed step could otherwise be an earlier one."""
    gate = opened(completed=4)
    gate.hold()
    crossed = threading.Event()

    def cross() -> None:
        gate.wait()
        crossed.set()

    loop = threading.Thread(target=cross)
    loop.start()
    assert not crossed.wait(0.05)
    gate.open()
    assert crossed.wait(10)
    loop.join()


def test_a_paused_loop_answers_a_new_manager_again() -> None:
    """A manager that took over asks once more, and the loop that stands already says so once more."""
    gate = opened(completed=4)
    for _ in range(2):
        assert gate.hold() == (4, 0)
        gate.pause_at(4)
        assert gate.wait() == Pause()


def test_leaving_goes_before_everything_else() -> None:
    """A process that was ordered to leave joins nothing and begins nothing."""
    gate = opened()
    gate.join(Join(2, Rebuild()))
    gate.leave(Leave(exit_code=0))
    assert gate.wait() == Leave(exit_code=0)


def test_nothing_begins_in_a_generation_that_has_failed() -> None:
    """The loop is asked once where it stands, and goes on in the next generation; what comes late of the failed one is over."""
    gate = opened(completed=4)
    gate.enter(1)
    gate.break_off(1)
    assert gate.broken
    assert gate.wait() == Stand()
    gate.join(Join(2, Rebuild()))
    assert gate.wait() == Join(2, Rebuild())
    gate.enter(2)
    gate.break_off(1)
    assert gate.wait() == Go()


def test_a_generation_that_fails_before_it_was_entered_has_failed() -> None:
    """The others may fail before this rank has come out of the rendezvous."""
    gate = opened(completed=4)
    gate.enter(1)
    gate.break_off(2)
    gate.enter(2)
    assert gate.broken
    assert gate.wait() == Stand()
