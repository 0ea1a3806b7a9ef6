"""Facts that a cluster shows are decided by rules."""

import re
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.cluster import (
    Condition,
    ContainerState,
    NodeReport,
    Pod,
    PodPhase,
    Taint,
)
from rekindle.model.fault import Fault, FaultKind, FaultType
from rekindle.model.keys import FILTER_CODES, FILTER_LEVELS, HEALTH, IGNORE_RULES
from rekindle.model.rule_file import plain, rules_of
from rekindle.model.rules import Rules, is_like
from rekindle.policy.detection import rules as policy
from rekindle.policy.detection.node_report import nodes_now
from tests.support.job_views import NOW, job, node, pod, view
from tests.support.rules import faults, shows, written

XID = ("True", "XID79", "GPU 3 fell off the bus")


@pytest.mark.parametrize(
    ("rule", "facts"),
    [
        ("condition: {type: GpuXid}", {"conditions": {"GpuXid": XID}}),
        ("condition: {type: Gpu*, reason: [XID48, XID79]}", {"conditions": {"GpuXid": XID}}),
        ('condition: {type: GpuWell, status: ["False", Unknown]}', {"conditions": {"GpuWell": ("False", "", "")}}),
        ('condition: {type: "*", message: "*fell off*"}', {"conditions": {"GpuXid": XID}}),
        ("taint: {key: nvidia.com/*, effect: NoSchedule}", {"taints": (Taint(key="nvidia.com/gpu-xid", effect="NoSchedule"),)}),
        ("cordoned: true", {"cordoned": True}),
        ("label: {key: gpu.health, value: bad}", {"labels": {"gpu.health": "bad"}}),
        ("annotation: {key: gpu.health, value: bad*}", {"annotations": {"gpu.health": "bad: 3"}}),
        ("report: {source: event, code: OOM*}", {"reports": (NodeReport(id="e", source="event", code="OOMKilling"),)}),
    ],
)
def test_each_source_has_its_rules(rule: str, facts: dict[str, Any]) -> None:
    """A fact of any source becomes a sub-health of each pod on the node, and names the rule that decided."""
    pods = (pod(0), pod(1, node="elsewhere"))
    (fault,) = faults(view(*pods, nodes=(shows(**facts), node("elsewhere"))), written(f"{rule}, then: sub-health"))
    assert (fault.kind, fault.pod_ranks, fault.node, fault.pod_uids) == (FaultKind.SUB_HEALTH, (0,), "node-0", ("pod-0",))
    assert fault.decided is not None
    assert fault.decided.rule == "r0"
    other = written(rule.replace("GpuXid", "Other").replace('"*"', "Other") + ", then: nothing")
    assert faults(view(*pods, nodes=(shows(**facts), node("elsewhere"))), other) == ()


KINDS = {
    "sub-health": (FaultKind.SUB_HEALTH, ()),
    "maintenance": (FaultKind.SUB_HEALTH, ()),
    "fault": (FaultKind.NODE, ()),
    "process-fault": (FaultKind.PROCESS, (FaultType.OTHER,)),
    "memory-fault": (FaultKind.PROCESS, (FaultType.MEMORY,)),
    "network-fault": (FaultKind.PROCESS, (FaultType.NETWORK,)),
}


@pytest.mark.parametrize("then", KINDS)
def test_what_a_rule_says_becomes_a_fault_of_that_kind(then: str) -> None:
    """The fault carries the code, the message and the time of the fact."""
    rules = written(f"condition: {{type: GpuXid}}, then: {then}, settle: 30, clear: 300")
    (fault,) = faults(view(pod(0), pod(1, node="b"), nodes=(shows(conditions={"GpuXid": XID}), node("b"))), rules)
    assert (fault.kind, tuple(one.type for one in fault.details)) == KINDS[then]
    assert (fault.code, fault.message, fault.ranks) == ("XID79", "GPU 3 fell off the bus", (0, 1))
    decided = fault.decided
    assert decided is not None
    assert (decided.saw, decided.since, decided.settle, decided.clear) == ("condition GpuXid=True", NOW, 30.0, 300.0)
    assert decided.maintenance == (then == "maintenance")


def test_the_first_rule_that_takes_a_fact_decides() -> None:
    """A fact that one rule decides as nothing is nothing, whatever later rules say."""
    rules = written("condition: {type: GpuXid, reason: XID79}, then: nothing", "condition: {type: GpuXid}, then: fault")
    assert faults(view(pod(), nodes=(shows(conditions={"GpuXid": XID}),)), rules) == ()
    other = shows(conditions={"GpuXid": ("True", "XID48", "")})
    assert [fault.kind for fault in faults(view(pod(), nodes=(other,)), rules)] == [FaultKind.NODE]


def test_a_device_that_a_message_names_concerns_who_has_it() -> None:
    """Ranks by what pods say of their devices; a pod without it is not concerned, and neither is another job's."""
    rules = written(r"condition: {type: GpuXid}, then: memory-fault, device: 'GPU (\d+)'")
    sick = shows(conditions={"GpuXid": XID})
    halves = (pod(0, devices=("0", "1")), pod(1, devices=("2", "3")))
    (fault,) = faults(view(*halves, nodes=(sick,)), rules)
    assert (fault.pod_ranks, fault.ranks, fault.details[0].device) == ((1,), (3,), "3")
    assert faults(view(pod(0, devices=("0", "1")), pod(1, devices=("4", "5")), nodes=(sick,)), rules) == ()


@given(st.text("ab\n", max_size=12), st.text("ab*", max_size=6))
def test_a_star_stands_for_anything(text: str, pattern: str) -> None:
    """Also for nothing, and for lines."""
    assert is_like(text, pattern) == bool(re.fullmatch(pattern.replace("*", "(?s:.*)"), text))


def test_a_long_message_costs_no_time() -> None:
    """A long message is matched fast, also if it is almost like the pattern."""
    began = time.process_time()
    assert not is_like("gpu error " * 3200, "*gpu*error*fatal*")
    assert time.process_time() - began < 1.0


def test_where_nobody_says_who_has_a_device_ranks_are_counted_if_the_job_has_the_whole_node() -> None:
    """Otherwise all of its pods there are concerned: better one pod moves in vain than one that computes wrongly stays."""
    rules = written(r"condition: {type: GpuXid}, then: process-fault, device: 'GPU (\S+)'")
    whole = view(pod(0), of=job(pods=1, each=8), nodes=(shows(conditions={"GpuXid": XID}),))
    assert faults(whole, rules)[0].ranks == (3,)
    part = view(pod(0), of=job(pods=1, each=4), nodes=(shows(conditions={"GpuXid": XID}),))
    assert faults(part, rules)[0].ranks == (0, 1, 2, 3)
    by_uuid = shows(conditions={"GpuXid": ("True", "XID79", "GPU GPU-6b2c fell off the bus")})
    assert faults(view(pod(0), of=job(pods=1, each=8), nodes=(by_uuid,)), rules)[0].ranks == tuple(range(8))


def test_containers_and_conditions_of_pods_have_rules_too() -> None:
    """Rules for containers and conditions concern their pod, and say nothing of its node."""
    rules = written(
        "container: {waiting: CrashLoopBackOff}, then: fault",
        "container: {exitCode: [139]}, then: memory-fault",
        "container: {restarts: 3}, then: sub-health",
        "podCondition: {type: DisruptionTarget, reason: Preemption*}, then: maintenance",
    )

    def with_container(rank: int, **state: Any) -> Pod:
        well = pod(rank)
        return well.model_copy(
            update={"status": well.status.model_copy(update={"containers": (ContainerState(name="main", **state),)})}
        )

    crashes, ended, again = (
        with_container(0, waiting="CrashLoopBackOff", restarts=9),
        with_container(1, exit_code=139, restarts=1),
        with_container(2, restarts=3),
    )
    condition = Condition(type="DisruptionTarget", status="True", reason="PreemptionByScheduler")
    leaving = pod(3).model_copy(update={"status": pod(3).status.model_copy(update={"conditions": (condition,)})})
    found = faults(view(crashes, ended, again, leaving, of=job(pods=4)), rules)
    assert [(one.kind, one.pod_ranks, one.node) for one in found] == [
        (FaultKind.POD, (0,), ""),
        (FaultKind.PROCESS, (1,), ""),
        (FaultKind.SUB_HEALTH, (2,), ""),
        (FaultKind.SUB_HEALTH, (3,), ""),
    ]
    assert [one.decided.maintenance for one in found if one.decided] == [False, False, False, True]


@pytest.mark.parametrize("status", ["True", "False"])
def test_a_rule_may_be_about_any_condition_of_a_pod(status: Literal["True", "False"]) -> None:
    """Faults come in the order of the pod's conditions."""
    conditions = tuple(Condition(type=kind, status=status) for kind in ("Ready", "PodScheduled"))
    well = pod()
    shown = well.model_copy(update={"status": well.status.model_copy(update={"conditions": conditions})})
    found = faults(view(shown), written('podCondition: {type: "*", status: "*"}, then: sub-health'))
    assert [one.code for one in found] == ["Ready", "PodScheduled"]


def test_a_container_beside_the_training_may_crash_as_it_likes() -> None:
    """Unless a rule names it."""

    def found(rules: Rules, **state: Any) -> Sequence[Fault]:
        crashes = ContainerState(waiting="CrashLoopBackOff", restarts=5, **state)
        well = pod()
        return faults(view(well.model_copy(update={"status": well.status.model_copy(update={"containers": (crashes,)})})), rules)

    assert [one.kind for one in found(plain(), name="main")] == [FaultKind.POD]
    assert found(plain(), name="istio-proxy", trains=False) == ()
    own = written("container: {name: istio-*, waiting: CrashLoopBackOff}, then: sub-health")
    assert [one.kind for one in found(own, name="istio-proxy", trains=False)] == [FaultKind.SUB_HEALTH]
    assert found(own, name="main") == ()


def test_a_person_s_word_is_a_rule_and_comes_before_all_others() -> None:
    """The values `sick` and `broken` count with or without a reason. `well` silences conditions, but not a node that is not
    ready."""
    said = {"sick": FaultKind.SUB_HEALTH, "broken: smoke": FaultKind.NODE}
    for words, kind in said.items():
        (fault,) = faults(view(pod(), nodes=(shows(annotations={HEALTH: words}),)))
        assert (fault.kind, fault.message) == (kind, words)
    silenced = shows(annotations={HEALTH: "well: fan 3 was replaced"}, conditions={"SubHealthy": ("True", "slow", "")})
    assert faults(view(pod(), nodes=(silenced,))) == ()
    lost = node(ready="False")
    lost = lost.model_copy(update={"metadata": silenced.metadata})
    assert [fault.kind for fault in faults(view(pod(), nodes=(lost,)))] == [FaultKind.NODE]


def test_a_cordon_is_maintenance() -> None:
    """Also where the control plane's own taint stands beside it."""
    taint = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule", time_added=NOW)
    (fault,) = faults(view(pod(), nodes=(shows(cordoned=True, taints=(taint,)),)))
    assert (fault.kind, fault.code) == (FaultKind.SUB_HEALTH, "Cordoned")
    assert fault.decided is not None
    assert fault.decided.maintenance


def test_what_no_rule_knows_is_named_and_changes_nothing() -> None:
    """Conditions, taints and reports; labels and annotations are others' business."""
    odd = shows(
        conditions={"Rusty": ("True", "Rain", "wet"), "MemoryPressure": ("False", "", "")},
        taints=(Taint(key="team", value="a", effect="NoSchedule"),),
        labels={"zone": "a"},
    )
    assert [fact.saw for fact in policy.unused(odd, plain())] == ["condition Rusty=True", "taint team=a:NoSchedule"]
    assert faults(view(pod(), nodes=(odd,))) == ()


@pytest.mark.parametrize(("then", "clear", "differences"), [("process-fault", 0, 2), ("process-fault", 300, 1), ("fault", 0, 1)])
def test_what_has_happened_is_another_difference_each_time_and_a_state_is_not(then: str, clear: int, differences: int) -> None:
    """An error of a process that is reported again was repaired in between, unless its rule treats both as one."""
    rules = written(f"report: {{source: event}}, then: {then}, clear: {clear}")
    moments = (NOW, NOW + timedelta(minutes=1))
    told = [NodeReport(id=f"event-{at}", source="event", code="Xid", since=at, told=at) for at in moments]
    ids = {faults(view(pod(), nodes=(shows(reports=(one,)),)), rules)[0].id for one in told}
    assert len(ids) == differences


@pytest.mark.parametrize("then", ["fault", "process-fault", "sub-health", "maintenance"])
def test_a_condition_whose_moment_changes_is_the_same_difference(then: str) -> None:
    """The condition never went away, whatever its rule decides."""
    rules = written(f"condition: {{type: SubHealthy}}, then: {then}")
    moments = (NOW, NOW + timedelta(minutes=1))
    assert len({faults(view(pod(), nodes=(node(sick="slow", since=at),)), rules)[0].id for at in moments}) == 1


def test_two_rules_make_two_differences_of_a_node() -> None:
    """A sub-health that was declined does not hide another one."""
    rules = written("condition: {type: SubHealthy}, then: sub-health", "taint: {key: a}, then: sub-health")
    sick = node(sick="slow").model_copy(update={"spec": shows(taints=(Taint(key="a", effect="NoSchedule"),)).spec})
    assert len({fault.id for fault in faults(view(pod(), nodes=(sick,)), rules)}) == 2


COMES_AND_GOES: dict[str, Any] = {
    "condition: {type: SubHealthy}": lambda since: node(sick="slow", since=since),
    "taint: {key: a}": lambda since: shows(taints=(Taint(key="a", effect="NoSchedule", time_added=since),)),
    "report: {source: event}": lambda since: shows(
        reports=(NodeReport(id=f"event-{since}", source="event", code="OOMKilling", since=since, told=since),)
    ),
    "report: {source: device-plugin}": lambda since: shows(
        reports=(NodeReport(id="card", source="device-plugin", code="8C084E00", since=since),)
    ),
    "report: {source: public-fault}": lambda since: shows(
        reports=(NodeReport(id=f"fault-{since}", source="public-fault", code="220001001", since=since),)
    ),
}


@pytest.mark.parametrize("rule", COMES_AND_GOES)
def test_flapping_is_braked_whatever_the_source(rule: str) -> None:
    """A rule with `clear` gives one id to what comes back at another moment, and as another object."""
    rules = written(f"{rule}, then: sub-health, clear: 300")
    moments = (NOW, NOW + timedelta(minutes=1))
    found = [faults(view(pod(), nodes=(COMES_AND_GOES[rule](since),)), rules) for since in moments]
    assert [len(some) for some in found] == [1, 1]
    assert len({one.id for some in found for one in some}) == 1


# ---- what is reported once


def told(code: str = "GpuHot", at: int = 0, **more: Any) -> NodeReport:
    """An event of the node, so many seconds from now."""
    return NodeReport(id=code, source="event", code=code, told=NOW + timedelta(seconds=at), **more)


@pytest.mark.parametrize(
    ("rules", "seconds"),
    [
        (("report: {source: event, code: GpuHot}, then: sub-health, expires: 30",), 30),
        (("report: {source: event, code: GpuHot}, then: sub-health",), 600),
        (("report: {source: event, code: Other}, then: sub-health",), None),
        (("report: {source: event, code: GpuHot}, then: nothing", "report: {source: event}, then: fault"), None),
        (
            (
                "report: {source: event, code: GpuHot}, beside: {source: switch}, then: fault, expires: 90",
                "report: {source: event}, then: sub-health, expires: 30",
            ),
            90,
        ),
        (("report: {source: event, by: a}, then: fault, expires: 5", "report: {source: event}, then: nothing"), None),
    ],
)
def test_an_event_counts_for_the_time_of_its_rule(rules: tuple[str, ...], seconds: int | None) -> None:
    """The time begins with the last report of the event; it is ten minutes by default. With several possible rules the longest
    counts."""
    expected = None if seconds is None else NOW + timedelta(seconds=seconds)
    assert policy.over_at(told(), written(*rules)) == expected


def test_what_lasts_as_long_as_its_object_is_over_with_it_or_by_its_own_word() -> None:
    """A device that a ConfigMap names has no time of its own."""
    rules, card = written("report: {source: device-plugin}, then: fault"), NodeReport(id="c", source="device-plugin", told=NOW)
    assert policy.over_at(card, rules) is None
    assert policy.over_at(card.model_copy(update={"until": NOW}), rules) == NOW


def test_what_says_that_it_has_healed_ends_a_report() -> None:
    """An event or a condition that came later, of the same device or of the whole node; an older one was about another time."""
    over = "healed: {report: {source: event, code: GpuCool}}"
    by_event = rf"report: {{source: event, code: GpuHot}}, then: sub-health, device: 'gpu:(\d+)', {over}"
    hot = told(message="gpu:3 is hot")

    def found(*others: NodeReport) -> int:
        return len(faults(view(pod(), nodes=(shows(reports=(hot, *others)),)), written(by_event)))

    assert found() == 1
    assert found(told("GpuCool", 5)) == 0
    assert found(told("GpuCool", 5, message="gpu:3 is cool")) == 0
    assert found(told("GpuCool", 5, message="gpu:4 is cool")) == 1
    assert found(told("GpuCool", -5)) == 1
    by_condition = written(
        'report: {source: event, code: GpuHot}, then: sub-health, healed: {condition: {type: GpuWatch, status: "False"}}'
    )
    cool = shows(reports=(hot,), conditions={"GpuWatch": ("False", "Cool", "")})
    assert faults(view(pod(), nodes=(cool,)), by_condition) == ()
    assert [fact.saw for fact, _ in policy.decisions(cool, by_condition)] == ["condition GpuWatch=False"]
    by_anything = written(
        f"report: {{source: event}}, then: fault, {over}", "report: {source: event, code: GpuCool}, then: nothing"
    )
    cooled = shows(reports=(told(), told("GpuCool", 5)))
    assert faults(view(pod(), nodes=(cooled,)), by_anything) == (), "what says that it is over is no fault by the same rule"


def test_thousands_of_events_of_a_node_are_looked_at_in_a_moment() -> None:
    """An event that is repeated with another message is another event."""
    rules = written(
        "report: {source: event, code: GpuHot}, beside: {source: switch}, then: fault",
        "report: {source: event, code: GpuHot}, then: sub-health, healed: {report: {source: event, code: GpuCool}}",
    )
    many = shows(reports=tuple(told(at=number, message=str(number)) for number in range(5000)))
    began = time.process_time()
    assert len(policy.of_node(many, rules)) == 5000
    assert time.process_time() - began < 2.0


def test_a_backup_on_a_broken_node_is_told_of_as_such() -> None:
    """The fault of a backup on a broken node is marked as a backup's, as on a lost node."""
    rules = written("condition: {type: GpuXid}, then: fault")
    found = faults(view(pod(0, node="b"), pod(0, "new", backup=True), nodes=(shows(conditions={"GpuXid": XID}),)), rules)
    assert [(one.kind, one.backup, one.pod_uids) for one in found] == [(FaultKind.NODE, True, ("new",))]


def test_a_pod_that_has_failed_on_a_broken_node_has_to_leave_it() -> None:
    """The failure of a pod says nothing of its node, and the rule does: both are faults."""
    rules = written("condition: {type: GpuXid}, then: fault")
    found = faults(view(pod(0, phase=PodPhase.FAILED), nodes=(shows(conditions={"GpuXid": XID}),)), rules)
    assert [(one.kind, one.node) for one in found] == [(FaultKind.NODE, "node-0"), (FaultKind.POD, "node-0")]


# ---- a job's own annotations


def test_a_job_may_silence_a_rule_for_itself() -> None:
    """The fault is still reported to other jobs on the node."""
    cordoned = shows(cordoned=True)
    silent = job(annotations={IGNORE_RULES: "plain/other, plain/cordoned"})
    assert faults(view(pod(), nodes=(cordoned,), of=silent)) == ()
    assert faults(view(pod(), nodes=(cordoned,)))


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ({FILTER_CODES: "8C084E00:120"}, 120.0),
        ({FILTER_CODES: "other:5, 8C084E00"}, 60.0),
        ({FILTER_LEVELS: "SeparateNPU:90"}, 90.0),
        ({FILTER_LEVELS: "SeparateNPU:90", FILTER_CODES: "8C084E00:120"}, 120.0),
        ({FILTER_CODES: "8C084E00:soon"}, 0.0),
        ({FILTER_CODES: "8C084E00:99999999999999999999"}, 0.0),
        ({FILTER_CODES: "8C084E00:2"}, 2.0),
    ],
)
def test_a_job_may_give_a_fault_time(words: dict[str, str], seconds: float) -> None:
    """The grace period is given by code or by level, in the annotations of the contract."""
    report = NodeReport(id="r", source="device-plugin", code="8C084E00", level="SeparateNPU", devices=("0",))
    (fault,) = faults(view(pod(), nodes=(shows(reports=(report,)),), of=job(annotations=words)), rules_of("ascend"))
    assert fault.decided is not None
    assert fault.decided.settle == seconds


@pytest.mark.parametrize("word", ["Sick", "sick fan 3 rattles", "ill"])
def test_a_person_s_word_that_no_rule_knows_is_something_to_say_of_a_node(word: str) -> None:
    """A value that no rule matches has no effect, so it is shown with the node."""
    (told,) = nodes_now([shows(annotations={HEALTH: word}), shows("node-1", annotations={"other": word})], plain()).nodes
    assert (told.name, told.unheard) == ("node-0", word)
    for known in ("sick", "broken: by ada", "well"):
        (told,) = nodes_now([shows(annotations={HEALTH: known})], plain()).nodes
        assert told.unheard == ""


@pytest.mark.parametrize("facts", [{"cordoned": True}, {"taints": (Taint(key="karpenter.sh/disrupted", effect="NoSchedule"),)}])
def test_a_node_that_is_well_is_left_before_it_is_drained_all_the_same(facts: dict[str, Any]) -> None:
    """A person said that nothing is wrong with it; the job's budget would hold the drain for ever."""
    marked = shows(annotations={HEALTH: "well: a false alarm"}, conditions={"SubHealthy": ("True", "slow", "")}, **facts)
    found = faults(view(pod(), nodes=(marked,)))
    assert [fault.is_maintenance for fault in found] == [True]
