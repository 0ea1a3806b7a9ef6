"""A process shows whether it serves, whatever the API server answers, and fills neither log nor list of events."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rekindle.model.examined import Problem
from tests.fakes.scripted_api import scripted_api
from workers import own_workload
from workers.own_workload import OwnWorkload

DEPLOYMENTS = "/apis/apps/v1/namespaces/mindx-dl/deployments"
EVENTS = "/api/v1/namespaces/mindx-dl/events"

SERVES = "all pods serve"

WRONG = Problem(reason="TemporalUnreachable", words="Temporal does not answer")


@pytest.mark.parametrize("body", [[], None, {}, {"metadata": None}, {"metadata": {"name": "rekindle-control"}}])
async def test_an_answer_of_another_service_ends_no_process(
    body: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A proxy between the process and the API server answers what it likes. The log says so once."""
    async with scripted_api(tmp_path) as (scripted, api):
        scripted.answers["PATCH", f"{DEPLOYMENTS}/rekindle-control/status"] = 200, body  # type: ignore[assignment]
        workload = OwnWorkload(api, "mindx-dl", "control")
        for _ in range(3):
            await workload.show(WRONG)
    assert [record.message for record in caplog.records if record.name == "process"] == ["condition not written"]


async def test_a_service_that_comes_and_goes_is_one_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The condition changes each time. After a while there is an event again, as events are forgotten."""
    async with scripted_api(tmp_path) as (scripted, api):
        thing = {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "rekindle-control", "uid": "a-uid"}}
        await scripted.put(DEPLOYMENTS, thing)
        workload = OwnWorkload(api, "mindx-dl", "control")
        for _ in range(10):
            await workload.show(WRONG)
            assert scripted.collections[DEPLOYMENTS]["rekindle-control"]["status"]["conditions"][0]["status"] == "False"
            await workload.show(None)
        assert scripted.requests.count(("POST", EVENTS)) == 1
        monkeypatch.setattr(own_workload, "AGAIN", 0.0)
        await workload.show(WRONG)
        assert scripted.requests.count(("POST", EVENTS)) == 2


async def test_pods_that_serve_do_not_speak_for_one_that_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The condition is false while one of several pods says so, and true when it serves again, or is gone for a while."""
    async with scripted_api(tmp_path) as (scripted, api):
        thing = {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "rekindle-control", "uid": "a-uid"}}
        await scripted.put(DEPLOYMENTS, thing)
        pods = {name: OwnWorkload(api, "mindx-dl", "control") for name in ("pod-a", "pod-b", "pod-c")}

        async def said(by: str, problem: Problem | None) -> tuple[str, str]:
            monkeypatch.setenv("HOSTNAME", by)
            await pods[by].show(problem)
            (condition,) = scripted.collections[DEPLOYMENTS]["rekindle-control"]["status"]["conditions"]
            return condition["status"], condition["message"].partition(":")[0]

        assert await said("pod-a", None) == ("True", SERVES)
        assert await said("pod-b", None) == ("True", SERVES)
        assert await said("pod-b", WRONG) == ("False", "pod-b")
        assert await said("pod-a", None) == ("False", "pod-b")
        assert await said("pod-c", None) == ("False", "pod-b")
        assert await said("pod-b", None) == ("True", SERVES)
        assert await said("pod-b", WRONG) == ("False", "pod-b")
        scripted.collections[DEPLOYMENTS]["rekindle-control"]["status"]["conditions"][0]["lastTransitionTime"] = None
        assert await said("pod-c", None) == ("True", SERVES)
        assert await said("pod-b", WRONG) == ("False", "pod-b")
        monkeypatch.setattr(own_workload, "HELD", 0.0)
        assert await said("pod-c", None) == ("True", SERVES)


@pytest.mark.parametrize("ahead", [timedelta(hours=2), timedelta(hours=-2)], ids=str)
async def test_clocks_of_pods_may_differ(ahead: timedelta, tmp_path: Path) -> None:
    """A pod that does not serve says so again at each look, by its own clock. Others do not take that for old."""
    async with scripted_api(tmp_path) as (scripted, api):
        serves = OwnWorkload(api, "mindx-dl", "control")
        for later in (timedelta(0), timedelta(seconds=own_workload.EVERY)):
            condition = {"type": "Serving", "status": "False", "reason": WRONG.reason, "message": f"another: {WRONG}"}
            condition["lastTransitionTime"] = (datetime.now(UTC) + ahead + later).strftime(own_workload.TIME)
            metadata = {"name": "rekindle-control", "uid": "a-uid"}
            thing = {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": metadata, "status": {"conditions": [condition]}}
            await scripted.put(DEPLOYMENTS, thing)
            await serves.show(None)
            assert scripted.collections[DEPLOYMENTS]["rekindle-control"]["status"]["conditions"] == [condition]
