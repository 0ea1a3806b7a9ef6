"""Two ranks, in processes of their own, of which one hands a state over to the other."""

from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from rekindle_training.adapter import copying
from rekindle_training.adapter.digest import digest
from tests.training.loaded import CONTEXT

LIMIT = 60


@dataclass(frozen=True)
class Answer:
    """Answer of the receiving rank."""

    digest: bytes
    expected: bytes
    in_place: set[str]
    kinds: dict[str, str]
    strides: dict[str, tuple[int, ...]]


def handed_over(theirs: dict[str, Any], mine: dict[str, Any]) -> Answer:
    """Rank 0 sends the first state; rank 1 has the second one, and answers."""
    here, there = CONTEXT.Pipe()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [CONTEXT.Process(target=_rank, args=(rank, store.port, theirs, mine, there), daemon=True) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    assert here.poll(LIMIT), "the receiving rank does not answer"
    answer: Answer = here.recv()
    for rank in ranks:
        rank.join(LIMIT)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    return answer


def _rank(rank: int, port: int, theirs: dict[str, Any], mine: dict[str, Any], answers: Connection) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    if rank == 0:
        copying.send(theirs, 1)
    else:
        before = {key: tensor.data_ptr() for key, tensor in mine.items()}
        state, expected, hashes = copying.receive(0, mine)
        tensors = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
        in_place = {key for key, value in tensors.items() if value.numel() and value.data_ptr() == before.get(key)}
        kinds = {key: type(value).__name__ for key, value in state.items()}
        strides = {key: tensor.stride() for key, tensor in tensors.items()}
        answers.send(Answer(digest(state, hashes), expected, in_place, kinds, strides))
    dist.barrier()
    dist.destroy_process_group()
