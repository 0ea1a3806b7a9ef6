"""A month of a job: a thousand faults at random, with few spare nodes. Every incident ends, and nothing is tried for ever.

The real workflows run over a virtual clock, as in the walks. The kinds of faults have the shares of published traces of large
jobs: most are of processes and their devices, some of nodes.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest

from rekindle.ids import Queries
from rekindle.model.incident import Incident
from rekindle.model.keys import FAULT_RETRY_TIMES
from rekindle.model.mode import Outcome
from rekindle.model.node_record import NodeRecord
from rekindle.model.state import JobState, JobStatus
from rekindle.policy.modes.retries import RESTARTS, is_unconditional
from rekindle.policy.placement import node_records
from tests.model.world.adapter import ENTITY
from tests.model.world.driver import START
from tests.model.world.plane import ControlPlane
from tests.model.world.world import Knobs

DAYS = int(os.environ.get("REKINDLE_MONTH_DAYS", "2"))
"""Number of days; `make month` runs thirty."""

TIME = timedelta(days=DAYS)
FAULTS = 33 * DAYS
"""Number of faults, about a thousand in a month."""

RETRIES = 50
"""Restarts without a known cause that the job's owner allows."""

REPAIR = timedelta(hours=4)
"""Mean time after which a node is well again."""

PERSON = timedelta(minutes=20)
"""Time after which a person wants another try for a job that was given up."""

KINDS = {"rank dies": 30, "memory fault": 20, "network fault": 10, "pod fails": 10, "sub-health": 12, "node lost": 18}
"""Shares of the kinds of faults, in percent."""

AFTER = 25
"""Events between two looks at the job's history, which keeps twenty incidents."""


class Month:
    def __init__(self, spares: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.plane = ControlPlane(Knobs(spares=spares, allows=""), seed, 0.0)
        self.plane.labels[FAULT_RETRY_TIMES] = f"{RETRIES}"
        self.world, self.driver = self.plane.world, self.plane.driver
        self.incidents: dict[int, Incident] = {}
        self.asked_at = START
        """Time at which a person last wanted another try."""
        self.tries = 0
        """Number of times a person has wanted another try."""

    def run(self) -> JobState:
        """Runs the month and returns the job's last state."""
        for _ in range(FAULTS):
            self.driver.after(self.chance.uniform(60.0, TIME.total_seconds()), self._strike)
        count = 0
        while self.driver.step(START + TIME):
            self.plane.watch()
            count += 1
            if count % AFTER == 0:
                self._look()
        for name in self.world.nodes:
            self.world.mend(name)
        while self.driver.step(START + TIME + timedelta(days=1)):
            count += 1
            if count % AFTER == 0:
                self._look()
        self.driver.kill_worker(0.0)
        return self._look()

    def _look(self) -> JobState:
        status: JobStatus = self.driver.query(ENTITY, Queries.STATUS, JobStatus)
        state = status.state
        self.incidents |= {one.number: one for one in state.history[-3:] if one.number not in self.incidents}
        waits = state.given_up if not (state.again and state.again.judges) else None
        if waits and self.driver.now - max(self.asked_at, waits.since) > PERSON:
            self.asked_at = self.driver.now
            self.tries += 1
            self.plane.retry()
        return state

    def _strike(self) -> None:
        kind = self.chance.choices(list(KINDS), list(KINDS.values()))[0]
        rank = self.chance.randrange(self.world.knobs.pods)
        pod = self.world.holder(rank)
        match kind:
            case "rank dies":
                self.world.training.die(rank)
            case "memory fault" | "network fault":
                self.world.training.fail_step(rank, "0" if kind == "memory fault" else "2")
            case "pod fails" if pod:
                self.world.fail(pod.uid)
            case "sub-health" | "node lost" if pod and pod.node:
                node = pod.node
                (self.world.sicken if kind == "sub-health" else self.world.lose)(node)
                self.driver.after(self.chance.expovariate(1 / REPAIR.total_seconds()), lambda: self.world.mend(node))


def alike(incidents: list[Incident]) -> Iterator[tuple[Incident, ...]]:
    """Yields three restarts in a row that were for the same pods, without a known cause, and began with the same step."""
    for three in zip(incidents, incidents[1:], incidents[2:], strict=False):
        ends = [one.ladder[-1] for one in three]
        restarts = all(end.mode in RESTARTS and end.outcome is Outcome.RECOVERED for end in ends)
        unknown = all(is_unconditional(one.faults) for one in three)
        places = [{rank for fault in one.faults for rank in (*fault.pod_ranks, *fault.ranks)} for one in three]
        if restarts and unknown and len({end.resumed_at for end in ends}) == 1 and set.intersection(*places):
            yield three


def asides(state: JobState, incidents: list[Incident]) -> int:
    """Returns how often nodes were set aside. Each time needs two incidents of the node."""
    records: dict[str, NodeRecord] = {}
    count = 0
    for one in incidents:
        blame = node_records.blame(state, one)
        for node in blame.nodes if blame else ():
            record = node_records.without_old(records.get(node, NodeRecord(node=node)), one.started_at)
            record = node_records.with_incident(record, blame.incident) if blame else record
            if node_records.why_aside(record):
                assert len(record.incidents) >= node_records.ENOUGH
                record, count = NodeRecord(node=node), count + 1
            records[node] = record
    return count


@pytest.mark.parametrize("spares", [0, 1, 2])
def test_every_incident_of_a_month_ends(spares: int) -> None:
    """Faults are recovered or left to a person, budgets stay within their limits, and no third restart equals the two before.

    A node is set aside only after two incidents for which it is to blame.
    """
    month = Month(spares, seed=17 + spares)
    state = month.run()
    incidents = [month.incidents[number] for number in sorted(month.incidents)]
    assert month.plane.found == []
    assert (month.plane.recoveries(), month.world.problems()) == ([], [])
    assert len(incidents) == state.incidents
    assert 0 <= state.retried <= RETRIES + month.tries
    assert list(alike(incidents)) == []
    outcomes = Counter(f"{one.ladder[-1].mode} {one.ladder[-1].outcome}" for one in incidents)
    set_aside = asides(state, incidents)
    print(
        f"spares {spares}: {len(incidents)} incidents, {month.tries} tries of a person, {set_aside} times set aside; {outcomes}"
    )
