"""A script in plain PyTorch, in processes as torchrun starts them: what its adapted version is compared with, bit for bit.

`main` is what the zygote runs in each of them.
"""

import asyncio
import runpy
import sys
from pathlib import Path

from rekindle.cli.ports import free_ports
from tests.training.processes import Zygote


def main(argv: list[str]) -> int:
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).parent)
    runpy.run_path(argv[0], run_name="__main__")
    return 0


async def run_plain(zygote: Zygote, folder: Path, ranks: int, *argv: str) -> list[bytes]:
    """The final parameters of each rank."""
    world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    processes = [
        await zygote.run(
            "plain",
            list(argv),
            {**world, "RANK": str(rank), "LOCAL_RANK": str(rank), "REKINDLE_JOB_DIR": str(folder)},
            folder / f"output-{rank}.log",
        )
        for rank in range(ranks)
    ]
    codes = await asyncio.gather(*(process.code() for process in processes))
    assert set(codes) == {0}, "\n".join(log.read_text() for log in folder.glob("*.log"))
    return final(folder, ranks)


def final(folder: Path, ranks: int) -> list[bytes]:
    files = sorted((folder / "final").iterdir())
    assert len(files) == ranks
    return [file.read_bytes() for file in files]
