"""Managers come back to a gateway after different times, and not all in one moment."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from rekindle_training.manager import gateway
from rekindle_training.manager.gateway import FIRST_RETRY_SECONDS, Gateway
from rekindle_training.manager.identity import Identity
from rekindle_training.manager.reports import Reports
from rekindle_wire.recover_pb2 import Status, SwitchRankList
from tests.training.gateway_service import GatewayPeer

MANAGERS = 30


class Refusing(GatewayPeer):
    """Refuses every Init, and notes when each job came."""

    def __init__(self) -> None:
        super().__init__()
        self.came: dict[str, list[float]] = defaultdict(list)
        self.twice = asyncio.Event()

    async def Init(self, request: Any, context: Any) -> Status:  # noqa: N802
        self.came[request.jobId].append(asyncio.get_running_loop().time())
        if len(self.came) == MANAGERS and all(len(times) > 1 for times in self.came.values()):
            self.twice.set()
        return Status(code=403)


async def test_managers_that_were_refused_come_back_after_different_times() -> None:
    """All jobs of a gateway that died meet the next one together; their second visits are spread over the whole pause."""
    peer = Refusing()  # type: ignore[abstract]
    await peer.start()
    address = f"127.0.0.1:{peer.port}"
    managers = [Gateway(address, nobody(f"job-{number}"), Reports(), lambda _: None, {}) for number in range(MANAGERS)]
    running = [asyncio.create_task(manager.run()) for manager in managers]
    try:
        await asyncio.wait_for(peer.twice.wait(), 30)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await peer.stop()
    pauses = [times[1] - times[0] for times in peer.came.values()]
    assert min(pauses) < 0.9 * FIRST_RETRY_SECONDS


def nobody(job_id: str) -> Identity:
    """Returns a manager without a token."""
    return Identity(job_id, Path("/nowhere/token"))


class Older(GatewayPeer):
    """A gateway that serves only the main stream."""

    async def SubscribeNotifySwitch(self, request: Any, context: Any) -> AsyncIterator[SwitchRankList]:  # noqa: N802
        self._hear("SubscribeNotifySwitch", request)
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        yield SwitchRankList()


async def test_a_gateway_that_does_not_know_a_stream_is_asked_for_it_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing stream is asked for after the registration, and less often than a gateway that is away. The main stream is not
    affected."""
    slept: list[float] = []
    sleep = asyncio.sleep

    async def quick(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    peer = Older()  # type: ignore[abstract]
    await peer.start()
    monkeypatch.setattr(asyncio, "sleep", quick)
    manager = Gateway(
        f"127.0.0.1:{peer.port}", nobody("a-job"), Reports(), lambda _: None, {"SubscribeNotifySwitch": lambda _: None}
    )
    running = asyncio.create_task(manager.run())
    try:
        await peer.until(lambda: len(peer.all("SubscribeNotifySwitch")) == 3)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await peer.stop()
    assert slept.count(gateway.NOT_SERVED_SECONDS) >= 2
    assert [name for name, _ in peer.heard].index("SubscribeNotifySwitch") > [name for name, _ in peer.heard].index("Register")
    assert peer.subscriptions == 1


async def test_a_report_waits_for_the_connection_to_a_gateway_that_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next gateway gets it as soon as it is connected. A repetition after a pause would come up to a second later."""
    for name in ("FIRST_RETRY_SECONDS", "LAST_RETRY_SECONDS"):
        monkeypatch.setattr(gateway, name, 0.001)
    peer, reports = GatewayPeer(), Reports()  # type: ignore[abstract]
    await peer.start()
    running = asyncio.create_task(Gateway(f"127.0.0.1:{peer.port}", nobody("a-job"), reports, lambda _: None, {}).run())
    try:
        await peer.until(lambda: peer.subscriptions == 1)
        await peer.stop()
        reports.status(0, "training goes on", "retry", "attempt-1")
        async with asyncio.timeout(30):
            while caplog.text.count("stream rejected, reconnecting") < 20:
                await asyncio.sleep(0.01)
        await peer.start()
        await peer.until(lambda: bool(peer.all("ReportRecoverStatus")))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await peer.stop()
    assert caplog.text.count("call unanswered, retrying") <= 1
