"""Generates the rules of access of the chart from the table of rights. `make rights` runs it; a test fails while the committed
file says something else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from activities.clusters.kubernetes.kind import Kind, Right
from activities.clusters.kubernetes.kinds import ALL_KINDS
from activities.clusters.kubernetes.rights import OWN, is_of_cluster, rights_at_home, rights_of

TARGET = Path(__file__).resolve().parent / "helm" / "rekindle" / "templates" / "_rights.tpl"

HEAD = """\
{{- /* What each account may do; rbac.yaml binds it. Generated from the table of rights: `make rights`. */ -}}
"""

PART = """
{{{{- define "rekindle.rights.{account}.{part}" }}}}
{rules}
{{{{- end }}}}
"""


def generated(kinds: Sequence[Kind] = ALL_KINDS) -> str:
    """Returns the file."""
    return HEAD + "".join(_parts(account, tuple(rights_of(account, kinds))) for account in OWN)


def _parts(account: str, rights: Sequence[Right]) -> str:
    """Returns the rules of an account: those that a Role in a namespace can grant, the others, and those at home."""
    parts: dict[str, list[str]] = {"inNamespaces": [], "ofCluster": []}
    for right in rights:
        parts["ofCluster" if is_of_cluster(right) else "inNamespaces"].append(_rule(right))
    parts["atHome"] = [_rule(right) for right in rights_at_home(account)]
    return "".join(PART.format(account=account, part=part, rules="\n".join(rules)) for part, rules in parts.items())


def _rule(right: Right) -> str:
    group = right.group or '""'
    names = f", resourceNames: [{', '.join(right.names)}]" if right.names else ""
    return f"- {{apiGroups: [{group}], resources: [{right.resource}]{names}, verbs: [{', '.join(right.verbs)}]}}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when the committed file differs")
    if not parser.parse_args().check:
        TARGET.write_text(generated())
    elif TARGET.read_text() != generated():
        print(f"{TARGET.name} differs from the table of rights, run `make rights`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
