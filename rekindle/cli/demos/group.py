"""Collects the commands of `rekindle demo`."""

from rekindle.cli.demos import device_check, node_drain
from rekindle.cli.demos.commands import demo_app

demo_app.command(device_check.stress_test, name="stress-test")
demo_app.command(node_drain.drain, name="drain")

__all__ = ["demo_app"]
