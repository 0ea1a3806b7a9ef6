import itertools
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from activities.clusters.api_server import Api, Object
from simulators.kubernetes.binaries import control_plane_binaries, kubectl
from tests.fakes.foreign import Setting, a_setting
from tests.kubernetes.world.control_plane import Namespace, a_namespace, local_kubernetes
from tests.kubernetes.world.manifests import OVERLAYS, ROOT, WRITTEN_BY_HAND, rendered

_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process has all tests of this folder, and so one control plane. Before xdist looks at the marks."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("kubernetes"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """The programs are built before the first test, which could not wait for them."""
    here = [item for item in session.items if Path(__file__).parent in item.path.parents]
    if here and not session.config.option.collectonly:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        tell = reporter.write_line if reporter else print
        control_plane_binaries(tell)
        kubectl(tell)


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One control plane for all tests; each has a namespace of its own."""
    with local_kubernetes(tmp_path_factory.mktemp("kubernetes")) as kubeconfig:
        yield kubeconfig


@pytest.fixture
async def setting(kubeconfig: Path, namespace: Namespace) -> AsyncIterator[Setting]:
    async with a_setting(Api(kubeconfig), namespace) as setting:
        yield setting


@pytest.fixture
async def namespace(kubeconfig: Path) -> AsyncIterator[Namespace]:
    async with a_namespace(kubeconfig, f"test-{next(_numbers)}") as namespace:
        yield namespace


@pytest.fixture(scope="module")
def program() -> str:
    return str(kubectl(print))


@pytest.fixture(scope="module")
def deploy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `deploy`, with the files that docs/kustomize.md instructs to write."""
    deploy = tmp_path_factory.mktemp("manifests") / "deploy"
    shutil.copytree(ROOT / "deploy", deploy)
    for name, text in WRITTEN_BY_HAND.items():
        (deploy / "overlays" / name).write_text(text)
    return deploy


@pytest.fixture(scope="module")
def manifests(program: str, deploy: Path) -> dict[str, list[Object]]:
    """The objects of each overlay."""
    return {overlay: rendered(program, deploy / "overlays" / overlay) for overlay in OVERLAYS}
