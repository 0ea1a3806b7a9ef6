"""The API server's answers become our errors. A real server gives most of them; a scripted one gives those that a real one cannot
be made to give."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from temporalio.exceptions import ApplicationError

from activities.clusters import api_server as kube
from activities.clusters.api_server import Api, check_version
from activities.error_mapping import translating_errors
from rekindle.errors import BadInput, ClusterUnavailable, Conflict, Forbidden, Invalid, NotFound, WatchExpired
from tests.fakes.loopback import served
from tests.kubernetes.world.control_plane import Namespace
from tests.kubernetes.world.worlds import pod_spec
from tests.support.cluster import FOREVER

MAP = {"metadata": {"name": "map"}, "data": {"a": "1", "b": "2"}}

WAIT_LIMIT = 60.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def test_an_object_is_created_read_changed_and_deleted(namespace: Namespace) -> None:
    """A merge patch removes what is None; a second creation is a Conflict; what is deleted is not found."""
    api, path = namespace.api, namespace.path("configmaps", "map")
    created = await api.create(namespace.path("configmaps"), MAP)
    with pytest.raises(Conflict, match="already exists"):
        await api.create(namespace.path("configmaps"), MAP)
    assert (await api.patch(path, {"data": {"a": None, "c": "3"}}))["data"] == {"b": "2", "c": "3"}
    await api.delete(path, created["metadata"]["uid"])
    with pytest.raises(NotFound, match="map"):
        await api.get(path)


async def test_a_deletion_names_the_very_object(namespace: Namespace) -> None:
    """A deletion with the UID of another object is a Conflict, and deletes nothing."""
    await namespace.api.create(namespace.path("configmaps"), MAP)
    with pytest.raises(Conflict, match="UID"):
        await namespace.api.delete(namespace.path("configmaps", "map"), "of-another-life")
    assert await namespace.api.get(namespace.path("configmaps", "map"))


@pytest.mark.parametrize("kind", ["configmaps", "pods"])
async def test_a_change_names_the_very_object(namespace: Namespace, kind: str) -> None:
    """A change with the UID of another object is a Conflict, which a caller may retry, and changes nothing."""
    body = MAP if kind == "configmaps" else {"metadata": {"name": "map"}, "spec": pod_spec(FOREVER, 0)}
    created = await namespace.api.create(namespace.path(kind), body)
    change = {"labels": {"changed": "yes"}}
    with pytest.raises(Conflict, match=r"metadata\.uid"):
        await namespace.api.patch(namespace.path(kind, "map"), {"metadata": {"uid": "of-another-life", **change}})
    assert "labels" not in (await namespace.api.get(namespace.path(kind, "map")))["metadata"]
    own = {"metadata": {"uid": created["metadata"]["uid"], **change}}
    assert (await namespace.api.patch(namespace.path(kind, "map"), own))["metadata"]["labels"] == {"changed": "yes"}


async def test_an_object_that_the_server_refuses_names_its_field(namespace: Namespace) -> None:
    """Invalid carries the server's own message."""
    with pytest.raises(Invalid, match=r"spec\.containers: Required value"):
        await namespace.api.create(namespace.path("pods"), {"metadata": {"name": "pod"}, "spec": {"containers": []}})


async def test_a_list_comes_in_pages(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """All objects are there, each once, however many pages it takes."""
    monkeypatch.setattr(kube, "PAGE", 2)
    names = {f"map-{number}" for number in range(5)}
    for name in names:
        await namespace.api.create(namespace.path("configmaps"), {"metadata": {"name": name, "labels": {"mine": "yes"}}})
    listing = await namespace.api.list(namespace.path("configmaps"), labelSelector="mine=yes")
    assert sorted(item["metadata"]["name"] for item in listing.items) == sorted(names)


async def test_a_server_that_streams_no_lists_sends_everything_in_pages(namespace: Namespace) -> None:
    """The oldest one refuses the stream; what comes, and where a watch goes on, is the same."""
    await namespace.api.create(namespace.path("configmaps"), MAP)
    async with aclosing(namespace.api.everything(namespace.path("configmaps"))) as changes:
        *maps, end = [change async for change in changes]
    assert MAP["metadata"]["name"] in {change.object["metadata"]["name"] for change in maps}
    since = end.object["metadata"]["resourceVersion"]
    async with aclosing(namespace.api.watch(namespace.path("configmaps"), since)) as news:
        await namespace.api.patch(namespace.path("configmaps", MAP["metadata"]["name"]), {"data": {"new": "yes"}})
        mine = await anext(change async for change in news if change.object["metadata"]["name"] == MAP["metadata"]["name"])
        assert mine.object["data"]["new"] == "yes"


async def test_a_missing_permission_is_named(namespace: Namespace, kubeconfig: Path, tmp_path: Path) -> None:
    """Verb, resource and namespace stand in the error, as an administrator needs them."""
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"]["token"] = await namespace.token_of("nobody")
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    async with Api(tmp_path / "config") as api:
        with pytest.raises(Forbidden, match=rf'cannot list resource "pods" .* in the namespace "{namespace.name}"'):
            await api.list(namespace.path("pods"))


async def test_a_watch_goes_on_where_the_list_ended(namespace: Namespace) -> None:
    """Nothing between the list and the watch is missed."""
    listing = await namespace.api.list(namespace.path("secrets"))
    created = await namespace.api.create(namespace.path("secrets"), {"metadata": {"name": "mine"}})
    await namespace.api.patch(namespace.path("secrets", "mine"), {"stringData": {"a": "9"}})
    changes = namespace.api.watch(namespace.path("secrets"), listing.resource_version)
    seen = [await anext(changes) for _ in range(2)]
    ours = [change.type for change in seen if change.object["metadata"]["uid"] == created["metadata"]["uid"]]
    assert ours == ["ADDED", "MODIFIED"]


async def test_a_server_that_is_away_is_unavailable_and_comes_back(namespace: Namespace, kubeconfig: Path) -> None:
    """A watch breaks, a request fails, and both work again when the server does."""
    listing = await namespace.api.list(namespace.path("configmaps"))
    changes = namespace.api.watch(namespace.path("configmaps"), listing.resource_version)
    await namespace.api.create(namespace.path("configmaps"), MAP)
    await anext(changes)
    os.kill(int((kubeconfig.parent / "kube-apiserver.pid").read_text()), signal.SIGKILL)
    with pytest.raises(ClusterUnavailable):
        async for _ in changes:
            pass
    found = await _as_soon_as_it_answers(namespace)
    assert found["data"] == MAP["data"]


async def _as_soon_as_it_answers(namespace: Namespace) -> kube.Object:
    while True:
        try:
            return await namespace.api.get(namespace.path("configmaps", "map"))
        except (ClusterUnavailable, Forbidden):
            continue


# ---- scripted


@asynccontextmanager
async def scripted(handler: Handler, directory: Path, token: str = "first") -> AsyncIterator[Api]:
    """Serves the API by a server that answers as the test says."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    async with served(application) as server:
        write_config(directory / "config", server, token)
        async with Api(directory / "config") as api:
            yield api


def write_config(path: Path, server: str, token: str) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config))


async def test_a_server_that_is_overloaded_says_when_to_come_back(tmp_path: Path) -> None:
    """429 is ClusterUnavailable, with the seconds of Retry-After; the activity's next try waits as long."""

    async def overloaded(_: web.Request) -> web.Response:
        return web.json_response({"message": "too many requests"}, status=429, headers={"Retry-After": "7"})

    async with scripted(overloaded, tmp_path) as api:
        with pytest.raises(ClusterUnavailable, match="too many requests") as caught:
            await api.get("/api/v1/pods")
        assert caught.value.retry_after == 7
        with pytest.raises(ApplicationError) as delayed, translating_errors():
            await api.get("/api/v1/pods")
        assert delayed.value.next_retry_delay == timedelta(seconds=7)


@pytest.mark.parametrize(("ready", "error"), [(200, Forbidden), (500, ClusterUnavailable)])
async def test_a_server_that_starts_is_asked_again(tmp_path: Path, ready: int, error: type[Exception]) -> None:
    """A refusal of a server that is still starting is retried, because it does not know all rights yet. A refusal of a ready
    server is final."""

    async def starting(request: web.Request) -> web.Response:
        return web.json_response({"message": "forbidden"}, status=ready if request.path == "/readyz" else 403)

    async with scripted(starting, tmp_path) as api:
        with pytest.raises(error, match="forbidden"):
            await api.get("/api/v1/pods")


async def test_a_watch_that_expired_says_so(tmp_path: Path) -> None:
    """A watch raises WatchExpired after a change in the middle of its stream, when the server's history is too short."""
    pod = {"type": "ADDED", "object": {"metadata": {"name": "pod", "resourceVersion": "7"}}}
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version: 7 (9)"}}

    async def forgetful(_: web.Request) -> web.Response:
        return web.Response(text=f"{json.dumps(pod)}\n{json.dumps(gone)}\n")

    async with scripted(forgetful, tmp_path) as api:
        changes = api.watch("/api/v1/pods", "1")
        assert (await anext(changes)).object == pod["object"]
        with pytest.raises(WatchExpired, match="too old resource version"):
            await anext(changes)


async def test_a_watch_that_the_server_ends_goes_on_behind_the_last_change(tmp_path: Path) -> None:
    """A watch that the server ended continues from the version of the last event. Bookmarks count as events."""
    asked: list[str] = []

    async def one_at_a_time(request: web.Request) -> web.Response:
        asked.append(request.query["resourceVersion"])
        version = {"metadata": {"resourceVersion": f"{len(asked)}0"}}
        bookmark, change = {"type": "BOOKMARK", "object": version}, {"type": "MODIFIED", "object": version}
        return web.Response(text=f"{json.dumps(bookmark if len(asked) == 2 else change)}\n")

    async with scripted(one_at_a_time, tmp_path) as api:
        changes = api.watch("/api/v1/pods", "5")
        assert [(await anext(changes)).type for _ in range(2)] == ["MODIFIED", "MODIFIED"]
    assert asked == ["5", "10", "20"]


async def test_a_watch_that_is_silent_for_long_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch without events continues from the same version. A silent watch is no reason to list everything again, because some
    servers send no bookmarks."""
    monkeypatch.setattr(kube, "SILENCE_LIMIT", 0.05)
    asked: list[str] = []

    async def silent_at_first(request: web.Request) -> web.StreamResponse:
        asked.append(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        if len(asked) == 1:
            await asyncio.Event().wait()
        change = {"type": "MODIFIED", "object": {"metadata": {"resourceVersion": "6"}}}
        await response.write(json.dumps(change).encode() + b"\n")
        return response

    async with scripted(silent_at_first, tmp_path) as api, aclosing(api.watch("/api/v1/pods", "5")) as changes:
        assert (await anext(changes)).type == "MODIFIED"
    assert asked == ["5", "5"]


@pytest.mark.parametrize("thing", [{}, {"object": None}, {"object": {"kind": "Pod"}}, {"object": {"metadata": None}}])
@pytest.mark.parametrize("kind", ["BOOKMARK", "ADDED"])
async def test_an_event_without_an_object_ends_no_process(tmp_path: Path, kind: str, thing: dict[str, object]) -> None:
    """A bookmark without an object is ignored. Any other event without an object causes a new list, because its content is
    unknown."""
    change = {"type": "MODIFIED", "object": {"metadata": {"resourceVersion": "6"}}}

    async def odd(_: web.Request) -> web.Response:
        return web.Response(text=f"{json.dumps({'type': kind, **thing})}\n{json.dumps(change)}\n")

    async with scripted(odd, tmp_path) as api, aclosing(api.watch("/api/v1/pods", "5")) as changes:
        if kind == "BOOKMARK":
            assert (await anext(changes)).object == change["object"]
        else:
            with pytest.raises(ClusterUnavailable, match="no event"):
                await anext(changes)


async def test_a_watch_that_is_ended_again_and_again_is_not_asked_for_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as by a proxy, or by a server that shuts down: a dozen watches would ask thousands of times a second."""
    monkeypatch.setattr(kube, "ENDED", 0.1)
    asked = 0

    async def ends(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(text="")

    async with scripted(ends, tmp_path) as api:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.35), aclosing(api.watch("/api/v1/pods", "5")) as changes:
                await anext(changes)
    assert asked <= 4


@pytest.mark.parametrize("answer", [{}, [], {"items": []}, {"items": [], "metadata": {}}, None])
async def test_an_answer_that_is_no_list_is_no_answer(tmp_path: Path, answer: object) -> None:
    """An answer that is no list is a temporary error: another program answers in the server's place."""

    async def odd(_: web.Request) -> web.Response:
        return web.json_response(answer)

    async with scripted(odd, tmp_path) as api:
        with pytest.raises(ClusterUnavailable, match="no list"):
            await api.list("/api/v1/pods")


async def test_credentials_that_ran_out_are_read_again(tmp_path: Path) -> None:
    """A token that was renewed in its file is taken at the first 401; one that is still wrong is an error."""

    async def renewed(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") == "Bearer second":
            return web.json_response({"kind": "Pod"})
        return web.json_response({"message": "Unauthorized"}, status=401)

    async with scripted(renewed, tmp_path) as api:
        with pytest.raises(Forbidden, match="Unauthorized"):
            await api.get("/api/v1/pods")
        config = yaml.safe_load((tmp_path / "config").read_text())
        write_config(tmp_path / "config", config["clusters"][0]["cluster"]["server"], "second")
        assert await api.get("/api/v1/pods") == {"kind": "Pod"}


async def test_credentials_that_ran_out_break_nothing_that_is_under_way(tmp_path: Path) -> None:
    """All requests that receive 401 at once are retried, and a watch that was open before stays open."""
    accepted, opened, changed = ["Bearer first"], asyncio.Event(), asyncio.Event()

    async def renewing(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != accepted[-1]:
            return web.json_response({"message": "Unauthorized"}, status=401)
        if "watch" not in request.query:
            return web.json_response({"kind": "Pod"})
        response = web.StreamResponse()
        await response.prepare(request)
        opened.set()
        await changed.wait()
        change = {"type": "ADDED", "object": {"metadata": {"resourceVersion": "7"}}}
        await response.write(f"{json.dumps(change)}\n".encode())
        return response

    async with scripted(renewing, tmp_path) as api:
        change = asyncio.create_task(anext(api.watch("/api/v1/pods", "5")))
        await opened.wait()
        accepted.append("Bearer second")
        server = yaml.safe_load((tmp_path / "config").read_text())["clusters"][0]["cluster"]["server"]
        write_config(tmp_path / "config", server, "second")
        answers = await asyncio.gather(*(api.get(f"/api/v1/pods/{number}") for number in range(20)))
        assert answers == [{"kind": "Pod"}] * 20
        changed.set()
        assert (await change).type == "ADDED"


@pytest.mark.parametrize(("ready", "error"), [(200, Forbidden), (401, Forbidden), (500, ClusterUnavailable)])
async def test_a_server_whose_store_is_away_is_asked_again(tmp_path: Path, ready: int, error: type[Exception]) -> None:
    """A server without its store does not recognize our credentials, though they are right. An anonymous request then asks it
    whether it is ready."""

    async def forgetful(request: web.Request) -> web.Response:
        asks_as_stranger = request.path == "/readyz" and "Authorization" not in request.headers
        return web.json_response({"message": "Unauthorized"}, status=ready if asks_as_stranger else 401)

    async with scripted(forgetful, tmp_path) as api:
        with pytest.raises(error, match="Unauthorized"):
            await api.get("/api/v1/pods")


async def test_hundreds_of_waits_leave_room_for_a_request(tmp_path: Path) -> None:
    """Each wait for pods holds a connection, perhaps for a quarter of an hour."""
    waits, opened = 150, asyncio.Semaphore(0)

    async def patient(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"kind": "Pod"})
        opened.release()
        await asyncio.Event().wait()
        raise AssertionError("it is never set")

    async with scripted(patient, tmp_path) as api, asyncio.timeout(WAIT_LIMIT):
        watches = [asyncio.create_task(anext(api.watch("/api/v1/pods", "5"))) for _ in range(waits)]
        for _ in range(waits):
            await opened.acquire()
        assert await api.get("/api/v1/pods") == {"kind": "Pod"}
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


@pytest.mark.parametrize(("minor", "fits"), [("29", False), ("30+", True), ("36", True)])
async def test_a_server_that_is_too_old_is_refused(tmp_path: Path, minor: str, *, fits: bool) -> None:
    """The error names the version of the server and the oldest accepted version."""

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"major": "1", "minor": minor, "gitVersion": f"v1.{minor}.0"})

    async with scripted(version, tmp_path) as api:
        if fits:
            assert await check_version(api) == f"v1.{minor}.0"
        else:
            with pytest.raises(BadInput, match=r"v1\.29\.0: accepted are versions from 1\.30"):
                await check_version(api)


async def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """The error has the path of the file."""
    (tmp_path / "config").write_text("{}")
    async with Api(tmp_path / "config") as api:
        with pytest.raises(BadInput, match=str(tmp_path / "config")):
            await api.get("/version")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("users: [{token: s3cr3t}\n  bad", "not YAML, in line 2"),
        ('- "token: s3cr3t\n', "not YAML, in line 2"),
        ("[s3cr3t]", "no kubeconfig: TypeError"),
        ("clusters: 5\ncontexts: s3cr3t\nusers: null\ncurrent-context: [s3cr3t]", "no kubeconfig: TypeError"),
    ],
)
async def test_a_kubeconfig_that_cannot_be_read_is_bad_input(text: str, words: str, tmp_path: Path) -> None:
    """The message has the place, and nothing of the content, which has credentials."""
    (tmp_path / "kubeconfig").write_text(text)
    async with Api(tmp_path / "kubeconfig") as api:
        with pytest.raises(BadInput, match=words) as raised:
            await check_version(api)
    assert "s3cr3t" not in str(raised.value)


@pytest.mark.parametrize("body", ["[]", "null", "{}", '"v1.36.0"'])
async def test_a_version_that_is_none_is_no_answer_of_an_api_server(body: str, tmp_path: Path) -> None:
    """A proxy answers with JSON of its own. A process that starts waits until the API server answers."""

    async def another_service(_: web.Request) -> web.Response:
        return web.Response(text=body, content_type="application/json")

    async with scripted(another_service, tmp_path) as api:
        with pytest.raises(ClusterUnavailable, match="what is no version"):
            await check_version(api)
