"""Collects the commands of `rekindle demo`."""

from rekindle.cli.demos import device_check, elastic, node_drain, snapshots
from rekindle.cli.demos.commands import demo_app

demo_app.command(device_check.stress_test, name="stress-test")
demo_app.command(node_drain.drain, name="drain")
demo_app.command(elastic.elastic, name="elastic")
demo_app.command(snapshots.snapshots, name="snapshots")

__all__ = ["demo_app"]
