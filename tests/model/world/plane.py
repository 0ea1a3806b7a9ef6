"""Control plane of the model: real workflows and intake, a simulated gateway, and checks of forbidden behaviour."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta

from tests.model.world import adapter
from tests.model.world.activities import Activities, view, write
from tests.model.world.adapter import ENTITY, Call, Intake
from tests.model.world.driver import Driver
from tests.model.world.driver_runs import Answer, Run
from tests.model.world.messages import Message
from tests.model.world.training import RANKS, Training
from tests.model.world.world import Knobs, World

AGAIN = 0.2
BETWEEN_MODES, PATIENCE, OF_A_FAULT = timedelta(seconds=5), timedelta(seconds=25), timedelta(seconds=60)
"""Time for which the gateway repeats a report between two modes, any other message, and a report whose job's workflow is lost."""
UNHEARD = timedelta(seconds=1)
"""Longest delay until the entity learns of the end of a recovery, or of a change of pods."""
LONG_AGO = timedelta(seconds=300)
"""Age of a message that a mode must have received before it ended."""
FORGOTTEN = timedelta(seconds=50)
"""Longest time for which training may stand without a recovery: less than until its manager recovers it by itself."""
ASKED = 3
"""Number of lost answers of MindIO to the question whether it trains, after which a restart is accepted."""
MOST_ASKED = 15
"""Largest number of link switches for one maintenance."""
RELIST = 30.0
"""Seconds between two searches of the watcher for lost workflows."""
ROUND = 300.0
"""Seconds between two offers of the same attachment by the gateway, which has many."""
GROWING = 1.0
"""Seconds for which the watcher gathers changes that are not urgent."""


REPEATED = ("smaller", "size")
"""Modes that are carried out again when they were terminated."""

PROOFS = {
    "hot switch": "resumed",
    "retry": "repaired",
    "in place": "repaired",
    "elsewhere": "repaired",
    "smaller": "repaired",
    "size": "resized",
    "link switch": "went on",
    "stress test": "went on",
}
"""Event of training that must precede the verdict `recovered`, by mode."""


class ControlPlane:
    def __init__(self, knobs: Knobs, seed: int, loss: float) -> None:
        self.driver = driver = Driver(adapter.WORKFLOWS, seed, loss)
        driver.closed = self._closed
        self.world = World(driver, knobs)
        self.world.receive, self.world.restarting = self._receive, self._restarting
        self.labels = dict(adapter.LABELS)
        driver.perform = Activities(driver, self.world, self.labels).perform
        self.watcher = Watcher(self)
        self.found: list[str] = []
        """Descriptions of observations that must never occur."""
        self._restart_asked_for = False
        self._fronts = 0
        self._reporting = False
        self._told: set[str] = set()
        """Sessions that were sent to the entity."""
        self._introduced: set[str] = set()
        """Sessions that the current entity accepted. They are known to it even if it has forgotten them."""
        self._orphan: Run | None = None
        """Recovery whose entity was lost."""
        self._shortage = False
        """True if there were too few nodes when a restart was given up."""
        self._taken: dict[tuple[str, str], datetime] = {}
        """Time at which the report for an order of an attempt was accepted, and by recovery and kind of message."""
        self._lost = False
        """True if the message that the knobs name was lost."""
        self._answers_lost = 0
        self._maintenances = 0
        self.modes: list[Run] = []
        """Modes that have ended."""
        self.terminated = False
        """True if a recovery was terminated, so that its effects are unknown."""
        self.gentle = False
        """True if nothing justifies leaving training stopped."""
        self._stands_since: datetime | None = None
        """Time since which training has stood without a recovery; None: it does not."""
        driver.after(ROUND, self._round)

    # ---- what must never be seen

    def _closed(self, run: Run) -> None:
        if run.id == ENTITY:
            self._entity_closed(run)
        elif adapter.is_maintenance(run):
            self.world.moment(f"maintenance {run.status}")
        elif run.parent:
            self._mode_closed(run)
        elif run.status == "failed" and run.failure and not adapter.was_answered(run.failure):
            self.found.append(f"the front failed by itself: {run.failure.message}")

    def _mode_closed(self, run: Run) -> None:
        mode = adapter.MODES[run.definition.name]
        self.modes.append(run)
        if run.status == "terminated":
            self._orphan = run
        order = adapter.unheard(run)
        if order in self._taken and self._taken[order] < self.driver.now - LONG_AGO:
            self.found.append(f"unheard: the {mode} waited for the answer to `{order[1]}`, which was taken")
        self._operated(run, mode)
        if adapter.says_recovered(run):
            self._recovered(run, mode)
        if run.status == "failed":
            self._shortage = sum(node.ready and not node.isolated for node in self.world.nodes.values()) < self.world.knobs.pods
        self.world.moment(f"{mode} ended")

    def _operated(self, run: Run, mode: str) -> None:
        """Checks the end of an operation: it processed all messages, and no agent is held."""
        kind = adapter.unheard_in_operation(run)
        if (run.id, kind) in self._taken and self._taken[run.id, kind] < self.driver.now - LONG_AGO:
            self.found.append(f"unheard: the {mode} waited for the message `{kind}`, which was taken")
        training = self.world.training
        if run.status in ("completed", "cancelled") and self.world.agents_held() and training.session and not training.ending:
            self.found.append(f"held: the {mode} has ended, and no agent starts processes")

    def _entity_closed(self, run: Run) -> None:
        if run.status in ("failed", "cancelled"):
            self.found.append(f"the entity {run.status}: it must never fail")
        if run.status != "continued":
            self._orphan = next(iter(self.recoveries()), self._just_ended() or self._orphan)
            self._introduced.clear()

    def _just_ended(self) -> Run | None:
        """Returns a recovery of whose end the entity may not have learned; None: there is none."""
        ended = (run for run in self.driver.runs.values() if run.parent and run.ended)
        last = max(ended, key=lambda run: run.ended or self.driver.now, default=None)
        return last if last and last.ended and self.driver.now - last.ended < UNHEARD else None

    def _recovered(self, run: Run, mode: str) -> None:
        """Checks that a verdict `recovered` is based on the effects of this recovery."""
        restarted = mode == "restart"
        self._orphan = None if restarted else self._orphan  # the restart cleans up what it left
        proof = PROOFS.get(mode, "attached" if self.world.knobs.side == "mindio" else "first step")
        since = self.world.last("pods made") if restarted else run.began
        seen = self.world.last(proof)
        if adapter.is_by_itself(run):  # training continued by itself without an order
            return
        if self.terminated and mode in REPEATED:  # the one before it has done that, and was cut off
            return
        if since is None or seen is None or seen < since:
            self.found.append(f"untrue: the {mode} says recovered, and nothing {proof} since it acted")

    def _restarting(self) -> None:
        """Checks that the restart of a training job has a reason.

        Reasons are: a person requested it, a mode before failed, or one was lost or cut off. It may also be unknown that the job
        trains again, since a manager that recovered by itself does not report that.
        """
        recovery = next(iter(self.recoveries()), None)
        if recovery is None or not self.world.trains_undisturbed():
            return
        if not adapter.is_first_mode(recovery) and not adapter.is_behind_operation(recovery):
            return
        if self.world.training.alone or self.world.training.knows_no_attempt or self._answers_lost >= ASKED:
            return
        was_lost = self._orphan is not None and not adapter.is_settled(self._orphan)
        back = self.world.last("first step")
        is_news = back is not None and recovery.began - back < UNHEARD
        if not (was_lost or self._restart_asked_for or is_news or adapter.is_of_strangers(recovery, self._introduced)):
            self.found.append("needless: a job that trains is restarted")

    def recoveries(self) -> list[Run]:
        """Returns the running modes, which are children of the entity."""
        return [run for run in self.driver.runs.values() if run.status == "running" and run.parent]

    def watch(self) -> None:
        if len(self.recoveries()) > 1:
            self.found.append(f"two recoveries at once: {[run.id for run in self.recoveries()]}")
        if self.world.training.state != "standing" or self.recoveries():
            self._stands_since = None
        elif self._stands_since is None:
            self._stands_since = self.driver.now
        elif self.driver.now - self._stands_since > FORGOTTEN and self.gentle:
            self.found.append("forgotten: training stands, and nobody recovers it")
            self._stands_since = None

    def conclude(self) -> None:
        """Checks the final state, when no disturbance is left and all events have happened."""
        entity = self.driver.running(ENTITY)
        running = [run for run in self.driver.runs.values() if run.status == "running" and run is not entity]
        open_runs = [run.id for run in running if not adapter.is_at_rest(self.driver, run)]
        left = [f"not quiet: {what}" for what in open_runs]
        if self.world.ended:
            left += ["not quiet: the entity of a deleted job"] if entity else []
        elif entity is None:
            left += ["entity lost: no workflow knows the job"]
        else:
            left += self._unsettled(adapter.seen(self.driver))
            left += self._misplaced(adapter.seen(self.driver))
            left += self._missing(adapter.seen(self.driver))
        self.found += left + self._restless()
        self.found += [what for _, what in self.world.log if what.startswith("wrong order")]

    def _misplaced(self, seen: adapter.Seen) -> list[str]:
        """Checks that links are where the job's workflow expects them."""
        here = self.world.training.links
        if self.terminated or self.world.last("switched lost"):  # only the training side knows it then
            return []
        found = [f"misplaced: ranks {sorted(here)} are on their backup links, known are {sorted(seen.links)}"]
        return [*(found if here != seen.links else []), *self._forgotten_links(seen)]

    def _missing(self, seen: adapter.Seen) -> list[str]:
        """Checks that a job with free nodes has all pods that are wanted, and that those are known which it has not."""
        missing = self.world.training.missing() if self.world.trains() else []
        found = [f"small: pod ranks {missing} are missing, and nodes are free"] if missing and seen.grows else []
        return found + ([f"size: missing are {missing}, known are {list(seen.missing)}"] if missing != [*seen.missing] else [])

    def _forgotten_links(self, seen: adapter.Seen) -> list[str]:
        """Checks that a maintenance knows what it has moved, and does not end before that has returned."""
        found = []
        for run in filter(adapter.is_maintenance, self.driver.runs.values()):
            known, moved = adapter.moved_by(self.driver, run), seen.moved.get(run.id, frozenset())
            if known != moved and run.status != "terminated":
                found.append(
                    f"not its own: the maintenance, {run.status}, knows of ranks {sorted(known)}, moved are {sorted(moved)}"
                )
        return found

    def twice(self) -> list[str]:
        """Checks that one report of a fault leads to one recovery. Not valid if running workflows are cancelled or terminated."""
        told = sum(what == "process fault" for _, what in self.world.log)
        begun = sum(adapter.is_first_mode(run) and adapter.is_of_training_side(run) for run in self.modes)
        return [f"twice: {begun} recoveries of what was told {told} times"] if begun > told else []

    def _restless(self) -> list[str]:
        """Checks that a refused request is repeated some times only."""
        asked = Counter(adapter.asked_by(run) for run in self.modes if run.id.endswith("link-switch/" + adapter.JOB))
        return [f"restless: {count} link switches for {front}" for front, count in asked.items() if front and count > MOST_ASKED]

    def _unsettled(self, seen: adapter.Seen) -> list[str]:
        """Returns the problems of a job that should train."""
        left = self.world.problems() + [f"not quiet: {what}" for what in seen.waiting]
        session = self.world.training.session
        if session not in ("", seen.session):
            left.append(f"lost stream: the entity holds {seen.session or 'none'}, open is {session}")
        last = seen.incidents[-1] if seen.incidents else None
        if left and last and last.given_up:
            excused = last.needs_a_person or self._shortage
            left = [] if excused else [f"given up: {last.given_up}; {'; '.join(left)}"]
        for number in range(1, self._fronts + 1):
            left += self._forsaken(f"front-{number}", seen)
        return left

    def _forsaken(self, name: str, seen: adapter.Seen) -> list[str]:
        """Checks that a front that received a cancellation leaves no recovery running."""
        front = self.driver.runs[adapter.front_id(name)]
        if not adapter.was_cancelled(front) or front.ended is None:
            return []
        asked = [one for one in seen.incidents if f"requested by {name}" in one.summary and not one.cancelled]
        later = [one for one in asked if one.began + timedelta(seconds=one.seconds) > front.ended]
        return [f"forsaken: {name} was told of a cancellation, and then {one.tried}" for one in later]

    def story(self) -> list[str]:
        return [f"{one.summary} -> {', '.join(one.tried)}" for one in adapter.seen(self.driver).incidents]

    # ---- clients

    def ask(self, mode: str, rank: int) -> None:
        pod = self.world.holder(rank)
        if mode in adapter.ON_OPERATIONS and not (pod and pod.node):
            return
        self._fronts += 1
        self._restart_asked_for |= mode == "restart"
        backup = rank * RANKS not in self.world.training.links
        adapter.front(self.driver, mode, rank, f"front-{self._fronts}", pod.node if pod else "", backup=backup)

    def fail_over(self, rank: int) -> None:
        """Starts a maintenance of the links of a pod's node."""
        if (pod := self.world.holder(rank)) and pod.node:
            self._maintenances += 1
            adapter.fail_over(self.driver, pod.node, adapter.maintenance_id(self._maintenances))

    def switch_back(self) -> None:
        """Requests the switchback of all maintenances."""
        for number in range(1, self._maintenances + 1):
            adapter.switch_back(self.driver, adapter.maintenance_id(number))

    def withdraw(self) -> None:
        """Cancels the last front."""
        self.driver.cancel(adapter.front_id(f"front-{self._fronts}"))

    def lift(self) -> None:
        self._send(adapter.lift())

    def retry(self) -> None:
        """Begins the ladder again, as a person does for a job that was given up."""
        self._send(adapter.retry())

    # ---- the gateway

    def _receive(self, message: Message, sender: Training) -> None:
        if report := adapter.report_of(message):
            self._report(report, message, sender)
        elif message.kind == "attach":
            self._attach(message, sender)
        elif message.kind == "first step" and message.session not in self._told:
            if sender.session == message.session:  # its steps can only be sent once its stream is known
                self.driver.after(AGAIN, lambda: self._receive(message, sender))
        else:
            patience = OF_A_FAULT if message.kind == "fault" else PATIENCE
            call = adapter.call_of(message, self.driver.now)
            if self._is_lost(message, sender):
                return
            self._send(
                call,
                done=lambda answer: self._answered(message, sender, answer),
                patience=patience,
                missing=lambda: self._miss(message, sender),
                name=self.id_of(message),
            )

    def _answered(self, message: Message, sender: Training, answer: Answer) -> None:
        """Processes the answer to a message. A receipt of faults may contain an order for this stream; it may be lost with its
        gateway."""
        receipt = adapter.receipt_of(answer)
        is_late = bool(receipt and receipt.order and receipt.order.uuid < sender.newest)
        if receipt and receipt.order and receipt.order.session == sender.session and not is_late:
            is_named = self.world.knobs.lost == "order" and not self._lost
            if is_named or self.driver.happens():
                self._lost |= is_named
                self.world.moment("order of a receipt lost")
            else:
                write(receipt.order, sender, receipt.recovery)
        sender.heard(message)

    def _miss(self, message: Message, sender: Training) -> None:
        """Sends the attachment, or that it has ended, to an entity that needs to know the stream before its faults."""
        if sender.session == message.session:
            self._attach(sender.attachment(), sender)
        else:
            self._send(adapter.call_of(Message("detach", session=message.session), self.driver.now))

    def _attach(self, message: Message, sender: Training) -> None:
        """Attaches a stream while it is open. The stream is ended if another one took over."""
        attach = adapter.call_of(message, self.driver.now)

        def is_open() -> bool:
            return sender.session == message.session

        def answered(answer: Answer) -> None:
            self._told.add(message.session)
            if not answer.kind:
                self._introduced.add(message.session)
            if answer.kind == adapter.STREAM_IS_OVER and is_open():
                sender.cut()

        self.driver.after(0.1, lambda: self._send(attach, is_open, answered))

    def _round(self) -> None:
        """Offers the attachment again, with the progress that its gateway received."""
        if self.world.training.session:
            self._attach(self.world.training.attachment(), self.world.training)
        self.driver.after(ROUND, self._round)

    def _send(
        self,
        call: Call,
        wanted: Callable[[], bool] = lambda: True,
        done: Callable[[Answer], None] = lambda answer: None,
        patience: timedelta = PATIENCE,
        missing: Callable[[], None] = lambda: None,
        name: str = "",
    ) -> None:
        """Sends an update until it is stored or refused. Without a name each call is another message."""
        name, until = name or f"{call.name}-{self.world.number()}", self.driver.now + patience

        def send() -> None:
            if wanted():
                self.driver.update(ENTITY, call.name, list(call.arguments), name, answered)

        def answered(answer: Answer) -> None:
            if answer.kind == adapter.STREAM_IS_MISSING:
                missing()
            if answer.kind in ("again", "not found", adapter.STREAM_IS_MISSING) and self.driver.now < until:
                self.driver.after(AGAIN, send)
            else:
                done(answer)

        send()

    def _report(self, call: Call, message: Message, sender: Training) -> None:
        """Sends a report to the recovery that gave the last order on the stream, or to the one that the entity names.

        One report is in flight at a time. A report that is sent only once may be lost with a gateway.
        """
        if self._is_lost(message, sender):
            return
        if self._reporting:
            self.driver.after(0.05, lambda: self._report(call, message, sender))
            return
        self._reporting = True
        name, began = self.id_of(message) or f"report-{self.world.number()}", self.driver.now
        lost = OF_A_FAULT if sender.session else timedelta(0)
        patience = dict.fromkeys(("again", adapter.BETWEEN_MODES), BETWEEN_MODES) | {adapter.ELSEWHERE: OF_A_FAULT}
        patience |= dict.fromkeys(("not found", adapter.NOT_REGISTERED), lost)

        def send(to: str, ended: str = "") -> None:
            self.driver.update(to, call.name, list(call.arguments), name, lambda answer: answered(to, ended, answer))

        def answered(to: str, ended: str, answer: Answer) -> None:
            if to != ENTITY and answer.kind == "not found":
                send(ENTITY, to)
            elif answer.kind == adapter.ELSEWHERE and answer.message != ended:
                send(answer.message)
            elif self.driver.now < began + patience.get(answer.kind, timedelta(0)):
                self.driver.after(0.1, lambda: send(to))
            else:
                self._heard(message, sender, to if not answer.kind else "")

        send(sender.ordered_by or ENTITY)

    @staticmethod
    def id_of(message: Message) -> str:
        """Returns the id by which a message is applied once; empty: each call is another message."""
        return message.id

    def _is_lost(self, message: Message, sender: Training) -> bool:
        """Returns whether a report is lost with its gateway, as the first of its kind is. Its repetition may be stored before
        it."""
        is_named = message.kind == self.world.knobs.lost and not self._lost
        if not is_named and not (message.once and self.driver.happens()):
            return False
        self._lost |= is_named
        self._answers_lost += message.kind == "status"
        self.world.moment(f"{message.kind} lost")
        sender.cut(silently=True)
        if not message.once:
            self.driver.after(self.driver.random.choice((8.0, 14.0, 20.0)), lambda: self._receive(message, sender))
        return True

    def _heard(self, message: Message, sender: Training, by: str) -> None:
        """Processes the answer to a report. `by` is the recovery that accepted it; empty: none did."""
        self._reporting = False
        if by:
            self._taken.setdefault(message.answers, self.driver.now)
            self._taken.setdefault((by, message.kind), self.driver.now)
        sender.heard(message)


class Watcher:
    """Sends the entity the news of the intake, one update at a time. It may be killed and restarted."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane, self._intake, self._life = plane, Intake(), 0
        self._alive, self._telling, self._name = True, False, ""
        plane.world.changed.append(self.look)
        plane.driver.after(0.0, self.look)
        plane.driver.after(RELIST, self._find_lost)

    def kill(self, seconds: float) -> None:
        self._alive, self._telling = False, False
        self._life += 1
        self._intake = Intake()
        self._plane.driver.after(seconds, self._start)

    def _start(self) -> None:
        self._alive = True
        self.look()

    def _find_lost(self) -> None:
        if self._alive and not self._plane.driver.running(ENTITY):
            self._intake.forget()
            self._gather()
        self._plane.driver.after(RELIST, self._find_lost)

    def look(self) -> None:
        """Reads the cluster, and processes it a moment later, in the order of the changes."""
        if self._alive:
            shown, life = view(self._plane.world, self._plane.labels), self._life

            def take() -> None:
                if life == self._life:
                    self._intake.look(shown)
                    self._gather()

            self._plane.driver.after(0.03, take)

    def _gather(self) -> None:
        news = None if self._telling else self._intake.due()
        if news is None:
            return
        if self._intake.is_urgent(news):
            self._tell()
        else:
            life = self._life
            self._plane.driver.after(GROWING, lambda: self._tell() if life == self._life else None)

    def _tell(self) -> None:
        driver, life = self._plane.driver, self._life
        news = None if self._telling else self._intake.due()
        if news is None:
            return
        self._telling = True
        if not self._intake.repeats(news):
            self._name = f"news-{self._plane.world.number()}"
        call = self._intake.sends(news)

        def answered(answer: Answer) -> None:
            if life == self._life:
                self._telling = False
                at_once = self._intake.answered(news, answer)
                driver.after(0.0 if at_once else AGAIN, lambda: self._gather() if life == self._life else None)

        if call.starts and not driver.running(ENTITY):
            driver.start(adapter.WORKFLOWS[0].__name__, ENTITY, call.starts)
        driver.update(ENTITY, call.name, list(call.arguments), self._name, answered)
