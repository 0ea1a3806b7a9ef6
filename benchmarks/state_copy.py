"""Measures the transfer of a gibibyte of state, verified and in place, compared with the same bytes sent without checks.

    python -P -m benchmarks.state_copy [--gibibytes 1] [--rounds 5]

Two gloo ranks run on one machine. The state is that of a 16-bit model whose optimizer keeps a 32-bit master and two 32-bit
moments. Both transfers are timed in turn, between two barriers, on the rank that receives.
"""

import argparse
import os
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rekindle_training.adapter import copying
from rekindle_training.adapter.digest import digest
from rekindle_training.adapter.state import State

GIBIBYTE = 1024**3
BYTES_OF_PARAMETER = 2 + 3 * 4
MATRIX = 2048 * 2048
MESSAGE = 32 * 1024 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gibibytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    ranks = [context.Process(target=rank_main, args=(rank, store.port, options, results)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    raw, handed_over, alone = results.get()
    for process in ranks:
        process.join()
    print(f"{options.gibibytes:g} GiB, {options.rounds} rounds; seconds: median (least, most)")
    for name, seconds in (("raw send, in place", raw), ("handed over, verified", handed_over), ("of which the digest", alone)):
        print(f"{name:24} {median(seconds):6.2f} ({min(seconds):.2f}, {max(seconds):.2f})")
    print(f"{'handed over / raw':24} {median(handed_over) / median(raw):6.2f}")


def rank_main(
    rank: int, port: int, options: argparse.Namespace, results: "mp.SimpleQueue[tuple[list[float], list[float], list[float]]]"
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", port, is_master=False), rank=rank, world_size=2)
    mine, flat = state_of(int(options.gibibytes * GIBIBYTE)), torch.zeros(int(options.gibibytes * GIBIBYTE), dtype=torch.uint8)
    raw, handed_over, alone = [], [], []
    for _ in range(options.rounds + 1):  # the first one warms up
        raw.append(timed(lambda: send_raw(flat, rank)))
        handed_over.append(timed(lambda: hand_over(mine, rank)))
        alone.append(timed(lambda: digest(mine)))
    if rank == 1:
        results.put((raw[1:], handed_over[1:], alone[1:]))
    dist.barrier()
    dist.destroy_process_group()


def state_of(size: int) -> State:
    parameters = [torch.ones(MATRIX, dtype=torch.bfloat16) for _ in range(max(size // (BYTES_OF_PARAMETER * MATRIX), 1))]
    kept = {
        index: {name: torch.ones(MATRIX) for name in ("master", "exp_avg", "exp_avg_sq")} for index, _ in enumerate(parameters)
    }
    return {"model": {str(index): tensor for index, tensor in enumerate(parameters)}, "optimizer": {"state": kept}}


def timed(act: Callable[[], object]) -> float:
    dist.barrier()
    began = time.perf_counter()
    act()
    dist.barrier()
    return time.perf_counter() - began


def send_raw(flat: torch.Tensor, rank: int) -> None:
    for part in flat.split(MESSAGE):
        if rank == 0:
            dist.send(part, 1)
        else:
            dist.recv(part, 0)


def hand_over(mine: State, rank: int) -> None:
    if rank == 0:
        copying.send(mine, 1)
        return
    state, expected, hashes = copying.receive(0, mine)
    assert digest(state, hashes) == expected


if __name__ == "__main__":
    main()
