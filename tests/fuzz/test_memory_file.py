"""The file in which a watcher keeps what the next one must know: cut off, of another version, or of somebody else."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.broken import broken, fuzzed, reads
from workers.telling import Memory

KEPT = {
    "job-1": {"known": True, "open": [{"episode": "node/code/@0", "node": "node-0", "illness": "node/code/"}]},
    "job-2": {"known": True},
}


@given(kept=broken(KEPT))
@fuzzed
def test_a_broken_memory_is_none(kept: Any, tmp_path: Path) -> None:
    """A watcher begins anew rather than not at all."""
    path = tmp_path / "memory"
    path.write_text(json.dumps(kept))
    assert isinstance(reads(Memory(path).load), dict)


@given(content=st.one_of(st.binary(max_size=200), st.integers(0, 100).map(lambda length: json.dumps(KEPT).encode()[:length])))
@fuzzed
def test_a_memory_of_any_bytes_is_none(content: bytes, tmp_path: Path) -> None:
    """Also one whose writing was cut off."""
    path = tmp_path / "memory"
    path.write_bytes(content)
    assert isinstance(reads(Memory(path).load), dict)
