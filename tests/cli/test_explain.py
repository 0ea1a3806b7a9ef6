"""The command line explains detection: typed beside a real control plane."""

import json
import os
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.ids import Updates
from rekindle.model.account import Holding, Stretch, TimeReport
from rekindle.model.cluster import Condition
from rekindle.model.fault import WATCHER, Decided, Sighting
from rekindle.model.keys import HEALTH, RECOVER_STRATEGY
from rekindle.model.mode import Outcome
from rekindle.policy.modes.mode_table import LADDER
from tests.cli.test_recover import ended, environment, typed
from tests.support.commands import begun
from tests.support.harness import NOW, Harness, a_job, sub_health, training


async def said(world: Harness, *arguments: str) -> tuple[int, str]:
    return await ended(await typed(world, *arguments))


async def test_a_node_is_explained_with_its_rules(temporal: WorkflowEnvironment) -> None:
    """A node is explained with each fact, its meaning and its rule. Unused facts are shown, and a name that is neither a job nor
    a node is refused."""
    async with training(temporal, a_job()) as (world, _peer):
        deadlock = Condition(
            type="KernelDeadlock", status="True", reason="Hung", message="task x is blocked", last_transition_time=NOW
        )
        odd = Condition(type="Rusty", status="True", reason="Rain", message="wet")
        world.cluster.conditions["node-1"] = (odd, deadlock)
        code, words = await said(world, "explain", "node-1")
        assert code == 0, words
        lines = words.splitlines()
        assert lines[0] == "node node-1: ready"
        assert lines[1].startswith("  condition KernelDeadlock=True -> fault (rule plain/kernel-deadlock, since 20")
        assert lines[1].endswith(", has to last 10 s, has to be gone 300 s): task x is blocked")
        assert lines[2] == "  condition Rusty=True (seen, unused): wet"
        code, words = await said(world, "explain", "node-1", "--output", "json")
        assert [one["rule"] for one in json.loads(words)["facts"]] == ["plain/kernel-deadlock", ""]
        code, words = await said(world, "explain", "node-99")
        assert code == 2
        assert "'node-99' is neither a job" in words


async def test_a_person_marks_a_node(temporal: WorkflowEnvironment) -> None:
    """A mark of a node is an annotation, which `kubectl` may also write. The resulting state of the node is shown at once."""
    async with training(temporal, a_job()) as (world, _peer):
        code, words = await said(world, "nodes", "mark", "node-1", "sick", "--reason", "fan 3 rattles")
        assert code == 0, words
        assert "sick: fan 3 rattles -> sub-health (rule plain/marked-sick)" in words
        assert world.cluster.node_annotations["node-1"][HEALTH] == "sick: fan 3 rattles"
        code, words = await said(world, "nodes", "mark", "node-1", "well")
        assert "a person says: well; no rule counts, but those of maintenance, until" in words
        code, words = await said(world, "nodes", "mark", "node-1", "none")
        assert (code, words) == (0, "node node-1: ready\n")
        code, words = await said(world, "nodes", "mark", "node-99", "sick")
        assert code == 2, words
        code, words = await said(world, "nodes", "mark", "node-1", "tired")
        assert code == 2, words


async def test_a_word_on_a_node_that_means_nothing_is_shown(temporal: WorkflowEnvironment) -> None:
    """A mark that no rule knows is shown: its author believes that the node is left by now."""
    async with training(temporal, a_job()) as (world, _peer):
        world.cluster.node_annotations["node-1"] = {HEALTH: "sick fan 3 rattles"}
        _, words = await said(world, "explain", "node-1")
        assert "a person says 'sick fan 3 rattles', which no rule knows: write sick, broken or well" in words


async def test_a_rule_that_is_not_believed_is_shown_with_its_numbers(temporal: WorkflowEnvironment) -> None:
    """A rule that is not believed is shown with its numbers: for a node, for all nodes, and for a job about which nothing is
    done."""
    async with training(temporal, a_job()) as (world, _peer):
        for name in world.cluster.node_names:
            world.cluster.conditions[name] = (Condition(type="SubHealthy", status="True", reason="Slow"),)
        doubted = "not believed: rule plain/sub-healthy calls 3 of 3 nodes sub-healthy, more than maxUnhealthy 50%"
        _, words = await said(world, "explain", "node-1")
        assert f"SubHealthy=True -> sub-health (rule plain/sub-healthy; {doubted})" in words
        _, words = await ended(await begun(("nodes",), {**environment(world), "REKINDLE_CLUSTER": "kubernetes"}))
        assert "sub-health (not believed): condition SubHealthy=True" in words
        assert doubted in words.splitlines()
        _, words = await said(world, "explain", world.job.id)
        assert words.splitlines()[-1:] == [doubted]


async def test_a_job_hides_no_node_of_its_name(temporal: WorkflowEnvironment) -> None:
    """A tenant may give its job the name of a node."""
    async with training(temporal, job := a_job()) as (world, _peer):
        world.cluster.node_names.append(job.name)
        world.cluster.conditions[job.name] = (Condition(type="SubHealthy", status="True", reason="Slow"),)
        _, words = await said(world, "explain", job.name)
        assert f"job {job.name}: faults: 0" in words
        assert f"node {job.name}: ready" in words


@pytest.mark.parametrize("name", ["", "n" * 300])
async def test_what_can_be_no_node_is_refused_in_words(temporal: WorkflowEnvironment, name: str) -> None:
    """A name that no node can have is refused with exit code 2, and not with a traceback."""
    async with training(temporal, a_job()) as (world, _peer):
        for command in (("explain", name), ("nodes", "mark", name, "sick")):
            code, words = await said(world, *command)
            assert (code, "Traceback" in words) == (2, False), words
        assert not world.cluster.node_annotations


async def test_a_job_is_explained_with_the_rules_of_its_faults(temporal: WorkflowEnvironment) -> None:
    """A job is explained with the rules of its faults: which rule, what it saw, since when, and when it counts."""
    async with training(temporal, a_job()) as (world, _peer):
        decided = Decided(rule="own/slow", saw="condition Slow=True", since=NOW, settle=3600.0, clear=60.0)
        fault = sub_health().model_copy(update={"decided": decided, "source": WATCHER})
        held = (await world.status()).state.holders
        await world.entity.execute_update("sighting", Sighting(holders=held, faults=(fault,)))
        code, words = await said(world, "explain", world.job.id)
        assert code == 0, words
        assert "sub-health of node-1: NPU link is degraded" in words
        assert "ranks: 2, 3, seen by the watcher" in words
        assert "rule own/slow decided, by: condition Slow=True, by the cluster's clock since" in words
        assert "it counts when it has lasted 3600 s" in words
        assert "nothing is decided about it yet" in words


async def test_a_file_of_rules_is_checked_by_itself(tmp_path: Path) -> None:
    """A file of rules is checked by itself: its rules and the sets that it uses are printed in one table. An error is reported by
    its field, with exit code 2."""
    good, bad = tmp_path / "rules.yaml", tmp_path / "bad.yaml"
    head = "apiVersion: rekindle.io/v1\nkind: Rules\nspec:\n  rules:\n"
    good.write_text(f"{head}    - {{name: slow, condition: {{type: Slow}}, then: sub-health, settle: 30}}\n")
    bad.write_text(f"{head}    - {{name: slow, condition: {{kind: Slow}}, then: sub-health}}\n")

    async def checked(file: str) -> tuple[int, str]:
        return await ended(await begun(("check", file), os.environ))

    code, words = await checked(str(good))
    assert code == 0, words
    assert words.splitlines()[1].split() == ["slow", "condition", "sub-health", "30", "s", "-", "-", "50%"]
    assert "plain/cordoned" in words
    code, words = await checked("ascend")
    assert (code, "device-plugin" in words) == (0, True)
    code, words = await checked(str(bad))
    assert (code, "spec.rules.0.condition.kind: unknown field" in words) == (2, True)
    assert (await checked(str(tmp_path / "none.yaml")))[0] == 2


async def test_each_mode_of_a_job_is_explained_with_what_speaks_against_it(temporal: WorkflowEnvironment) -> None:
    """A mode is possible, or the reasons against it are listed. JSON has the same."""
    async with training(temporal, a_job(annotations={RECOVER_STRATEGY: "recover"})) as (world, _peer):
        _, words = await said(world, "explain", world.job.id)
        at = words.splitlines().index("modes, in the order in which they are tried:")
        lines = [line.strip() for line in words.splitlines()[at + 1 : at + 1 + len(LADDER)]]
        refused = "its owner does not allow recover-in-place (annotation recover-strategy)"
        assert lines[0] == "hot switch: possible"
        assert f"in-place recovery: {refused}" in lines
        assert "process rescheduling: possible" in lines
        assert lines[-1] == "job rescheduling: possible"
        _, words = await said(world, "explain", world.job.id, "--output", "json")
        found = {one["mode"]: one["against"] for one in json.loads(words)["modes"]}
        assert (found["in-place recovery"], found["process rescheduling"]) == ([refused], [])


async def test_each_mode_of_a_job_is_explained_with_its_cost(temporal: WorkflowEnvironment) -> None:
    """A job that has not trained has unknown costs, and none is shown as 0. Later its own recoveries count, beside defaults with
    their source. JSON has the same numbers."""
    async with training(temporal, a_job()) as (world, _peer):
        code, words = await said(world, "explain", world.job.id)
        assert code == 0, words
        at = next(number for number, line in enumerate(words.splitlines()) if line.startswith("what each mode would cost now"))
        head, titles, *rows = words.splitlines()[at : at + 2 + len(LADDER)]
        assert head.endswith("ranks: 4, a step: unknown, state of a rank: unknown, standbys ready: 0")
        assert titles.split("  ")[0] == "mode"
        cells = {row[: titles.index("possible")].strip(): row.split() for row in rows}
        assert list(cells) == [row.mode.value for row in LADDER]
        assert cells["online retry"][2:7] == ["no", "unknown", "0", "unknown", "unknown"]
        assert cells["job rescheduling"][2:7] == ["yes", "unknown", "unknown", "unknown", "unknown"]

        now = Stretch(began=NOW.timestamp(), ended=NOW.timestamp() + 20, steps=10)
        holding = Holding(state_bytes=2**29, checkpoint_every=4)
        await world.tell(Updates.TIME, TimeReport(step=10, ranks=4, now=now, holding=holding))
        await world.fault(sub_health())
        switched = await world.incident()
        assert switched.ladder[-1].outcome is Outcome.RECOVERED
        code, words = await said(world, "explain", world.job.id)
        assert code == 0, words
        assert "ranks: 4, a step: 2.000 s (mean of 10), state of a rank: 0.500 GiB, standbys ready: 0" in words
        assert "median of its own: 1" in words
        assert "benchmark: want of memory in a step, half a step" in words
        code, words = await said(world, "explain", world.job.id, "--output", "json")
        found = json.loads(words)["costs"]
        assert (found["ranks"], found["step_seconds"], found["step_samples"]) == (4, 2.0, 10)
        by_mode = {one["mode"]: one for one in found["modes"]}
        hot, retry = by_mode["hot switch"], by_mode["online retry"]
        assert hot["samples"] == 1
        assert hot["accelerator_seconds"] == pytest.approx(4 * hot["stands"])
        assert retry["stands"] == pytest.approx(0.193 + 1.0)
        restart = by_mode["pod rescheduling"]
        assert (restart["steps"], restart["steps_source"], restart["seconds"]) == (1.5, "a checkpoint every 4", None)
