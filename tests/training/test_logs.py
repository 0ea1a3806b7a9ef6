"""Lines of launcher, manager and ranks between those of the script, such as its progress bars."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from rekindle_training.logs import CLEAR_LINE
from tests.training.standalone import Standalone

BAR = "\r 50%|#####     | 5/10"
DRAWS = f"""
import os, signal, sys, time
os.write(2, {BAR!r}.encode())
open(sys.argv[1], "w").close()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True: time.sleep(0.01)
"""
SAYS = """
import logging, sys
from rekindle_training import logs
logs.configure("a-program")
try:
    raise ValueError("struck")
except ValueError:
    logging.getLogger("x").exception("failed", extra={"step": 5})
logging.getLogger("x").info("long", extra={"text": "x" * 20_000})
"""
DEADLINE = 60


def test_a_line_takes_the_place_of_an_unfinished_progress_bar(tmp_path: Path) -> None:
    """A terminal shows each line whole, and the progress bar is drawn again by its owner."""
    (tmp_path / "train.py").write_text(DRAWS)
    os.mkfifo(tmp_path / "drawn")
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "rekindle_training.launcher.main", "--nnodes=2", str(tmp_path / "train.py")]
    variables = {**os.environ, "MINDX_TASK_ID": "a-job", "REKINDLE_POD_RANK": "1"}
    process = subprocess.Popen([*command, str(tmp_path / "drawn")], env=variables, stderr=its)
    os.close(its)
    (tmp_path / "drawn").open().close()
    process.send_signal(signal.SIGTERM)
    process.wait(DEADLINE)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert re.search(re.escape(BAR + CLEAR_LINE) + r"[^\r\n]* rekindle-train INFO all ranks stopped signal=SIGTERM\r\n", shown), (
        shown
    )


def test_each_record_is_written_in_one_call_with_its_end_of_line() -> None:
    """A record is written in one call whatever its length. A traceback follows the fields of its line."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    subprocess.run([sys.executable, "-c", SAYS], stderr=its.fileno(), check=True, timeout=DEADLINE)
    its.close()
    failed, long = (ours.recv(65536).decode() for _ in range(2))
    ours.close()
    assert re.match(r"\S+ \S+ a-program ERROR failed step=5\nTraceback ", failed)
    assert failed.endswith("\nValueError: struck\n")
    assert re.search(r" INFO long text=x{20000}\n$", long)


SESSION = """
import logging, os, sys
CONFIGURES
import torch
import rekindle_training

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tries = 0
with rekindle_training.session(model, optimizer, checkpoint_every=0) as training:
    for step in training.steps(1):
        with step:
            tries += 1
            if tries == 1:
                raise ValueError("struck")
            model(torch.ones(2)).sum().backward()
            optimizer.step()
"""


async def test_what_a_rank_logs_has_the_form_of_all_lines(alone: Standalone, tmp_path: Path) -> None:
    """A line of a rank names the rank, also where the rank is forked."""
    (tmp_path / "train.py").write_text(SESSION.replace("CONFIGURES", ""))
    printed = await alone.run(script=str(tmp_path / "train.py"), ranks=1)
    assert re.search(r"^\S+ \S+ rekindle-train ERROR failed in step 1 rank=0$", printed, re.MULTILINE), printed


async def test_a_script_that_configures_its_logging_has_the_lines_of_its_rank_in_its_own_form(
    alone: Standalone, tmp_path: Path
) -> None:
    """A line of the rank appears once, like those of any other package."""
    configures = 'logging.basicConfig(format="mine %(message)s")'
    (tmp_path / "train.py").write_text(SESSION.replace("CONFIGURES", configures))
    printed = await alone.run(script=str(tmp_path / "train.py"), ranks=1)
    assert "\nmine failed in step 1\n" in printed
    assert printed.count("failed in step 1") == 1
