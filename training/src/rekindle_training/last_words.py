"""Error by which a script ends the process of its rank. It is sent to the manager, because an exit code explains nothing."""

import contextlib
import os
import sys
from types import TracebackType

from rekindle_training.environment import RankEnvironment

SECONDS = 2.0
"""Maximum seconds to wait for a manager that does not answer, at the end of a process."""
LONGEST = 500
"""Maximum number of characters that are sent to the manager. The whole error is in this rank's log."""


def in_words(error: BaseException) -> str:
    """Returns a description of an error in one or more lines."""
    try:
        words = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # an exception of the script may do anything
        words = type(error).__name__
    return words[:LONGEST].encode(errors="replace").decode()


def watch() -> None:
    """Marks this process as a rank. Processes that it forks are not marked."""
    show, process = sys.excepthook, os.getpid()

    def show_and_tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, *_shortened(error, trace))
        if isinstance(error, Exception) and os.getpid() == process:
            with contextlib.suppress(Exception):  # there may be no manager any more
                _tell(" ".join(in_words(error).split()))

    sys.excepthook = show_and_tell


def _shortened(error: BaseException, trace: TracebackType | None) -> tuple[BaseException, TracebackType | None]:
    """Leaves the frames of the script, where it was refused: the words say what is wrong, on every rank."""
    places = sys.modules.get("rekindle_training.adapter.places")
    if places is None or not isinstance(error, places.Refused):
        return error, trace
    short = places.of_script(trace)
    return error.with_traceback(short), short


def _tell(words: str) -> None:
    """Returns when the manager has received the words."""
    import grpc

    from rekindle_training import wire
    from rekindle_wire import PROTOCOL
    from rekindle_wire.training_pb2 import Hello, RankMessage
    from rekindle_wire.training_pb2_grpc import RanksStub

    here = RankEnvironment.read()
    hello = Hello(rank=here.rank, role=here.role, process=here.process, protocol=PROTOCOL, last_words=words)
    with grpc.insecure_channel(f"{here.master_addr}:{here.master_port}", options=list(wire.CLIENT)) as channel:
        for _ in RanksStub(channel).Join(iter([RankMessage(hello=hello)]), timeout=SECONDS):
            pass
