"""Every wait of every mode: unit, default and source. Resolved once, when a job is registered, and carried in every input."""

from datetime import timedelta
from typing import Self

from pydantic import Field, field_validator, model_validator

from rekindle.model.base import Written, no_truth


class Limits(Written):
    """How long each wait may take. In YAML and JSON a limit is an ISO 8601 duration (`PT15M`) or a number of seconds."""

    backup_scheduled: timedelta = Field(default=timedelta(seconds=60), gt=timedelta(0))
    """From the creation of the backup pod until it has a node. Beyond it: no spare. Source: ClusterD, hot switch."""

    drain_again: timedelta = Field(default=timedelta(seconds=60), ge=timedelta(seconds=1))
    """On a node that is to be left: from a hot switch that found no free node until the next. Of free nodes elsewhere nothing is
    told; the pending backup pod of a try is the request for one. Source: ours."""

    backup_start: timedelta = Field(default=timedelta(minutes=10), gt=timedelta(0))
    """From the node until the backup pod runs; an image may have to be pulled. Beyond it: the backup pod fails to run."""

    pause: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """From the moment when the backup pod runs until the report of the pause; covers loading. Source: ClusterD, 15 minutes."""

    pause_lost: timedelta = Field(default=timedelta(seconds=90), gt=timedelta(0))
    """MindIO: after an outage in which the report of the pause may have been lost, until it is looked whether the pods still run.
    A library whose report was lost gives up after 60 s, seen after 72 s. Source: tried with the real client."""

    pause_crossing: timedelta = Field(default=timedelta(seconds=2), gt=timedelta(0))
    """After the end of a backup pod: how long a report of the pause may take that crossed it. Then training goes on where it was,
    instead of from its last checkpoint. Source: ours."""

    old_pod_deleted: timedelta = Field(default=timedelta(seconds=20), gt=timedelta(0))
    """From the deletion of the old pod until it is gone. With MindIO it counts against `migration_delivered`."""

    migration_delivered: timedelta = Field(default=timedelta(seconds=25), gt=timedelta(0))
    """From the report of the pause until `migration` is on the stream. MindIO waits 30 s (MINDIO_WAIT_MINDX_TIME)."""

    resume: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """From `migration` until the report that training resumed. Source: ClusterD, 15 minutes."""

    order: timedelta = Field(default=timedelta(seconds=25), gt=timedelta(0))
    """Time in which an order is tried before the mode is given up: the patience of MindIO, and of training that may be left
    alone."""

    absence: timedelta = Field(default=timedelta(minutes=3), gt=timedelta(0))
    """Time in which an order is tried that our own training side waits for, and the first one of a hot switch. Ours mends itself
    after a minute without orders, and bears one that comes late. Time in which the control plane itself is away does not count.
    Source: ours."""

    status_lost: timedelta = Field(default=timedelta(minutes=3), gt=timedelta(0))
    """MindIO: after an outage in which the last report of a recovery may have been lost, until training is asked whether it goes
    on; behind `recover` that is the end of `repair`. Who is asked too soon may be in the middle of it. Source: ours."""

    stop: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Fault recovery: from `stop_train` until the report that training has stopped. Source: ClusterD, 15 minutes."""

    settle: timedelta = Field(default=timedelta(seconds=1), ge=timedelta(0))
    """Fault recovery with MindIO: from that report until the faults are taken as they are, unless all may be retried. Source:
    ClusterD; its fault centre looks once a second."""

    release: timedelta = Field(default=timedelta(seconds=10), ge=timedelta(0))
    """Fault recovery with MindIO: behind `settle`, for NodeD to release the faulty devices. Source: ClusterD."""

    look: timedelta = Field(default=timedelta(seconds=5), gt=timedelta(0))
    """Fault recovery: how long the cluster may take to say which pods are there. Beyond it none of them is told to leave when
    the faults are announced. Source: ours."""

    offers: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Fault recovery: from the announcement of the faults until the report of what the training side offers. Source: ClusterD."""

    next_order: timedelta = Field(default=timedelta(seconds=30), gt=timedelta(0))
    """How long a MindIO client waits for an order after its report: MINDIO_WAIT_MINDX_TIME of the job."""

    retry: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Online retry: from `retry` until the report that training goes on. Source: ClusterD, 15 minutes."""

    repair: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Recovery of processes: from `recover` until the report that training goes on; a process may have to load. Source: ClusterD,
    15 minutes."""

    replacement_scheduled: timedelta = Field(default=timedelta(seconds=270), gt=timedelta(0))
    """Process rescheduling: from the creation of a new pod until it has a node, while training stands. Beyond it: no spare.
    Source: ClusterD, 30 to 270 s."""

    pause_train: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Link switch, stress test: from `pause_train` until the report that all ranks stand behind one step. Source: ClusterD, 15
    minutes."""

    link_switch: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Link switch: from the list of ranks until the report that all of them use their other link. Source: ClusterD, 15
    minutes."""

    stress_test: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Stress test: from the list of ranks and their checks until the report of what was found. Source: ClusterD, 15 minutes."""

    continue_train: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Link switch, stress test: from `continue` until the report that training goes on. Source: ClusterD, 15 minutes."""

    report_lost: timedelta = Field(default=timedelta(seconds=3), gt=timedelta(0))
    """MindIO: after an outage in which a report of the opening may have been lost, until it goes on without it. Source: ours; the
    client answers within 0.2 s, and an outage of 15 s has cost 18 s of its patience."""

    pods_deleted: timedelta = Field(default=timedelta(minutes=5), gt=timedelta(0))
    """Job rescheduling: until the deletion of all pods is ordered. Time in which the cluster does not answer does not count,
    neither here nor in the limits below."""

    pods_stopped: timedelta = Field(default=timedelta(minutes=2), gt=timedelta(0))
    """Job rescheduling: from the deletion of the pods until all are gone; then they are forced."""

    pods_created: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Job rescheduling: from the end of the old pods until all new ones are made, by us or by the job's controller."""

    pods_running: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Job rescheduling: from the creation of the pods until all of them run."""

    restart: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Job rescheduling: from running pods until the first completed step (MindIO: until its stream is attached)."""

    node_lost: timedelta = Field(default=timedelta(seconds=20), ge=timedelta(0))
    """How long a node may be not ready until it counts as lost. Skipped when a pod failed or the training side reported a fault.
    Source: ours; a kubelet that restarts is back within seconds."""

    pods_stay: timedelta = Field(default=timedelta(seconds=5), gt=timedelta(0))
    """Job rescheduling with MindIO, which tells no step: how long the pods must run on once its stream is attached. Source: ours,
    from measured 1.6-2 s between the two."""

    clean_up: timedelta = Field(default=timedelta(seconds=60), gt=timedelta(0))
    """Beyond the sum of a mode's limits: for its clean-up, and again for its cancellation; then it is ended. Source: ours."""

    _no_truth = field_validator("*", mode="before")(no_truth)

    @model_validator(mode="after")
    def _patience_of_the_training_side(self) -> Self:
        if self.old_pod_deleted >= self.migration_delivered:
            raise ValueError(
                f"oldPodDeleted ({self.old_pod_deleted}) must be shorter than migrationDelivered "
                f"({self.migration_delivered}): the order `migration` waits for the deletion"
            )
        return self

    @model_validator(mode="after")
    def _patience_while_faults_settle(self) -> Self:
        if self.settle + self.release + self.look >= self.next_order:
            raise ValueError(
                f"settle ({self.settle}), release ({self.release}) and look ({self.look}) must together be shorter than "
                f"nextOrder ({self.next_order}): the training side leaves when no order comes in that time"
            )
        return self
