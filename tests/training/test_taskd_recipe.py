"""A job that was written for TaskD, as its published recipe has it, with Rekindle's training side in the place of TaskD."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch.distributed.run

from rekindle.cli.ports import free_ports
from tests.training.gateway_service import JOB, GatewayPeer
from tests.training.test_torchrun_lines import TRAINS

TASKD = Path(__file__).parents[2] / "training" / "taskd" / "src"

MANAGER = """
from taskd.api import init_taskd_manager, start_taskd_manager
import os

job_id=os.getenv("MINDX_TASK_ID")
node_nums=2
proc_per_node=2

init_taskd_manager({"job_id":job_id, "node_nums": node_nums, "proc_per_node": proc_per_node})
start_taskd_manager()
"""
START = """
sed '/import os/i import taskd.python.adaptor.patch' {run} > torch/distributed/run.py
if [[ "${{RANK}}" -eq 0 ]]; then
    export MASTER_ADDR=${{POD_IP}}
    {python} manager.py &
fi
{python} torch/distributed/run.py --nproc_per_node 2 --nnodes 2 --node_rank $RANK --master_addr $MASTER_ADDR \
    --master_port $MASTER_PORT --max_restarts 32767 --monitor_interval 10 train.py
code=$?
wait
exit $code
"""


async def test_the_published_recipe_starts_with_rekindles_training_side(tmp_path: Path, gateway: GatewayPeer) -> None:
    """Its manager registers with the control plane, and torchrun's line trains all ranks. Only the sizes of the job are new."""
    run, master_port = torch.distributed.run.__file__, free_ports(1)[0]
    pods = []
    for rank in range(2):
        folder = tmp_path / f"pod-{rank}"
        (folder / "torch" / "distributed").mkdir(parents=True)
        (folder / "manager.py").write_text(MANAGER)
        (folder / "train.py").write_text(f"import torch\ntorch.manual_seed(0)\n{TRAINS}")
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(TASKD), *sys.path]),
            "MINDX_TASK_ID": JOB,
            "MINDX_SERVER_IP": "127.0.0.1",
            "REKINDLE_GATEWAY_PORT": str(gateway.port),
            "POD_IP": "127.0.0.1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(master_port),
            "RANK": str(rank),
            "REKINDLE_JOB_DIR": str(tmp_path),
        }
        start = START.format(run=run, python=sys.executable)
        with (folder / "output.log").open("w") as output:
            pods.append(
                await asyncio.create_subprocess_exec(
                    *("bash", "-c", start), cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
                )
            )
    try:
        codes = [await pod.wait() for pod in pods]
    finally:
        for pod in pods:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pod.pid, signal.SIGKILL)
    printed = "".join(log.read_text() for log in sorted(tmp_path.glob("*/output.log")))
    assert codes == [0, 0], printed
    assert {f"trained {rank} of 4" for rank in range(4)} <= set(printed.splitlines()), printed
    assert [name for name, _ in gateway.heard][:2] == ["Init", "Register"]
    assert "rank started" not in printed


@pytest.fixture
def manager_api(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the module of the manager. What it imports is left alone."""
    monkeypatch.syspath_prepend(str(TASKD))
    monkeypatch.setenv("MINDX_TASK_ID", JOB)
    before = set(sys.modules)
    import taskd.api.taskd_manager_api as api

    yield api
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "taskd":
            del sys.modules[name]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"proc_per_node": 8}, "node_nums is None, accepted is an integer of 1 or more"),
        ({"node_nums": 2, "proc_per_node": "8"}, "proc_per_node is '8', accepted is an integer of 1 or more"),
        ({"node_nums": 2, "proc_per_node": True}, "proc_per_node is True"),
        ({"node_nums": 2, "proc_per_node": 8, "job_id": "another"}, "they are the same job"),
    ],
)
def test_a_wrong_setting_of_the_manager_is_refused(config: dict[str, Any], words: str, manager_api: ModuleType) -> None:
    """The message names the setting and what is accepted. TaskD returns False, which the recipe does not look at."""
    with pytest.raises(ValueError, match=words):
        manager_api.init_taskd_manager(config)
    with pytest.raises(RuntimeError, match="init_taskd_manager comes first"):
        manager_api.start_taskd_manager()


def test_a_setting_that_does_nothing_here_is_named(manager_api: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    """The manager starts without it."""
    assert manager_api.init_taskd_manager({"node_nums": 1, "proc_per_node": 1, "plugin_dir": "/plugins"})
    assert "settings of the manager left out: plugin_dir" in caplog.text


def test_what_is_not_there_says_so(manager_api: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    """An agent of the script's own would start ranks twice. What ranks do not need is accepted with a message."""
    from taskd import api

    with pytest.raises(NotImplementedError, match="start the script with torchrun"):
        api.register_func("START_ALL_WORKER", print)
    assert (api.init_taskd_worker(0), api.start_taskd_worker(), api.init_taskd_proxy({})) == (True, True, True)
    assert "no worker started" in caplog.text
    assert "no proxy started" in caplog.text


def test_another_program_that_imports_torchrun_is_left_alone(manager_api: ModuleType) -> None:
    """Only torchrun itself becomes the launcher: a script may have its name for itself."""
    from taskd.python.adaptor import patch

    assert patch.is_torchrun("/usr/local/bin/torchrun")
    assert patch.is_torchrun("/usr/lib/python3/site-packages/torch/distributed/run.py")
    assert not patch.is_torchrun("/job/code/run.py")
    assert not patch.is_torchrun("/usr/bin/pytest")
