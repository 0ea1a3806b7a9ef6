"""Settings of the installation, from environment variables `REKINDLE_*`. Read once, by the entry point of each process.

Address, namespace, mTLS and API key of Temporal are not here: `temporalio.envconfig` reads them (`TEMPORAL_ADDRESS`, ...).
"""

from pathlib import Path

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

    log_level: str = Field(default="INFO", pattern=r"^(DEBUG|INFO|WARNING|ERROR)$")
    log_json: bool = False
    """JSON lines instead of text."""

    @property
    def socket(self) -> Path:
        return self.cluster_socket or self.state_dir / "cluster.sock"
