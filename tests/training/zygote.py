"""Starts launchers and managers as forks of a process that has loaded torch, which takes seconds on a small machine.

Run by the session's fixture as `python -m tests.training.zygote`. Reads one JSON object a line (`id`, `program`, `argv`, `env`,
`output`), answers `{"id", "pid"}` and, later, `{"id", "code"}`. Its end, however it comes, is the end of all that it started.
"""

import atexit
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import sys
from typing import Any

from tests.support.measuring import in_children

PRELOADED = (
    "rekindle_training.launcher",
    "torch._dynamo",
    "rekindle_training.adapter.trained",
    "rekindle_training.examples.gpt_model",
)
PROGRAMS = {
    "train": "rekindle_training.launcher.main",
    "manager": "rekindle_training.manager.main",
    "plain": "tests.training.scripts.plain",
}


def main() -> None:
    faulthandler.enable()  # a fork that crashes says where, in its output
    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection of a child would copy all pages of torch's objects
    atexit.register(gc.unfreeze)  # otherwise nanobind writes down all that was not freed
    in_children()
    wakeup, wakeup_writer = os.pipe()
    os.set_blocking(wakeup_writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_writer)
    say({"ready": True})
    children: dict[int, int] = {}
    pending = b""
    while True:
        readable, _, _ = select.select([0, wakeup], [], [])
        if wakeup in readable:
            os.read(wakeup, 4096)
            reap(children)
        if 0 in readable:
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                request = json.loads(line)
                pid = start(request)
                children[pid] = request["id"]
                say({"id": request["id"], "pid": pid})


def reap(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        say({"id": children.pop(pid), "code": os.waitstatus_to_exitcode(status)})


def start(request: dict[str, Any]) -> int:
    zygote = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        become(request, zygote)
        code = importlib.import_module(PROGRAMS[request["program"]]).main(request["argv"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  # this is the top of a process
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def become(request: dict[str, Any], zygote: int) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    linux = importlib.import_module("rekindle_training.launcher.linux")
    linux.die_with(zygote)
    os.environ.update(request["env"])
    shorten(os.environ.pop("LIMITS", ""))
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)


def shorten(limits: str) -> None:
    """`module.NAME=SECONDS`, with spaces between them: what a test would wait for in vain."""
    for limit in limits.split():
        name, seconds = limit.split("=")
        module, _, attribute = name.rpartition(".")
        setattr(importlib.import_module(f"rekindle_training.{module}"), attribute, float(seconds))


def say(answer: dict[str, Any]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
