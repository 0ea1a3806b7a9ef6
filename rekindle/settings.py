"""Settings of the installation, from environment variables `REKINDLE_*`. Read once, by the entry point of each process.

Address, namespace, mTLS and API key of Temporal are not here: `temporalio.envconfig` reads them (`TEMPORAL_ADDRESS`, ...).
"""

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from rekindle.model.limits import Limits


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="REKINDLE_", env_nested_delimiter="__", frozen=True)

    gateway_host: str = Field(default="127.0.0.1", validation_alias="POD_IP")
    """Address on which the gateway listens: the pod's own. Source: ClusterD."""

    gateway_port: int = Field(default=8899, ge=0, le=65535)
    """Port of the gateway; 0 means any free one. Source: ClusterD."""

    gateway_instance: str = Field(default="gateway-0", pattern=r"^[A-Za-z0-9._-]{1,100}$")
    """Stable name of this gateway: a restarted one polls its old queue. A pod's ordinal name on Kubernetes."""

    state_dir: Path = Path(".rekindle")
    """Where the local cluster keeps jobs and logs, and the embedded Temporal server its database."""

    cluster_socket: Path | None = None
    """Unix socket of the local cluster; by default `cluster.sock` in the state directory."""

    limits: Limits = Limits()
    """Limits of the installation; a job's own come before them."""

    cluster: Literal["local", "kubernetes"] = "local"
    """Whose pods: the local cluster's, or those of a Kubernetes API server."""

    kubeconfig: Path | None = None
    """On Kubernetes: its current context is used; by default the service account of the pod that the process runs in."""

    namespaces: tuple[str, ...] = ()
    """On Kubernetes: only jobs of these namespaces are looked at; by default those of all."""

    rank_keys: tuple[str, ...] = ("hccl/rankIndex", "rekindle.io/pod-rank")
    """On Kubernetes: annotations or labels of a pod with its pod rank; the first that is there decides. Behind them come those of
    the job's kind (completion index, replica index)."""

    observe: bool = False
    """Decide, and show what would be done, but order nothing and touch no pod."""

    take_over: bool = False
    """On Kubernetes: serve jobs although a ClusterD is alive beside us."""

    check_senders: bool = True
    """On Kubernetes: the gateway listens to a job's own pods only, told by their addresses. Not possible where a pod's calls
    arrive from another address than its own (a proxy in the pod, masquerading)."""

    gateway_address: str = Field(default="clusterd-grpc-svc.mindx-dl.svc:8899", pattern=r"^\S+:\d{1,5}$")
    """Where pods of a job on Kubernetes reach the gateway. Source: ClusterD's service."""

    health_port: int = Field(default=0, ge=0, le=65535)
    """Port of `/healthz` and `/readyz`; 0: none."""

    log_level: str = Field(default="INFO", pattern=r"^(DEBUG|INFO|WARNING|ERROR)$")
    log_json: bool = False
    """JSON lines instead of text."""

    @property
    def socket(self) -> Path:
        return self.cluster_socket or self.state_dir / "cluster.sock"
