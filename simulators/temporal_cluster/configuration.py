"""Configuration of the four services of a Temporal server over PostgreSQL, all on the loopback interface."""

from dataclasses import dataclass
from typing import Any

from rekindle.cli.stack import SERVER_SETTINGS
from simulators.temporal_cluster.postgres import USER

SERVICES = ("history", "matching", "frontend", "worker")
"""Order in which they start: the frontend asks the first two."""

DATABASES = {"temporal": "postgresql/v12/temporal", "temporal_visibility": "postgresql/v12/visibility"}
"""Schemas by database. Those of version 12 are for all later versions of PostgreSQL."""

PLUGIN = "postgres12"


@dataclass(frozen=True)
class Places:
    """Ports of this machine."""

    postgres: int
    rpc: dict[str, int]
    """Port of each service for calls."""

    membership: dict[str, int]
    """Port of each service on which the others see that it is alive."""

    @property
    def frontend(self) -> str:
        return f"127.0.0.1:{self.rpc['frontend']}"


def configuration(places: Places, shards: int, settings: str) -> dict[str, Any]:
    """Returns the configuration file of all four services.

    Args:
        shards: number of history shards, which cannot be changed later.
        settings: path of the file with dynamic settings.
    """
    cluster = {"enabled": True, "initialFailoverVersion": 1, "rpcName": "frontend", "rpcAddress": places.frontend}
    return {
        "log": {"stdout": True, "level": "warn"},
        "persistence": {
            "defaultStore": "default",
            "visibilityStore": "visibility",
            "numHistoryShards": shards,
            "datastores": {
                "default": {"sql": _database(places, "temporal", 20)},
                "visibility": {"sql": _database(places, "temporal_visibility", 10)},
            },
        },
        "global": {"membership": {"maxJoinDuration": "30s", "broadcastAddress": "127.0.0.1"}},
        "services": {
            name: {
                "rpc": {"grpcPort": places.rpc[name], "membershipPort": places.membership[name], "bindOnIP": "127.0.0.1"},
            }
            for name in SERVICES
        },
        "clusterMetadata": {
            "enableGlobalNamespace": False,
            "failoverVersionIncrement": 10,
            "masterClusterName": "active",
            "currentClusterName": "active",
            "clusterInformation": {"active": cluster},
        },
        "dcRedirectionPolicy": {"policy": "noop"},
        "archival": {"history": {"state": "disabled"}, "visibility": {"state": "disabled"}},
        "namespaceDefaults": {"archival": {"history": {"state": "disabled"}, "visibility": {"state": "disabled"}}},
        "publicClient": {"hostPort": places.frontend},
        "dynamicConfigClient": {"filepath": settings, "pollInterval": "10s"},
    }


def _database(places: Places, name: str, connections: int) -> dict[str, Any]:
    """Args:
    connections: maximum number of connections of each service.
    """
    return {
        "pluginName": PLUGIN,
        "databaseName": name,
        "connectAddr": f"127.0.0.1:{places.postgres}",
        "connectProtocol": "tcp",
        "user": USER,
        "password": "",
        "maxConns": connections,
        "maxIdleConns": connections,
        "maxConnLifetime": "1h",
    }


def dynamic_settings() -> dict[str, list[dict[str, Any]]]:
    """Returns the settings of the embedded server of `rekindle dev`, in the form of a file. They reduce latency."""
    return {key: [{"value": _value(text)}] for key, text in SERVER_SETTINGS.items()}


def _value(text: str) -> int | str:
    return int(text) if text.isdigit() else text.strip('"')
