"""Real controllers of other people's jobs, webhooks included, over the control plane of this machine.

Each is built once from its module, which pins it; its definitions and webhooks are those that the module brings. The certificates
of its webhooks it makes itself, as on a cluster, and finds where a kubelet would mount them.
"""

import asyncio
import base64
import fcntl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, check_output, run

import yaml

from activities.clusters.api_server import Api, Object
from rekindle.cli.ports import free_ports
from rekindle.cli.stack import dying_with_parent
from rekindle.errors import Conflict, Unavailable
from simulators.kubernetes.binaries import built
from tests.fakes.controller import define

MODULES = Path(__file__).parent / "modules"
MOUNTED = Path("/tmp/k8s-webhook-server/serving-certs")
"""Folder in which each of them looks for its certificate; so one at a time has webhooks with certificates of its own making."""

PATIENCE = 120.0
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


@dataclass(frozen=True)
class Controller:
    """Controller that is built, installed and started."""

    module: str
    """Folder below `MODULES`."""

    path: str
    """Name of the Go module."""

    package: str
    crds: str
    webhooks: str
    """Files in the module."""

    namespace: str
    service: str
    prefix: str = ""
    """Beginning of the names of its webhook configurations."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Webhook configurations that have another name on a cluster."""

    patched: str = ""
    """File of what kustomize changes in the webhooks."""

    converted: str = ""
    """Files of what kustomize changes in the definitions: the webhook that converts their objects."""

    secret: str = ""
    """Secret for the certificate that it makes; empty: it is given one."""

    flags: tuple[str, ...] = ()
    configuration: Callable[[Path, int, int], Object] | None = None
    """Settings, by the folder of the certificate, the port of the webhooks and that of the health; None: flags say them."""

    def mounted(self, own: Path) -> Path:
        """Folder in which it looks for its certificate."""
        return own if self.configuration else MOUNTED


def _jobset(certificates: Path, port: int, health: int) -> Object:
    return {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"port": port, "certDir": str(certificates)},
        "metrics": {"bindAddress": "0"},
    }


def _kueue(certificates: Path, port: int, health: int) -> Object:
    """Returns Kueue's settings as it brings them, but for the addresses and the certificates here."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "leaderElection": {"leaderElect": False},
        "webhook": {"port": port, "certDir": str(certificates)},
        "metrics": {"bindAddress": "0"},
        "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset", "pod"]},
        "featureGates": {"VisibilityOnDemand": False},  # an additional server that no client uses
    }


JOBSET = Controller(
    module="jobset",
    path="sigs.k8s.io/jobset",
    package="sigs.k8s.io/jobset",
    crds="config/components/crd/bases/*.yaml",
    webhooks="config/components/webhook/manifests.yaml",
    namespace="jobset-system",
    service="jobset-webhook-service",
    prefix="jobset-",
    configuration=_jobset,
)
KUEUE = Controller(
    module="kueue",
    path="sigs.k8s.io/kueue",
    package="sigs.k8s.io/kueue/cmd/kueue",
    crds="config/components/crd/bases/*.yaml",
    webhooks="config/components/webhook/manifests.yaml",
    namespace="kueue-system",
    service="kueue-webhook-service",
    prefix="kueue-",
    patched="config/components/webhook/kustomization.yaml",
    converted="config/components/crd/patches/webhook_in_*.yaml",
    secret="kueue-webhook-server-cert",
    configuration=_kueue,
)
TRAINING_OPERATOR = Controller(
    module="training-operator",
    path="github.com/kubeflow/training-operator",
    package="github.com/kubeflow/training-operator/cmd/training-operator.v1",
    crds="manifests/base/crds/kubeflow.org_pytorchjobs.yaml",
    webhooks="manifests/base/webhook/manifests.yaml",
    namespace="kubeflow",
    service="training-operator",
    renamed={"validating-webhook-configuration": "validator.training-operator.kubeflow.org"},
    secret="training-operator-webhook-cert",
    flags=("--enable-scheme=pytorchjob",),
)
TRAINER = Controller(
    module="trainer",
    path="github.com/kubeflow/trainer/v2",
    package="github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
    crds="manifests/base/crds/trainer.*.yaml",
    webhooks="manifests/base/webhook/manifests.yaml",
    namespace="kubeflow-system",
    service="kubeflow-trainer-controller-manager",
    renamed={"validating-webhook-configuration": "validator.trainer.kubeflow.org"},
    secret="kubeflow-trainer-webhook-cert",
)

OF_KIND = {"Job": (), "JobSet": (JOBSET,), "PyTorchJob": (TRAINING_OPERATOR,), "TrainJob": (JOBSET, TRAINER)}


def program_of(controller: Controller, tell: Callable[[str], None]) -> Path:
    """Built where it is missing, which takes minutes."""
    return built({controller.module: controller.package}, MODULES / controller.module, tell) / controller.module


def address_of_this_machine() -> str:
    """Endpoints of a Service may not be on the loopback interface.

    Raises:
        Unavailable: it has no other.
    """
    found = [one for one in check_output(["hostname", "-I"], text=True).split() if "." in one]
    if not found:
        raise Unavailable("this machine has no address but 127.0.0.1, at which no API server calls a webhook's Service")
    return found[0]


@asynccontextmanager
async def controllers(run: Sequence[Controller], api: Api, kubeconfig: Path, folder: Path) -> AsyncIterator[None]:
    """Runs controllers until the block ends. Objects that they have installed remain."""
    async with AsyncExitStack() as stack:
        if any(controller.mounted(folder) == MOUNTED for controller in run):
            await stack.enter_async_context(_alone())
        for controller in run:
            await stack.enter_async_context(_running(controller, api, kubeconfig, folder))
        yield


@asynccontextmanager
async def _alone() -> AsyncIterator[None]:
    """Two at once would serve each other's certificates."""
    MOUNTED.mkdir(parents=True, exist_ok=True)
    with (MOUNTED.parent / "lock").open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        yield


@asynccontextmanager
async def _running(controller: Controller, api: Api, kubeconfig: Path, folder: Path) -> AsyncIterator[None]:
    program = await asyncio.to_thread(program_of, controller, print)
    port, health = free_ports(2)
    own = folder / controller.module
    own.mkdir()
    await _create(api, "/api/v1/namespaces", {"metadata": {"name": controller.namespace}})
    for definition in _definitions(controller):
        await define(api, definition)
    await _create_service(controller, api, port)
    authority = "" if controller.secret else _certificate(own, f"{controller.service}.{controller.namespace}.svc")
    if controller.secret:
        secret = {"metadata": {"name": controller.secret}}
        await _create(api, f"/api/v1/namespaces/{controller.namespace}/secrets", secret)
    flags = [f"--kubeconfig={kubeconfig}", *_said(controller, own, port, health)]
    for body in _webhooks(controller, authority):
        await _create(api, f"{ADMISSION}/{body['kind'].lower()}s", body)
    with (folder / f"{controller.module}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *dying_with_parent([str(program), *flags]), stdin=DEVNULL, stdout=log, stderr=log
        )
    try:
        await _until_ready(controller, api, (health, port), folder)
        yield
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _create(api: Api, path: str, body: Object) -> None:
    with suppress(Conflict):
        await api.create(path, body)


async def _create_service(controller: Controller, api: Api, port: int) -> None:
    """Address at which its webhooks are called."""
    core, slices = (f"{group}/namespaces/{controller.namespace}" for group in ("/api/v1", "/apis/discovery.k8s.io/v1"))
    service = {"metadata": {"name": controller.service}, "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]}}
    await _create(api, f"{core}/services", service)
    labels = {"kubernetes.io/service-name": controller.service}
    body = {
        "metadata": {"generateName": f"{controller.service}-", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address_of_this_machine()], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }
    await api.create(f"{slices}/endpointslices", body)


def _files(controller: Controller, pattern: str) -> list[Object]:
    """Documents of files that the module brings."""
    if not pattern:
        return []
    command = ["go", "list", "-m", "-f", "{{.Dir}}", controller.path]
    folder = Path(check_output(command, cwd=MODULES / controller.module, text=True).strip())
    return [body for file in sorted(folder.glob(pattern)) for body in yaml.safe_load_all(file.read_text()) if body]


def _definitions(controller: Controller) -> list[Object]:
    """Makes the definitions of the module, as kustomize does."""
    converted = {one["metadata"]["name"]: one["spec"] for one in _files(controller, controller.converted)}
    found = _files(controller, controller.crds)
    for body in found:
        body["spec"] |= converted.get(body["metadata"]["name"], {})
        if client := body["spec"].get("conversion", {}).get("webhook", {}).get("clientConfig"):
            client["service"] |= {"name": controller.service, "namespace": controller.namespace}
    return found


def _webhooks(controller: Controller, authority: str) -> list[Object]:
    """Makes the webhook configurations of the module, as kustomize does."""
    found = _files(controller, controller.webhooks)
    patches = _patches(controller)
    for body in found:
        name = body["metadata"]["name"]
        body["metadata"]["name"] = controller.renamed.get(name, controller.prefix + name)
        for webhook in body["webhooks"]:
            client = webhook["clientConfig"]
            client["service"] |= {"name": controller.service, "namespace": controller.namespace}
            client |= {"caBundle": authority} if authority else {}
            webhook.update(patches.get(webhook["name"], {}))
    return found


def _patches(controller: Controller) -> dict[str, Object]:
    """Changes of kustomize in webhooks, by their names."""
    if controller is JOBSET:
        labelled = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}
        return {name: {"objectSelector": labelled} for name in ("mpod.kb.io", "vpod.kb.io")}
    patches = [yaml.safe_load(one["patch"]) for file in _files(controller, controller.patched) for one in file["patches"]]
    return {webhook["name"]: webhook for patch in patches for webhook in patch["webhooks"]}


def _certificate(folder: Path, name: str) -> str:
    """Makes one that signs itself; returns it as webhook configurations have it."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    files = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    run([*command, "-addext", f"subjectAltName=DNS:{name}", *files], check=True, capture_output=True)
    return base64.b64encode((folder / "tls.crt").read_bytes()).decode()


def _said(controller: Controller, own: Path, port: int, health: int) -> Sequence[str]:
    """Returns the flags that say where the controller serves what."""
    if controller.configuration is None:
        addresses = (
            f"--health-probe-bind-address=127.0.0.1:{health}",
            "--metrics-bind-address=0",
            f"--webhook-server-port={port}",
        )
        return (*addresses, *controller.flags)
    (own / "config.yaml").write_text(yaml.safe_dump(controller.configuration(own, port, health)))
    return (f"--config={own / 'config.yaml'}",)


async def _mount(controller: Controller, api: Api, folder: Path) -> None:
    """Plays the kubelet: what the Secret holds becomes files."""
    path = f"/api/v1/namespaces/{controller.namespace}/secrets/{controller.secret}"
    while not (content := (await api.get(path)).get("data", {})).get("tls.crt"):
        await asyncio.sleep(0.1)
    for name, text in content.items():
        (folder / name).write_bytes(base64.b64decode(text))


async def _until_ready(controller: Controller, api: Api, ports: tuple[int, int], folder: Path) -> None:
    """Some say that they are ready before they have begun to serve their webhooks."""
    health, webhooks = ports
    try:
        async with asyncio.timeout(PATIENCE):
            if controller.secret:
                await _mount(controller, api, controller.mounted(folder / controller.module))
            while not (await _answers(health, b" 200 ") and await _answers(webhooks)):
                await asyncio.sleep(0.2)
    except TimeoutError:
        words = (folder / f"{controller.module}.log").read_text()[-3000:]
        raise Unavailable(f"{controller.module} was not ready within {PATIENCE:g} s\n  {words}") from None


async def _answers(port: int, word: bytes = b"") -> bool:
    """Returns whether a process listens there, and answers with this text."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
        answer = await reader.readline()
        writer.close()
    except OSError:
        return False
    return word in answer
