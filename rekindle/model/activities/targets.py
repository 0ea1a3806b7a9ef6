"""Arguments and results of activities that find the devices of an operation, and isolate nodes."""

from rekindle.model.base import Value
from rekindle.model.bounds import Text
from rekindle.model.fault import Fault
from rekindle.model.links import NodeLinks, Placed
from rekindle.model.stress import RankOps, StressRequest, StressResults, Tested


class ResolveLinksRequest(Value):
    job_id: str
    links: tuple[NodeLinks, ...]


class LinkTargets(Value):
    links: tuple[Placed, ...] = ()
    """Requested devices, with the ranks that use them."""

    problem: Text = ""
    """Entry with a device that the job does not have, and the devices that it has. Empty: the job has all of them."""


class TargetsRequest(Value):
    """Request for the ranks that a stress test has to order."""

    job_id: str
    stress: StressRequest
    accepted: tuple[int, ...]
    """Operations that the job's training side supports."""


class FindingsRequest(Value):
    """Request to evaluate the results of a stress test and to isolate the nodes with faults."""

    job_id: str
    asked: tuple[RankOps, ...]
    results: StressResults
    why: Text
    """Origin of the isolation: which test of which job."""


class Found(Value):
    """Evaluation of a stress test: the findings, and the faults that have to be repaired."""

    tested: Tested = Tested()
    faults: tuple[Fault, ...] = ()
