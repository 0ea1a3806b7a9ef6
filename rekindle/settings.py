"""Settings of the installation, from environment variables `REKINDLE_*`. Read once, by the entry point of each process.

Address, namespace, mTLS and API key of Temporal are not here: `temporalio.envconfig` reads them (`TEMPORAL_ADDRESS`, ...).
"""

import re
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from rekindle.errors import BadInput
from rekindle.model.limits import LONGEST, Limits
from rekindle.model.problems import problems

PREFIX = "REKINDLE_"

LabelKey = Annotated[str, Field(pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", frozen=True)

    gateway_host: str = Field(default="127.0.0.1", validation_alias="POD_IP")
    """Address on which the gateway and the admission webhook listen: the pod's own. Source: ClusterD."""

    gateway_port: int = Field(default=8899, ge=0, le=65535)
    """Port of the gateway; 0 means any free one. Source: ClusterD."""

    gateway_instance: str = Field(default="gateway-0", pattern=r"^[A-Za-z0-9._-]{1,100}$")
    """Stable name of this gateway, by which a restarted one polls its old queue. On Kubernetes: the pod's ordinal name."""

    gateways: int = Field(default=1, ge=1, le=100)
    """Number of gateways behind one address.

    If there are several, one that does not reach Temporal for ten seconds sends its clients to the others; a single one keeps
    them.
    """

    state_dir: Path = Path(".rekindle")
    """Directory in which the local cluster keeps jobs and logs, and the embedded Temporal server its database."""

    cluster_socket: Path | None = None
    """Unix socket of the local cluster; by default `cluster.sock` in the state directory."""

    limits: Limits = Limits()
    """Limits of the installation; limits of a job have precedence."""

    rules: str = Field(default="plain", min_length=1)
    """Rules that decide which states of nodes and pods are faults: a ready-made set (`plain`, `nvidia`, `ascend`), or the path of
    a file with rules."""

    cluster: Literal["local", "kubernetes"] = "local"
    """Cluster that runs the pods: the local cluster, or a Kubernetes API server."""

    kubeconfig: Path | None = None
    """Kubeconfig file on Kubernetes, of which the current context is used.

    By default the service account of the process's own pod is used.
    """

    namespaces: tuple[str, ...] = ()
    """Namespaces on Kubernetes whose jobs are served; by default all."""

    rank_keys: tuple[str, ...] = ("hccl/rankIndex", "rekindle.io/pod-rank")
    """Annotations or labels of a pod on Kubernetes that contain its pod rank; the first that is present decides.

    Those of the job's kind (completion index, replica index) come after them.
    """

    job_keys: dict[str, LabelKey] = {}
    """Labels of pods on Kubernetes that hold the name of their job, by the job's kind.

    Needed if they are not those of the kind's usual controller, such as `{"PyTorchJob": "job-name"}`. A JobSet's or a TrainJob's
    Jobs carry them as well.
    """

    accelerators: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9./*_-]{1,300}$")], ...] = ()
    """Extended resources on Kubernetes that are accelerators, besides the known ones, such as `["example.com/npu"]`; `*` matches
    any text. The ranks of a pod are counted by them if nothing else gives their number."""

    drain_held: timedelta = Field(default=timedelta(days=1), gt=timedelta(0), le=LONGEST)
    """Longest time for which a job may hold a drain of its nodes on Kubernetes, in seconds or such as `PT4H`. Then its pods there
    may be evicted."""

    storm_nodes: int = Field(default=20, ge=0, le=100)
    """Share of the nodes in percent. While more of them are unhealthy, and at least three, recoveries that move pods are held;
    0: never."""

    storm_recoveries: int = Field(default=50, ge=0, le=100_000)
    """Number of recoveries. While more of them run at once, further ones that move pods are held; 0: never."""

    observe: bool = False
    """Make decisions and show them, but send no orders and change no pods."""

    take_over: bool = False
    """Serve jobs on Kubernetes although a ClusterD is running beside us."""

    senders: Literal["token", "address", "anybody"] = "token"
    """Proof by which the gateway identifies a pod of a job with our training side on Kubernetes.

    `token`: the token of its pod, which the API server confirms. `address`: the address from which it calls, which is not proved.
    """

    mindio_senders: Literal["address", "anybody", "nobody"] = "address"
    """Proof by which the gateway identifies clients of MindIO, which send no token and use plain text.

    `address` is not possible if calls of a pod arrive from another address (a proxy in the pod, masquerading). `nobody`: no such
    job is served.
    """

    platforms: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks on Kubernetes whose addresses may request operations on jobs (`SwitchNicTrack`, `StressTest`) and report faults of
    nodes (`PubFault`) on the wire, such as `["10.0.7.0/24"]`. By default no address may: the CLI and the client send requests
    through Temporal."""

    namespace: str = Field(default="mindx-dl", pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
    """Namespace of this installation on Kubernetes. Source: ClusterD's namespace, in which its clients look for it."""

    gateway_address: str = Field(
        default_factory=lambda known: f"clusterd-grpc-svc.{known.get('namespace', 'mindx-dl')}.svc:8899", pattern=r"^\S+:\d{1,5}$"
    )
    """Address at which pods on Kubernetes reach the gateway; by default the service of this installation. Source: ClusterD's
    service."""

    temporal_ui: str = Field(default="", pattern=r"^(https?://[^\s/@]+(/\S*)?)?$")
    """Address of Temporal's web UI, such as `https://temporal.example.com`, for the links that commands print.

    It has no password. Empty: no links are printed.
    """

    webhook_port: int = Field(default=8443, ge=0, le=65535)
    """Port of the admission webhook; 0 means any free one."""

    webhook_certificates: Path | None = None
    """Folder with `tls.crt` and `tls.key` of the admission webhook, such as a mounted Secret of cert-manager.

    By default the webhook makes its certificates, and keeps them in the Secret `rekindle-webhook`.
    """

    health_port: int = Field(default=0, ge=0, le=65535)
    """Port of `/healthz`, `/readyz` and `/metrics`; 0: none is opened, and nothing is measured."""

    health_host: str = ""
    """Address on which this port is opened. Empty: all addresses of the family of the pod's own address."""

    build_id: str = Field(default="", pattern=r"^[A-Za-z0-9._-]{0,100}$")
    """Version of the control worker. Recoveries stay on the version that began them. By default it is derived from the code."""

    pod_template_hash: str = Field(default="", pattern=r"^[a-z0-9]{0,63}$")
    """Label `pod-template-hash` of the control worker's pod on Kubernetes.

    By it the worker finds its revision of the Deployment. When that is the latest one, the worker's version becomes current, also
    if it was current before. Empty: only a new version does.
    """

    only_worker: bool = False
    """No other control worker serves this Temporal namespace.

    At its start this one becomes current, and workflows of other versions continue on it at once.
    """

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe messages that are logged."""

    log_json: bool = False
    """Write logs as JSON lines instead of text."""

    @field_validator("drain_held", mode="before")
    @classmethod
    def _duration(cls, said: object) -> object:
        return _seconds(said)

    @field_validator("limits", mode="before")
    @classmethod
    def _durations(cls, said: object) -> object:
        return {key: _seconds(value) for key, value in said.items()} if isinstance(said, dict) else said

    @field_validator("platforms", mode="before")
    @classmethod
    def _networks(cls, said: object) -> object:
        return tuple(map(_network, said)) if isinstance(said, list | tuple) else said

    @property
    def proofs(self) -> dict[str, str]:
        """Proof by which the gateway identifies the clients of each training side, by its name."""
        return {"rekindle": self.senders, "mindio": self.mindio_senders}

    @property
    def socket(self) -> Path:
        return self.cluster_socket or self.state_dir / "cluster.sock"


def _network(said: object) -> object:
    try:
        return ip_network(said) if isinstance(said, str) else said
    except ValueError as error:
        raise ValueError(f"{said!r} is no network such as 10.0.7.0/24: {error}") from error


def _seconds(said: object) -> object:
    """Returns a number of seconds as a number. A variable is always a text."""
    return float(said) if isinstance(said, str) and re.fullmatch(r"\d{1,12}(\.\d{1,6})?", said, re.ASCII) else said


def read_settings() -> Settings:
    """Reads the settings from the environment.

    Raises:
        BadInput: one line for each invalid variable.
    """
    try:
        return Settings()
    except ValidationError as error:
        raise BadInput("\n".join(_variable(line) for line in problems(error, Settings))) from error
    except SettingsError as error:
        field = re.sub(r'.*field "(\w+)".*', r"\1", str(error))
        raise BadInput(
            f'{_variable(field)}: not JSON: {error.__cause__} (accepted are values such as ["a"] or {{"a": "b"}})'
        ) from error


def _variable(line: str) -> str:
    """Returns the environment variable of the field at the beginning of a line."""
    name = re.split("[.:]", line, maxsplit=1)[0]
    return f"{PREFIX}{name.upper()}{line.removeprefix(name)}" if name in Settings.model_fields else line
