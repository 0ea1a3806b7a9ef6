"""The page about upgrades of switches shows a valid plan and existing commands."""

import re
import shlex

import pytest

from rekindle.cli.app import app
from rekindle.model.plan_file import parse
from rekindle.policy.operations.switch_upgrade import problems
from tests.docs.test_readme import ROOT, commands

PAGE = "docs/switch-upgrade.md"


def test_the_plan_of_the_page_is_right() -> None:
    """Each field of it is valid, and all of them together."""
    (written,) = re.findall(r"```yaml\n(.*?)```", (ROOT / PAGE).read_text(), re.DOTALL)
    plan = parse(written)
    assert (plan.switch, len(plan.leaves), problems(plan)) == ("tor-7", 2, ())


@pytest.mark.parametrize("line", commands(PAGE))
def test_every_command_of_the_page_is_understood(line: str) -> None:
    """Command, arguments and options are those of the command line."""
    app.parse_args(shlex.split(line)[1:], exit_on_error=False, print_error=False)
