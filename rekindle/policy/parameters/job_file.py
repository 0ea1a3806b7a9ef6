"""Job objects as their owners write them: metadata, pod templates and containers of every kind of job that is known."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import yaml

from rekindle.errors import MALFORMED, BadInput
from rekindle.model import keys
from rekindle.model.limits import Limits
from rekindle.model.manifest import Loader
from rekindle.model.training_side import TrainingSide
from rekindle.policy.parameters.kinds.table import KINDS, KindRow, Steps
from rekindle.policy.parameters.reading import Document, as_text, mapping, number_of, sequence, text

CONTAINER = "ascend"
"""Name of the container into which the Ascend Operator injects variables."""

CONTAINERS = (CONTAINER, "pytorch")
"""Names that controllers ask for, of the container of the ranks."""

MOST_VALUES = 200_000
"""Maximum number of values in a document."""

LONGEST_NUMBER = 18
"""Maximum number of digits."""

LONGEST_SCRIPT = 100_000
"""Maximum number of characters of a script that is read as a shell reads it. Of a longer one only blanks count."""

MANAGER = "manager"
"""Replica type of pods of the training side's manager."""

UNBASED = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"[-+]?([0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|\.[0-9_]+([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$"
    ),
}
"""Patterns of numbers, without those in base 60."""

MOST_BYTES = 4_000_000
"""Maximum size of a file. An object of Kubernetes has at most 1.5 MB."""


class JobLoader(Loader):
    """YAML loader that also bounds what aliases expand to, and the length of numbers. It reads no number in base 60: Kubernetes
    reads `81078603:30` as text."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # PyYAML has it there
        first: [(tag, UNBASED.get(tag, pattern)) for tag, pattern in resolvers]
        for first, resolvers in Loader.yaml_implicit_resolvers.items()
    }

    def compose_document(self) -> yaml.Node | None:
        node = super().compose_document()
        if node is not None and _expanded(node, {}) > MOST_VALUES:
            raise BadInput(f"the file has too many values if its aliases are followed, accepted are at most {MOST_VALUES}")
        return node

    def construct_scalar(self, node: Any) -> str:
        value: str = super().construct_scalar(node)
        where = f"line {node.start_mark.line + 1}"
        if node.tag == "tag:yaml.org,2002:int" and len(value) > LONGEST_NUMBER:
            raise BadInput(f"{where}: a number of {len(value)} digits is not accepted (accepted: at most {LONGEST_NUMBER})")
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise BadInput(f"{where}: a text with half a surrogate pair is not accepted")
        return value


def _expanded(node: yaml.Node, known: dict[int, int]) -> int:
    """Returns the number of values of a node. One with aliases may have many more than it has lines, or have itself inside."""
    if id(node) not in known:
        known[id(node)] = MOST_VALUES  # as long as it is being counted
        inside = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = [part for one in inside for part in (one if isinstance(one, tuple) else (one,))]
        known[id(node)] = 1 + sum(_expanded(part, known) for part in parts)
    return known[id(node)]


ACCEPTED = ", ".join(f"{name} ({row.api})" for name, row in KINDS.items())
"""Kinds of jobs that are known, each with its API."""


@dataclass(frozen=True)
class Container:
    steps: Steps
    """Keys and numbers that lead to it in the document."""
    name: str
    variables: Mapping[str, str | None]
    """Environment variables by name. None: the value is not in the file, such as that of a field of the pod."""
    unquoted: frozenset[str]
    """Variables whose value is no string."""
    has_others: bool
    """True if variables come from elsewhere (`envFrom`)."""
    words: tuple[str, ...]
    """Command and arguments, and the words of a script that a shell is given."""
    ports: Mapping[str, Any]
    """Number of each named port."""
    mounts: Mapping[str, str]
    """Path of each mounted volume, by the name of the volume."""

    @property
    def path(self) -> str:
        return _path(self.steps)


@dataclass(frozen=True)
class Template:
    path: str
    role: str
    """Type of the replicas, such as `Master`. Empty: the kind has one type."""
    replicas: int
    labels: Mapping[str, Any]
    annotations: Mapping[str, Any]
    spec: Document
    containers: tuple[Container, ...]

    @property
    def trained(self) -> tuple[Container, ...]:
        """Container of the ranks: that with the name a controller asks for, or with accelerators, or the first one."""
        specs = sequence(self.spec.get("containers"))
        ranked = sorted(
            zip(self.containers, specs, strict=False),
            key=lambda pair: (_place(pair[0].name), not mapping(mapping(pair[1]).get("resources")).get("limits")),
        )
        return tuple(container for container, _ in ranked[:1])

    @property
    def is_manager(self) -> bool:
        """Returns whether its pods are the manager of the training side, which has no rank."""
        return self.labels.get(keys.REPLICA_TYPE) == MANAGER


@dataclass(frozen=True)
class JobFile:
    """Job of a file."""

    document: Document
    kind: str
    row: KindRow
    name: str
    labels: Mapping[str, Any]
    annotations: Mapping[str, Any]
    templates: tuple[Template, ...]
    others: tuple[Document, ...] | None = field(repr=False)
    """Objects of the file, the job included. None: it is read without a file."""
    limits: Limits = field(default_factory=Limits)
    """Limits of the installation that serves the job."""

    @property
    def containers(self) -> list[Container]:
        return [container for template in self.templates for container in template.containers]

    @property
    def workers(self) -> tuple[Template, ...]:
        """Templates of the pods that have ranks, those with the first ranks first."""
        return tuple(template for template in self.templates if not template.is_manager)

    @property
    def pods(self) -> int:
        """Number of pods that have ranks."""
        return sum(template.replicas for template in self.workers)

    @property
    def side(self) -> TrainingSide:
        """Training side of the job. An unknown one has its own finding, and counts as the usual one of the kind."""
        said = self.annotation(keys.TRAINING_SIDE)
        return TrainingSide(said) if said in set(TrainingSide) else self.row.side

    @property
    def has_taskd(self) -> bool:
        """Returns whether TaskD and MindIO are its training side."""
        return self.side is TrainingSide.MINDIO

    @property
    def is_manager(self) -> bool:
        """Returns whether its pods are the manager of another job."""
        return any(keys.MANAGER_OF in labels for labels in (self.labels, *(template.labels for template in self.templates)))

    def label(self, name: str) -> str | None:
        return text(self.labels.get(name))

    def annotation(self, name: str) -> str | None:
        return text(self.annotations.get(name))


def jobs_of(content: str) -> list[JobFile]:
    """Returns the jobs of a file, which may hold other objects too.

    Raises:
        BadInput: it is not YAML, or there is no job of a known kind in it.
    """
    documents = [one for one in _unfolded(_documents(content)) if isinstance(one, dict)]
    jobs = (_job(one, *named, tuple(documents)) for one in documents if (named := kind_of(one)) is not None)
    found = [job for job in jobs if not job.is_manager]
    if not found:
        there = ", ".join(sorted({text(one.get("kind")) or "an object without kind" for one in documents})) or "no object"
        raise BadInput(f"the file holds no training job but {there} (accepted: {ACCEPTED})")
    return found


def unknown_jobs(content: str) -> list[Document]:
    """Returns the objects of a file that are jobs by their name, of no kind that is known."""
    documents = (one for one in _unfolded(_documents(content)) if isinstance(one, dict))
    return [one for one in documents if kind_of(one) is None and re.search(r"Job(Set)?$", text(one.get("kind")) or "")]


def job_in(document: Document, limits: Limits) -> JobFile | None:
    """Returns the job that an object of a cluster is. None: it is none, or the manager of one."""
    named = kind_of(document)
    job = replace(_job(document, *named, None), limits=limits) if named else None
    return job if job and not job.is_manager else None


def _documents(content: str) -> list[object]:
    if len(content) > MOST_BYTES:
        raise BadInput(f"the file has {len(content)} characters, accepted are at most {MOST_BYTES}")
    try:
        return list(yaml.load_all(content, JobLoader))
    except (yaml.YAMLError, *MALFORMED) as error:
        raise BadInput(f"the file is not YAML: {type(error).__name__}: {error}") from error


def _unfolded(documents: list[object]) -> Iterator[object]:
    """Yields all objects, those of lists too, as `kubectl get -o yaml` prints them."""
    for document in documents:
        of = mapping(document)
        yield from sequence(of.get("items")) if str(of.get("kind", "")).endswith("List") else (document,)


def kind_of(document: Document) -> tuple[str, KindRow] | None:
    """Returns name and row of the kind of an object. None: it is no job."""
    kind, group = text(document.get("kind")) or "", (text(document.get("apiVersion")) or "").partition("/")[0]
    if kind == "Job" and group == "batch.volcano.sh":
        kind = "VolcanoJob"
    row = KINDS.get(kind)
    return (kind, row) if row is not None and row.api.partition("/")[0] == group else None


def _job(document: Document, kind: str, row: KindRow, others: tuple[Document, ...] | None) -> JobFile:
    metadata = mapping(document.get("metadata"))
    return JobFile(
        document=document,
        kind=kind,
        row=row,
        name=text(metadata.get("name")) or text(metadata.get("generateName")) or "",
        labels=mapping(metadata.get("labels")),
        annotations=mapping(metadata.get("annotations")),
        templates=tuple(_template(*found) for found in row.templates(mapping(document.get("spec")))),
        others=others,
    )


def _template(steps: Steps, role: str, replicas: object, body: object) -> Template:
    metadata, spec = (mapping(mapping(body).get(part)) for part in ("metadata", "spec"))
    is_template = steps[-1] == "template"
    containers = sequence(spec.get("containers"))
    return Template(
        path=_path(steps),
        role=role,
        replicas=number_of(replicas),
        labels=mapping(metadata.get("labels")),
        annotations=mapping(metadata.get("annotations")),
        spec=spec,
        containers=tuple(
            _container((*steps, "spec", "containers", number) if is_template else steps, mapping(one))
            for number, one in enumerate(containers)
        ),
    )


def _path(steps: Steps) -> str:
    return ".".join(map(str, steps))


def _place(name: str) -> int:
    return CONTAINERS.index(name) if name in CONTAINERS else len(CONTAINERS)


def _container(steps: Steps, container: Document) -> Container:
    variables = [mapping(one) for one in sequence(container.get("env"))]
    ports = [mapping(one) for one in sequence(container.get("ports"))]
    mounts = [mapping(one) for one in sequence(container.get("volumeMounts"))]
    return Container(
        steps=steps,
        name=text(container.get("name")) or "",
        variables={str(one.get("name", "")): None if "valueFrom" in one else as_text(one.get("value", "")) for one in variables},
        unquoted=frozenset(
            str(one.get("name", "")) for one in variables if "valueFrom" not in one and not isinstance(one.get("value", ""), str)
        ),
        has_others=bool(container.get("envFrom")),
        words=_words(tuple(map(as_text, [*sequence(container.get("command")), *sequence(container.get("args"))]))),
        ports={str(one.get("name", "")): one.get("containerPort") for one in ports},
        mounts={str(one.get("name", "")): str(one.get("mountPath", "")) for one in mounts},
    )


@lru_cache(maxsize=16)
def _words(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the words of a command line. An argument with blanks is a script for a shell."""
    return tuple(
        word for argument in arguments for word in (_of_script(argument) if " " in argument or "\n" in argument else [argument])
    )


def _of_script(script: str) -> Iterator[str]:
    """Yields the words of a script, and those inside its assignments and quotes."""
    joined = script.replace("\\\n", " ")
    found = _of_shell(joined) if len(joined) <= LONGEST_SCRIPT else joined.split()
    for word in found:
        yield from re.sub(r"^\w+=(?=--)", "", word).split()


def _of_shell(joined: str) -> list[str]:
    lexer = shlex.shlex(joined, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:  # quotes that do not end, such as those of a text inside
        return joined.split()
