"""Makes the README's pictures of the Temporal UI from a real run, and asserts what is on them. `make pictures` runs it.

Needs Debian's `chromium` and nothing else: pages are read and drawn by the headless browser itself.
"""

import asyncio
import shutil
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path
from urllib.parse import unquote

from rekindle import ids
from rekindle.cli.scenario import Options, Scenario
from rekindle.cli.stack import Machine, running

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
    "--virtual-time-budget=15000",
)


def browse(url: str, *action: str) -> str:
    """Opens a page until it has settled; answers what the browser printed."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is missing: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        command = [chromium, *FLAGS, f"--user-data-dir={profile}", *action, url]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def shot(url: str, name: str, *needed: str) -> None:
    """A picture of a page on which all these words stand."""
    page = unquote(unescape(browse(url, "--dump-dom")))  # summaries and details stand in the addresses of frames
    missing = [words for words in needed if words not in page]
    if missing:
        sys.exit(f"not on {url}: {missing}")
    browse(url, f"--screenshot={HERE / name}")
    print(f"{name}: {', '.join(needed)}")


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rekindle-pictures-") as directory:
        stack = running(Path(directory), Machine(nodes=3, accelerators=2))
        async with stack as started:
            scenario = Scenario(Options(), started, Path(directory), lambda _: None)
            result = await scenario.run()
            ui = f"{started.addresses.ui}/namespaces/default/workflows"
            workflow_id = ids.recovery_workflow(scenario.job_id)
            recovery = f"{ui}/{workflow_id.replace('/', '%2F')}/{result['run_id']}"
            summaries = [
                "order hot switch",
                "start backup pod for pod rank 1",
                "wait for the report of the pause",
                "order migration",
            ]
            story = ["hot switch of gpt", "NPU link is degraded", "Limits", "training side prepares", "training resumes"]
            await asyncio.to_thread(shot, ui, "workflows.png", "HotSwitch", "TrainingJob", workflow_id)
            await asyncio.to_thread(shot, f"{recovery}/timeline", "recovery.png", "recovered", *summaries)
            await asyncio.to_thread(shot, f"{recovery}/user-metadata", "story.png", *story)
            assert result["verdict"] == "recovered"


if __name__ == "__main__":
    asyncio.run(main())
