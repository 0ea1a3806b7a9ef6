"""Requests for a stress test, and the meaning of its results."""

import json
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.fault import FaultKind
from rekindle.model.layout import Layout
from rekindle.model.sizes import LONGEST_NOTE
from rekindle.model.stress import MOST_CHECKS, MOST_ROWS, Code, OpResult, StressRequest, StressResults, gathered
from rekindle.policy.detection.devices import DeviceOfRank
from rekindle.policy.operations import device_checks
from rekindle.policy.training_sides.mindio import MINDIO
from rekindle.policy.training_sides.rekindle import REKINDLE

DEVICES = tuple(DeviceOfRank(rank, rank // 2, f"n{rank // 2}", str(rank % 2), f"uid-{rank // 2}") for rank in range(6))
"""Three nodes with two ranks each."""


def problem(fields: Mapping[str, object], accepted: Iterable[int] = REKINDLE.ops) -> str:
    return device_checks.problem(StressRequest.model_validate(fields), DEVICES, accepted)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "stressParam: empty"),
        ({"nodes": {"n9": (0,)}}, "stressParam: 'n9' is no node of the job, accepted are n0, n1, n2"),
        ({"nodes": {"n0": ()}}, "stressParam of n0: no operations, accepted are 0, 1, 2"),
        ({"nodes": {"n0": (0,), "n1": (3,)}}, "stressParam of n1: 3 is no operation here, accepted are 0, 1, 2"),
        ({"nodes": {"n0": (-1,)}}, "-1 is no operation here"),
        ({"nodes": {"n0": (1, 1)}}, "stressParam of n0: operation 1 is repeated"),
        ({"all_nodes": (0, 0)}, "allNodesOps: operation 0 is repeated"),
        ({"all_nodes": (4,)}, "allNodesOps: 4 is no operation here"),
        ({"nodes": {"n0": (0, 1, 2), "n2": (1,)}}, ""),
        ({"nodes": {"n9": ()}, "all_nodes": (2, 0)}, ""),
    ],
)
def test_a_request_that_is_wrong_is_refused_with_its_field(fields: dict[str, object], words: str) -> None:
    """The error has the field's name on the wire. `allNodesOps` outweighs the operations of single nodes."""
    said = problem(fields)
    assert words in said
    assert bool(said) is bool(words)


def test_the_memory_is_checked_by_our_training_side_only() -> None:
    """MindIO knows two operations."""
    assert "accepted are 0, 1" in problem({"all_nodes": (2,)}, MINDIO.ops)


def test_a_job_without_pods_on_nodes_cannot_be_tested() -> None:
    """No pod of the job is on a node, so no rank can be tested."""
    assert device_checks.problem(StressRequest(all_nodes=(0,)), (), REKINDLE.ops) == "no pod of the job is on a node"


def test_operations_of_nodes_become_those_of_their_ranks() -> None:
    """Nodes that are not named have nothing to do, unless all are meant."""
    assert device_checks.plan(StressRequest(nodes={"n1": (0, 2)}), DEVICES) == {2: (0, 2), 3: (0, 2)}
    assert device_checks.plan(StressRequest(nodes={"n1": (0,)}, all_nodes=(1,)), DEVICES) == dict.fromkeys(range(6), (1,))


def results(**codes: Mapping[int, str]) -> StressResults:
    """Codes by check and rank."""
    ranks = sorted({rank for of_check in codes.values() for rank in of_check})
    return gathered(
        {
            rank: {check: OpResult(code=said[rank], result=f"{check} of {rank}") for check, said in codes.items() if rank in said}
            for rank in ranks
        }
    )


SOUND = dict.fromkeys(range(6), "0")
ALL: device_checks.Plan = dict.fromkeys(range(6), (0,))


@pytest.mark.parametrize(
    ("codes", "isolate", "faulty", "not_tested"),
    [
        ({}, (), (), ()),
        ({3: "2"}, ("n1",), (2, 3), ()),
        ({3: "3", 0: "4"}, (), (0, 3), ()),
        ({3: "3", 4: "2"}, ("n2",), (3, 4, 5), ()),
        ({1: "1"}, (), (), (1,)),
        ({1: "7"}, (), (), (1,)),
    ],
)
def test_a_fault_isolates_its_node_and_a_time_out_its_rank(
    codes: dict[int, str], isolate: tuple[str, ...], faulty: tuple[int, ...], not_tested: tuple[int, ...]
) -> None:
    """A check that did not run or has an unknown code is reported, and is no fault."""
    found = device_checks.findings(results(aic={**SOUND, **codes}), ALL, DEVICES)
    assert (found.isolate, found.faulty, found.not_tested) == (isolate, faulty, not_tested)
    assert found.sound is not bool(faulty)


def test_a_rank_of_which_less_is_said_than_was_asked_was_not_tested() -> None:
    """A rank without a result, or with one check missing, counts as not tested."""
    told = results(aic={2: "0"})
    assert device_checks.findings(told, {2: (0, 1), 3: (0,)}, DEVICES).not_tested == (2, 3)


def test_what_is_said_of_ranks_that_nobody_asked_counts_for_nothing() -> None:
    """No node is isolated for a number that a client made up."""
    assert device_checks.findings(results(aic={0: "2", 99: "2", 2: "0"}), {2: (0,)}, DEVICES).sound


CODES = st.dictionaries(st.integers(0, 5), st.sampled_from([*(code.value for code in Code), "", "x"]))


@given(CODES, CODES, st.sets(st.integers(0, 5), min_size=1))
def test_training_goes_on_as_it_is_only_where_no_asked_rank_has_a_fault(
    aic: dict[int, str], hccs: dict[int, str], asked: set[int]
) -> None:
    """A rank is faulty for its own code or its node's; a node is isolated for a fault on it, and for nothing else. Results
    survive a payload."""
    told = StressResults.model_validate_json(results(aic=aic, hccs=hccs).model_dump_json())
    found = device_checks.findings(told, dict.fromkeys(sorted(asked), (0, 1)), DEVICES)
    of_rank = {rank: {aic.get(rank), hccs.get(rank)} for rank in asked}
    bad = {rank // 2 for rank, codes in of_rank.items() if "2" in codes}
    assert set(found.isolate) == {f"n{node}" for node in bad}
    late = {rank for rank, codes in of_rank.items() if codes & {"3", "4"}}
    assert set(found.faulty) == late | {rank for rank in range(6) if rank // 2 in bad}
    assert set(found.not_tested) == {rank for rank, codes in of_rank.items() if codes & {"1", "", "x", None}}


def test_what_a_client_says_is_read_as_far_as_it_is_of_ranks() -> None:
    """A number that is none, or too large, or a rank with a hundred checks, does no harm."""
    one = {"aic": OpResult(code="2", result="x" * 1000)}
    said = {
        "0": one,
        "5": one,
        "6": one,
        "-1": one,
        "x": one,
        "9" * 5000: one,
        "1": {f"{n:03}": OpResult(code="0") for n in range(100)},
    }
    found = device_checks.told(said, 6).by_rank()
    assert sorted(found) == [0, 1, 5]
    assert len(found[0]["aic"].result) == LONGEST_NOTE
    assert sorted(found[1]) == ["000", "001"]
    assert len({name for of_rank in found.values() for name in of_rank}) == MOST_CHECKS


def test_a_code_that_nobody_knows_says_that_nothing_was_tested() -> None:
    """The text has the unknown code."""
    (one,) = device_checks.told({"0": {"aic": OpResult(code="77", result="odd")}}, 1).by_rank()[0].values()
    assert (one.code, one.result) == (Code.NOT_RUN, "unknown code 77: odd")


def test_the_pods_of_a_node_with_a_fault_go_and_other_processes_that_timed_out_start_again() -> None:
    """The findings are two faults, and the ladder mends both."""
    told = results(aic={**SOUND, 3: "2", 0: "3"})
    nodes, processes = device_checks.faults(device_checks.tested(told, ALL, DEVICES), Layout(2, 2), DEVICES)
    assert (nodes.kind, nodes.node, nodes.pod_ranks, nodes.ranks) == (FaultKind.POD, "n1", (1,), (2, 3))
    assert (processes.kind, processes.ranks) == (FaultKind.PROCESS, (0,))
    assert "aic of rank 3: aic of 3" in nodes.message


def test_the_table_of_a_large_job_has_first_what_was_found() -> None:
    """The table fits into its room, and has the number of all rows."""
    devices = tuple(DeviceOfRank(rank, rank, f"n{rank}", "0", f"uid-{rank}") for rank in range(2_000))
    told = results(aic={**dict.fromkeys(range(2_000), "0"), 1_999: "2"})
    found = device_checks.tested(told, dict.fromkeys(range(2_000), (0,)), devices)
    assert (found.rows[0].rank, found.checks) == (1_999, 2_000)
    assert len(found.model_dump_json()) < MOST_ROWS + 1_000


def test_the_answer_is_worded_as_the_original_words_it() -> None:
    """The answer has results by node and device."""
    told = results(aic={2: "2", 3: "0"})
    words, _, listed = device_checks.message(device_checks.tested(told, {2: (0,), 3: (0,)}, DEVICES)).partition(",result:")
    assert words == "stress test find fault, isolate node:map[n1:{}]"
    assert json.loads(listed) == {
        "n1": {
            "0": {"rankResult": {"aic": {"code": "2", "result": "aic of 2"}}},
            "1": {"rankResult": {"aic": {"code": "0", "result": "aic of 3"}}},
        }
    }


@pytest.mark.parametrize(
    ("code", "words"),
    [("0", "stress test finish, result:{"), ("3", 'stress test timeout fault, faultRank:[rankId:"2" faultType:"1"],result:{')],
)
def test_an_answer_without_a_fault_has_other_words(code: str, words: str) -> None:
    """The texts are those that the contract lists."""
    told = results(hccs={2: code})
    assert device_checks.message(device_checks.tested(told, {2: (1,)}, DEVICES)).startswith(words)


def test_the_table_has_a_row_for_each_device_and_check() -> None:
    """Node by node."""
    rows = [
        (row.node, row.device, row.rank, row.check, row.code)
        for row in device_checks.table(results(hccs={5: "0"}, aic={5: "2"}), DEVICES)
    ]
    assert rows == [("n2", "1", 5, "aic", "2"), ("n2", "1", 5, "hccs", "0")]


def test_results_of_the_largest_job_fit_into_a_payload() -> None:
    """Results without a finding lose their text first, and no code is lost."""
    many = {
        rank: {name: OpResult(code="2" if rank == 9_999 else "0", result="x" * 200) for name in ("aic", "hccs")}
        for rank in range(10_000)
    }
    told = gathered(many)
    assert len(told.model_dump_json()) < 256 * 1024
    found = StressResults.model_validate_json(told.model_dump_json()).by_rank()
    assert {rank: {name: one.code for name, one in of_rank.items()} for rank, of_rank in found.items()} == {
        rank: {name: one.code for name, one in of_rank.items()} for rank, of_rank in many.items()
    }
    assert found[9_999]["hccs"].result
