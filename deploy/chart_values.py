"""Values of the chart `deploy/helm/rekindle`, one row each: name, default, type, and what is accepted.

`values.yaml`, `values.schema.json`, the table of the chart's README and the names that the chart knows come from these rows.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from activities.clusters.kubernetes.kinds import KINDS
from rekindle.model.keys import JOB_ID
from rekindle.model.limits import Limits

Json = dict[str, Any]

WIDTH = 118

QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"

_NUMBER = r"[0-9]{1,12}(\.[0-9]{1,6})?"
_TIME = rf"([0-9]+H([0-9]+M)?({_NUMBER}S)?|[0-9]+M({_NUMBER}S)?|{_NUMBER}S)"
SECONDS_OR_ISO = rf"^({_NUMBER}|P[0-9]+D(T{_TIME})?|PT{_TIME})$"

_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_HOST = r"([A-Za-z0-9_.-]+|\[[0-9a-fA-F:.]+\])"
HOST_AND_PORT = f"^{_HOST}:{_PORT}$"
ENDPOINT = rf"^https?://{_HOST}(:{_PORT})?(/\S*)?$"

STRINGS: Json = {"type": "object", "additionalProperties": {"type": "string"}}
TOLERATIONS: Json = {
    "type": "array",
    "items": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "key": {"type": "string"},
            "operator": {"enum": ["Exists", "Equal", "Lt", "Gt"]},
            "value": {"type": "string"},
            "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
            "tolerationSeconds": {"type": "integer"},
        },
    },
}
AFFINITY: Json = {
    "type": "object",
    "additionalProperties": False,
    "properties": {name: {"type": "object"} for name in ("nodeAffinity", "podAffinity", "podAntiAffinity")},
}
ENVIRONMENT: Json = {
    "type": "array",
    "items": {
        "type": "object",
        "additionalProperties": False,
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "pattern": "^[A-Za-z_.-][A-Za-z0-9_.-]*$"},
            "value": {"type": "string"},
            "valueFrom": {"type": "object"},
        },
    },
}
RESOURCE = r"^(cpu|memory|ephemeral-storage|hugepages-[0-9]+[KMGT]i|[a-z0-9.-]+/[A-Za-z0-9._-]+)$"
QUANTITIES: Json = {
    "type": "object",
    "patternProperties": {RESOURCE: {"type": ["string", "number"], "pattern": QUANTITY, "minimum": 0}},
    "additionalProperties": False,
}
PORTS: Json = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 65535}}
TEXT: Json = {"type": "string"}
YES_OR_NO: Json = {"type": "boolean"}
TEXTS: Json = {"type": "array", "items": TEXT}


@dataclass(frozen=True)
class Row:
    """Value of the chart."""

    name: str
    """Path from the root, with dots."""

    default: Any
    schema: Json
    words: str
    """Meaning, as a phrase or sentences."""

    pattern: str = ""
    """Regular expression of a text, or of each text of a list or mapping. Checked by the chart itself. A text that is the whole
    value may be empty if its default is."""

    accepted: str = ""
    """Texts that fit the pattern, for the message of one that does not fit."""

    is_open: bool = field(default=False)
    """True if names below this one are the user's, as in a mapping of labels."""


def between(least: int, most: int) -> Json:
    return {"type": "integer", "minimum": least, "maximum": most}


def one_of(*texts: str) -> Json:
    return {"enum": list(texts)}


NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
OF_NAMES = "a name of lower-case letters, digits, - and ."
NAMESPACE = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
SERVICE = r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"
_PATH = "[a-z0-9]+([._-]+[a-z0-9]+)*"
REPOSITORY = f"^([A-Za-z0-9.-]+(:[0-9]+)?/)?{_PATH}(/{_PATH})*$"
IMAGE = r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$"
LABEL = r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"

LABELLED = sorted(kind.name for kind in KINDS if kind.pod_label != JOB_ID)
"""Kinds whose pods are found by a label."""

_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_OF_4 = rf"({_OCTET}\.){{3}}{_OCTET}(/(3[0-2]|[12]?[0-9]))?"
_H = "[0-9a-fA-F]{1,4}"
_AROUND_ZEROS = "|".join(f"({_H}:){{1,{7 - after}}}(:{_H}){{1,{after}}}" for after in range(1, 7))
_OF_6 = f"(({_H}:){{7}}{_H}|({_H}:){{1,7}}:|{_AROUND_ZEROS}|:(:{_H}){{1,7}}|::)(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?"
NETWORK = f"^({_OF_4}|{_OF_6})$"

GROUPS: Mapping[str, str] = {
    "image": "Image of all processes.",
    "temporal": "Temporal service. Its namespace must exist. Either an address, or the trial below.",
    "temporal.tls": "Mutual TLS.",
    "temporal.apiKey": "API key, over TLS.",
    "temporal.trial": (
        "Temporal on a single node, for a trial: one process with a database in a file. It is not for production: while its pod "
        "is away no recovery begins or goes on, and nobody backs the file up."
    ),
    "temporal.trial.storage": "Volume of its database.",
    "rules": "Rules that decide which states of nodes and pods are faults.",
    "storm": "Brakes on recoveries that move pods.",
    "limits": "Limits of waits, by name: seconds or an ISO 8601 duration. Those of a job have precedence (docs/settings.md).",
    "log": "Logs of all processes.",
    "service": "Service at which training sides find the gateways.",
    "tracing": "Traces of incidents, by OTLP over HTTP.",
    "control": "Control workers: they run the recoveries.",
    "control.autoscaling": (
        "Replicas by the backlog of Temporal's task queue: a ScaledObject of KEDA 2.20 or newer, which must be installed."
    ),
    "gateway": "Gateways: they hold the streams of training sides.",
    "watcher": "Watcher: tells the workflows what the cluster shows. There is one.",
    "operator": "Operator: makes the pods of TrainingJobs. There is one.",
    "webhook": "Admission webhook: it refuses wrong jobs, and adds variables to new ones (docs/webhook.md).",
    "webhook.certManager": "cert-manager.",
    "rbac": "Rights of the processes.",
    "shared": "Objects that a cluster has once. Switch them off where another release has them already.",
    "flowControl": "Share of the API server's capacity that is ours alone.",
    "disruptionBudgets": "Disruption budgets of control workers and gateways, where there are several.",
    "networkPolicy": "Network policies for our pods.",
    "podMonitor": "PodMonitor of the Prometheus operator, which must be installed.",
    "prometheusRule": "Alerts, as a PrometheusRule of the Prometheus operator, which must be installed.",
    "dashboards": "Dashboards, as ConfigMaps that Grafana's sidecar loads.",
    "test": "`helm test`: a hot switch of a small job of two pods, which needs two nodes that take pods.",
}


def _process(name: str, requests: Json, memory: str) -> Iterator[Row]:
    yield Row(f"{name}.resources.requests", requests, QUANTITIES, "Requests of the container.", is_open=True)
    yield Row(
        f"{name}.resources.limits",
        {"memory": memory},
        QUANTITIES,
        "Limits of the container. None of CPU: a throttled process loses seconds while training is paused.",
        is_open=True,
    )
    yield Row(f"{name}.nodeSelector", {}, STRINGS, "Labels of the nodes that may run it.", is_open=True)
    yield Row(
        f"{name}.tolerations",
        [],
        TOLERATIONS,
        "Tolerations, besides those that replace a pod of a lost node after 10 seconds.",
    )
    yield Row(f"{name}.affinity", {}, AFFINITY, "Affinity, as in a pod.", is_open=True)
    yield Row(f"{name}.env", [], ENVIRONMENT, "Further environment variables, as in a container.")


def _limits() -> Iterator[Row]:
    for one in Limits.model_fields.values():
        name = str(one.alias)
        is_positive = any(hasattr(bound, "gt") for bound in one.metadata)
        yield Row(
            f"limits.{name}",
            "",
            {"type": ["string", "number"], "exclusiveMinimum" if is_positive else "minimum": 0},
            f"Limit `{name}`. Empty: the product's own.",
            SECONDS_OR_ISO,
            "seconds, or an ISO 8601 duration such as PT15M",
        )


ROWS: Sequence[Row] = (
    Row(
        "image.repository", "rekindle-control-plane", TEXT, "Name, with the registry.", REPOSITORY, "a name without tag or digest"
    ),
    Row(
        "image.tag",
        "",
        TEXT,
        "Tag. Empty: the version of the chart's application.",
        r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$",
        "a tag",
    ),
    Row(
        "image.digest",
        "",
        TEXT,
        "Digest; exactly this image is run, whatever its tag.",
        r"^sha256:[0-9a-f]{64}$",
        "sha256: and 64 hexadecimal digits",
    ),
    Row("image.pullPolicy", "", one_of("", "Always", "IfNotPresent", "Never"), "Pull policy. Empty: Kubernetes' own."),
    Row("image.pullSecrets", [], TEXTS, "Names of Secrets with which the image is pulled.", NAME, OF_NAMES),
    Row(
        "temporal.address",
        "",
        TEXT,
        "Host and port of its frontend.",
        HOST_AND_PORT,
        "HOST:PORT, such as temporal-frontend.temporal.svc:7233",
    ),
    Row("temporal.namespace", "default", {"type": "string", "minLength": 1}, "Namespace of Temporal, which is one installation."),
    Row("temporal.serverName", "", TEXT, "Name in the server's certificate. Empty: the host of the address."),
    Row("temporal.tls.secretName", "", TEXT, "Secret with `tls.crt`, `tls.key` and `ca.crt`.", NAME, OF_NAMES),
    Row("temporal.apiKey.secretName", "", TEXT, "Secret with the key `TEMPORAL_API_KEY`.", NAME, OF_NAMES),
    Row(
        "temporal.ui",
        "",
        TEXT,
        "Address of Temporal's web UI, for the links that commands print.",
        r"^https?://[^\s/@]+(/\S*)?$",
        "an address such as https://temporal.example.com, without a password",
    ),
    Row("temporal.trial.enabled", False, YES_OR_NO, "Install it."),
    Row("temporal.trial.image", "", TEXT, "Image whose command `temporal` is Temporal's CLI.", IMAGE, "an image with its tag"),
    Row("temporal.trial.storage.size", "5Gi", TEXT, "Size.", QUANTITY, "a quantity such as 5Gi"),
    Row("temporal.trial.storage.className", "", TEXT, "StorageClass. Empty: that of the cluster.", NAME, OF_NAMES),
    Row(
        "namespaces",
        [],
        TEXTS,
        "Namespaces whose jobs are served. Empty: all.",
        NAMESPACE,
        "a name of lower-case letters, digits and -",
    ),
    Row("observe", False, YES_OR_NO, "Decide, and show what would be done, but order nothing and touch no pod."),
    Row(
        "takeOver",
        False,
        YES_OR_NO,
        "Serve jobs although a ClusterD keeps its Service. The gateways need a Service of another name: `service.name`.",
    ),
    Row(
        "contractWords",
        False,
        YES_OR_NO,
        "Write what MindCluster's components read of a recovery. The namespace `cluster-system` has to be there.",
    ),
    Row(
        "rules.set",
        "plain",
        one_of("plain", "nvidia", "ascend", "own"),
        "Ready-made set, with the rights that it needs, or `own`. `ascend` needs the namespaces `mindx-dl` and `cluster-system`.",
    ),
    Row("rules.own", "", TEXT, "Rules of `own`, as text: `--set-file rules.own=rules.yaml`. `rekindle check` judges the file."),
    Row(
        "rules.reads",
        [],
        {"type": "array", "items": one_of("nvidia", "ascend"), "uniqueItems": True},
        "Sets whose rights rules of `own` need.",
    ),
    Row(
        "rankKeys",
        [],
        TEXTS,
        "Annotations or labels of a pod that hold its rank. Empty: `hccl/rankIndex`, `rekindle.io/pod-rank`.",
        LABEL,
        "the key of an annotation or label, such as example.com/rank",
    ),
    Row(
        "jobKeys",
        {},
        {"type": "object", "properties": dict.fromkeys(LABELLED, TEXT), "additionalProperties": False},
        f"Labels of pods that hold the name of their job, by kind: {', '.join(LABELLED)}.",
        LABEL,
        "the key of a label, such as job-name",
        is_open=True,
    ),
    Row(
        "accelerators",
        [],
        TEXTS,
        "Further extended resources that are accelerators; `*` matches any text.",
        r"^[A-Za-z0-9./*_-]{1,300}$",
        "a resource, such as example.com/npu",
    ),
    Row(
        "drainHeld",
        "",
        {"type": ["string", "number"], "exclusiveMinimum": 0},
        "Longest time for which a job holds a drain. Empty: a day.",
        SECONDS_OR_ISO,
        "seconds, or an ISO 8601 duration such as PT4H",
    ),
    Row(
        "storm.nodes",
        20,
        between(0, 100),
        "Share of unhealthy nodes in percent above which recoveries are held; 0: never.",
    ),
    Row("storm.recoveries", 50, between(0, 100_000), "Number of recoveries above which further ones are held; 0: never."),
    Row("senders", "token", one_of("token", "address", "anybody"), "Proof of a pod with our training side."),
    Row("mindioSenders", "address", one_of("address", "anybody", "nobody"), "Proof of clients of MindIO."),
    Row(
        "platforms",
        [],
        TEXTS,
        "Networks that may request operations on the wire.",
        NETWORK,
        "a network such as 10.0.7.0/24",
    ),
    *_limits(),
    Row("log.level", "INFO", one_of("DEBUG", "INFO", "WARNING", "ERROR"), "Least severe messages that are logged."),
    Row("log.json", True, YES_OR_NO, "JSON lines instead of text."),
    Row(
        "service.name",
        "clusterd-grpc-svc",
        TEXT,
        "Name. Clients of ClusterD know the default, in the namespace `mindx-dl`.",
        SERVICE,
        "a name of lower-case letters, digits and -, which begins with a letter",
    ),
    Row("service.keep", False, YES_OR_NO, "Leave it when the release is removed: it was there before, as ClusterD's."),
    Row(
        "tracing.endpoint",
        "",
        TEXT,
        "Address of the collector. Empty: no traces.",
        ENDPOINT,
        "an address such as http://collector:4318, without a password",
    ),
    Row("control.replicas", 2, between(1, 100), "Number. One is enough; the second goes on when it dies."),
    Row("control.autoscaling.enabled", False, YES_OR_NO, "Let KEDA set the number of replicas."),
    Row("control.autoscaling.minReplicas", 2, between(1, 100), "Least number."),
    Row("control.autoscaling.maxReplicas", 6, between(1, 100), "Largest number."),
    Row("control.autoscaling.backlog", 20, between(1, 100_000), "Tasks that wait, for each replica."),
    *_process("control", {"cpu": "500m", "memory": "256Mi"}, "1Gi"),
    Row("gateway.replicas", 2, between(1, 100), "Number."),
    *_process("gateway", {"cpu": "250m", "memory": "256Mi"}, "1Gi"),
    *_process("watcher", {"cpu": "100m", "memory": "256Mi"}, "1Gi"),
    *_process("operator", {"cpu": "100m", "memory": "128Mi"}, "512Mi"),
    Row("webhook.enabled", False, YES_OR_NO, "Make it. A cluster has one."),
    Row("webhook.replicas", 2, between(1, 100), "Number. One answers while the other is replaced."),
    Row("webhook.failClosed", False, YES_OR_NO, "Let no job that asks for recoveries pass while it is away."),
    Row(
        "webhook.certManager.enabled",
        False,
        YES_OR_NO,
        "Take its certificates from cert-manager, which must be installed. It makes its own otherwise.",
    ),
    *_process("webhook", {"cpu": "100m", "memory": "256Mi"}, "512Mi"),
    Row(
        "rbac.scope",
        "cluster",
        one_of("cluster", "namespaces"),
        "`cluster`: rights in all namespaces. `namespaces`: Roles in those of `namespaces`, and in the whole cluster only what "
        "belongs to no namespace.",
    ),
    Row(
        "besideOthers",
        False,
        YES_OR_NO,
        "Install although another release serves the same jobs. Each job has one that recovers it.",
    ),
    Row(
        "shared.priorityClasses", True, YES_OR_NO, "PriorityClass `rekindle` of our pods, and the policy that keeps it for them."
    ),
    Row(
        "shared.standbyPriorityClass", True, YES_OR_NO, "PriorityClass `rekindle-standby`. Without it standbys have their job's."
    ),
    Row("shared.marks", True, YES_OR_NO, "Admission policy that keeps the marks of recoveries for our accounts."),
    Row("shared.trainingJobRoles", True, YES_OR_NO, "Rights to TrainingJobs for the roles view, edit and admin of Kubernetes."),
    Row("flowControl.enabled", True, YES_OR_NO, "Make them."),
    Row("disruptionBudgets.enabled", True, YES_OR_NO, "Make them."),
    Row("networkPolicy.enabled", True, YES_OR_NO, "Make them."),
    Row(
        "networkPolicy.apiServerPorts",
        [443, 6443],
        {**PORTS, "minItems": 1},  # a rule without ports would open all
        "Ports of the API server: its Service's, and where it listens.",
    ),
    Row("networkPolicy.extraPorts", [], PORTS, "Further TCP ports that our pods may call."),
    Row("podMonitor.enabled", False, YES_OR_NO, "Make it."),
    Row("podMonitor.interval", "30s", TEXT, "Interval of scrapes.", r"^[0-9]+(ms|s|m|h)$", "a duration such as 30s"),
    Row("podMonitor.labels", {}, STRINGS, "Labels by which Prometheus finds it.", is_open=True),
    Row("prometheusRule.enabled", False, YES_OR_NO, "Make it."),
    Row("prometheusRule.labels", {}, STRINGS, "Labels by which Prometheus finds it.", is_open=True),
    Row("dashboards.enabled", False, YES_OR_NO, "Make them."),
    Row("dashboards.labels", {"grafana_dashboard": "1"}, STRINGS, "Labels by which the sidecar finds them.", is_open=True),
    Row(
        "test.image",
        "",
        TEXT,
        "Image for training with our training side. Empty: there is no test.",
        IMAGE,
        "an image with its tag",
    ),
    Row("test.seconds", 900, between(60, 86_400), "Time after which it has failed."),
)


def names() -> list[str]:
    """Returns all names that the chart knows: of groups, of values, and with `.*` of those that may have any name below."""
    known: dict[str, None] = {}
    for row in ROWS:
        parts = row.name.split(".")
        for depth in range(1, len(parts)):
            known[".".join(parts[:depth])] = None
        known[f"{row.name}.*" if row.is_open else row.name] = None
    return list(known)


def known_file() -> str:
    """Returns the content of the file by which the chart recognizes names and judges texts."""
    texts = {
        row.name: {"pattern": row.pattern, "accepted": row.accepted, "needed": isinstance(row.default, str) and bool(row.default)}
        for row in ROWS
        if row.pattern
    }
    return json.dumps({"names": names(), "texts": texts, "limits": dict(_bounds())}, indent=1) + "\n"


def _bounds() -> Iterator[tuple[str, dict[str, float]]]:
    """Yields the default of each limit and its least value in seconds. What has to be above 0 is at least a microsecond."""
    for one in Limits.model_fields.values():
        least = next((bound.ge.total_seconds() for bound in one.metadata if hasattr(bound, "ge")), 1e-6)
        yield str(one.alias), {"default": one.default.total_seconds(), "least": least}


def schema() -> str:
    """Returns the JSON schema of the values.

    Unknown names pass: Helm prints the schema's refusal before it renders anything, and a schema cannot name the nearest known
    name. The chart's templates refuse them. Inside of lists the schema does, as the templates do not look there.
    """
    root: Json = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {}, "required": []}
    for row in ROWS:
        here = root
        parts = row.name.split(".")
        for depth, part in enumerate(parts[:-1], 1):
            words = GROUPS.get(".".join(parts[:depth]), "")
            group = {"type": "object", **({"description": words} if words else {}), "properties": {}, "required": []}
            _require(here, part)
            here = here["properties"].setdefault(part, group)
        _require(here, parts[-1])
        here["properties"][parts[-1]] = {**row.schema, "description": row.words}
    return json.dumps(root, indent=2) + "\n"


def _require(group: Json, name: str) -> None:
    """Marks a name as required: it has a default, and is missing only if a user has set it to null."""
    if name not in group["required"]:
        group["required"].append(name)


def values_file() -> str:
    """Returns `values.yaml`, with the meaning of each value above it."""
    lines = [
        "# Values of the chart. A name that is not in this file is refused, with the nearest one that is.",
        "# Generated by `make manifests` from deploy/chart_values.py.",
    ]
    before: list[str] = []
    for row in ROWS:
        *groups, last = row.name.split(".")
        for depth, group in enumerate(groups, 1):
            if groups[:depth] != before[:depth]:
                words = GROUPS.get(".".join(groups[:depth]), "")
                lines += ["", *_comment(words, depth - 1)] if depth == 1 else _comment(words, depth - 1)
                lines.append(f"{'  ' * (depth - 1)}{group}:")
        if not groups:
            lines.append("")
        if row.name.startswith("limits."):
            lines.append(f"  {last}: {_flow(row.default)}")
        else:
            lines += [*_comment(row.words, len(groups)), f"{'  ' * len(groups)}{last}: {_flow(row.default)}"]
        before = groups
    return "\n".join(lines) + "\n"


def _comment(words: str, depth: int) -> list[str]:
    indent = "  " * depth
    return [f"{indent}# {line}" for line in textwrap.wrap(words, WIDTH - len(indent))]


def _flow(value: object) -> str:
    """Returns a value in YAML's flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


def table() -> str:
    """Returns the table of values for the chart's README."""
    rows = [row for row in ROWS if not row.name.startswith("limits.")]
    lines = [
        "| value | default | meaning |",
        "|---|---|---|",
        *(f"| `{row.name}` | `{_flow(row.default)}` | {_meaning(row)} |" for row in rows),
    ]
    lines.append(f'| `limits.NAME` | `""` | {GROUPS["limits"]} |')
    return "\n".join(lines) + "\n"


def _meaning(row: Row) -> str:
    choices = [f"`{choice}`" for choice in row.schema.get("enum", ()) if choice]
    return row.words + (f" One of {', '.join(choices)}." if choices else "")
