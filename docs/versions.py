"""Generates docs/versions.md: which versions fit together, from the table of versions and the table of kinds.

`make versions` runs it; a test fails while the committed page says something else.
"""

from pathlib import Path

from activities.clusters.kubernetes.kinds import KINDS
from docs.settings import row
from rekindle import __version__
from rekindle.model.compatibility import TABLE

PAGE = Path(__file__).with_name("versions.md")

HEAD = """\
# Versions that fit together

Generated from the code by `make versions`.

Each pair is checked where it connects. What does not fit is refused or warned of, with both versions and what is accepted.
`rekindle doctor` examines all of them at once.

| part | accepted | tried | checked by | otherwise |
|---|---|---|---|---|
"""

OF_KINDS = """
## Kinds of jobs

A cluster has to serve these versions of the kinds that it has. A version that is not served means that jobs of that kind are not
seen. `rekindle doctor` names it. Our own kind is needed by the operator. It is not ready while the cluster does not serve it.

| kind | version |
|---|---|
"""

RELEASES = f"""
## Releases of Rekindle

- **Control worker, gateway, watcher, operator and webhook** are one image, and of one release. While an installation is upgraded,
  two releases serve side by side ([upgrade](kubernetes.md#upgrade-and-back)).
- **Client and commands** work with control workers of another release. What only one of the two has does not work.
  `rekindle doctor` warns of two releases.
- **The training side** in images of jobs may be of another release with the same protocol. This release is {__version__}.
- **MindCluster's components** speak ClusterD's contract, which has no version.
"""


def page() -> str:
    """Returns the page as it should be."""
    rows = [row(fit.part.removeprefix("the "), fit.accepted, ", ".join(fit.tried), fit.checked, fit.otherwise) for fit in TABLE]
    kinds = [row(kind.name, f"`{kind.api_version}`") for kind in KINDS]
    return "".join([HEAD, *rows, OF_KINDS, *kinds, RELEASES])


if __name__ == "__main__":
    PAGE.write_text(page())
