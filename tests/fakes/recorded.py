"""Recorded dialogues of real clients with the controller that this product replaces, as tables, and a peer that replays them.

A line is a message, in the order in which they were recorded:

    > a report                         < an order that ours gives too
    - an order that ours does not give + an order that ours gives in its place, or in addition
    * a report that was not recorded, since the original dialogue had ended

An order consists of its signal, actions, faulty ranks with their types, and the rest. Keep-alives, uuids and times are left out.
"""

from dataclasses import dataclass

from rekindle_wire import recover_pb2 as wire
from tests.fakes.peer import MindioPeer

Fields = tuple[str, list[str], list[str], str, int, list[str], str]
"""Fields of an order in the format of `tests.workflows.support.openings.fields`."""


@dataclass(frozen=True)
class Dialogue:
    pods: int
    """Number of pods, of one rank each."""

    allows: str
    """Value of the annotation `recover-strategy`."""

    lines: tuple[str, ...]

    @classmethod
    def of(cls, pods: int, allows: str, text: str) -> "Dialogue":
        return cls(pods, allows, tuple(line.strip() for line in text.strip().splitlines()))

    @property
    def first(self) -> list[str]:
        """Reports before the first order."""
        return self._reports(0)

    @property
    def orders(self) -> list[Fields]:
        """Orders that our control plane gives."""
        return [order_of(line[2:]) for line in self.lines if line[0] in "<+"]

    def behind(self, number: int) -> list[str]:
        """Returns the reports between our order with this number, from 0, and the next one."""
        ours = [index for index, line in enumerate(self.lines) if line[0] in "<+"]
        return self._reports(ours[number] + 1) if number < len(ours) else []

    def _reports(self, start: int) -> list[str]:
        found = []
        for line in self.lines[start:]:
            if line[0] in "<+":
                break
            if line[0] in ">*":
                found.append(line[2:])
        return found


def order_of(text: str) -> Fields:
    signal, actions, *rest = text.split()
    named = dict(part.split("=") for part in rest if "=" in part)
    faults = [part for part in rest if "=" not in part]
    return (
        signal,
        actions.split(","),
        faults,
        named.get("strategy", ""),
        int(named.get("timeout", 0)),
        named["pods"].split(",") if "pods" in named else [],
        named.get("extra", ""),
    )


class Recorded(MindioPeer):
    """Peer that answers with recorded reports, and is as strict as the others."""

    dialogue: Dialogue

    def replay(self, dialogue: Dialogue) -> None:
        self.dialogue = dialogue

    async def begin(self) -> None:
        for report in self.dialogue.first:
            await self._say(report)

    async def answer(self, order: str, signal: wire.ProcessManageSignal) -> None:
        number = len(self.carried_out) - 1
        await self._before(signal)
        for report in self.dialogue.behind(number):
            await self._say(report)

    async def _before(self, signal: wire.ProcessManageSignal) -> None:
        """Ends the named agents. If the repair was recorded as successful, it waits for the new ranks."""
        self.end_agents(signal)
        if any(report.startswith("status recover 0") for report in self.dialogue.behind(len(self.carried_out) - 1)):
            await self.ranks_come(signal)

    async def _say(self, report: str) -> None:
        kind, *words = report.split()
        ranks = [wire.FaultRank(rankId=word.split(":")[0], faultType=word.split(":")[1]) for word in words if ":" in word]
        if kind == "fault":
            fault = wire.ProcessFaultRequest(jobId=self.job_id, faultRanks=ranks)
            await self._report("fault", lambda stub: stub.ReportProcessFault(fault))
        elif kind == "stopped":
            stop = wire.StopCompleteRequest(jobId=self.job_id, status=wire.Status(info="stop ok"), faultRanks=ranks)
            await self._report("stop complete", lambda stub: stub.ReportStopComplete(stop))
        elif kind == "offers":
            self._wait("its offers")
            offers = wire.RecoverStrategyRequest(jobId=self.job_id, strategies=words[0].split(","), faultRanks=ranks)
            await self._report("strategies", lambda stub: stub.ReportRecoverStrategy(offers))
        else:
            strategy, code, *isolated = words
            status = wire.RecoverStatusRequest(
                jobId=self.job_id, strategy=strategy, status=wire.Status(code=int(code), info=kind), isolateRankIds=isolated
            )
            self._goes_on()
            await self._report("status", lambda stub: stub.ReportRecoverStatus(status))
