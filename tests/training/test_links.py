"""Links that are switched while training is paused, with real processes over two addresses and a scripted gateway."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from rekindle_training.adapter import interfaces
from rekindle_training.adapter.links import Links
from rekindle_training.environment import EnvironmentIncomplete, RankEnvironment
from rekindle_training.manager import link_switch
from rekindle_wire.recover_pb2 import SwitchRankList
from rekindle_wire.training_pb2 import Failed, Held, Kept, LinkSwitched, ManagerMessage, Paused, RankMessage, Standing, Stepped
from tests.training.dialogue import fault, kill_rank, offers, status
from tests.training.gateway_service import GatewayPeer
from tests.training.interfaces import Alias, addresses, listens, problems_in_a_new_namespace
from tests.training.job import WORLD, Job
from tests.training.ranks import ScriptedRank
from tests.training.standalone import last_words

ALL_TO_BACKUP = dict.fromkeys(range(WORLD), True)


@pytest.fixture
def links() -> Iterator[tuple[Alias, Alias]]:
    first, backup = Alias("a", 77), Alias("b", 78)
    yield first, backup
    for link in (first, backup):
        link.remove()


@pytest.fixture
def linked(job: Job, links: tuple[Alias, Alias]) -> Job:
    """Prepares a job of which each pod has two links. It waits until the test lets it hurry."""
    job.script, job.arguments = str(Path(__file__).with_name("scripts").joinpath("linked.py")), []
    job.environment |= {"REKINDLE_LINKS": ",".join(link.name for link in links), "PACE_MS": "1000"}
    return job


def of_all(job: Job) -> list[set[str]]:
    """The addresses of each rank's connections to the others."""
    return [addresses(job.children(f"worker-{rank // 2}")[rank % 2]) for rank in range(WORLD)]


def listening(job: Job, pod: str = "worker-1") -> list[str]:
    """The address of each rank's own link. `pod` has pod rank 1."""
    return [listens(process) for name in ("worker-0", pod) for process in job.children(name)]


async def result(gateway: GatewayPeer, number: int = 1) -> tuple[bool, str]:
    """The answer to an order to switch links."""
    reply = await gateway.report("ReplySwitchNicResult", number)
    return reply.result, gateway.metadata["ReplySwitchNicResult"][number - 1]["rekindle-info-bin"]


async def waits(job: Job) -> None:
    async with asyncio.timeout(60):
        while not (job.folder / "waits").exists():
            await asyncio.sleep(0.01)


async def paused(job: Job, gateway: GatewayPeer) -> None:
    await job.start()
    await job.reached(2)
    await gateway.pause()
    assert (await gateway.report("ReportStopComplete")).status.code == 0


async def ends_well(job: Job, undisturbed: list[str]) -> None:
    job.hurry()
    assert await job.codes() <= {0, -9}  # of a manager that was killed
    assert last_words(job.outputs()) == undisturbed
    for rank in range(WORLD):
        done = [line["step"] for line in job.steps(rank)]
        assert done == sorted(set(done))


async def test_collectives_move_to_the_other_link_and_back(
    linked: Job, gateway: GatewayPeer, links: tuple[Alias, Alias], undisturbed: list[str]
) -> None:
    """Connections between ranks have the addresses of the one link, of the other, and of the first again; no bit is lost."""
    first, backup = ({link.address} for link in links)
    await paused(linked, gateway)
    assert of_all(linked) == WORLD * [first]
    await gateway.switch(ALL_TO_BACKUP)
    assert await result(gateway) == (True, "4 of 4 ranks are on their backup links")
    assert of_all(linked) == WORLD * [backup]
    await gateway.go_on()
    assert (await status(gateway))[:2] == ("continue", 0)
    await gateway.pause("attempt-2")
    await gateway.report("ReportStopComplete", 2)
    await gateway.switch(dict.fromkeys(range(WORLD), False))
    assert await result(gateway, 2) == (True, "0 of 4 ranks are on their backup links")
    assert of_all(linked) == WORLD * [first]
    await gateway.go_on("attempt-2")
    assert (await status(gateway, 2))[:2] == ("continue", 0)
    await ends_well(linked, undisturbed)
    print(f"pause {linked.pause_seconds():.3f} s")


async def test_a_link_is_remembered_as_long_as_the_pod_lives(
    linked: Job, gateway: GatewayPeer, links: tuple[Alias, Alias], undisturbed: list[str]
) -> None:
    """A process that takes a rank in its pod begins on the rank's link, whichever manager is there. A new pod begins on its first
    link."""
    first, backup = (link.address for link in links)
    await paused(linked, gateway)
    await gateway.switch({2: True, 3: True})
    assert await result(gateway) == (True, "2 of 4 ranks are on their backup links")
    await gateway.go_on()
    await status(gateway)
    await recovered_in_place(linked, gateway, 2, number=1)
    assert listening(linked) == [first, first, backup, backup]
    linked.started["manager"].kill()
    await linked.started["manager"].code()
    await linked.manager()
    await gateway.until(lambda: gateway.subscriptions > 1)
    await recovered_in_place(linked, gateway, 3, number=2)
    assert listening(linked) == [first, first, backup, backup]
    await linked.lose("worker-1")
    await gateway.report("ReportProcessFault", 3)
    await begun(gateway, 2, 3, number=3)
    await gateway.elsewhere(1, uuid="attempt-of-fault-3")
    await linked.backup(1)
    assert (await status(gateway, 4))[:2] == ("recover", 0)
    assert listening(linked, "backup-1") == [first] * WORLD
    linked.hurry()
    assert await linked.codes() == {0, -9}
    assert last_words(linked.outputs()) == undisturbed


async def recovered_in_place(job: Job, gateway: GatewayPeer, rank: int, number: int) -> None:
    """The `number`-th fault of a job that has been paused once."""
    os.kill(job.steps(rank)[-1]["pid"], signal.SIGKILL)
    assert (await fault(gateway, number)).keys() == {str(rank)}
    await in_place(gateway, rank, number)


async def in_place(gateway: GatewayPeer, rank: int, number: int = 1) -> None:
    """The `number`-th recovery of such a job."""
    await begun(gateway, rank, number=number)
    await gateway.in_place(rank, uuid=f"attempt-of-fault-{number}")
    assert (await status(gateway, number + 1))[:2] == ("recover", 0)


async def begun(gateway: GatewayPeer, *ranks: int, number: int) -> None:
    await gateway.stop_train(f"attempt-of-fault-{number}")
    await gateway.report("ReportStopComplete", number + 1)
    await gateway.announce(*ranks, uuid=f"attempt-of-fault-{number}")
    assert await offers(gateway, number) == ["recover", "dump", "exit"]


async def test_ranks_begin_on_their_backup_links_where_some_cannot_use_their_first_ones(
    linked: Job, gateway: GatewayPeer, links: tuple[Alias, Alias], undisturbed: list[str]
) -> None:
    """Ranks begin on their backup links, since a connection from the first link of one node to the backup of another may be
    impossible."""
    _, backup = links
    first_is_there, linked.environment["REKINDLE_LINKS"] = linked.environment["REKINDLE_LINKS"], f"lo:gone,{backup.name}"
    await linked.manager()
    await linked.worker(0)
    linked.environment["REKINDLE_LINKS"] = first_is_there
    await linked.worker(1)
    await linked.reached(1)
    assert listening(linked) == [backup.address] * WORLD
    await ends_well(linked, undisturbed)


SAYS: dict[str, Any] = {
    "hold": {"held": Held(step=1, total=9)},
    "pause_at": {"paused": Paused(step=1)},
    "resume": {"stepped": Stepped(step=1)},
    "switch_link": {"link_switched": LinkSwitched(rebuild=True)},
    "stand": {"standing": Standing(step=1, place=Standing.BOUNDARY, kept=[Kept(rank=rank, step=1) for rank in range(WORLD)])},
}
"""Answers of a rank that trains after step 1."""


async def test_a_new_pod_that_reaches_nobody_on_its_first_link_joins_the_others_on_their_backups(
    job: Job, gateway: GatewayPeer
) -> None:
    """A new pod joins on its backup link after its first try fails. It keeps its first link, as the control plane has it, where
    that link works."""
    on_backup: dict[int, dict[int, bool]] = {}

    def answering(rank: int, role: str) -> ScriptedRank:
        def answer(message: ManagerMessage) -> RankMessage | None:
            if not message.HasField("rebuild"):
                said = SAYS.get(message.WhichOneof("kind") or "")
                return RankMessage(**said) if said else None
            on_backup.setdefault(message.generation, {})[rank] = message.rebuild.backup_link
            if role == "backup" and not message.rebuild.backup_link:
                return RankMessage(failed=Failed(reason="no route to host"))
            return RankMessage(paused=Paused(step=1)) if message.rebuild.stands else RankMessage(stepped=Stepped(step=1))

        return ScriptedRank(channel, rank, role, answer, stays=True)

    await job.manager()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{job.port}") as channel:
        ranks = [answering(rank, "worker") for rank in range(WORLD)]
        await gateway.report("ReportProgress")
        await gateway.pause()
        await gateway.report("ReportStopComplete")
        await gateway.switch(ALL_TO_BACKUP)
        assert (await result(gateway))[0]
        await gateway.go_on()
        await status(gateway)
        for gone in (2, 3):
            ranks[gone].end()
        await gateway.report("ReportProcessFault")
        await begun(gateway, 2, 3, number=1)
        await gateway.elsewhere(1, uuid="attempt-of-fault-1")
        ranks += [answering(rank, "backup") for rank in (2, 3)]
        assert (await status(gateway, 2))[:2] == ("recover", 0)
        for rank in ranks:
            rank.end()
    all_on_backup = dict.fromkeys(range(WORLD), True)
    assert [on_backup[generation] for generation in (2, 3, 4)] == [
        all_on_backup,
        {**all_on_backup, 2: False, 3: False},
        all_on_backup,
    ]


async def test_what_cannot_be_switched_is_answered_with_words_and_leaves_training_as_it_is(
    linked: Job, gateway: GatewayPeer, links: tuple[Alias, Alias], undisturbed: list[str]
) -> None:
    """An order is refused before the pause, for an unknown rank, and for a pod whose second link is missing or gone."""
    first, backup = links
    await linked.manager()
    await linked.worker(0)
    linked.environment["REKINDLE_LINKS"] = ""
    linked.environment["GLOO_SOCKET_IFNAME"] = first.name
    await linked.worker(1)
    await linked.reached(2)
    await gateway.switch({0: True})
    assert await result(gateway, 1) == (False, "training is not paused: pause_train comes first, and is answered")
    await gateway.pause()
    await gateway.report("ReportStopComplete")
    await gateway.switch({WORLD: True})
    assert await result(gateway, 2) == (False, "rankID: '4' is not one of 0 to 3")
    await gateway.switch(ALL_TO_BACKUP)
    words = "rank 2: REKINDLE_LINKS is not set: its pod has no second link, and 1 other ranks failed"
    assert await result(gateway, 3) == (False, f"{words}; all ranks are on the links of before")
    backup.remove()
    await gateway.switch({1: True})
    assert (await result(gateway, 4))[1].startswith(f"rank 1: interface {backup.name} has no address;")
    await gateway.go_on()
    assert (await status(gateway))[:2] == ("continue", 0)
    assert of_all(linked) == WORLD * [{first.address}]
    await ends_well(linked, undisturbed)
    assert {line["generation"] for line in linked.steps(0)} == {1}


async def test_a_switch_that_fails_on_one_rank_is_undone_on_all(
    linked: Job, gateway: GatewayPeer, links: tuple[Alias, Alias], undisturbed: list[str]
) -> None:
    """The group is made again on the links of before, all stand in it, and training goes on."""
    first, backup = links
    linked.environment["REBUILT"] = f"1 {backup.name} raise"
    await paused(linked, gateway)
    await gateway.switch(ALL_TO_BACKUP)
    done, words = await result(gateway)
    assert not done
    assert words.startswith(f"rank 1: callback rebuilt of on_rebuild: ValueError: struck on {backup.name}")
    assert of_all(linked) == WORLD * [{first.address}]
    await gateway.go_on()
    assert (await status(gateway))[:2] == ("continue", 0)
    assert not gateway.all("ReportProcessFault")
    await ends_well(linked, undisturbed)


async def test_a_switch_that_cannot_be_undone_is_a_fault(linked: Job, gateway: GatewayPeer) -> None:
    """The fault is reported, then the result. The order to go on is answered with 406, and recovery follows."""
    linked.environment["REBUILT"] = "1 * raise"
    await paused(linked, gateway)
    await gateway.switch(ALL_TO_BACKUP)
    done, words = await result(gateway)
    assert not done
    assert "back on the links of before: training did not get beyond step" in words
    told = [name for name, _ in gateway.heard]
    assert told.index("ReportProcessFault") < told.index("ReplySwitchNicResult")
    await gateway.go_on()
    assert (await status(gateway))[:2] == ("continue", 406)


@pytest.mark.same_path("a rank dies while links are switched")
@pytest.mark.parametrize("when", ["in the rebuild", "behind it"])
async def test_a_rank_that_dies_while_links_are_switched_is_a_fault(
    when: str, linked: Job, gateway: GatewayPeer, links: tuple[Alias, Alias], undisturbed: list[str]
) -> None:
    """An unanswered switch is undone, and an answered one stays. The rank is replaced in its pod, on its link."""
    first, backup = links
    if when == "in the rebuild":
        linked.environment["REBUILT"] = f"2 {backup.name} kill"
    await paused(linked, gateway)
    await gateway.switch(ALL_TO_BACKUP)
    done, words = await result(gateway)
    assert done is (when == "behind it")
    if not done:
        assert words.endswith("back on the links of before: rank 2 is gone")
    else:
        kill_rank(linked, 2)
    assert await fault(gateway) == {"2": "1"}
    await gateway.go_on()
    assert (await status(gateway))[:2] == ("continue", 406)
    await in_place(gateway, 2)
    assert of_all(linked) == WORLD * [{(backup if done else first).address}]
    await ends_well(linked, undisturbed)


@pytest.mark.same_path("a rank hangs while links are switched")
@pytest.mark.parametrize("where", ["in the function", "in the rebuild", "where another one fails"])
async def test_a_rank_that_hangs_while_links_are_switched_is_ended_and_replaced(
    where: str, linked: Job, gateway: GatewayPeer, links: tuple[Alias, Alias], undisturbed: list[str]
) -> None:
    """A rank that hangs is ended and replaced. In a recovery all ranks would otherwise wait a quarter of an hour for its
    answer."""
    _, backup = links
    if where == "in the function":
        linked.environment |= {"FUNCTION": "hangs 3", "REKINDLE_LINKS": "", "LIMITS": "manager.link_switch.SWITCH_SECONDS=1"}
    else:
        fails = f"1 {backup.name} raise," if where == "where another one fails" else ""
        linked.environment |= {"REBUILT": f"{fails}3 {backup.name} wait", "REKINDLE_REBUILD_TIMEOUT": "10"}
    await paused(linked, gateway)
    await gateway.switch(ALL_TO_BACKUP)
    assert not (await result(gateway))[0]
    assert await fault(gateway) == {"3": "1"}
    await gateway.go_on()
    assert (await status(gateway))[:2] == ("continue", 406)
    (linked.folder / "go").touch()
    await in_place(gateway, 3)
    await ends_well(linked, undisturbed)


async def test_orders_that_come_again_are_answered_again_and_carried_out_once(
    linked: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """Repeated orders are answered again and carried out once, on the same streams and on those of another gateway."""
    await paused(linked, gateway)
    await gateway.pause()
    await gateway.report("ReportStopComplete", 2)
    for number in (1, 2):
        await gateway.switch(ALL_TO_BACKUP)
        assert await result(gateway, number) == (True, "4 of 4 ranks are on their backup links")
    await gateway.stop()
    await gateway.start()
    await gateway.pause()
    assert (await gateway.report("ReportStopComplete", 3)).status.code == 0
    await gateway.switch(ALL_TO_BACKUP)
    assert (await result(gateway, 3))[0]
    for number in (1, 2):
        await gateway.go_on()
        assert (await status(gateway, number))[:2] == ("continue", 0)
    await ends_well(linked, undisturbed)
    assert linked.steps(0)[-1]["generation"] == 2


@pytest.mark.parametrize("phase", ["paused", "switching", "switched"])
async def test_a_manager_that_dies_while_links_are_switched_is_followed_by_one_that_ends_it(
    phase: str, linked: Job, gateway: GatewayPeer, links: tuple[Alias, Alias], undisturbed: list[str]
) -> None:
    """The next manager finds the ranks paused, for which attempt, and on which links. The answers to the list and to the order to
    go on say so."""
    _, backup = links
    linked.environment["REBUILT"] = f"1 {backup.name} wait" if phase == "switching" else "- - -"
    await paused(linked, gateway)
    number = 1
    if phase == "switching":
        await gateway.switch(ALL_TO_BACKUP)
        await waits(linked)
    if phase == "switched":
        await gateway.switch(ALL_TO_BACKUP)
        assert (await result(gateway))[0]
        number = 2
    linked.started["manager"].kill()
    await linked.started["manager"].code()
    (linked.folder / "go").touch()
    await linked.manager()
    await gateway.until(lambda: len(gateway.all("SubscribeNotifySwitch")) > 1)
    await gateway.switch(ALL_TO_BACKUP)
    assert await result(gateway, number) == (True, "4 of 4 ranks are on their backup links")
    assert gateway.metadata["ReplySwitchNicResult"][-1]["rekindle-attempt"] == "attempt-1"
    assert of_all(linked) == WORLD * [{backup.address}]
    await gateway.go_on()
    assert (await status(gateway))[:2] == ("continue", 0)
    await ends_well(linked, undisturbed)
    assert not gateway.all("ReportProcessFault")


async def test_a_function_of_the_script_switches_links_without_another_group(
    linked: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """The function is called on the ranks that are named, and after each rebuild of a rank that is on its backup link."""
    linked.environment |= {"FUNCTION": "yes", "REKINDLE_LINKS": ""}
    await paused(linked, gateway)
    await gateway.switch({1: True})
    assert await result(gateway) == (True, "1 of 4 ranks are on their backup links")
    await gateway.go_on()
    await status(gateway)
    assert linked.steps(0)[-1]["generation"] == 1
    await recovered_in_place(linked, gateway, 2, number=1)
    assert called(linked) == {1: ["backup", "backup"]}
    await ends_well(linked, undisturbed)


async def test_a_function_that_refuses_has_the_others_switched_back(
    linked: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """All ranks are switched, or none."""
    linked.environment |= {"FUNCTION": "3", "REKINDLE_LINKS": ""}
    await paused(linked, gateway)
    await gateway.switch({0: True, 3: True})
    words = "rank 3: OSError: the library says no; all ranks are on the links of before"
    assert await result(gateway) == (False, words)
    assert called(linked) == {0: ["backup", "first"], 3: ["backup"]}
    await gateway.go_on()
    assert (await status(gateway))[:2] == ("continue", 0)
    await ends_well(linked, undisturbed)


def called(job: Job) -> dict[int, list[str]]:
    """Returns how the function was called, by rank."""
    return {int(path.name.partition("-")[2]): path.read_text().split() for path in job.folder.glob("called-*")}


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (SwitchRankList(), "rankID: no rank is named"),
        (SwitchRankList(rankID=["0", "1"], op=[True]), "op: 1 directions for 2 ranks of rankID"),
        (SwitchRankList(rankID=["4"], op=[True]), "rankID: '4' is not one of 0 to 3"),
        (SwitchRankList(rankID=["-1"], op=[True]), "rankID: '-1' is not one of 0 to 3"),
        (SwitchRankList(rankID=["²"], op=[True]), "rankID: '²' is not one of 0 to 3"),
        (SwitchRankList(rankID=["1", "01"], op=[True, False]), "rankID: rank 1 is named twice"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused_with_the_field(order: SwitchRankList, words: str) -> None:
    """Nothing of the list is carried out."""
    with pytest.raises(ValueError, match=re.escape(words)):
        link_switch.read(order, WORLD)


def test_an_accelerators_links_are_switched_by_a_function_only() -> None:
    """NCCL would go on with the interface that it has read first."""
    words = "NCCL reads NCCL_SOCKET_IFNAME once in a process: its links are switched by session(switch_link=...)"
    assert Links(("eth1", "eth2"), None, "cuda").switch(backup=True) == (words, False)


def test_an_interface_is_there_up_and_has_an_address() -> None:
    """Asked in a namespace of its own, whose loopback interface is down at first."""
    found = problems_in_a_new_namespace()
    assert found == ["interface lo is down", "interface lo has no address", "", "there is no interface eth7"]


@pytest.mark.parametrize("said", ["eth1", "eth1,", "eth1,eth1", "eth1,eth2,eth3"])
def test_a_pod_has_two_links_or_none(said: str) -> None:
    """Anything else is refused at the start."""
    rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1", "REKINDLE_PROCESS": "p"}
    assert RankEnvironment.read({**rank, "REKINDLE_LINKS": "eth1, eth2"}).links == ("eth1", "eth2")
    with pytest.raises(EnvironmentIncomplete, match=f"REKINDLE_LINKS='{said}' is not accepted: it is two interfaces"):
        RankEnvironment.read({**rank, "REKINDLE_LINKS": said})


@pytest.mark.parametrize(
    ("problems", "backup"),
    [
        ({}, False),
        ({"eth1": "interface eth1 has no carrier"}, True),
        ({"eth1": "interface eth1 is down", "eth2": "there is no interface eth2"}, False),
    ],
    ids=["both links are up", "the first is pulled", "both are"],
)
def test_a_process_whose_first_link_is_pulled_begins_on_its_backup(
    problems: dict[str, str], backup: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of a new pod that starts in the middle of a maintenance begins on its backup link."""
    monkeypatch.setattr(interfaces, "problem", lambda name: problems.get(name, ""))
    assert Links(("eth1", "eth2"), None, None).on_backup is backup
    assert Links((), None, None).on_backup is False
    assert Links(("eth1", "eth2"), None, "cuda").on_backup is False
