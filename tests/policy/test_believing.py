"""A rule that reports too many nodes of the cluster as unhealthy is not believed as long as that lasts."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.clusters.kubernetes.objects import node_of
from rekindle.errors import BadInput
from rekindle.model.cluster import Node, Taint
from rekindle.model.keys import HEALTH, IGNORE_RULES
from rekindle.model.rule_file import parse, plain
from rekindle.model.rules import Rules
from rekindle.policy.detection.rule_breaker import among, doubting
from rekindle.policy.detection.sighting import sight
from rekindle.policy.placement.unfit_nodes import unfit
from tests.support.job_views import job, kept, pod, view
from tests.support.rules import HEAD, shows
from workers.watcher.cluster_index import ClusterIndex

BROKEN: dict[str, Any] = {"conditions": {"Xid": ("True", "79", "")}}
SLOW: dict[str, Any] = {"conditions": {"SubHealthy": ("True", "slow", "")}}


def file(spec: str = "", rule: str = "condition: {type: Xid}, then: fault") -> Rules:
    return parse(f"{HEAD}  {spec}\n  rules:\n    - {{name: own, {rule}}}\n")


def several(count: int, name: str = "node", accelerators: int = 8, **facts: Any) -> list[Node]:
    nodes = [shows(f"{name}-{number}", **facts) for number in range(count)]
    return [one.model_copy(update={"status": one.status.model_copy(update={"accelerators": accelerators})}) for one in nodes]


def doubted(nodes: Iterable[Node], rules: Rules) -> list[str]:
    return [one.words for one in among(nodes, rules)]


@pytest.mark.parametrize(
    ("broken", "well", "spec", "is_believed"),
    [
        (2, 0, "", True),
        (3, 0, "", False),
        (3, 3, "", True),
        (4, 3, "", False),
        (3, 6, "maxUnhealthy: 33%", False),
        (3, 6, "maxUnhealthy: 34%", True),
        (2, 50, "maxUnhealthy: 0%", True),
        (3, 50, "maxUnhealthy: 0%", False),
        (9, 0, "maxUnhealthy: 100%", True),
        (9, 0, "", False),
    ],
)
def test_more_than_its_share_and_at_least_three(broken: int, well: int, spec: str, is_believed: bool) -> None:
    """Exactly the share is believed. Two nodes may be unhealthy together by chance, and 100% switches the limit off."""
    nodes = [*several(broken, **BROKEN), *several(well, "well")]
    assert (among(nodes, file(spec)) == ()) is is_believed


def test_a_rule_may_have_a_share_of_its_own() -> None:
    """The share of a rule outweighs that of the file, which also holds for the sets that the file uses."""
    own = file("maxUnhealthy: 100%", "condition: {type: Xid}, then: sub-health, maxUnhealthy: 20%")
    nodes = [*several(3, **BROKEN), *several(3, "slow", **SLOW), *several(6, "well")]
    assert doubted(nodes, own) == ["rule own calls 3 of 12 nodes sub-healthy, more than maxUnhealthy 20%"]
    assert doubted(nodes, file("maxUnhealthy: 24%")) == [
        "rule own calls 3 of 12 nodes faulty, more than maxUnhealthy 24%",
        "rule plain/sub-healthy calls 3 of 12 nodes sub-healthy, more than maxUnhealthy 24%",
    ]


def test_nodes_on_which_nobody_trains_do_not_count() -> None:
    """Nodes without accelerators count neither as unhealthy nor as healthy. Where no node has accelerators, all count."""
    nodes = [*several(3, **BROKEN), *several(2, "well"), *several(90, "cpu", accelerators=0)]
    assert doubted(nodes, file()) == ["rule own calls 3 of 5 nodes faulty, more than maxUnhealthy 50%"]
    assert among([*several(9, "cpu", accelerators=0, **BROKEN), *several(2)], file()) == ()
    assert among(several(3, accelerators=0, **BROKEN), file())


def test_a_node_whose_devices_are_all_called_broken_counts_with_those_that_train() -> None:
    """The capacity of the node counts, since its device plugin offers no device when all nodes are called broken."""
    raw = {"metadata": {"name": "n", "uid": "u"}, "status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"cpu": "4"}}}
    assert node_of(raw).status.accelerators == 8
    assert node_of({**raw, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}).status.accelerators == 8


@pytest.mark.parametrize(
    ("rule", "facts"),
    [
        ("cordoned: true, then: maintenance", {"cordoned": True}),
        ("cordoned: true, then: fault", {"cordoned": True}),
        ("taint: {key: leaves}, then: maintenance", {"taints": (Taint(key="leaves", effect="NoSchedule"),)}),
        (f"annotation: {{key: {HEALTH}, value: bad}}, then: fault", {"annotations": {HEALTH: "bad"}}),
    ],
)
def test_what_somebody_wants_is_always_believed(rule: str, facts: dict[str, Any]) -> None:
    """Rules for a rolling upgrade and for a person's word are always believed."""
    seen = view(pod(), nodes=tuple(several(4, **facts)))
    rules = file(rule=rule)
    assert among(seen.nodes, rules) == ()
    assert sight(seen, doubting(rules, among(seen.nodes, rules))).faults


def test_a_node_that_a_person_calls_well_is_not_counted_as_sick() -> None:
    """A person who calls a node well takes it out of the count, so that the rule is believed of the others."""
    nodes = [*several(3, **BROKEN), *several(1, "said", annotations={HEALTH: "well"}, **BROKEN), *several(2, "well")]
    assert among(nodes, file()) == ()


def test_what_is_not_believed_is_no_fault_and_no_reason_to_keep_off_a_node() -> None:
    """Other rules of the node are believed. A view that keeps fewer objects has the same faults."""
    sick: dict[str, Any] = {"conditions": {**BROKEN["conditions"], **SLOW["conditions"]}}
    nodes = [*several(3, **BROKEN), *several(1, "sick", **sick)]
    rules = doubting(file(), among(nodes, file()))
    seen = view(pod(0, node="node-0"), pod(1, node="sick-0"), nodes=tuple(nodes))
    (fault,) = sight(seen, rules).faults
    assert (fault.code, fault.node, sight(seen, rules).unbelieved) == ("slow", "sick-0", ("own",))
    assert sight(kept(seen, rules), rules) == sight(seen, rules)
    assert unfit(nodes, (), rules).both == ("sick-0",)


def test_a_later_rule_does_not_take_what_is_not_believed() -> None:
    """Otherwise a rule that means nothing else would decide by accident."""
    rules = parse(f"{HEAD}  rules:\n    - {{name: a, condition: {{type: Xid, reason: '79'}}, then: fault}}\n"
                  "    - {name: b, condition: {type: Xid}, then: sub-health}\n")  # fmt: skip
    nodes = several(3, **BROKEN)
    assert not sight(view(pod(), nodes=tuple(nodes)), doubting(rules, among(nodes, rules))).faults


@pytest.mark.parametrize(
    ("spec", "rule", "words"),
    [
        ("maxUnhealthy: 50", "", "spec.maxUnhealthy: must be a whole percent from 0% to 100%, such as 50% (got 50)"),
        ("maxUnhealthy: 101%", "", "spec.maxUnhealthy: must be a whole percent"),
        ("maxUnhealthy: 5.5%", "", "spec.maxUnhealthy: must be a whole percent"),
        ("maxUnhealthy: '-1%'", "", "spec.maxUnhealthy: must be a whole percent"),
        ("maxUnhealthy: '\u0665%'", "", "spec.maxUnhealthy: must be a whole percent"),
        ("maxUnhealthy: [50%]", "", "spec.maxUnhealthy: must be a whole percent"),
        ("maxUnhealthy: null", "", "spec.maxUnhealthy: must be a whole percent"),
        ("maxUnhealty: 50%", "", "spec.maxUnhealty: unknown field, did you mean maxUnhealthy?"),
        ("", "condition: {type: X}, then: fault, maxUnhealthy: half", "spec.rules.0.maxUnhealthy: must be a whole percent"),
        ("", "condition: {type: X}, then: maintenance, maxUnhealthy: 5%", "spec.rules.0: is always believed"),
        ("", "condition: {type: X}, then: nothing, maxUnhealthy: 5%", "spec.rules.0: is always believed"),
        ("", "container: {waiting: X}, then: fault, maxUnhealthy: 5%", "spec.rules.0: is always believed"),
    ],
)
def test_what_means_nothing_is_refused_by_its_field(spec: str, rule: str, words: str) -> None:
    """The error names the field and what is accepted."""
    with pytest.raises(BadInput) as refused:
        file(spec, rule or "cordoned: true, then: nothing")
    assert words in str(refused.value)


# ---- the watcher, which counts


NAMES = [f"node-{number}" for number in range(6)]
FACTS = [{}, BROKEN, SLOW, {"cordoned": True, **SLOW}, {"annotations": {HEALTH: "well"}, **BROKEN}]
CHANGES = st.tuples(st.sampled_from(NAMES), st.sampled_from([*FACTS, None]), st.sampled_from([8, 8, 8, 0]))


@settings(max_examples=60, deadline=None)
@given(st.lists(CHANGES, max_size=30))
def test_who_counts_as_nodes_change_believes_what_all_nodes_say(changes: list[tuple[str, Any, int]]) -> None:
    """The index and a count of all nodes agree after each change, in any order and with deleted nodes. Each job for which
    anything differs is notified."""
    rules = file("maxUnhealthy: 40%")
    jobs = [job().model_copy(update={"metadata": job().metadata.model_copy(update={"uid": f"job-{n}"})}) for n in range(3)]
    pods = [pod(n // 3, f"pod-{n}", node=NAMES[n]) for n in range(6)]
    owned = [one.model_copy(update={"metadata": one.metadata.model_copy(update={"owner_uid": f"job-{n % 3}"})})
             for n, one in enumerate(pods)]  # fmt: skip
    nodes = {name: shows(name) for name in NAMES}
    index = ClusterIndex(jobs, owned, nodes.values(), rules)

    def seen() -> dict[str, Any]:
        return {one.metadata.uid: sight(index.view(one.metadata.uid), index.rules) for one in jobs}

    before = seen()
    for version, (name, facts, accelerators) in enumerate(changes, start=1):
        if facts is None:
            concerned = index.remove(nodes.pop(name, shows(name)))
        else:
            (made,) = several(1, accelerators=accelerators, **facts)
            metadata = made.metadata.model_copy(update={"name": name, "uid": name, "resource_version": version})
            nodes[name] = made.model_copy(update={"metadata": metadata})
            concerned = index.put(nodes[name])
        assert index.unbelieved == among(nodes.values(), rules)
        assert index.rules == doubting(rules, index.unbelieved)
        now = seen()
        assert {uid for uid in now if now[uid] != before[uid]} <= concerned
        before = now
    again = ClusterIndex(jobs, owned, nodes.values(), rules)
    assert (again.unbelieved, again.rules) == (index.unbelieved, index.rules)


def test_one_node_more_or_less_concerns_the_jobs_on_all_of_them() -> None:
    """A change of the count concerns the jobs on the nodes in question, and no others."""
    owned = pod(0, node="node-0")
    index = ClusterIndex([job()], [owned], [*several(3, **SLOW), *several(3, "well")], plain())
    assert not index.unbelieved
    more = several(1, "well", **SLOW)[0]
    assert index.put(more) == {"job"}
    assert index.put(shows("well-1")) == set()
    assert index.unbelieved
    assert index.put(shows("well-0")) == {"job"}
    assert not index.unbelieved


def test_a_job_ignores_rules_whether_they_are_believed_or_not() -> None:
    """A rule that the job ignores makes no fault, although the rule is not believed either."""
    marks = {IGNORE_RULES: "own"}
    assert not sight(view(pod(), nodes=tuple(several(1, **BROKEN)), of=job(annotations=marks)), file()).faults
