"""A job without a control plane, started as its users start it."""

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.training.job import WORLD, children
from tests.training.processes import Process, Zygote

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("repaired.py"))


@dataclass
class Standalone:
    folder: Path
    zygote: Zygote
    started: list[Process] = field(default_factory=list)

    async def start(self, *flags: str, script: str = SCRIPT, ranks: int = WORLD, **environment: str) -> Process:
        self.folder.mkdir(exist_ok=True)
        argv = ["--standalone", f"--nproc-per-node={ranks}", "--start-method=fork", *flags, script]
        variables = {"REKINDLE_JOB_DIR": str(self.folder), "PACE_FILE": str(self.folder / "pace"), **environment}
        process = await self.zygote.run("train", argv, variables, self.folder / "output.log")
        self.started.append(process)
        return process

    async def run(self, *flags: str, code: int = 0, script: str = SCRIPT, ranks: int = WORLD, **environment: str) -> str:
        """Runs the job to its end, and returns what it printed."""
        assert await (await self.start(*flags, script=script, ranks=ranks, **environment)).code() == code
        return self.printed

    def hurry(self) -> None:
        """Makes steps take only as long as they compute, where `PACE_MS` has made them longer."""
        (scratch := self.folder / "pace.new").write_text("0")
        scratch.replace(self.folder / "pace")

    @property
    def printed(self) -> str:
        output = self.folder / "output.log"
        return output.read_text() if output.exists() else ""

    async def prints(self, text: str) -> None:
        async with asyncio.timeout(60):
            while text not in self.printed:
                await asyncio.sleep(0.01)

    def manager(self) -> int:
        """The first process that the pod started."""
        (zygote,) = children(self.started[-1].pid)
        return children(zygote)[0]

    async def end(self) -> None:
        for process in self.started:
            process.kill()
            await process.code()
        if self.started:
            print(self.printed)


def last_words(printed: str) -> list[str]:
    """Returns what each rank ended with, also where another rank had begun a line: `print` writes its end of line on its own."""
    return sorted(re.findall(r"final .+", printed))
