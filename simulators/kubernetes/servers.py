"""Runs etcd, kube-apiserver, kube-scheduler and kube-controller-manager as processes, and restarts those that end."""

import asyncio
import logging
import re
import secrets
import shutil
import ssl
from asyncio.subprocess import Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml

from rekindle.cli.ports import free_ports
from rekindle.cli.stack import dying_with_parent
from rekindle.errors import Unavailable

START_LIMIT = 90.0
RESTART_PAUSE = 0.2
NODE_GRACE = 10
"""Seconds without a lease until a node is not ready, where tests and demos lose nodes."""

USUAL_NODE_GRACE = 40
"""The same by default in Kubernetes. Pods of the control plane are evicted from a node that is not ready."""

ISSUER = "https://kubernetes.default.svc"

logger = logging.getLogger("kubernetes")


@dataclass(frozen=True)
class Endpoint:
    """Address and credentials with which an administrator reaches the API server."""

    url: str
    token: str
    certificate: Path

    def write_kubeconfig(self, path: Path) -> None:
        cluster = {"server": self.url, "certificate-authority": str(self.certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "me", "user": {"token": self.token}}],
            "contexts": [{"name": "me@here", "context": {"cluster": "here", "user": "me"}}],
            "current-context": "me@here",
        }
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)


class Servers:
    """Control plane with its data in one directory."""

    def __init__(self, binaries: Path, directory: Path, *, oldest: bool, node_grace: int = NODE_GRACE) -> None:
        """Args:
        oldest: the servers behave as the oldest version that they can emulate.
        node_grace: seconds without a lease until a node is not ready.
        """
        self._binaries = binaries
        self._directory = directory
        self._oldest, self._node_grace = oldest, node_grace
        self._version: list[str] = []
        self._etcd, self._peer, self._port = free_ports(3)
        self.endpoint = Endpoint(
            url=f"https://127.0.0.1:{self._port}",
            token=secrets.token_hex(16),
            certificate=directory / "certificates" / "apiserver.crt",
        )
        self.kubeconfig = directory / "kubeconfig"
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = False

    async def start(self) -> None:
        """Starts all servers, and returns when the API server is ready.

        Raises:
            Unavailable: a server did not start; the message has the end of its log.
        """
        await self.start_api_server()
        self._keep("kube-scheduler", self._client_arguments())
        self._keep("kube-controller-manager", [*self._client_arguments(), *self._controller_arguments()])

    async def start_api_server(self) -> None:
        """Starts the API server and etcd only: without controllers objects stay as they are written."""
        (self._directory / "certificates").mkdir(parents=True, exist_ok=True)
        if self._oldest:
            self._version = await self._emulation()
        await self._make_key()
        self._write_tokens()
        self.endpoint.write_kubeconfig(self.kubeconfig)
        self._keep("etcd", self._etcd_arguments())
        self._keep("kube-apiserver", self._api_server_arguments())
        try:
            async with asyncio.timeout(START_LIMIT):
                await self._until_ready()
        except TimeoutError:
            log = self._log("kube-apiserver")
            words = "\n  ".join(log.read_text(errors="replace").splitlines()[-10:])
            raise Unavailable(f"kube-apiserver was not ready within {START_LIMIT:g} s (log: {log})\n  {words}") from None

    @property
    def etcd(self) -> str:
        return f"http://127.0.0.1:{self._etcd}"

    async def stop(self) -> None:
        """Kills the servers. No orderly end is needed, as the database is deleted with its directory."""
        self._stopping = True
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    # ---- processes

    def _keep(self, program: str, arguments: Sequence[str]) -> None:
        self._keepers.append(asyncio.create_task(self._keep_running(program, arguments)))

    async def _keep_running(self, program: str, arguments: Sequence[str]) -> None:
        while not self._stopping:
            process = await self._launch(program, arguments)
            try:
                code = await process.wait()
            except asyncio.CancelledError:
                process.kill()
                await process.wait()
                raise
            logger.warning("control plane server restarted", extra={"program": program, "code": code})
            await asyncio.sleep(RESTART_PAUSE)

    async def _launch(self, program: str, arguments: Sequence[str]) -> Process:
        with self._log(program).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *dying_with_parent([str(self._binaries / program), *arguments]),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        (self._directory / f"{program}.pid").write_text(str(process.pid))
        return process

    def _log(self, program: str) -> Path:
        return self._directory / f"{program}.log"

    async def _until_ready(self) -> None:
        headers = {"Authorization": f"Bearer {self.endpoint.token}"}
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # its certificate is created meanwhile
        async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=context)) as session:
            while True:
                try:
                    async with session.get(f"{self.endpoint.url}/readyz") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)  # no event says when it listens

    # ---- flags and files

    async def _emulation(self) -> list[str]:
        """Returns the flag for the oldest version that the servers can emulate; empty: programs before 1.31 cannot."""
        server = str(self._binaries / "kube-apiserver")
        process = await asyncio.create_subprocess_exec(server, "--help", stdout=asyncio.subprocess.PIPE)
        text, _ = await process.communicate()
        found = re.search(rb"--emulated-version.*?kube=(\d+\.\d+)\.\.", text, re.DOTALL)
        return [f"--emulated-version={found[1].decode()}"] if found else []

    async def _make_key(self) -> None:
        """Creates the key that signs the tokens of service accounts."""
        openssl = shutil.which("openssl")
        if openssl is None:
            raise Unavailable("no `openssl` on PATH: it makes the key that signs tokens of service accounts")
        process = await asyncio.create_subprocess_exec(
            openssl, "genrsa", "-out", str(self._key), "2048", stderr=asyncio.subprocess.DEVNULL
        )
        if code := await process.wait():
            raise Unavailable(f"`openssl genrsa` ended with code {code}")

    @property
    def _key(self) -> Path:
        return self._directory / "service-accounts.key"

    def _write_tokens(self) -> None:
        path = self._directory / "tokens.csv"
        path.write_text(f'{self.endpoint.token},admin,admin,"system:masters"\n')
        path.chmod(0o600)

    def _etcd_arguments(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peer}"
        return [
            f"--data-dir={self._directory / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ]

    def _api_server_arguments(self) -> list[str]:
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={self._directory / 'certificates'}",
            f"--service-account-key-file={self._key}",
            f"--service-account-signing-key-file={self._key}",
            f"--service-account-issuer={ISSUER}",
            f"--token-auth-file={self._directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged",
            "--enable-aggregator-routing",  # a webhook's Service is called at its endpoints: nothing routes its address here
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",  # as on OpenShift: it only forbids
            *self._version,
        ]

    def _client_arguments(self) -> list[str]:
        names = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        same = [f"--{name}={self.kubeconfig}" for name in names]
        return [*same, *self._version, "--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=0"]

    def _controller_arguments(self) -> list[str]:
        return [
            f"--service-account-private-key-file={self._key}",
            f"--root-ca-file={self.endpoint.certificate}",
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={self._node_grace}s",
        ]
