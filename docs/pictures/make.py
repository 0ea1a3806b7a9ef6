"""Makes the README's pictures of the Temporal UI from a real run, and asserts what is on them. `make pictures` runs it.

Jobs train for real: one is switched to a spare node, others lose processes or a pod. Beside them are jobs whose pods only wait
and whose training side is played, so that the list shows the ends that a recovery may have. Needs Debian's `chromium`.
"""

import asyncio
import base64
import itertools
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import aiohttp

from rekindle import ids
from rekindle.cli.demos.process_faults import ProcessFaults, ProcessFaultScenario, Strike
from rekindle.cli.demos.sub_health import HotSwitchScenario, SubHealth
from rekindle.cli.stack import Machine, Stack, running
from rekindle.client import Rekindle
from rekindle.cluster_client import ClusterClient
from rekindle.maintenances import Maintenances
from rekindle.model.attachment import Progress
from rekindle.model.cluster import JobObject, JobSpec, ObjectMeta, PodTemplate
from rekindle.model.dialogue import Receipt
from rekindle.model.job import Capability, SubHealthStrategy
from rekindle.model.keys import CAPABILITIES, RANK_INDEX, SUB_HEALTHY_STRATEGY
from rekindle.model.links import NodeLinks
from rekindle.model.mode import Mode, Outcome
from tests.fakes.peer import Script, ScriptedPeer

HERE = Path(__file__).parent
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1500,1150",
    "--remote-debugging-port=0",
)
LISTED = 'RekindleJob IS NOT NULL AND ExecutionStatus != "ContinuedAsNew"'
NODES, ACCELERATORS = 3, 2
PATIENCE = 60.0
DRAWN = 2.0
"""Seconds in which a page that has its words is drawn."""


class Browser:
    """A page of a headless browser, spoken to by the DevTools protocol."""

    def __init__(self, page: aiohttp.ClientWebSocketResponse) -> None:
        self._page = page
        self._asked = itertools.count(1)

    async def shot(self, url: str, name: str, *needed: str) -> None:
        """A picture of a page, as soon as all these words stand on it: that of what runs is never at rest."""
        await self._ask("Page.navigate", url=url)
        missing = list(needed)
        try:
            async with asyncio.timeout(PATIENCE):
                while missing:
                    await asyncio.sleep(0.5)
                    page = await self._ask("Runtime.evaluate", expression="document.documentElement.outerHTML")
                    shown = unquote(unescape(page["result"]["value"]))  # summaries and details stand in the addresses of frames
                    missing = [words for words in needed if words not in shown]
        except TimeoutError:
            sys.exit(f"not on {url}: {missing}")
        await asyncio.sleep(DRAWN)
        picture = await self._ask("Page.captureScreenshot")
        (HERE / name).write_bytes(base64.b64decode(picture["data"]))
        print(f"{name}: {', '.join(needed)}")

    async def _ask(self, method: str, **parameters: str) -> dict[str, Any]:
        number = next(self._asked)
        await self._page.send_json({"id": number, "method": method, "params": parameters})
        while (answer := await self._page.receive_json()).get("id") != number:
            pass
        found: dict[str, Any] = answer["result"]
        return found


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is missing: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        quiet = asyncio.subprocess.DEVNULL
        command = (chromium, *FLAGS, f"--user-data-dir={profile}", "about:blank")
        process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
        try:
            async with aiohttp.ClientSession() as session, await _page(session, Path(profile)) as page:
                yield Browser(page)
        finally:
            process.terminate()
            await process.wait()


async def _page(session: aiohttp.ClientSession, profile: Path) -> aiohttp.ClientWebSocketResponse:
    async with asyncio.timeout(PATIENCE):
        while not (said := profile / "DevToolsActivePort").exists() or not said.read_text():
            await asyncio.sleep(0.1)
        async with session.get(f"http://127.0.0.1:{said.read_text().splitlines()[0]}/json/list") as answer:
            targets = await answer.json()
    address = next(target["webSocketDebuggerUrl"] for target in targets if target["type"] == "page")
    return await session.ws_connect(address, max_msg_size=0)


class Stories:
    """Jobs that only wait, with the training side that a script plays."""

    def __init__(self, stack: Stack, rekindle: Rekindle, cluster: ClusterClient) -> None:
        self._stack, self._rekindle, self._cluster = stack, rekindle, cluster

    async def ignored(self) -> str:
        """All nodes have pods of the job: there is no spare for the sub-healthy one."""
        async with self._job("llama", NODES, Script(), backupScheduled=1) as (job_id, _peer):
            pods = await self._cluster.pods(job_id)
            node = next(pod.spec.node_name for pod in pods if pod.metadata.annotations.get(RANK_INDEX) == "1")
            await self._cluster.degrade(node, "80E18005", "NPU link is degraded")
            await self._incident(job_id, Outcome.IGNORED)
            await self._cluster.heal(node)
        return "recovery/default.llama/1-hot-switch/"

    async def cancelled(self) -> str:
        """A person asks for a hot switch, and cancels it while the backup loads."""
        async with self._job("whisper", 2, Script(pauses=False)) as (job_id, peer):
            asked = await self._rekindle.start(Mode.HOT_SWITCH, job_id, pod_rank=1, force=True, requested_by="ada")
            await peer.until(lambda: "new pod running" in peer.orders)
            await asked.cancel()
            await self._incident(job_id, Outcome.CANCELLED)
        return "recovery/default.whisper/1-hot-switch/"

    async def given_up(self) -> str:
        """A person restarts the job, whose training never makes a step again."""
        async with self._job("bert", 1, Script(), restart=2) as (job_id, _peer):
            await self._rekindle.start(Mode.JOB_RESCHEDULING, job_id, requested_by="ada")
            await self._incident(job_id, Outcome.GIVEN_UP)
        return "recovery/default.bert/1-job-rescheduling/"

    @asynccontextmanager
    async def maintained(self) -> AsyncIterator[dict[str, str]]:
        """The devices of a job are on their backup links, until the block ends."""
        async with self._job("mixtral", 2, Script()) as (job_id, peer):
            await peer.with_links()
            pods = [pod for pod in await self._cluster.pods(job_id) if RANK_INDEX in pod.metadata.annotations]
            links = [NodeLinks(node=pod.spec.node_name, devices=pod.status.devices, backup=True) for pod in pods]
            maintenances = Maintenances(self._rekindle)
            maintenance = await maintenances.fail_over(job_id, links, requested_by="ada")
            await maintenances.settled(maintenance)
            run = await self._rekindle.temporal.get_workflow_handle(maintenance).describe()
            yield {"workflow_id": maintenance, "run_id": run.run_id}

    @asynccontextmanager
    async def _job(self, name: str, pods: int, script: Script, **limits: float) -> AsyncIterator[tuple[str, ScriptedPeer]]:
        wanted = JobObject(
            metadata=ObjectMeta(
                name=name,
                labels={SUB_HEALTHY_STRATEGY: SubHealthStrategy.HOT_SWITCH},
                annotations={CAPABILITIES: Capability.REPLACE_RANK_0},
            ),
            spec=JobSpec(
                pods=pods,
                ranks_per_pod=ACCELERATORS,
                template=PodTemplate(command=("sleep", "1000"), accelerators=ACCELERATORS),
                limits={**limits},
            ),
        )
        job_id = (await self._cluster.submit(wanted)).metadata.uid
        await self._until_listed(job_id)
        try:
            async with ScriptedPeer(self._stack.addresses.gateway, job_id, script) as peer:
                entity = self._rekindle.temporal.get_workflow_handle(ids.job_workflow(job_id))
                first = Progress(incarnation="life-1", step=1)
                await entity.execute_update(ids.Updates.PROGRESS, first, result_type=Receipt)
                yield job_id, peer
        finally:
            await self._cluster.delete_job(job_id, grace=0)

    async def _until_listed(self, job_id: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while job_id not in [row.id for row in await self._rekindle.jobs()]:
                await asyncio.sleep(0.2)

    async def _incident(self, job_id: str, wanted: Outcome) -> None:
        async with asyncio.timeout(PATIENCE):
            while not (history := (await self._rekindle.status(job_id)).state.history):
                await asyncio.sleep(0.2)
        assert history[0].verdict is wanted, history[0]


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rekindle-pictures-") as directory:
        stack = running(Path(directory), Machine(NODES, ACCELERATORS))
        async with stack as started, ClusterClient(Path(started.addresses.socket)) as cluster:
            stories = Stories(started, await Rekindle.connect(started.addresses.temporal), cluster)
            others = [await stories.given_up(), await stories.cancelled(), await stories.ignored()]
            struck = [await of_processes(started, Path(directory), *one) for one in STRUCK]
            scenario = HotSwitchScenario(SubHealth(), started, Path(directory), lambda _: None)
            switched = await scenario.run()
            assert switched["verdict"] == "recovered"
            others += [one["workflow_id"] for one in struck]
            ui = f"{started.addresses.ui}/namespaces/default/workflows"
            async with stories.maintained() as maintenance:
                told = (switched, struck[-1], maintenance)
                async with browsing() as browser:
                    await pictures(browser, ui, told, [*others, maintenance["workflow_id"]])


STRUCK = (
    (Mode.ONLINE_RETRY, Strike.MEMORY, False),
    (Mode.IN_PLACE, Strike.KILL, False),
    (Mode.PROCESS_RESCHEDULING, Strike.KILL, True),
    (Mode.PROCESS_RESCHEDULING, Strike.KILL, False),
)
"""Modes, what happens to a rank, and whether no spare is there. The last one's story is told."""


async def of_processes(stack: Stack, directory: Path, mode: Mode, fault: Strike, no_spare: bool) -> dict[str, str]:
    options = ProcessFaults(mode=mode, fault=fault, no_spare=no_spare, steps=60)
    result = await ProcessFaultScenario(options, stack, directory, lambda _: None).run()
    assert options.is_met_by(result), result
    return result


async def pictures(browser: Browser, ui: str, told: Sequence[dict[str, str]], others: list[str]) -> None:
    """Of a hot switch, a process rescheduling and a maintenance, and of them all in a list."""
    recovery, other, maintenance = (f"{ui}/{quote(one['workflow_id'], safe='')}/{one['run_id']}" for one in told)
    summaries = [
        "order new pod running",
        "start backup pod for pod rank 1",
        "wait for the report of the pause",
        "order migration",
    ]
    story = ["hot switch of gpt", "NPU link is degraded", "Limits", "training side prepares", "training resumes"]
    loss = ["process rescheduling of gpt", "training stops", "new pods start", "new pods take over the ranks"]
    links = ["on the backup link: ", ", since 2", "waits for the switchback"]
    modes = ["OnlineRetry", "InPlaceRecovery", "ProcessRescheduling", "HotSwitch", "JobRescheduling", "TrainingJob"]
    ends = ["Completed", "Failed", "Canceled", told[0]["workflow_id"], *others]
    await browser.shot(f"{ui}?query={quote(LISTED)}", "workflows.png", *modes, *ends)
    await browser.shot(f"{recovery}/timeline", "recovery.png", "recovered", *summaries)
    await browser.shot(f"{recovery}/user-metadata", "story.png", *story)
    await browser.shot(f"{other}/user-metadata", "rescheduling.png", *loss)
    await browser.shot(f"{maintenance}/user-metadata", "maintenance.png", *links)


if __name__ == "__main__":
    asyncio.run(main())
