"""Faults that the checks of a stress test find on a device, and the combined meaning of their answers."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from rekindle_training.manager.stress import culprits, judged, read
from rekindle_training.stress import injected, memory, messages, products
from rekindle_training.stress.codes import FAULT, MEMORY, MESSAGES, NOT_RUN, OK, PRODUCTS, TIMED_OUT
from rekindle_training.stress.meetings import partners
from rekindle_training.stress.verdict import Disturb, Turn, Verdict
from rekindle_wire.recover_pb2 import StressOpList, StressTestRankParams
from rekindle_wire.training_pb2 import StressTested

CPU = torch.device("cpu")


def once(disturb: Disturb) -> Disturb:
    """Makes a disturbance that affects only the second result of a device."""
    results = iter(range(10**9))
    return lambda tensor: disturb(tensor) if next(results) == 1 else None


@pytest.mark.parametrize(
    ("disturb", "code"),
    [(injected.leave, OK), (injected.flip, FAULT), (once(injected.flip), FAULT)],
    ids=["right", "wrong", "once"],
)
def test_a_product_that_is_wrong_by_one_bit_is_found(disturb: Disturb, code: str) -> None:
    """A product that is wrong always or once is found by comparison with whole numbers, and with the product before."""
    verdict = products.check(CPU, Turn(0.05), disturb)
    assert verdict.code == code
    assert verdict.result.startswith("0 of ") is (code == OK)


@pytest.mark.parametrize(("disturb", "code"), [(injected.leave, OK), (injected.flip, FAULT)], ids=["right", "wrong"])
def test_a_word_that_is_not_remembered_is_found(disturb: Disturb, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check covers a bounded share of the free memory. Here it covers one block, so that the test is short."""
    monkeypatch.setattr(memory, "MOST_OF_HOST", memory.BLOCK)
    monkeypatch.setattr(memory, "free_bytes", lambda _: 100 * memory.BLOCK)
    verdict = memory.check(CPU, 4, Turn(0.1), disturb)
    assert verdict.code == code
    assert "words wrong of 0.06 GiB" in verdict.result


def test_too_little_free_memory_is_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks of a pod take their share at once, and training keeps most of it."""
    monkeypatch.setattr(memory, "free_bytes", lambda _: memory.SHARE_OF_HOST * 2 * memory.BLOCK - 1)
    assert memory.check(CPU, 2, Turn(0.1), injected.leave) == Verdict(NOT_RUN, "too little memory is free: 512 MiB for 2 ranks")


def test_ranks_of_many_pods_on_one_node_take_no_more_than_their_share_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that others take at the same moment counts. Here a quarter of the free memory is gone when the first block is
    there."""
    free = iter([100 * memory.BLOCK, 75 * memory.BLOCK])
    monkeypatch.setattr(memory, "free_bytes", lambda _: next(free))
    assert "words wrong of 0.06 GiB" in memory.check(CPU, 1, Turn(0.1), injected.leave).result


def test_a_container_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is free on the machine may not be free for the pod."""
    limit, used = tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr(memory, "CONTAINERS", ((str(limit), str(used)),))
    limit.write_text("max\n")
    used.write_text("1000\n")
    assert memory.free_bytes(CPU) > 5000
    limit.write_text("6000\n")
    assert memory.free_bytes(CPU) == 5000


def exchanged(ranks: int, disturbs: dict[int, Disturb], seconds: float = 20, absent: int | None = None) -> dict[int, Verdict]:
    """Runs the ranks in threads of their own, each with its own connection to the store, and returns their verdicts."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def rank(number: int) -> Verdict:
        client = dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
        meeting = messages.Meeting(tuple(range(ranks)), number, dist.PrefixStore("test", client))
        return messages.check(CPU, meeting, Turn(seconds), disturbs.get(number, injected.leave))

    here = [number for number in range(ranks) if number != absent]
    with ThreadPoolExecutor(len(here)) as threads:
        return dict(zip(here, threads.map(rank, here), strict=True))


def test_messages_of_a_rank_that_sends_wrongly_are_wrong_for_those_that_it_meets() -> None:
    """The ranks that meet a wrong sender name it. All ranks report how fast messages came."""
    verdicts = exchanged(3, {2: injected.flip})
    assert {rank: verdict.wrong for rank, verdict in verdicts.items()} == {0: (2,), 1: (), 2: ()}
    assert all("GB/s" in verdict.result and not verdict.silent for verdict in verdicts.values())


def test_a_rank_that_does_not_come_delays_nobody_beyond_its_time() -> None:
    """The ranks that were to meet the absent rank name it, and meet each other."""
    verdicts = exchanged(4, {}, seconds=8, absent=3)
    assert {rank: verdict.silent for rank, verdict in verdicts.items()} == {0: (), 1: (3,), 2: (3,)}
    assert "messages of 2 ranks" in verdicts[0].result


def test_a_rank_without_room_for_messages_is_not_tested_and_says_nothing_of_the_others() -> None:
    """The rank reports that it could not make the check, and a rank that waited for it is not suspected for that."""

    def full(_: torch.Tensor) -> None:
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        exchanged(2, {1: full}, seconds=2)


def test_a_single_rank_has_nobody_to_exchange_messages_with() -> None:
    """A single rank reports that the check was not run, which is no fault."""
    assert exchanged(1, {})[0].code == NOT_RUN


@given(st.integers(2, 40))
def test_ranks_meet_in_pairs(count: int) -> None:
    """Two ranks name each other at each moment. Each rank meets another one, and only a few meetings take place, however many
    ranks there are."""
    store = dist.HashStore()
    met = {rank: messages.Meeting(tuple(range(count)), rank, store).partners() for rank in range(count)}
    for rank, others in met.items():
        assert len(others) <= count.bit_length()
        assert any(other is not None for other in others)
        assert all(other is None or met[other][moment] == rank for moment, other in enumerate(others))


@pytest.mark.parametrize(
    ("op", "node", "disturb"),
    [
        (PRODUCTS, "node-1", injected.flip),
        (MEMORY, "node-1", injected.leave),
        (PRODUCTS, "node-2", injected.leave),
        (MESSAGES, "node-3", injected.hang),
    ],
)
def test_a_fault_is_injected_on_a_node(op: int, node: str, disturb: Disturb, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault is injected on a node whatever rank is there."""
    faults = '[{"fault": "wrong-product", "node": "node-1"}, {"fault": "check-hangs", "node": "node-3"}]'
    monkeypatch.setenv("REKINDLE_INJECT", faults)
    assert injected.disturbance(op, node) is disturb


def test_a_check_that_nobody_wants_ends() -> None:
    """A check ends at its next look, long before its time is over."""
    turn = Turn(3600)
    thread = threading.Thread(target=products.check, args=(CPU, turn, injected.leave))
    thread.start()
    turn.stop()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((), "stressParam: no rank is named"),
        (("0", "4"), "stressParam: '4' is not one of 0 to 3"),
        (("one",), "'one' is not one of"),
    ],
)
def test_an_order_that_names_no_ranks_of_the_job_is_refused(ranks: tuple[str, ...], words: str) -> None:
    """The error names the field."""
    with pytest.raises(ValueError, match=words):
        read(StressTestRankParams(stressParam={rank: StressOpList(ops=[0]) for rank in ranks}), 4)


def said(**fields: object) -> StressTested:
    return StressTested(code=OK, result="figures", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answers", "codes"),
    [
        ({0: said(), 1: said()}, [OK, OK]),
        ({0: said()}, [OK, TIMED_OUT]),
        ({0: said(silent=[1])}, [OK, TIMED_OUT]),
        ({0: said(silent=[1]), 1: StressTested(code=NOT_RUN)}, [OK, NOT_RUN]),
        ({0: said(wrong=[1]), 1: said()}, [FAULT, FAULT]),
        ({0: said(wrong=[2]), 1: said(wrong=[2]), 2: said()}, [OK, OK, FAULT]),
        ({0: said(silent=[2]), 1: said(silent=[2]), 2: said(silent=[0, 1])}, [OK, OK, TIMED_OUT]),
        ({0: said(silent=[1]), 1: said(silent=[0])}, [TIMED_OUT, TIMED_OUT]),
        ({0: said(silent=[1]), 1: said(silent=[0], wrong=[2]), 2: said(), 3: said(wrong=[2])}, [TIMED_OUT, TIMED_OUT, FAULT, OK]),
    ],
)
def test_what_goes_wrong_between_ranks_is_the_fault_of_one_where_that_explains_it(
    answers: dict[int, StressTested], codes: list[str]
) -> None:
    """A rank that does not answer has timed out, and the ranks that waited for it have not. Both are suspected where either may
    be the cause."""
    assert [judged(range(len(codes)), range(len(codes)), answers)[rank].code for rank in range(len(codes))] == codes


@pytest.mark.parametrize(("nodes", "ranks"), [(3, 1), (3, 8), (4, 2), (5, 2), (9, 1), (11, 4)])
def test_one_node_is_to_blame_for_what_comes_wrong_over_its_links(nodes: int, ranks: int) -> None:
    """A node is blamed also where its ranks exchange messages with those of one other node only, which is right with all
    others."""
    every = range(nodes * ranks)
    for bad in range(nodes):
        answers = {}
        for rank in every:
            others = {other for other in partners(rank, len(every)) if other is not None and other // ranks != rank // ranks}
            answers[rank] = said(wrong=[other for other in others if bad in (other // ranks, rank // ranks)])
        blamed = {rank // ranks for rank, one in judged(every, every, answers).items() if one.code == FAULT}
        assert blamed == {bad}


@given(
    st.sets(st.frozensets(st.integers(0, 8), min_size=2, max_size=2)),
    st.sets(st.integers(0, 8)),
    st.dictionaries(st.integers(0, 8), st.integers(0, 4)),
)
def test_every_pair_is_explained(pairs: set[frozenset[int]], known: set[int], well: dict[int, int]) -> None:
    """Each pair is explained by a rank in it, and no rank is suspected without a pair."""
    found = culprits(pairs, known, well)
    assert all(pair & (found | known) for pair in pairs)
    assert all(any(rank in pair for pair in pairs) for rank in found)
