"""Step logs are counted as an account is."""

import json
from pathlib import Path

from tests.support.step_logs import Logged, logged


def test_a_step_is_done_again_if_its_rank_had_completed_it(tmp_path: Path) -> None:
    """Rank 0 alone had completed step 2 when all began again at step 1. Rank 1 ends last then, for which step 2 is new: its time
    counts as training. Step 3 is the first that nobody had completed."""
    steps = [(0, "a", [(1, 0.0, 1.0), (2, 1.0, 2.0)]), (1, "a", [(1, 0.0, 1.0)])]
    steps += [(rank, "b", [(2, 5.0, 6.0 + rank / 1000), (3, 6.0, 7.0 + rank / 1000)]) for rank in (0, 1)]
    (tmp_path / "steps").mkdir()
    for rank, pod, of_pod in steps:
        with (tmp_path / "steps" / f"rank-{rank}.jsonl").open("a") as log:
            for step, start, end in of_pod:
                who = {"rank": rank, "pid": 1, "pod": pod, "pod_uid": pod, "node": "n", "generation": 1}
                when = {"step": step, "start": start, "end": end, "began": of_pod[0][1], "checkpoint": 0.0}
                log.write(json.dumps({**who, **when}) + "\n")
    assert logged(tmp_path) == Logged(trained=4.0 + 0.001, again=0.0, stood=3.0, stretches=2)
