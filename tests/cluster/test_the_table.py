"""The table of kinds: what follows from it, and that no other module knows a kind."""

import ast
from pathlib import Path

import pytest

from activities.clusters.kubernetes import kinds
from activities.clusters.kubernetes.kind import Kind
from activities.clusters.kubernetes.kinds import ALL_KINDS, KINDS
from activities.clusters.kubernetes.reader import Reader
from activities.clusters.kubernetes.rights import OF_JOBS, OWN, rights_of
from deploy.rights import TARGET, generated
from rekindle.errors import BadInput
from rekindle.model.job import TRAITS_BEFORE, Trait
from rekindle.model.keys import JOB_ID
from rekindle.settings import Settings
from tests.fakes.gang_kind import GANG
from tests.support.cluster import ROOT

SERVE_OUR_OWN = {"workers/operator.py", "simulators/kubernetes/console.py"}
ROWS = set(kinds.__all__) - {"ALL_KINDS", "KINDS"}
WORDS = {kind.name for kind in KINDS} - {"Job"}
"""Names of all kinds but `Job`, which our own objects use for a job of any kind."""


def code() -> list[Path]:
    """Returns the files of all code that decides about jobs or acts on them."""
    folders = (ROOT / name for name in ("activities", "workflows", "workers", "rekindle/policy"))
    files = [file for folder in folders for file in folder.rglob("*.py")]
    return [file for file in files if file.parent.name != "kinds" and str(file.relative_to(ROOT)) not in SERVE_OUR_OWN]


def test_no_kind_is_known_outside_of_its_own_file() -> None:
    """No kind is known outside of its own file: no other module imports a row or compares with its name. Differences between
    kinds are read from the row."""
    for file in code():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("activities.clusters.kubernetes.kinds"):
                assert not ROWS & {alias.name for alias in node.names}, file
            assert not (isinstance(node, ast.Constant) and node.value in WORDS), file


def test_a_smaller_size_frees_a_node_where_no_controller_fills_it() -> None:
    """People make jobs of other kinds smaller by their own field, when they are stopped."""
    assert {kind.name for kind in ALL_KINDS if not kind.count.makes_pods} == {"TrainingJob", "Pods"}


def test_rights_are_those_of_the_table() -> None:
    """The committed file is the generated one: `make rights`."""
    assert TARGET.read_text() == generated()


@pytest.mark.parametrize("account", OWN)
def test_a_new_kind_has_its_rights_by_its_row(account: str) -> None:
    """Each account that looks at jobs has the same rights for it as for the other kinds, and no account has more."""
    new = set(rights_of(account, (*ALL_KINDS, GANG))) - set(rights_of(account))
    wanted = {("gangs.example.com", "gangs", OF_JOBS[account])} if account in OF_JOBS else set()
    assert {(right.group, right.resource, right.verbs) for right in new} == wanted


@pytest.mark.parametrize("kind", ["TrainingJob", "Pods", "pytorchjob"])
def test_a_label_is_named_for_kinds_that_have_one(kind: str) -> None:
    """A setting without effect is refused with what is accepted."""
    accepted = ", ".join(sorted(kind.name for kind in KINDS if kind.pod_label != JOB_ID))
    with pytest.raises(BadInput, match=f"REKINDLE_JOB_KEYS: kind '{kind}' is not accepted, use {accepted}"):
        Reader(None, Settings(job_keys={kind: "job-name"}))  # type: ignore[arg-type]


LATER = {Trait.CONTRACT_WORDS}


@pytest.mark.parametrize("kind", [kind for kind in ALL_KINDS if kind.name in TRAITS_BEFORE], ids=lambda kind: kind.name)
def test_a_job_that_was_registered_before_has_the_traits_of_its_kind(kind: Kind) -> None:
    """Histories and memories of older versions do not contain them. A later trait is not among them, so that their commands stay
    the same."""
    assert set(TRAITS_BEFORE[kind.name]) == set(kind.traits) - LATER
