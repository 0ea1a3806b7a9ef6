"""Cases that `make test` leaves out are like one that it runs; `make test-all` leaves nothing out."""

import os
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest

from tests.support.sampling import MOST_CASES, ONE_OF

pytestmark = pytest.mark.xdist_group("sampling")  # one process asks for each sample once

FILES = (
    "tests/kubernetes/test_kinds.py",
    "tests/kubernetes/test_contract.py",
    "tests/kubernetes/test_lost_pods.py",
    "tests/workflows/test_failure_rules.py",
    "tests/policy/test_eligibility.py",
)


@cache
def _collected(**settings: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", *FILES]
    environment = {**os.environ, "REKINDLE_TEST_ALL": "", "REKINDLE_TEST_SAMPLE": "", **settings}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.fixture(scope="module", params=["", "1"], ids=["a commit", "all"])
def collected(request: pytest.FixtureRequest) -> tuple[str, list[str]]:
    return request.param, _collected(REKINDLE_TEST_ALL=request.param)


def test_every_test_of_every_case_is_left_in_one_kind_at_least(collected: tuple[str, list[str]]) -> None:
    """One case runs of those that differ only in the kind of job or of cluster. A run of every test has all of them."""
    wanted, names = collected
    ranks = Counter(name.split("[")[1].split("-")[0] for name in names if "how_many_ranks" in name)
    assert set(ranks) == {"annotation", "NPROC_PER_NODE", "LOCAL_WORLD_SIZE", "accelerators", "nothing"}
    assert set(ranks.values()) == ({3} if wanted else {1})
    worlds = [name.split("[")[1].removesuffix("]") for name in names if "test_deletion_has_a_uid_precondition" in name]
    assert {"local", "operator"} < set(worlds)
    assert len(worlds) == (5 if wanted else 3)
    assert [name.split("[")[0].split("::")[1] for name in names].count("test_a_pod_that_is_drained_from_its_node_is_a_fault") == (
        2 if wanted else 1
    )


def test_a_few_cases_run_of_a_test_that_needs_a_server(collected: tuple[str, list[str]]) -> None:
    """Other tests run with all of their cases."""
    wanted, names = collected
    tests = Counter(name.split("[")[0] for name in names if "[" in name)
    costly = tests["tests/workflows/test_failure_rules.py::test_each_failure_rule_leads_straight_to_job_rescheduling"]
    assert costly == (11 if wanted else MOST_CASES)
    assert max(count for name, count in tests.items() if name.startswith("tests/policy")) > MOST_CASES


def test_a_commit_runs_a_tenth_of_the_tests_that_need_a_server() -> None:
    """The other ones of each folder are left out, and no other test."""
    whole, sample = _collected(REKINDLE_TEST_ALL=""), _collected(REKINDLE_TEST_SAMPLE="1")
    assert set(sample) < set(whole)
    tests = [{name.split("[")[0] for name in names if name.startswith("tests/workflows")} for names in (whole, sample)]
    assert len(tests[1]) == -(-len(tests[0]) // ONE_OF)
    cheap = [[name for name in names if name.startswith("tests/policy")] for names in (whole, sample)]
    assert cheap[0] == cheap[1]
