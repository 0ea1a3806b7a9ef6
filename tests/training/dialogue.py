"""Messages that a control plane and a training side exchange in a recovery, with the gateway of a test."""

import os
import signal

from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job


async def fault(gateway: GatewayPeer, number: int = 1) -> dict[str, str]:
    """Returns the ranks in the `number`-th report of faults, with the types of their faults."""
    report = await gateway.report("ReportProcessFault", number)
    return {one.rankId: one.faultType for one in report.faultRanks}


async def all_lost(gateway: GatewayPeer, *ranks: int) -> None:
    """Waits until exactly these ranks were reported, in as many reports as it took."""
    expected = {str(rank) for rank in ranks}
    await gateway.until(
        lambda: {one.rankId for report in gateway.all("ReportProcessFault") for one in report.faultRanks} == expected
    )


async def offers(gateway: GatewayPeer, number: int = 1) -> list[str]:
    return list((await gateway.report("ReportRecoverStrategy", number)).strategies)


async def opened(gateway: GatewayPeer, *announced: int, uuid: str = "attempt-1", number: int = 1) -> list[str]:
    """Opens a recovery up to the offered strategies; training stands still. Returns the strategies."""
    await gateway.stop_train(uuid)
    assert (await gateway.report("ReportStopComplete", number)).status.code == 0
    await gateway.announce(*announced, uuid=uuid)
    return await offers(gateway, number)


async def status(gateway: GatewayPeer, number: int = 1) -> tuple[str, int, str]:
    report = await gateway.report("ReportRecoverStatus", number)
    return report.strategy, report.status.code, report.status.info


def kill_rank(job: Job, rank: int) -> None:
    os.kill(job.children(f"worker-{rank // 2}")[rank % 2], signal.SIGKILL)
