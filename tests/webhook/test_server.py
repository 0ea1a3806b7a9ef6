"""The admission webhook answers reviews over TLS, and admits what it cannot read."""

import asyncio
import gzip
import io
import json
import threading
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rekindle.errors import BadInput, Unavailable
from rekindle.model.limits import Limits
from rekindle.policy.parameters.admission import Verdict
from rekindle.policy.parameters.reading import Document
from rekindle.settings import Settings
from tests.support.admission import SERVICE, Clock, job, review, trusting
from tests.support.json_patch import patched
from workers import connections
from workers.webhook import server
from workers.webhook.certificate_sources import CertificateFiles
from workers.webhook.own_certificates import Certificates, renewed
from workers.webhook.server import MOST_BYTES, NOT_CHECKED, Webhook
from workers.webhook.tls import ServerTls


class Scene:
    """Running webhook, and a client that trusts its certificates."""

    def __init__(self, webhook: Webhook, tls: ServerTls, own: Certificates, client: aiohttp.ClientSession) -> None:
        self.webhook, self.tls, self.own, self.client = webhook, tls, own, client

    def post(self, path: str, body: bytes | io.BytesIO) -> Any:
        return self.client.post(f"https://127.0.0.1:{self.webhook.port}{path}", data=body, server_hostname=SERVICE)

    async def asked(self, path: str, **request: Any) -> dict[str, Any]:
        """Returns the response to a review of a job with a wrong strategy."""
        strategy = request.pop("strategy", "retry, recover")
        async with self.post(path, json.dumps(review(strategy, **request)).encode()) as answer:
            assert answer.status == 200
            found = await answer.json()
        assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert found["response"].pop("uid") == "0"
        return dict(found["response"])


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Scene]:
    tls, own = ServerTls(), renewed(Certificates(), SERVICE, Clock()())
    tls.use(own.certificate, own.key)
    connector = aiohttp.TCPConnector(ssl=trusting(own.authorities), force_close=True)
    async with (
        Webhook(Settings(webhook_port=0, **settings), tls) as webhook,
        aiohttp.ClientSession(connector=connector) as client,
    ):
        yield Scene(webhook, tls, own, client)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with serving() as scene:
        yield scene


async def test_a_wrong_job_is_refused(scene: Scene) -> None:
    """The status has the message, and a code that says that the object is invalid."""
    response = await scene.asked("/validate")
    assert response["allowed"] is False
    assert (response["status"]["code"], response["status"]["reason"]) == (422, "Invalid")
    assert response["status"]["message"].startswith("metadata.annotations.recover-strategy: ' recover' has a blank")


async def test_a_right_job_is_given_variables(scene: Scene) -> None:
    """The patch is in base64. A dry run has the same answer, since nothing is kept."""
    first, dry = await scene.asked("/mutate", strategy="retry"), await scene.asked("/mutate", strategy="retry", dryRun=True)
    assert first == dry
    assert (first["allowed"], first["patchType"]) == (True, "JSONPatch")
    changed = patched(job("retry"), json.loads(b64decode(first["patch"])))
    names = {one["name"] for one in changed["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert names >= {"PROCESS_RECOVER", "HIGH_AVAILABILITY"}
    assert (await scene.asked("/validate", strategy="retry"))["allowed"] is True


async def test_callers_that_send_slowly_take_the_place_of_no_other(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of unknown size are read one by one, each for a short time. Small reviews are answered meanwhile."""
    monkeypatch.setattr(server, "READ", 0.3)
    sent = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        sent.set()
        await asyncio.Event().wait()

    async def slow() -> int:
        url = f"https://127.0.0.1:{scene.webhook.port}/validate"
        async with scene.client.post(url, data=body(), server_hostname=SERVICE) as answer:
            return int(answer.status)

    several = [asyncio.create_task(slow()) for _ in range(3)]
    await sent.wait()
    assert (await scene.asked("/validate", strategy="retry"))["allowed"] is True
    assert await asyncio.gather(*several) == [503, 503, 503]
    assert (await scene.asked("/validate", strategy="retry"))["allowed"] is True


async def test_a_job_whose_text_the_api_server_writes_longer_is_admitted(scene: Scene) -> None:
    """The API server writes `<` as six bytes. An object of 1.5 MiB becomes one of 9 MiB, and an update has two."""
    long = json.dumps(review("retry", operation="UPDATE"))
    text = "\\u003c" * 1_500_000
    body = long.replace('"name"', f'"padding": "{text}", "name"', 2).encode()
    assert body.count(b"padding") == 2
    async with scene.post("/validate", io.BytesIO(body)) as answer:
        assert answer.status == 200
        assert (await answer.json())["response"]["allowed"] is True


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body is not JSON"),
        (b"\xff\xfe{", "the body is not JSON"),
        (b"[" * 100_000, "the body is nested too deep"),
        (b"[]", "apiVersion: 'None' is not accepted (accepted: admission.k8s.io/v1)"),
        (
            json.dumps(review("retry") | {"apiVersion": "admission.k8s.io/v1beta1"}).encode(),
            "apiVersion: 'admission.k8s.io/v1beta1'",
        ),
        (json.dumps(review("retry") | {"kind": "Status"}).encode(), "kind: 'Status' is not accepted (accepted: AdmissionReview)"),
        (json.dumps(review("retry") | {"kind": "\ud800"}).encode(), "is not accepted (accepted: AdmissionReview)"),
        (json.dumps(review("retry") | {"request": None}).encode(), "request.uid: missing"),
        (json.dumps(review("retry", uid=5)).encode(), "request.uid: missing"),
        (json.dumps(review("retry", operation=None)).encode(), "request.operation: missing"),
    ],
    ids=["empty", "binary", "deep", "list", "version", "kind", "surrogate", "request", "uid", "operation"],
)
async def test_what_is_no_review_is_refused_with_the_reason(scene: Scene, body: bytes, words: str) -> None:
    """The answer has code 400, and names what is accepted."""
    for path in ("/mutate", "/validate"):
        async with scene.post(path, body) as answer:
            assert answer.status == 400
            assert words in await answer.text()


async def test_a_request_that_is_too_large_is_not_read(scene: Scene) -> None:
    """No object of Kubernetes is as large."""
    async with scene.post("/validate", io.BytesIO(b" " * (MOST_BYTES + 1))) as answer:
        assert answer.status == 413


async def test_a_compressed_request_is_not_expanded(scene: Scene) -> None:
    """The API server compresses none, and a body of a few kilobytes would take all memory."""
    async with scene.client.post(
        f"https://127.0.0.1:{scene.webhook.port}/validate",
        data=gzip.compress(json.dumps(review("retry")).encode()),
        headers={"Content-Encoding": "gzip"},
        server_hostname=SERVICE,
    ) as answer:
        assert answer.status == 400
        assert "the body is not JSON" in await answer.text()


async def test_callers_that_send_nothing_keep_no_other_out(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest connection without a request ends for a new one. One that has asked stays."""
    monkeypatch.setattr(connections, "MOST", 3)
    trusted = trusting(scene.own.authorities)

    async def opened() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", scene.webhook.port, ssl=trusted, server_hostname=SERVICE)

    (reader, writer), silent = await opened(), list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()
    request = b"POST /validate HTTP/1.1\r\nHost: webhook\r\nContent-Length: 2\r\n\r\n{}"
    for _ in range(2):
        writer.write(request)
        assert b" 400 " in await reader.readuntil(b"(accepted: admission.k8s.io/v1)\n")
        silent = [await opened() for _ in range(2)]
        assert (await scene.asked("/validate", strategy="retry"))["allowed"] is True
        assert await silent[0][0].read() == b""
    for _, one in (*silent, (reader, writer)):
        one.close()


async def test_jobs_that_are_not_served_pass() -> None:
    """An installation for some namespaces judges no others. One that observes refuses and changes nothing."""
    async with serving(namespaces=("training",)) as scene:
        assert (await scene.asked("/validate"))["allowed"] is False
        assert await scene.asked("/validate", namespace="web") == {"allowed": True}
        assert await scene.asked("/mutate", namespace="web", strategy="retry") == {"allowed": True}
    async with serving(observe=True) as scene:
        response = await scene.asked("/validate")
        assert response["allowed"] is True
        assert response["warnings"][0].startswith("metadata.annotations.recover-strategy")
        assert await scene.asked("/mutate", strategy="retry") == {"allowed": True}


# ---- objects that cannot be read


async def test_a_job_that_cannot_be_read_is_admitted_with_a_warning(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the job, and the next one is judged."""

    def failing(request: Document, limits: Limits) -> Verdict:
        raise RecursionError("too deep")

    with monkeypatch.context() as patch:
        patch.setattr(server, "validated", failing)
        assert await scene.asked("/validate") == {"allowed": True, "warnings": [NOT_CHECKED]}
    (line,) = [one for one in caplog.records if one.message == "job admitted without a check"]
    assert (line.__dict__["namespace"], line.__dict__["job_name"]) == ("training", "gpt")
    assert (await scene.asked("/validate"))["allowed"] is False


class Slow:
    """Judge whose work on a namespace ends when it is told to."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.begun: list[str] = []

    def __call__(self, request: Document, limits: Limits) -> Verdict:
        self.begun.append(request["namespace"])
        if request["namespace"] == "hostile":
            assert self.end.wait(60)
        return Verdict()


async def test_a_tenant_delays_nobody_else(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of one namespace are read one after another, however many are sent, and those of others meanwhile."""
    slow = Slow()
    monkeypatch.setattr(server, "validated", slow)
    hostile = [asyncio.create_task(scene.asked("/validate", namespace="hostile")) for _ in range(2 * server.THREADS)]
    try:
        while not slow.begun:
            await asyncio.sleep(0)
        assert await scene.asked("/validate", namespace="training") == {"allowed": True}
        assert sorted(slow.begun) == ["hostile", "training"]
    finally:
        slow.end.set()
    assert [await one for one in hostile] == [{"allowed": True}] * len(hostile)


async def test_a_job_is_admitted_before_the_api_server_gives_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server would not show a reason."""
    slow = Slow()
    monkeypatch.setattr(server, "validated", slow)
    monkeypatch.setattr(server, "ANSWERED", 0.05)
    try:
        assert await scene.asked("/validate", namespace="hostile") == {"allowed": True, "warnings": [NOT_CHECKED]}
    finally:
        slow.end.set()


# ---- certificates


async def test_new_connections_use_a_new_certificate(scene: Scene) -> None:
    """The server is not restarted, and an open connection goes on."""
    other = renewed(Certificates(), SERVICE, Clock()())
    kept = await asyncio.open_connection(
        "127.0.0.1", scene.webhook.port, ssl=trusting(scene.own.authorities), server_hostname=SERVICE
    )
    scene.tls.use(other.certificate, other.key)
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await scene.asked("/validate")
    connector = aiohttp.TCPConnector(ssl=trusting(other.authorities))
    async with aiohttp.ClientSession(connector=connector) as client:
        assert (await Scene(scene.webhook, scene.tls, other, client).asked("/validate"))["allowed"] is False
    reader, writer = kept
    writer.write(b"GET /validate HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 405 Method Not Allowed")
    writer.close()
    await writer.wait_closed()


async def test_files_are_read_again_when_they_change(scene: Scene, tmp_path: Path) -> None:
    """Files that do not belong together are an error that names the setting, and the certificate before stays in use."""
    files = CertificateFiles(tmp_path, scene.tls)
    with pytest.raises(BadInput, match=r"REKINDLE_WEBHOOK_CERTIFICATES: .* cannot be used: .*tls\.crt"):
        await files.look()
    other = renewed(Certificates(), SERVICE, Clock()())
    (tmp_path / "tls.crt").write_bytes(other.certificate)
    (tmp_path / "tls.key").write_bytes(scene.own.key)
    with pytest.raises(BadInput, match=r"a certificate and its key are expected"):
        await files.look()
    assert (await scene.asked("/validate"))["allowed"] is False
    (tmp_path / "tls.key").write_bytes(other.key)
    await files.look()
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await scene.asked("/validate")


async def test_an_expired_certificate_is_a_reason_not_to_be_ready() -> None:
    """The probe says so."""
    clock = Clock()
    tls, own = ServerTls(clock), renewed(Certificates(), SERVICE, clock())
    expired = await tls.problem()
    assert expired is not None
    assert (expired.reason, expired.words) == ("CertificateExpired", "its certificate has expired")
    tls.use(own.certificate, own.key)
    assert await tls.problem() is None
    clock.moved = timedelta(days=31)
    assert await tls.problem() == expired


async def test_a_taken_port_is_named(scene: Scene) -> None:
    """The error names the setting."""
    with pytest.raises(Unavailable, match="REKINDLE_WEBHOOK_PORT"):
        async with Webhook(Settings(webhook_port=scene.webhook.port), scene.tls):
            pass
