"""Only a pod of a job may speak for it: refused, waited for and remembered, over real gRPC on loopback."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import grpc
import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.errors import BadInput, ClusterUnavailable, Forbidden, NotFound, Refused, Unavailable
from rekindle.model.cluster import ClusterEvent
from rekindle.model.senders import Proof, Speakers
from rekindle.model.training_side import TrainingSide
from rekindle.settings import Settings
from rekindle_wire import PROTOCOL, training_pb2
from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub
from rekindle_wire.training_pb2_grpc import ProgressStub
from tests.fakes.peer import Script, ScriptedPeer
from tests.support.elsewhere import HERE as OTHER
from tests.support.elsewhere import Elsewhere
from tests.support.harness import Harness, a_job, harness
from workers.gateway import caller_auth
from workers.gateway.caller_auth import Senders, Times, address_of
from workers.gateway.server import OPTIONS, Gateway
from workers.gateway.tokens import Tokens

US = "127.0.0.1"
QUICK = Times(gap=0.02, patience=0.1)
RULES = {TrainingSide.REKINDLE: Proof.TOKEN, TrainingSide.MINDIO: Proof.ADDRESS}


class Pods:
    """A cluster that knows the pods of one job of MindIO, which are known by their addresses."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = set(addresses)
        self.asked: list[float] = []
        self.problem: Exception | None = None
        self.on_look: Callable[[], Any] = lambda: None
        self.training_side = TrainingSide.MINDIO
        self.named: list[str] = []
        """Jobs that were asked for, in their order."""
        self.unknown: set[str] = set()
        """Ids of no job, of which that is not known before `looked`."""
        self.looked = asyncio.Event()
        self.answers = asyncio.Semaphore(1_000_000)

    async def locate(self, job_id: str) -> None:
        if job_id in self.unknown:
            await self.looked.wait()
            raise NotFound("no job")

    async def speakers(self, job_id: str) -> Speakers:
        await self.locate(job_id)
        self.asked.append(asyncio.get_running_loop().time())
        self.named.append(job_id)
        await self.answers.acquire()
        self.on_look()
        if self.problem:
            raise self.problem
        return Speakers(self.training_side, frozenset(), frozenset(self.addresses))

    async def job_of_pod(self, namespace: str, name: str, uid: str) -> str:
        raise AssertionError("all name their jobs")

    async def record(self, job_id: str, event: ClusterEvent) -> None:
        raise AssertionError("a stranger is no news of the job")


async def no_token(token: str) -> str:
    """No test here asks for the review of a token."""
    raise AssertionError


def senders_among(pods: Pods, **limits: float) -> Senders:
    return Senders(pods, Tokens(no_token), RULES, replace(QUICK, **limits))


@asynccontextmanager
async def guarded(world: Harness, pods: Pods, host: str = US, **limits: float) -> AsyncIterator[str]:
    """The address of a gateway that asks who calls."""
    who = senders_among(pods, **limits)
    settings = Settings(POD_IP=host, gateway_port=0, gateway_instance=f"guarded-{world.job.id}")
    gateway = Gateway(world.client, settings, senders=who)
    port, stop = await gateway.start(), asyncio.Event()
    serving = asyncio.create_task(gateway.run_until(stop))
    try:
        yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    finally:
        stop.set()
        await serving
        await who.close()


@asynccontextmanager
async def elsewhere(address: str) -> AsyncIterator[str]:
    """Yields an address by which calls reach a server from `OTHER`."""
    relay = Elsewhere(address)
    try:
        yield await relay.start()
    finally:
        await relay.stop()


CALLS: dict[str, Callable[[Any, Any, str], Awaitable[Any]]] = {
    "Init": lambda r, _, j: r.Init(wire.ClientInfo(jobId=j)),
    "Register": lambda r, _, j: r.Register(wire.ClientInfo(jobId=j)),
    "Subscribe": lambda r, _, j: r.SubscribeProcessManageSignal(wire.ClientInfo(jobId=j)).read(),
    "ReportStopComplete": lambda r, _, j: r.ReportStopComplete(wire.StopCompleteRequest(jobId=j, status=wire.Status())),
    "ReportRecoverStrategy": lambda r, _, j: r.ReportRecoverStrategy(wire.RecoverStrategyRequest(jobId=j)),
    "ReportRecoverStatus": lambda r, _, j: r.ReportRecoverStatus(wire.RecoverStatusRequest(jobId=j, status=wire.Status())),
    "ReportProcessFault": lambda r, _, j: r.ReportProcessFault(
        wire.ProcessFaultRequest(jobId=j, faultRanks=[wire.FaultRank(rankId="0", faultType="1")])
    ),
    "ReportProgress": lambda _, p, j: p.ReportProgress(
        training_pb2.ProgressReport(job_id=j, incarnation="life-1", step=1, protocol=PROTOCOL)
    ),
    "ReportTime": lambda _, p, j: p.ReportTime(
        training_pb2.TimeReport(job_id=j, protocol=PROTOCOL, world_size=4, now=training_pb2.Stretch(began=1, ended=2))
    ),
}


@asynccontextmanager
async def stubs(address: str) -> AsyncIterator[tuple[Any, Any]]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield RecoverStub(channel), ProgressStub(channel)


async def refusal(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code(), raised.value.details() or ""


async def test_a_stranger_is_refused_whatever_it_says(temporal: WorkflowEnvironment) -> None:
    """Each call that names a job ends with PERMISSION_DENIED, the job and the address. No call reaches a workflow."""
    async with (
        harness(temporal, a_job()) as world,
        guarded(world, Pods("10.0.0.9")) as address,
        stubs(address) as (recover, progress),
    ):
        before = (await world.status()).state
        for name, call in CALLS.items():
            code, words = await refusal(call(recover, progress, world.job.id))
            assert code is grpc.StatusCode.PERMISSION_DENIED, name
            assert words == f"jobId={world.job.id}: no pod of this job has the address {US}"
        assert (await world.status()).state == before
        assert (await recover.HealthCheck(wire.ClientInfo(jobId=world.job.id))).code == 0


async def test_a_socket_that_says_nothing_is_closed_within_seconds() -> None:
    """A silent connection is closed within seconds, since it holds a descriptor. The default of gRPC is a minute, in which a
    thousand connections took all descriptors."""
    server = grpc.aio.server(options=OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(60):
        while await reader.read(1024):
            pass  # its settings come first
    writer.close()
    await server.stop(None)


async def test_a_pod_of_the_job_is_listened_to_after_one_look(temporal: WorkflowEnvironment) -> None:
    """All calls of a manager's life are taken, on new connections too, and the cluster is asked once."""
    async with harness(temporal, a_job()) as world:
        pods = Pods("10.0.0.9", US)
        async with guarded(world, pods) as address, ScriptedPeer(address, world.job.id, Script(repeats=2)) as peer:
            await peer.report_strategies(("migration",))
            async with stubs(address) as (recover, progress):
                assert (await CALLS["ReportProgress"](recover, progress, world.job.id)).code == 0
            assert peer.refusals == []
            assert len(pods.asked) == 1


async def test_a_stranger_ends_nobodys_stream(temporal: WorkflowEnvironment) -> None:
    """A stranger is refused a subscription, and the stream of the job's own manager goes on."""
    async with (
        harness(temporal, a_job()) as world,
        guarded(world, Pods(US)) as address,
        ScriptedPeer(address, world.job.id) as peer,
        elsewhere(address) as other,
        stubs(other) as (recover, progress),
    ):
        await peer.attached.wait()
        attachment = (await world.status()).state.attachment
        code, words = await refusal(CALLS["Subscribe"](recover, progress, world.job.id))
        assert (code, words[-len(OTHER) :]) == (grpc.StatusCode.PERMISSION_DENIED, OTHER)
        assert peer.ended == []
        assert attachment
        assert (await world.status()).state.attachment == attachment


async def test_a_new_pod_waits_until_the_cluster_knows_its_address(temporal: WorkflowEnvironment) -> None:
    """A process may call before its kubelet has reported the pod's address: the very first Init is held, and answered with 0."""
    async with harness(temporal, a_job()) as world:
        pods = Pods()
        pods.on_look = lambda: pods.addresses.add(US) if len(pods.asked) == 3 else None
        async with guarded(world, pods, patience=20) as address, stubs(address) as (recover, progress):
            assert (await CALLS["Init"](recover, progress, world.job.id)).code == 0
        assert len(pods.asked) == 3


async def test_a_cluster_that_is_away_refuses_nobody(temporal: WorkflowEnvironment) -> None:
    """A known caller is accepted while the cluster does not answer. An unknown caller receives UNAVAILABLE, with the reason."""
    async with harness(temporal, a_job()) as world:
        pods = Pods(US)
        async with guarded(world, pods, fresh=0) as address, elsewhere(address) as other:
            async with stubs(address) as (recover, progress):
                assert (await CALLS["Init"](recover, progress, world.job.id)).code == 0
                pods.problem = ClusterUnavailable("the API server naps")
                for _ in range(3):
                    assert (await CALLS["Register"](recover, progress, world.job.id)).code == 0
            async with stubs(other) as (recover, progress):
                code, words = await refusal(CALLS["Init"](recover, progress, world.job.id))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert words == f"jobId={world.job.id}: whether {OTHER} is one of its pods is not known: the API server naps"


async def test_an_id_that_no_job_has_is_not_looked_up(temporal: WorkflowEnvironment) -> None:
    """The field is named, as without a guard, and the cluster is not asked."""
    async with harness(temporal, a_job()) as world:
        pods = Pods(US)
        async with guarded(world, pods) as address, stubs(address) as (recover, progress):
            assert (await CALLS["Init"](recover, progress, "a/b")).code == 409
            code, words = await refusal(CALLS["Subscribe"](recover, progress, "a/b"))
        assert code is grpc.StatusCode.UNKNOWN
        assert words.startswith("jobId: 'a/b' is not accepted")
        assert pods.asked == []


async def test_a_pod_with_an_ipv6_address_is_known_by_it(temporal: WorkflowEnvironment) -> None:
    """The address is recognized however the cluster spells it."""
    pods = Pods("0:0:0:0:0:0:0:1")
    async with (
        harness(temporal, a_job()) as world,
        guarded(world, pods, "::1") as address,
        stubs(address) as (recover, progress),
    ):
        assert (await CALLS["Init"](recover, progress, world.job.id)).code == 0


# ---- what is remembered


@asynccontextmanager
async def remembering(pods: Pods, **limits: float) -> AsyncIterator[Senders]:
    who = senders_among(pods, **limits)
    yield who
    await who.close()


PEER = f"ipv4:{US}:5"
STRANGER = f"ipv4:{OTHER}:5"


async def test_strangers_do_not_make_us_ask_more_often() -> None:
    """However many call at once, the cluster is asked once in a gap for one job."""
    pods = Pods(US)
    async with remembering(pods, gap=0.05, patience=0.2) as who:
        answers = await asyncio.gather(*(who.check("job", STRANGER) for _ in range(50)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {Refused}
    assert all(later - earlier >= 0.049 for earlier, later in zip(pods.asked, pods.asked[1:], strict=False))


async def test_a_job_that_takes_long_to_look_up_is_looked_up_rarely() -> None:
    """One of thousands of pods is megabytes: strangers take no more than a fifth of a gateway's time with it."""
    pods = Pods(US)
    took = 0.02

    async def slow(job_id: str) -> Speakers:
        pods.asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(took)
        return Speakers(TrainingSide.MINDIO, frozenset(), frozenset(pods.addresses))

    pods.speakers = slow  # type: ignore[method-assign]
    async with remembering(pods, gap=0.0, patience=0.5) as who:
        with pytest.raises(Refused):
            await who.check("job", STRANGER)
    assert len(pods.asked) > 1
    assert all(later - earlier >= caller_auth.REST * took for earlier, later in pairwise(pods.asked))


async def test_who_lacks_a_token_does_not_make_us_look() -> None:
    """The owner of a large job forgot the volume, and its manager calls every second: its pods are megabytes each time."""
    pods = Pods()
    pods.training_side = TrainingSide.REKINDLE
    async with remembering(pods, gap=0.0) as who:
        for _ in range(5):
            with pytest.raises(Refused, match="no token came with the call"):
                await who.check("job", STRANGER)
    assert len(pods.asked) == 1


async def test_a_refusal_rests_on_a_look_behind_the_call() -> None:
    """A caller is refused only after the cluster was asked again: its pod may be younger than the last look."""
    pods = Pods()
    async with remembering(pods) as who:
        with pytest.raises(Refused):
            await who.check("job", STRANGER)
        looks = len(pods.asked)
        pods.addresses.add(OTHER)
        await who.check("job", STRANGER)
        assert len(pods.asked) == looks + 1


async def test_an_address_that_a_pod_has_left_is_forgotten() -> None:
    """A known address is accepted at once and looked up again after the call. Another job's pod may have the address next."""
    pods = Pods(US)
    async with remembering(pods, fresh=0.0) as who:
        await who.check("job", PEER)
        pods.addresses = {"10.0.0.9"}
        again = asyncio.Event()
        pods.on_look = again.set
        await who.check("job", PEER)
        await again.wait()
        with pytest.raises(Refused):
            await who.check("job", PEER)


@pytest.mark.parametrize(
    ("problem", "error"),
    [
        (NotFound("no job"), Refused),
        (Forbidden("may not list pods"), Unavailable),
        (BadInput("kubeconfig: no such file"), Unavailable),
    ],
    ids=["unknown", "forbidden", "kubeconfig"],
)
async def test_what_the_cluster_says_decides_who_should_come_again(problem: Exception, error: type[Exception]) -> None:
    """A job that it does not know has no pods; a permission that we lack is nothing that a client could know."""
    pods = Pods()
    pods.problem = problem
    async with remembering(pods) as who:
        with pytest.raises(error):
            await who.check("job", PEER)


async def test_jobs_that_nobody_names_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: the job that was named longest ago goes first."""
    monkeypatch.setattr(caller_auth, "MAX_JOBS", 2)
    pods = Pods(US)
    async with remembering(pods, gap=0.0) as who:
        for job, looks in (("a", 1), ("b", 2), ("a", 2), ("c", 3), ("a", 3), ("b", 4)):
            await who.check(job, PEER)
            assert len(pods.asked) == looks, job


async def given_up(calls: Sequence[asyncio.Task[None]]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_ids_of_no_job_make_nobody_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller can invent any number of job ids. What is known of a real job stays known."""
    monkeypatch.setattr(caller_auth, "MAX_JOBS", 2)
    pods = Pods(US)
    pods.unknown = {f"made-up-{number}" for number in range(5)}
    pods.looked.set()
    async with remembering(pods, gap=0.0) as who:
        await who.check("job", PEER)
        for made_up in pods.unknown:
            with pytest.raises(Refused):
                await who.check(made_up, STRANGER)
        await who.check("job", PEER)
        assert pods.named == ["job"]
        assert len(who._strange) <= 2


async def test_who_names_a_job_that_there_is_not_keeps_no_other_one_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """All such ids wait together for the next look at all jobs: clients of a hundred deleted jobs call every second, for ever."""
    monkeypatch.setattr(caller_auth, "LOOKUPS", 2)
    pods = Pods(US)
    pods.unknown = {f"deleted-{number}" for number in range(100)}
    async with remembering(pods, patience=10) as who:
        strangers = [asyncio.create_task(who.check(deleted, STRANGER)) for deleted in pods.unknown]
        await asyncio.sleep(0)
        await who.check("job", PEER)
        assert not any(stranger.done() for stranger in strangers)
        await given_up(strangers)


async def test_one_address_that_names_many_jobs_is_looked_up_by_turns_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of one address that each cost requests of their own, as those of pods without a controller do, do not delay other
    addresses."""
    monkeypatch.setattr(caller_auth, "LOOKUPS", 1)
    pods = Pods(US)
    pods.answers = asyncio.Semaphore(0)
    async with remembering(pods, patience=10) as who:
        strangers = [asyncio.create_task(who.check(f"team.{number}", STRANGER)) for number in range(100)]
        while not pods.named:
            await asyncio.sleep(0)
        own = asyncio.create_task(who.check("job", PEER))
        while not own.done():
            pods.answers.release()
            await asyncio.sleep(0)
        assert pods.named.index("job") < 10
        await given_up(strangers)


async def test_a_stranger_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """One line for a job and an address, however often it calls."""
    pods = Pods()
    async with remembering(pods) as who:
        with caplog.at_level(logging.WARNING, "gateway"):
            for peer in (PEER, PEER, STRANGER):
                with pytest.raises(Refused):
                    await who.check("job", peer)
    said = [(vars(record)["job"], vars(record)["address"]) for record in caplog.records if "refused" in record.message]
    assert said == [("job", US), ("job", OTHER)]


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.1.2.3:45678", "10.1.2.3"),
        ("ipv6:[fd00::1]:5", "fd00::1"),
        ("ipv6:%5Bfd00:0:0::1%5D:5", "fd00::1"),
        ("ipv6:%5B::ffff:10.1.2.3%5D:5", "10.1.2.3"),
        ("ipv6:[fe80::1%25eth0]:5", "fe80::1"),
        ("unix:/run/socket", "unix:/run/socket"),
        ("unix:", "unix:"),
        ("", ""),
    ],
)
def test_an_address_is_read_from_a_peer(peer: str, address: str) -> None:
    """The address has no port and no scope, and one spelling. Text that is no address matches no pod."""
    assert address_of(peer) == address
