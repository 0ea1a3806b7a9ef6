"""Generates docs/parameters.md from the catalog of parameters and the tables of variables.

`make parameters` runs it; a test fails while the committed page says something else.
"""

from itertools import product
from pathlib import Path

from docs.settings import row
from rekindle.model.job import Framework
from rekindle.policy.parameters.catalog import PARAMETERS, STRATEGIES, Place
from rekindle.policy.parameters.environment import Table, variables

PAGE = Path(__file__).with_name("parameters.md")

HEAD = """\
# Parameters of a job

Generated from the code by `make parameters`.

A job carries these labels, annotations, variables and arguments, as MindCluster has them. Those of Rekindle alone are in
[settings](settings.md#labels-and-annotations). Check a file before you apply it:

```sh
rekindle check job.yaml         # wrong, misspelt and contradictory settings, each with what to write
rekindle render job.yaml        # the variables that would be injected, and the modes that the job can have
rekindle parameters -o json     # a JSON schema of labels and annotations
```

`check` reads AscendJob, Volcano's Job, Job, JobSet, PyTorchJob, TrainJob and TrainingJob. Rekindle serves no job of Volcano: of
those only the parameters of MindCluster are checked. Other objects of the file are read too, such as the ConfigMap of an
AscendJob. An error is a setting that does not work, and the exit code is 2. A warning is a setting that probably does not do what
its owner expects.
"""

OF_PLACE = """
## {title}

| name | accepted | default | effect | modes |
|---|---|---|---|---|
"""
TITLES = {
    Place.LABEL: "Labels of the job",
    Place.ANNOTATION: "Annotations of the job",
    Place.VARIABLE: "Environment variables of its container",
    Place.SCRIPT: "Arguments of the training script",
    Place.LAUNCHER: "Arguments of torchrun",
}

INJECTED = """
## Variables that follow from the strategies

The first table is the published one. The second one is what the Ascend Operator does where it differs; `render` shows that one,
or the published one with `--table published`. The words of several strategies are in one variable, sorted. The
[admission webhook](webhook.md) adds the variables of the second one to jobs that the Ascend Operator does not know.

| strategy | framework | published | operator |
|---|---|---|---|
"""


def page() -> str:
    """Returns the page as it should be."""
    lines = [HEAD]
    for place, title in TITLES.items():
        lines.append(OF_PLACE.format(title=title))
        for one in (one for one in PARAMETERS if one.place is place):
            modes = ", ".join(mode.value for mode in one.modes) or "-"
            lines.append(row(f"`{one.name}`", one.values.accepted, one.default or "-", one.effect, modes))
    lines.append(INJECTED)
    frameworks = (Framework.PYTORCH, Framework.MINDSPORE)
    for word, framework in product(STRATEGIES, frameworks):
        found = [variables([word], framework, table=table) for table in Table]
        lines.append(row(f"`{word}`", framework, *map(_written, found)))
    for words, options in (("`subHealthyStrategy=hotSwitch`", (False, True)), ("`pod-rescheduling=on`", (True, False))):
        for framework in frameworks:
            found = [variables([], framework, pod_rescheduling=options[0], hot_switch=options[1], table=table) for table in Table]
            lines.append(row(words, framework, *map(_written, found)))
    return "".join(lines)


def _written(found: dict[str, str]) -> str:
    return "<br>".join(f"`{name}={value}`" for name, value in sorted(found.items())) or "-"


if __name__ == "__main__":
    PAGE.write_text(page())
