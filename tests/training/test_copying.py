"""Transfer of a state to another process: in place, in few messages, to the bit."""

import pytest
import torch

from rekindle_training.adapter import copying
from rekindle_training.adapter import digest as digest_module
from rekindle_training.adapter.copying import ALONE
from rekindle_training.adapter.digest import digest
from rekindle_training.adapter.skeleton import Slot, slot_of
from tests.training.pair import handed_over
from tests.training.values import STATE


def test_tensors_of_all_types_share_a_message() -> None:
    """Parameters of 16 bits with moments of 32 are one message; a large tensor is one by itself; an empty one is in none."""
    small = [Slot((64,), dtype, "cpu") for _ in range(200) for dtype in (torch.bfloat16, torch.float32, torch.float32)]
    large = Slot((ALONE,), torch.uint8, "cpu")
    assert len(list(copying.buckets(small))) == 1
    assert list(copying.buckets([*small[:2], large, small[2], Slot((0, 3), torch.int8, "cpu")])) == [[2], [0, 1, 3]]


def test_a_state_is_handed_over_between_processes() -> None:
    """Tensors of all kinds arrive, to the digest; those that fit are received where they lie, the others beside."""
    theirs = {
        **STATE,
        "empty": torch.zeros(0, 3),
        "number": torch.tensor(7.5, dtype=torch.float64),
        "flags": torch.tensor([True, False, True]),
        "complex": torch.tensor([1 + 2j]),
        "turned": torch.arange(6.0).view(2, 3).T,
        "expanded": torch.ones(1).expand(4),
        "large": torch.arange(ALONE // 4 + 1, dtype=torch.int32),
    }
    mine = {key: torch.zeros_like(value) for key, value in theirs.items() if isinstance(value, torch.Tensor)}
    del mine["flags"]
    answer = handed_over(theirs, mine)
    assert answer.digest == answer.expected == digest(theirs)
    assert answer.in_place == {"words", "odd", "number", "complex", "turned", "expanded", "large"}
    assert answer.kinds.items() >= {("pair", "Pair"), ("counts", "Counter"), ("defaults", "defaultdict")}


def test_a_tensor_lies_in_memory_as_it_did_on_the_replica() -> None:
    """Fused optimizers walk over memory: a moment in another order than its parameter is that of other elements."""
    theirs = {
        "small": torch.arange(16.0).view(1, 2, 2, 4).contiguous(memory_format=torch.channels_last),
        "large": torch.arange(ALONE * 2.0).view(2, 2, 2, -1).contiguous(memory_format=torch.channels_last),
        "turned": torch.arange(6.0).view(2, 3).T,
        "columns": torch.arange(8.0).view(2, 4)[:, ::2],
    }
    expected = {**{key: tensor.stride() for key, tensor in theirs.items()}, "columns": (2, 1)}
    for mine in ({}, {key: torch.zeros_like(value) for key, value in theirs.items()}):
        answer = handed_over(theirs, mine)
        assert answer.digest == answer.expected == digest(theirs)
        assert answer.strides == expected
        assert answer.in_place == mine.keys()


def test_tensors_that_are_one_on_one_side_only_do_not_mix() -> None:
    """An average that is the parameter itself until its first update, or a rate that all groups have in common."""
    theirs = {"weight": torch.ones(3), "average": torch.full((3,), 2.0)}
    shared = torch.zeros(3)
    answer = handed_over(theirs, {"weight": shared, "average": shared})
    assert answer.digest == answer.expected == digest(theirs)
    assert answer.in_place == {"weight"}


@pytest.mark.parametrize("size", [4, ALONE])
def test_a_conjugated_tensor_is_sent_as_what_it_is(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conjugated or negated tensor arrives with its elements, although its memory holds something else until they are
    resolved."""
    sent: list[torch.Tensor] = []
    monkeypatch.setattr("torch.distributed.send", lambda tensor, _: sent.append(tensor.clone()))
    conjugated = torch.full((size,), 1 + 2j).conj()
    for tensor in (conjugated, conjugated.resolve_conj(), torch._neg_view(torch.ones(size)), -torch.ones(size)):
        copying.send([tensor], 1)
    messages = [torch.cat([one.view(torch.uint8) for one in sent[begin : begin + 5]]) for begin in range(0, 20, 5)]
    assert torch.equal(messages[0], messages[1])
    assert torch.equal(messages[2], messages[3])


def test_slots_say_what_has_to_be_made() -> None:
    """Shape, type and device, and so the bytes."""
    assert slot_of(torch.zeros(2, 3, dtype=torch.bfloat16)) == Slot((2, 3), torch.bfloat16, "cpu")
    assert Slot((2, 3), torch.bfloat16, "cpu").bytes == 12


def test_a_default_device_is_nothing_to_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script whose tensors are made on an accelerator has its state handed over all the same."""
    sent: list[torch.Tensor] = []
    monkeypatch.setattr("torch.distributed.send", lambda tensor, _: sent.append(tensor.clone()))
    monkeypatch.setattr("torch.distributed.recv", lambda tensor, _: tensor.copy_(sent.pop(0)))
    theirs = {"a": torch.arange(3), "b": torch.ones(3)}
    digest_module._weights.cache_clear()
    with torch.device("meta"):
        copying.send(theirs, 1)
        received, expected, _ = copying.receive(0, {})
        assert digest(received) == expected
