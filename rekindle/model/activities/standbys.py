"""Arguments and results of activities that ensure standbys."""

from rekindle.model.base import Value
from rekindle.model.standby import Standby


class StandbysRequest(Value):
    job_id: str
    count: int
    avoid_nodes: tuple[str, ...] = ()


class StandbysNow(Value):
    standbys: tuple[Standby, ...] = ()
