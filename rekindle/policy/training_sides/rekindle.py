"""Rekindle's own training side: the manager and the adapter of `rekindle_training`."""

from rekindle.policy.training_sides.row import TrainingSideRow

REKINDLE = TrainingSideRow(
    label="Rekindle's own training side",
    keeps_every_order=True,
    repeats_reports=True,
    waits_for_orders=True,
    successor_continues=True,
    reports_its_steps=True,
    acts_unasked=True,
    pods_leave=False,
    devices_settle=False,
    controller_recreates=False,
    usually_allows=lambda _job, _strategy: True,
    registers=lambda _: True,
    accepts_another=lambda _: True,
    still_saves=lambda _: True,
    restarts_in_pods=True,
    fences_old_processes=True,
    takes_backups=False,
    hears_of_backups=True,
    survives_stop=True,
    reports_its_fault=True,
    goes_on_by_itself=True,
    holds_agents=False,
    scales_at_will=True,
)
