"""Nodes with their own networks (`--links`): each is a network namespace with a management interface and two links.

    machine ── relay ── 10.77.0.1 (the cluster's own namespace: managers, and the way to the gateway)
                            │
    management      eth0 ───┼────────────┐   10.77.0.0/16
    first links     eth1 ───┼── leaf 1 ──┤   10.78.0.0/16
    backup links    eth2 ───┴── leaf 2 ──┘   10.79.0.0/16
                          node-0       node-1

A leaf is a bridge; the cable from a node to it is a veth pair. A link is set down at the leaf's end, so that the node sees what
it sees when a cable is pulled. All of it is in a namespace that the cluster enters before it does anything else: nothing of the
machine's network is touched, and nothing is left when the cluster ends, however it does.
"""

import asyncio
import fcntl
import logging
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from rekindle.errors import Unavailable
from rekindle.model import keys
from rekindle.model.cluster import JobObject, Pod, PodRole
from simulators.local_cluster import namespaces, relay
from simulators.local_cluster.options import Options
from workers.training_job_phase import over, role_of

MANAGEMENT = "eth0"
LINKS = ("eth1", "eth2")
"""Links of each node, as its pods find them in `REKINDLE_LINKS`: the first link, then the backup."""

INTERFACES = {MANAGEMENT: IPv4Address("10.77.0.0"), LINKS[0]: IPv4Address("10.78.0.0"), LINKS[1]: IPv4Address("10.79.0.0")}
"""Networks (/16) of the interfaces."""

HUB = str(INTERFACES[MANAGEMENT] + 1)
"""Address of the cluster itself on the management network."""

RECEIVED, SENT = 1, 9
"""Columns of `/proc/net/dev` with the bytes of an interface; column 0 is its name."""

GET_FLAGS, SET_FLAGS, IS_UP = 0x8913, 0x8914, 0x1
"""SIOCGIFFLAGS, SIOCSIFFLAGS and IFF_UP."""

BACKLOG = 1024

HELP = (
    "It needs network namespaces: of an unprivileged user (user.max_user_namespaces, kernel.unprivileged_userns_clone, "
    "kernel.apparmor_restrict_unprivileged_userns), or of root; a container needs the capability SYS_ADMIN for them"
)

logger = logging.getLogger("cluster")


class Networks:
    """Builds all networks of the cluster. Create it before any thread or event loop: a process cannot enter a namespace later."""

    def __init__(self, options: Options) -> None:
        """Raises:
        Unavailable: this machine cannot make such networks; the message says what it needs.
        """
        self._numbers = {f"node-{number}": number for number in range(options.nodes)}
        self._namespaces: dict[str, int] = {}
        self._relay = _start_relay(options)
        try:
            namespaces.leave_the_machines_network()
            self._build()
            with socket.create_server((HUB, options.gateway_port), backlog=BACKLOG) as listener:
                namespaces.hand_over(listener, self._relay)
        except OSError as error:
            raise Unavailable(f"--links: this machine gives us no networks of our own: {error}. {HELP}") from error
        except ImportError as error:
            raise Unavailable('--links: pyroute2 is missing: pip install "rekindle-recovery[demo]"') from error

    def _build(self) -> None:
        from pyroute2 import IPRoute
        from pyroute2.netlink.exceptions import NetlinkError

        namespaces.quieten()
        try:
            with IPRoute() as own:
                _up(own, "lo")
                for interface in INTERFACES:
                    own.link("add", ifname=_leaf(interface), kind="bridge")
                    own.link("set", index=socket.if_nametoindex(_leaf(interface)), state="up")
                own.addr("add", index=socket.if_nametoindex(_leaf(MANAGEMENT)), address=HUB, prefixlen=16)
                for node in self._numbers:
                    self._connect(own, node)
        except NetlinkError as error:
            raise OSError(error.code, str(error)) from error

    def _connect(self, own: Any, node: str) -> None:
        """Creates a node's namespace, and connects it to the leaves."""
        from pyroute2 import IPRoute

        namespace = self._namespaces[node] = namespaces.new_network()
        with namespaces.inside(namespace):
            namespaces.quieten()
            its = IPRoute()
        with its:
            _up(its, "lo")
            for interface in INTERFACES:
                port = self._port(node, interface)
                own.link("add", ifname=port, kind="veth", peer={"ifname": interface, "net_ns_fd": namespace})
                leaf = socket.if_nametoindex(_leaf(interface))
                own.link("set", index=socket.if_nametoindex(port), master=leaf, state="up")
                its.addr("add", index=_index(its, interface), address=self.address(node, interface), prefixlen=16)
                _up(its, interface)

    def _port(self, node: str, interface: str) -> str:
        """Returns the name of the interface at the leaf's end of a cable."""
        return f"port{self._numbers[node]}-{interface}"

    def address(self, node: str, interface: str = MANAGEMENT) -> str:
        return str(INTERFACES[interface] + 2 + self._numbers[node])

    # ---- pods

    def namespace(self, pod: Pod) -> int | None:
        """Returns the network namespace in which a pod runs; None: the cluster's own, in which managers run.

        A manager so keeps its address when it is restarted, as with a Service of Kubernetes.
        """
        return None if role_of(pod) == PodRole.MANAGER else self._namespaces[pod.spec.node_name]

    def environment(self, pod: Pod, job: JobObject, pods: Iterable[Pod]) -> dict[str, str]:
        """Returns the environment of a pod that describes its networks.

        Args:
            pods: pods of its job. If there is no manager, the pod of rank 0 is the master.
        """
        is_manager = role_of(pod) == PodRole.MANAGER
        addresses = {
            keys.ENV_GATEWAY_HOST: HUB,
            keys.ENV_POD_IP: HUB if is_manager else self.address(pod.spec.node_name),
            keys.ENV_MASTER_ADDR: HUB if job.spec.manager else self.address(_first(pods, pod).spec.node_name),
        }
        return addresses if is_manager else {**addresses, keys.ENV_LINKS: ",".join(LINKS), "GLOO_SOCKET_IFNAME": LINKS[0]}

    # ---- links

    def carried(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Returns the bytes sent and received, by node and link. Bytes that a node sends are received at the leaf's end."""
        lines = [line.replace(":", " ").split() for line in Path("/proc/thread-self/net/dev").read_text().splitlines()]
        ports = {fields[0]: (int(fields[RECEIVED]), int(fields[SENT])) for fields in lines[2:]}
        return {(node, link): ports[self._port(node, link)] for node in self._numbers for link in LINKS}

    def plug(self, node: str, link: str, *, up: bool) -> None:
        """Plugs a link in or unplugs it. It uses ioctl, as pyroute2 needs an event loop or an await, which could leave it half
        done."""
        port = self._port(node, link).encode()
        with socket.socket() as any_one:
            (flags,) = struct.unpack_from("16xH", fcntl.ioctl(any_one, GET_FLAGS, struct.pack("16sH14x", port, 0)))
            flags = flags | IS_UP if up else flags & ~IS_UP
            fcntl.ioctl(any_one, SET_FLAGS, struct.pack("16sH14x", port, flags))

    # ---- the way out

    def when_cut_off(self, told: Callable[[], None]) -> None:
        """Calls `told` when the relay has ended. That is an error, and it cannot be restarted from here."""
        asyncio.get_running_loop().add_reader(self._relay, self._cut_off, told)

    def _cut_off(self, told: Callable[[], None]) -> None:
        asyncio.get_running_loop().remove_reader(self._relay)
        logger.error("gateway relay ended, ending the cluster")
        told()


def _start_relay(options: Options) -> socket.socket:
    """Starts the relay, and returns our end of its control socket."""
    ours, its = socket.socketpair()
    command = [sys.executable, "-I", "-S", relay.__file__, options.gateway_host, str(options.gateway_port)]
    with its:
        subprocess.Popen(command, stdin=its.fileno(), stdout=subprocess.DEVNULL, start_new_session=True)
    return ours


def _leaf(interface: str) -> str:
    return f"leaf-{interface}"


def _index(netlink: Any, interface: str) -> int:
    (index,) = netlink.link_lookup(ifname=interface)
    return int(index)


def _up(netlink: Any, interface: str) -> None:
    netlink.link("set", index=_index(netlink, interface), state="up")


def _first(pods: Iterable[Pod], own: Pod) -> Pod:
    """Returns the pod of rank 0 that has a node; if there is none, the pod itself."""
    placed = [
        pod for pod in pods if pod.metadata.annotations.get(keys.RANK_INDEX) == "0" and pod.spec.node_name and not over(pod)
    ]
    return placed[-1] if placed else own
