"""Run of `rekindle demo link-failover`: the switch of all first links is maintained under a job.

Training runs over the first links. With those pulled, it runs over the backup links, where a rank is killed. Then it runs over
the first links again.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rekindle.cli.demos import measure
from rekindle.cli.demos.process_faults import ProcessFaults, ProcessFaultScenario, Strike
from rekindle.cli.demos.scenario import STEP_MS, Step
from rekindle.maintenances import Maintenances
from rekindle.model.incident import Incident
from rekindle.model.keys import RANK_INDEX
from rekindle.model.links import NodeLinks
from rekindle.model.mode import Mode, Outcome

FIRST, BACKUP = "eth1", "eth2"
"""Links of each node of the local cluster."""

CALM = 10
"""Number of undisturbed steps before and after each event."""

OUTLASTED = 6.0
"""Minimum duration of these steps in seconds."""

IDLE = 0.01
"""Share of all bytes up to which a link counts as unused. The ends of a link exchange some packets to resolve addresses."""

SWITCH = "links are switched"
"""Phase of a link switch in which training side and cluster switch the links."""

Times = Mapping[str, Mapping[str, Any]]
"""State of each link, by name: whether it was plugged in on all nodes, and the bytes that all nodes sent over it."""


class LinkFailover(ProcessFaults):
    """Options of the link failover demo."""

    mode: Mode = Mode.IN_PLACE
    fault: Strike = Strike.KILL
    struck_in_switch: bool = False
    """True if a rank is killed in the first switch."""

    @property
    def steps_after(self) -> int:
        """Minimum number of steps after the first event: undisturbed ones, and those while links are moved."""
        return 6 * CALM

    @property
    def links(self) -> bool:
        """True if each node has its own network with two links."""
        return True

    @property
    def pulls(self) -> bool:
        """True if the first links are pulled during the maintenance.

        They are not if pods are killed: a new pod starts on its first link.
        """
        return not self.kills_pods

    @property
    def incidents(self) -> int:
        """Number of incidents of the job."""
        return 3 + int(self.struck_in_switch)

    @property
    def expected(self) -> tuple[tuple[Mode, Outcome], ...]:
        """Modes that are expected to be tried, each with its outcome."""
        moved = (Mode.LINK_SWITCH, Outcome.RECOVERED)
        interrupted = (Mode.LINK_SWITCH, Outcome.CANCELLED), (Mode.IN_PLACE, Outcome.RECOVERED)
        return (*(interrupted if self.struck_in_switch else ()), moved, *super().expected, moved)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the job's pods."""
        return {"REKINDLE_INJECT": '[{"fault": "rank-fails", "when": "switching"}]'} if self.struck_in_switch else {}

    def is_met_by(self, result: dict[str, Any]) -> bool:
        """Returns whether traffic used the expected links."""
        times = [(result["links_before"], FIRST), (result["links_after"], FIRST)]
        times += [(result["links_between"], BACKUP)] if self.pulls else []
        return super().is_met_by(result) and all(used(links) == [link] for links, link in times)


class LinkFailoverScenario(ProcessFaultScenario):
    """One run of the demo."""

    options: LinkFailover
    _maintenance = ""
    _before: Times
    _between: Times
    _after: Times

    def step_ms(self, loading: float) -> float:
        """Returns the duration of a step, in milliseconds. Training must not end before its links are moved back."""
        return max(STEP_MS, 1000 * OUTLASTED / (self.options.steps - self.options.at_step))

    @property
    def maintenances(self) -> Maintenances:
        assert self._rekindle is not None
        return Maintenances(self._rekindle)

    async def strike(self) -> None:
        """Runs the whole maintenance."""
        self._before = await self._carried(self._calm)
        await self._fail_over()
        self._between = await self._carried(self._maintain)
        await self.cluster.set_leaf(FIRST, up=True)
        self.tell(Step(text=f"{FIRST} is there again, ranks return to it"))
        await self.maintenances.switch_back(self._maintenance, requested_by="demo")
        self._after = await self._carried(self._calm)

    async def tidy(self) -> None:
        """Plugs the links in again, however the run ended."""
        await self.cluster.set_leaf(FIRST, up=True)
        await super().tidy()

    def more(self, incidents: Sequence[Incident]) -> dict[str, Any]:
        """Adds the pause of training for each switch, the part of it in which no link was being switched, and the traffic of each
        link."""
        records = measure.read_steps(self.job_directory)
        pauses = [(measure.pause_of(records, one), switching_seconds(one)) for one in incidents if _is_a_switch(one)]
        return {
            **super().more(incidents),
            "maintenance": self._maintenance,
            "switch_seconds": [round(pause, 4) for pause, _ in pauses],
            "beyond_switch_seconds": [round(pause - switching, 4) for pause, switching in pauses],
            "links_before": self._before,
            "links_between": self._between,
            "links_after": self._after,
        }

    async def _fail_over(self) -> None:
        """Fails over all devices of the job, which are on as many nodes as it has pods."""
        self.tell(Step(text=f"ranks move to {BACKUP}"))
        pods = [pod for pod in await self.cluster.pods(self.job_id) if RANK_INDEX in pod.metadata.annotations]
        links = [NodeLinks(node=pod.spec.node_name, devices=pod.status.devices, backup=True) for pod in pods]
        self._maintenance = await self.maintenances.fail_over(self.job_id, links, requested_by="demo")
        await self.maintenances.settled(self._maintenance)

    async def _maintain(self) -> None:
        if self.options.pulls:
            self.tell(Step(text=f"{FIRST} of all nodes is pulled"))
            await self.cluster.set_leaf(FIRST, up=False)
        await self._calm()
        await super().strike()
        await self.concluded(self.options.incidents - 1)
        await self._calm()

    async def _calm(self) -> None:
        await self.trains_until(measure.last_step(measure.read_steps(self.job_directory)) + CALM)

    async def _carried(self, meanwhile: Callable[[], Awaitable[None]]) -> Times:
        """Returns the bytes that all nodes sent over each link, and whether the link was plugged in on all nodes at the end."""
        before, _ = await self._links()
        await meanwhile()
        after, up = await self._links()
        return {link: {"up": link in up, "bytes": after[link] - before[link]} for link in (FIRST, BACKUP)}

    async def _links(self) -> tuple[Counter[str], set[str]]:
        links = [link for node in await self.cluster.nodes() for link in node.status.links]
        sent: Counter[str] = Counter()
        for link in links:
            sent[link.name] += link.sent
        return sent, {link.name for link in links} - {link.name for link in links if not link.up}


def used(links: Times) -> list[str]:
    """Returns the names of the links that were in use."""
    everything = sum(link["bytes"] for link in links.values())
    return [name for name, link in links.items() if link["bytes"] > IDLE * everything]


def _is_a_switch(incident: Incident) -> bool:
    return incident.ladder[-1].mode is Mode.LINK_SWITCH


def switching_seconds(incident: Incident) -> float:
    """Returns the seconds from the order to move links to the training side's answer; 0 if the incident has no link switch."""
    return sum(phase.seconds for phase in incident.ladder[-1].phases if phase.name == SWITCH)
