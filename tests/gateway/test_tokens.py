"""Tokens of our training side: how often the API server is asked, and what holds while it does not answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import grpc
import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.errors import ClusterUnavailable, Refused, Unavailable
from rekindle.model.cluster import ClusterEvent
from rekindle.model.senders import Proof, Speakers
from rekindle.model.training_side import TrainingSide
from rekindle.settings import Settings
from rekindle_training.manager.gateway import Gateway as Manager
from rekindle_training.manager.identity import Identity
from rekindle_training.manager.reports import Reports
from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub
from tests.kubernetes.world.service_account_tokens import claims_of_pod, unsigned
from tests.support.harness import Harness, a_job, harness
from workers.gateway import tokens as limits
from workers.gateway.caller_auth import Senders, Times
from workers.gateway.server import Gateway
from workers.gateway.tokens import Times as TokenTimes
from workers.gateway.tokens import Tokens

POD = "uid-of-the-manager"
PEER = "ipv4:10.0.0.1:5"
RULES = {TrainingSide.REKINDLE: Proof.TOKEN, TrainingSide.MINDIO: Proof.ADDRESS}
TOKEN = unsigned(claims_of_pod(POD))
FORGED = unsigned(claims_of_pod(POD), "Zm9yZ2Vk")
QUICK = Times(gap=0.02, patience=0.1)
HOURS = TokenTimes(fresh=3600, denied=3600, gap=0)


class ApiServer:
    """Knows one pod of each job, and confirms what is not forged."""

    def __init__(self) -> None:
        self.reviews: list[str] = []
        self.times: list[float] = []
        self.problem: Exception | None = None
        self.denies: set[str] = {FORGED}
        self.job_id = ""
        """The job is the one of its pod."""
        self.looked: list[tuple[str, str, str]] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def locate(self, job_id: str) -> None:
        """All are known."""

    async def speakers(self, job_id: str) -> Speakers:
        if self.problem:
            raise self.problem
        return Speakers(TrainingSide.REKINDLE, frozenset({POD}), frozenset())

    async def job_of_pod(self, namespace: str, name: str, uid: str) -> str:
        self.looked.append((namespace, name, uid))
        if not self.job_id:
            raise Refused("the token's pod is of no job")
        return self.job_id

    async def record(self, job_id: str, event: ClusterEvent) -> None:
        raise AssertionError("a stranger is no news of the job")

    async def review(self, token: str) -> str:
        self.reviews.append(token)
        self.times.append(asyncio.get_running_loop().time())
        await self.answers.wait()
        if self.problem:
            raise self.problem
        if token in self.denies:
            raise Refused("the API server does not confirm the token")
        return POD


@asynccontextmanager
async def remembering(server: ApiServer, times: TokenTimes = HOURS) -> AsyncIterator[Senders]:
    who = Senders(server, Tokens(server.review, times), RULES, QUICK)
    yield who
    await who.close()


async def heard_until_refused(who: Senders) -> None:
    with suppress(Refused):
        while True:
            await who.check("job", PEER, TOKEN)
            await asyncio.sleep(0)


async def test_a_token_that_was_confirmed_is_asked_about_again_after_its_time() -> None:
    """A confirmed token is not reviewed again before its time is over."""
    server = ApiServer()
    async with remembering(server, replace(HOURS, fresh=2)) as who:
        for _ in range(5):
            await who.check("job", PEER, TOKEN)
        assert server.reviews == [TOKEN]
        server.denies.add(TOKEN)
        refused = asyncio.create_task(heard_until_refused(who))
        await asyncio.wait_for(refused, 60)
        assert server.reviews == [TOKEN, TOKEN]


async def test_a_token_is_good_no_longer_than_it_says() -> None:
    """An expired token is reviewed at each call, although it was confirmed before."""
    server, old = ApiServer(), unsigned(claims_of_pod(POD, lasts=-1))
    async with remembering(server) as who:
        await who.check("job", PEER, old)
        await who.check("job", PEER, old)
        assert server.reviews == [old, old]


async def test_a_new_token_is_asked_about_and_the_one_before_forgotten() -> None:
    """A kubelet has replaced it; one answer is remembered for each pod."""
    server, new = ApiServer(), unsigned(claims_of_pod(POD), "bmV3")
    async with remembering(server) as who:
        for token in (TOKEN, new, new, TOKEN):
            await who.check("job", PEER, token)
    assert server.reviews == [TOKEN, new, TOKEN]


async def test_a_token_that_was_denied_is_denied_without_another_question() -> None:
    """A denied token is refused for a while without another review."""
    server = ApiServer()
    async with remembering(server) as who:
        for _ in range(3):
            with pytest.raises(Refused, match="does not confirm the token"):
                await who.check("job", PEER, FORGED)
    assert server.reviews == [FORGED]


async def test_calls_at_once_with_one_token_are_one_question() -> None:
    """A manager opens all of its streams in one moment."""
    server = ApiServer()
    async with remembering(server) as who:
        await asyncio.gather(*(who.check("job", PEER, TOKEN) for _ in range(50)))
    assert server.reviews == [TOKEN]


async def test_a_flood_of_forged_tokens_is_a_question_a_gap() -> None:
    """Each is another one, and names a pod of the job. Who calls from elsewhere is not held up."""
    server = ApiServer()
    forged = [unsigned(claims_of_pod(POD), f"forged{number:04}") for number in range(500)]
    server.denies |= set(forged)
    async with remembering(server, replace(HOURS, gap=0.2, patience=1.0)) as who:
        flood = [asyncio.create_task(who.check("job", PEER, token)) for token in forged]
        await asyncio.sleep(0)
        await who.check("job", "ipv4:10.0.0.2:5", TOKEN)
        answers = await asyncio.gather(*flood, return_exceptions=True)
    assert {type(answer) for answer in answers} == {Refused, Unavailable}
    asked = [at for at, token in zip(server.times, server.reviews, strict=True) if token != TOKEN]
    assert 1 <= len(asked) <= 7
    assert all(later - earlier >= 0.19 for earlier, later in pairwise(asked))


async def test_questions_of_all_jobs_together_keep_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pace of reviews has a limit, however many jobs and addresses callers name."""
    monkeypatch.setattr(limits, "PACE", 0.02)
    server = ApiServer()
    async with remembering(server, replace(HOURS, patience=20)) as who:
        calls = [who.check(f"job-{number}", PEER, unsigned(claims_of_pod(POD), f"t{number:03}")) for number in range(20)]
        await asyncio.gather(*calls)
    assert len(server.times) == 20
    assert server.times[-1] - server.times[0] >= 19 * 0.019


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod whose last call is the oldest is reviewed again. Denied tokens displace no confirmed pod."""
    monkeypatch.setattr(limits, "MAX_DENIED", 2)
    server = ApiServer()
    tokens = Tokens(server.review, HOURS)
    async with remembering(server) as who:
        who._tokens = tokens
        await who.check("job", PEER, TOKEN)
        for number in range(10):
            forged = unsigned(claims_of_pod(POD), f"forged{number:04}")
            server.denies.add(forged)
            with pytest.raises(Refused):
                await who.check("job", PEER, forged)
        await who.check("job", PEER, TOKEN)
    assert server.reviews.count(TOKEN) == 1
    assert len(tokens._denied) == len(tokens._asked) + 1 == 2
    assert len(tokens._confirmed) == 1


@pytest.mark.parametrize("hangs", [True, False])
async def test_who_is_known_is_heard_while_the_api_server_is_away(hangs: bool) -> None:
    """A caller with the confirmed token is accepted. A forged token, and one that was never confirmed, are refused as unavailable
    for now."""
    server, times = ApiServer(), replace(HOURS, fresh=0, rest=0)
    async with remembering(server, times) as who:
        await who.check("job", PEER, TOKEN)
        who._tokens._times = replace(times, patience=0.05)
        if hangs:
            server.answers.clear()
        else:
            server.problem = ClusterUnavailable("the API server naps")
        for _ in range(3):
            await who.check("job", PEER, TOKEN)
        for token in (FORGED, unsigned(claims_of_pod(POD), "bmV3")):
            with pytest.raises(Unavailable, match=r"whether 10\.0\.0\.1 is one of its pods is not known"):
                await who.check("job", PEER, token)


async def test_a_connection_with_a_stream_is_known_while_the_api_server_is_away() -> None:
    """The kubelet has replaced the token, which cannot be confirmed now. The connection with the stream stays known, another one
    does not."""
    server, new = ApiServer(), unsigned(claims_of_pod(POD), "bmV3")
    async with remembering(server) as who:
        await who.check("job", PEER, TOKEN)
        server.problem = ClusterUnavailable("the API server naps")
        with who.holding("job", PEER):
            await who.check("job", PEER, new)
            for job, peer in (("job", "ipv4:10.0.0.1:6"), ("another", PEER)):
                with pytest.raises(Unavailable):
                    await who.check(job, peer, new)
        with pytest.raises(Unavailable):
            await who.check("job", PEER, new)


async def test_a_denial_counts_on_any_connection() -> None:
    """A stream that is open is no proof where there is an answer."""
    server = ApiServer()
    async with remembering(server) as who:
        with who.holding("job", PEER), pytest.raises(Refused):
            await who.check("job", PEER, FORGED)


# ---- over gRPC


@asynccontextmanager
async def guarded(world: Harness, server: ApiServer) -> AsyncIterator[str]:
    """The address of a gateway that asks for tokens."""
    settings = Settings(gateway_port=0, gateway_instance=f"guarded-{world.job.id}")
    async with remembering(server) as who:
        gateway = Gateway(world.client, settings, senders=who)
        port, stop = await gateway.start(), asyncio.Event()
        serving = asyncio.create_task(gateway.run_until(stop))
        try:
            yield f"127.0.0.1:{port}"
        finally:
            stop.set()
            await serving


async def test_a_manager_sends_the_token_that_its_file_holds_now(temporal: WorkflowEnvironment, tmp_path: Path) -> None:
    """The manager is attached as soon as its file holds a good token, without being started again."""
    file, server = tmp_path / "token", ApiServer()
    async with harness(temporal, a_job()) as world, guarded(world, server) as address:
        file.write_text(FORGED)
        manager = Manager(address, Identity(world.job.id, file), Reports(), lambda _: None, {})
        running = asyncio.create_task(manager.run())
        try:
            async with asyncio.timeout(60):
                while not server.reviews:
                    await asyncio.sleep(0.01)
            assert (await world.status()).state.attachment is None
            file.write_text(f"{TOKEN}\n")
            await world.settled(lambda status: status.state.attachment is not None)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert set(server.reviews) == {FORGED, TOKEN}


async def test_a_manager_that_was_not_told_its_job_is_told_for_its_token(temporal: WorkflowEnvironment, tmp_path: Path) -> None:
    """The UID of a job is unknown when its template is written. The manager asks for it again after a refusal, and every report
    names it. Reports made before are sent then."""
    server, reports = ApiServer(), Reports()
    (tmp_path / "token").write_text(TOKEN)
    reports.progress(7, 0, 1)
    async with harness(temporal, a_job()) as world, guarded(world, server) as address:
        manager = Manager(address, Identity("", tmp_path / "token"), reports, lambda _: None, {})
        running = asyncio.create_task(manager.run())
        try:
            async with asyncio.timeout(60):
                while not server.looked:
                    await asyncio.sleep(0.01)
            assert (await world.status()).state.attachment is None
            server.job_id = world.job.id
            await world.settled(lambda status: status.state.attachment is not None)
            async with asyncio.timeout(60):
                await reports.progress_accepted.wait()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert set(server.looked) == {("", "a-pod", POD)}


async def test_a_job_is_asked_for_only_with_a_token_that_holds() -> None:
    """A forged one costs one question, and no look at the cluster; a call without one names no job."""
    server = ApiServer()
    async with remembering(server) as who:
        for token, words in ((FORGED, "does not confirm"), ("", "jobId: missing, and no token came .*MINDX_TASK_ID")):
            with pytest.raises(Refused, match=words):
                await who.job_of(PEER, token)
        assert server.looked == []
        server.job_id = "a-job"
        assert {await who.job_of(PEER, TOKEN) for _ in range(3)} == {"a-job"}
    assert len(server.looked) == 1


@pytest.mark.parametrize(
    "said",
    [
        (),
        (("authorization", ""),),
        (("authorization", TOKEN),),
        (("authorization", f"Basic {TOKEN}"),),
        (("authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {TOKEN}")),
        (("authorization", f"Bearer {'a' * 5000}"),),
        (("authorization", f"Bearer {'a' * 2**20}"),),
        (("rekindle-token-bin", b"\xff" * 3000),),
    ],
    ids=["none", "empty", "no scheme", "another scheme", "twice", "long", "a megabyte", "binary"],
)
async def test_metadata_that_is_no_token_ends_the_call_only(
    said: tuple[tuple[str, str | bytes], ...], temporal: WorkflowEnvironment
) -> None:
    """The API server is not asked. The next call with a token on the same connection is accepted."""
    server = ApiServer()
    async with (
        harness(temporal, a_job()) as world,
        guarded(world, server) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub = RecoverStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Init(wire.ClientInfo(jobId=world.job.id), metadata=said)
        assert refused.value.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert server.reviews == []
        answer = await stub.Init(wire.ClientInfo(jobId=world.job.id), metadata=(("authorization", f"Bearer {TOKEN}"),))
        assert answer.code == 0
