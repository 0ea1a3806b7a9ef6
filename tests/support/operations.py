"""Measures the cost of code in operations of the interpreter, which other processes of the machine do not affect."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

TraceFunction = Callable[[FrameType, str, Any], Any]


def operations(work: Callable[[], None]) -> int:
    count = 0

    def counted(frame: FrameType, event: str, argument: Any) -> TraceFunction:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return counted

    before = sys.gettrace()
    sys.settrace(counted)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
