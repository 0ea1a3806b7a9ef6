"""Connection of a process to Temporal: a service that cannot be used is refused, and looked at while the process runs."""

from temporalio.client import Client

from rekindle.model.examined import Problem
from rekindle.temporal import connect
from rekindle.temporal_service import attributes_problem, look_at
from rekindle.worker_plugin import plugin
from workers.own_workload import Look
from workers.process import PROBE_LIMIT


async def connected(*, registers: bool = False) -> Client:
    """Returns a client of the service that the environment names.

    Args:
        registers: the process registers search attributes that are missing.

    Raises:
        BadInput: the environment cannot be used.
        Unavailable: the service does not answer, is too old, lacks the namespace or search attributes, or refuses our identity.
    """
    client = await connect(plugins=[plugin()])
    problem = (await look_at(client)).problem
    if problem is None and registers:
        problem = await attributes_problem(client)
    if problem:
        raise problem.error
    return client


def service_problem(client: Client) -> Look:
    """Returns a function that looks at the service, and waits no longer than a probe does.

    The gateway is ready without it: a gateway that is not ready loses the reports that it would keep until Temporal is back.
    """

    async def look() -> Problem | None:
        return (await look_at(client, PROBE_LIMIT)).problem

    return look
