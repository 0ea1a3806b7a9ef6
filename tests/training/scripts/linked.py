"""The script of `repaired.py` with what a test of links needs.

`REBUILT` is `RANK INTERFACE ACTION`: the action on that rank after a rebuild on that interface, or on any (`*`). It may `raise`,
`kill` the process, or `wait` until there is a file `go`. Several are separated by commas. With `FUNCTION`, a function of the
script switches the links. It records its calls, and raises on the rank that `FUNCTION` names. With `hangs RANK` it never
returns on that rank.
"""

import os
import runpy
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rekindle_training

rank = int(os.environ["RANK"])
folder = Path(os.environ["REKINDLE_JOB_DIR"])
session = rekindle_training.session


def rebuilt() -> None:
    for struck, interface, action in map(str.split, os.environ.get("REBUILT", "- - -").split(",")):
        if struck == str(rank) and interface in ("*", os.environ.get("GLOO_SOCKET_IFNAME")):
            strike(interface, action)


def strike(interface: str, action: str) -> None:
    if action == "raise":
        raise ValueError(f"struck on {interface}")
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "waits").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)


def switch(backup: bool) -> None:
    with (folder / f"called-{rank}").open("a") as calls:
        calls.write("backup\n" if backup else "first\n")
    if os.environ["FUNCTION"] == str(rank):
        raise OSError("the library says no")
    if os.environ["FUNCTION"] == f"hangs {rank}" and backup:
        threading.Event().wait()


@contextmanager
def with_links(*args: Any, **keywords: Any) -> Iterator[Any]:
    function = switch if "FUNCTION" in os.environ else None
    with session(*args, **keywords, switch_link=function) as training:
        training.on_rebuild(rebuilt)
        yield training


rekindle_training.session = with_links  # type: ignore[assignment]
runpy.run_path(str(Path(__file__).with_name("repaired.py")), run_name="__main__")
