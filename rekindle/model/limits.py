"""Limits of all waits of all modes: unit, default and source. Resolved at the registration of a job and passed in every input."""

from datetime import timedelta
from typing import Self

from pydantic import Field, field_validator, model_validator

from rekindle.model.base import Written, no_truth

LONGEST = timedelta(days=3650)
"""Largest value of a limit. A workflow adds several of them to the present time, which has to remain a date. Source: ours."""


class Limits(Written):
    """Maximum duration of each wait, up to ten years. In YAML and JSON a limit is an ISO 8601 duration (`PT15M`) or a number of
    seconds."""

    backup_scheduled: timedelta = Field(default=timedelta(seconds=60), gt=timedelta(0))
    """Hot switch: time from the creation of the backup pod until it has a node. When exceeded, there is no spare. Source:
    ClusterD, hot switch."""

    drain_again: timedelta = Field(default=timedelta(seconds=60), ge=timedelta(seconds=1))
    """Drain: time from a hot switch that found no free node until the next one. Rekindle is not notified of free nodes; the
    pending backup pod of each try requests one. Source: ours."""

    backup_start: timedelta = Field(default=timedelta(minutes=10), gt=timedelta(0))
    """Time from the assignment of a node until the backup pod runs, including the pull of its image. When exceeded, the backup
    pod fails to run."""

    pause: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Time from the start of the backup pod until the report of the pause, which includes loading. Source:
    ClusterD, 15 minutes."""

    pause_lost: timedelta = Field(default=timedelta(seconds=90), gt=timedelta(0))
    """If reports may be lost: time after an outage that may have lost the report of the pause, until the state of the pods is
    read. A library whose report was lost gives up after 60 s, which is seen after 72 s. Source: tried with the real client."""

    pause_crossing: timedelta = Field(default=timedelta(seconds=2), gt=timedelta(0))
    """Time after the end of a backup pod in which a report of the pause may still arrive. If it does, training continues where it
    was, instead of from its last checkpoint. Source: ours."""

    old_pod_deleted: timedelta = Field(default=timedelta(seconds=20), gt=timedelta(0))
    """Time from the deletion of the old pod until it is gone. If the old pod must be gone before training resumes, this is part
    of `migration_delivered`."""

    migration_delivered: timedelta = Field(default=timedelta(seconds=25), gt=timedelta(0))
    """Time from the report of the pause until `migration` is on the stream. Real clients wait 30 s."""

    resume: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Time from `migration` until the report that training resumed. Source: ClusterD, 15 minutes."""

    order: timedelta = Field(default=timedelta(seconds=25), gt=timedelta(0))
    """Time in which the delivery of an order is retried before the mode is given up. Applies to clients that wait for a
    limited time, and to orders without which training can continue."""

    absence: timedelta = Field(default=timedelta(minutes=3), gt=timedelta(0))
    """Time in which the delivery of an order is retried that Rekindle's training side waits for, and of the first order of a hot
    switch. Our training side recovers by itself after a minute without orders, and accepts a late one. An outage of the control
    plane itself does not count. Source: ours."""

    status_lost: timedelta = Field(default=timedelta(minutes=3), gt=timedelta(0))
    """If reports may be lost: time after an outage that may have lost the last report of a recovery, until the training side is
    asked whether training continues. For `recover` this is the end of `repair`: if asked too early, it may still be at work.
    Source: ours."""

    stop: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Fault recovery: time from `stop_train` until the report that training has stopped. Source: ClusterD, 15 minutes."""

    settle: timedelta = Field(default=timedelta(seconds=1), ge=timedelta(0))
    """Fault recovery, if other components watch the devices: time from that report until the set of faults is final, unless all
    may be retried. Source: ClusterD, whose fault centre looks once a second."""

    release: timedelta = Field(default=timedelta(seconds=10), ge=timedelta(0))
    """Fault recovery, if other components watch the devices: time after `settle` in which NodeD releases the faulty devices.
    Source: ClusterD."""

    look: timedelta = Field(default=timedelta(seconds=5), gt=timedelta(0))
    """Fault recovery: time for the cluster to return the list of pods. When exceeded, the announcement of the faults names no pod
    that has to leave. Source: ours."""

    offers: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Fault recovery: time from the announcement of the faults until the training side reports the strategies that it offers.
    Source: ClusterD."""

    next_order: timedelta = Field(default=timedelta(seconds=30), gt=timedelta(0))
    """Time that a client waits for an order after its report, if it exits without one. Source: the job's environment."""

    retry: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Online retry: time from `retry` until the report that training continues. Source: ClusterD, 15 minutes."""

    repair: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Recovery of processes: time from `recover` until the report that training continues. A process may have to load first.
    Source: ClusterD, 15 minutes."""

    scale_in: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Elastic training: time from `downgrade` until the report that training continues without some replicas. Source: ClusterD,
    15 minutes."""

    scale_out: timedelta = Field(default=timedelta(minutes=20), gt=timedelta(0))
    """Elastic training: time from `upgrade` until the report that training continues with further replicas, which includes their
    loading. When exceeded, the job is restarted. Source: ours; our training side gives up after 15 minutes."""

    grow_again: timedelta = Field(default=timedelta(seconds=60), ge=timedelta(seconds=1))
    """Elastic training: time from an attempt to grow that found no free node, or failed, until the next one. It doubles with each
    further one, up to five times as long. Source: ours."""

    dump: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Dying gasp: time from `dump` until the report that the ranks that are left have saved their state. When exceeded, the job
    is restarted from its last checkpoint. Source: ClusterD, 15 minutes."""

    approval: timedelta = Field(default=timedelta(minutes=5), gt=timedelta(0))
    """Time in which a person may approve or deny a mode, if the job's owner wants to be asked. Then the owner's default holds. If
    the training side exits without an order, and stands, the time is shorter than `nextOrder`. Source: ours."""

    storm: timedelta = Field(default=timedelta(minutes=10), ge=timedelta(0))
    """Longest time for which a storm holds a mode that moves pods, unless a person approves it. 0: no mode is held. If the
    training side exits without an order, and stands, the time is shorter than `nextOrder`. Source: ours."""

    platform_strategy: timedelta = Field(default=timedelta(seconds=20), gt=timedelta(0))
    """Platform mode: time in which the platform names a strategy for a fault. Then the job's own strategies hold. Source: ours;
    ClusterD waits 300 s, and its client has left by then."""

    platform_result: timedelta = Field(default=timedelta(seconds=10), gt=timedelta(0))
    """Platform mode: time in which the platform answers the faults that it has to confirm, while training stands. Source: ours;
    ClusterD waits 300 s, and its client has left by then."""

    rank_table: timedelta = Field(default=timedelta(seconds=20), gt=timedelta(0))
    """Platform mode: time until the platform has prepared the rank table, while training stands. When exceeded, the next mode
    follows. Source: ours; ClusterD waits 300 s, and its client has left by then."""

    replacement_scheduled: timedelta = Field(default=timedelta(seconds=270), gt=timedelta(0))
    """Process rescheduling: time from the creation of a new pod until it has a node, while training stands. When exceeded, there
    is no spare. Source: ClusterD, 30 to 270 s."""

    pause_train: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Link switch and stress test: time from `pause_train` until the report that all ranks have stopped after the same step.
    Source: ClusterD, 15 minutes."""

    link_switch: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Link switch: time from the list of ranks until the report that all of them use their other link. Source: ClusterD, 15
    minutes."""

    stress_test: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Stress test: time from the list of ranks and checks until the report of the results. Source: ClusterD, 15 minutes."""

    continue_train: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Link switch and stress test: time from `continue` until the report that training continues. Source:
    ClusterD, 15 minutes."""

    report_lost: timedelta = Field(default=timedelta(seconds=3), gt=timedelta(0))
    """If reports may be lost: time after an outage that may have lost a report of the opening, until the opening continues
    without the report. The client answers within 0.2 s. An outage of 15 s took 18 s of the time that the client waits. Source:
    ours."""

    pods_deleted: timedelta = Field(default=timedelta(minutes=5), gt=timedelta(0))
    """Job rescheduling: time until the deletion of all pods is ordered. Time in which the cluster does not answer does not count,
    neither here nor in the limits below."""

    pods_stopped: timedelta = Field(default=timedelta(minutes=2), gt=timedelta(0))
    """Job rescheduling: time from the deletion of the pods until all are gone. Then they are deleted by force."""

    pods_created: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Job rescheduling: time from the end of the old pods until all new ones are created, by Rekindle or by the
    job's controller."""

    pods_running: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Job rescheduling: time from the creation of the pods until all of them run."""

    restart: timedelta = Field(default=timedelta(minutes=15), gt=timedelta(0))
    """Job rescheduling: time from running pods until the first completed step, or until the stream is attached if no step is
    reported."""

    node_lost: timedelta = Field(default=timedelta(seconds=20), ge=timedelta(0))
    """Time that a node may be not ready before it counts as lost. Skipped if a pod failed or the training side reported a fault.
    Source: ours; a kubelet that restarts is back within seconds."""

    pods_stay: timedelta = Field(default=timedelta(seconds=5), gt=timedelta(0))
    """Job rescheduling, if no step is reported: time that the pods must keep running after its stream is attached.
    Source: ours, from measured 1.6-2 s between the two."""

    node_incidents: timedelta = Field(default=timedelta(days=1), ge=timedelta(0))
    """Time in which a second incident, for which a node is to blame, sets it aside. 0: no node is set aside. Source: ours."""

    node_aside: timedelta = Field(default=timedelta(days=1), gt=timedelta(0))
    """Time for which a node that caused incidents again and again gets no new pods. Source: ours."""

    bounds_within: timedelta = Field(default=timedelta(hours=1), gt=timedelta(0))
    """Time in which the recoveries of a job are counted against their bounds. After 10 online retries its processes start again,
    after 50 recoveries of processes all pods do, and after 5 restarts it is given up. A shorter time tolerates more faults, and
    keeps a job longer that fails by its own fault. Source: ours."""

    given_up_pods: timedelta = Field(default=timedelta(days=1), ge=timedelta(0))
    """Time for which the pods of a job that was given up are kept for inspection. Then they are deleted, unless the controller of
    the job would create them again. 0: they are kept for ever. Source: ours."""

    clean_up: timedelta = Field(default=timedelta(seconds=60), gt=timedelta(0))
    """Time that a mode gets for its clean-up in addition to the sum of its limits, and the same again for its cancellation. Then
    it is terminated. Source: ours."""

    _no_truth = field_validator("*", mode="before")(no_truth)

    @field_validator("*")
    @classmethod
    def _is_a_time_that_comes(cls, limit: timedelta) -> timedelta:
        if limit > LONGEST:
            raise ValueError(f"must be at most P{LONGEST.days}D, ten years")
        return limit

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
