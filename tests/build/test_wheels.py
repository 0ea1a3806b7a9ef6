"""A user installs both wheels, in an environment without this checkout."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLAT = ("workflows", "activities", "workers", "simulators")

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Wheels:
    control_plane: Path
    training: Path


@dataclass(frozen=True)
class Installation:
    """An environment outside of the checkout, and an empty directory in which commands start."""

    bin: Path
    cwd: Path

    def run(self, *command: str) -> str:
        """Returns the standard output of a command that is found in this environment only."""
        return run([str(self.bin / command[0]), *command[1:]], cwd=self.cwd, env={"PATH": f"{self.bin}:/usr/bin:/bin"})


def run(command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Runs a process whose environment contains nothing of the checkout. A failure has its output."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "COV"))}
    done = subprocess.run(command, cwd=cwd, env={**inherited, **(env or {})}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"{' '.join(command)} exited with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    )
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """Yields both wheels, built by the first command of the README's section on installing."""
    out = tmp_path_factory.mktemp("wheels")
    pip = out / "venv" / "bin" / "pip"
    run(["python", "-m", "venv", str(pip.parents[1])], cwd=out)
    build, _ = commands(out)
    run([str(pip), *build[1:]], cwd=ROOT)
    (control_plane,) = out.glob("rekindle_recovery-[0-9]*.whl")
    (training,) = out.glob("rekindle_recovery_training-[0-9]*.whl")
    return Wheels(control_plane, training)


def commands(folder: Path) -> list[list[str]]:
    """Returns the README's commands that build and install, with the folder of the wheels in place of `dist`."""
    found = re.search(r"## Install\n.*?```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found
    return [[str(folder) if word == "dist" else word for word in shlex.split(line)] for line in found[1].splitlines()]


@pytest.fixture(scope="module")
def installation(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Runs the second command of the README: it installs the dependencies of the wheels and nothing else, at the versions and
    hashes of the lock."""
    home = tmp_path_factory.mktemp("installation")
    run(["uv", "venv", "--quiet", str(home / "venv")], cwd=home)
    python, lock = home / "venv" / "bin" / "python", ROOT / "requirements.lock"
    _, (_, install, *arguments) = commands(wheels.control_plane.parent)
    run(["uv", "pip", install, "--quiet", "--python", str(python), "--constraints", str(lock), *arguments], cwd=home)
    (home / "empty").mkdir()
    yield Installation(bin=python.parent, cwd=home / "empty")
    shutil.rmtree(home / "venv")  # gigabytes, where they are no hard links


@pytest.fixture(scope="module")
def client(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Installs the wheel without extras, as a platform does."""
    home = tmp_path_factory.mktemp("client")
    run(["uv", "venv", "--quiet", str(home / "venv")], cwd=home)
    python, lock = home / "venv" / "bin" / "python", ROOT / "requirements.lock"
    command = ["uv", "pip", "install", "--quiet", "--python", str(python), "--constraints", str(lock)]
    run([*command, str(wheels.control_plane)], cwd=home)
    (home / "empty").mkdir()
    yield Installation(bin=python.parent, cwd=home / "empty")
    shutil.rmtree(home / "venv")


def test_without_an_extra_client_and_commands_are_installed(client: Installation) -> None:
    """Neither torch nor the libraries of the processes are there. Commands that need them name what to install."""
    listed = run(["uv", "pip", "list", "--format", "freeze", "--python", str(client.bin / "python")], cwd=client.cwd)
    names = {line.split("==")[0] for line in listed.splitlines()}
    assert not names & {"torch", "numpy", "grpcio", "kubernetes", "prometheus-client", "rekindle-recovery-training"}
    client.run("python", "-c", "import rekindle.client, rekindle.maintenances, rekindle.plans, rekindle.drains, rekindle.nodes")
    (client.cwd / "job.yaml").write_text((ROOT / "examples" / "gpt.yaml").read_text())
    assert "0 errors" in client.run("rekindle", "check", "job.yaml")
    for command, extra in ((["rekindle", "dev"], "demo"), (["rekindle", "uninstall", "--check"], "kubernetes")):
        done = subprocess.run(
            [str(client.bin / command[0]), *command[1:]], cwd=client.cwd, capture_output=True, text=True, check=False
        )
        assert f'pip install "rekindle-recovery[{extra}]"' in done.stderr, done.stderr


def contents(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_flat_names_stay_out_of_site_packages(wheels: Wheels) -> None:
    """The wheel puts `rekindle` into site-packages and nothing beside it: other distributions own the flat names."""
    tops = {name.split("/")[0] for name in contents(wheels.control_plane)}
    assert tops == {"rekindle", next(top for top in tops if top.endswith(".dist-info"))}


def test_the_server_is_carried_whole(wheels: Wheels) -> None:
    """Every module of the flat packages is in the wheel, below rekindle/_server, and what the control plane is built from."""
    modules = {path.relative_to(ROOT).as_posix() for name in FLAT for path in (ROOT / name).rglob("*.py")}
    pinned = ("control-plane", "temporal-server")
    pins = {f"deploy/{folder}/{name}" for folder in pinned for name in ("go.mod", "go.sum", "tools.go")}
    assert {f"rekindle/_server/{file}" for file in modules | pins} <= contents(wheels.control_plane)


def test_wheels_are_typed_and_licensed(wheels: Wheels) -> None:
    """A type checker of a program that uses them finds their types, and the license is included."""
    names = contents(wheels.control_plane) | contents(wheels.training)
    assert {"rekindle/py.typed", "rekindle_wire/py.typed"} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in contents(wheels.control_plane))


def test_training_images_get_unique_names_only(wheels: Wheels) -> None:
    """Packages that are installed into a training image have unique names, so that they cannot collide with the user's
    packages."""
    tops = {name.split("/")[0] for name in contents(wheels.training)}
    assert {top for top in tops if not top.endswith(".dist-info")} <= {"rekindle_training", "rekindle_wire"}


def test_the_names_of_taskd_are_in_a_wheel_of_their_own(wheels: Wheels, tmp_path: Path) -> None:
    """Images that have the real TaskD are not given them by another wheel."""
    run(["uv", "build", "--quiet", "--wheel", "--no-build-isolation", "--out-dir", str(tmp_path), "training/taskd"], cwd=ROOT)
    (wheel,) = tmp_path.glob("rekindle_recovery_taskd-*.whl")
    assert {"taskd/api/__init__.py", "taskd/python/adaptor/patch.py"} <= contents(wheel)
    assert not any(name.startswith("taskd/") for name in contents(wheels.training) | contents(wheels.control_plane))


def test_installed_packages_agree(installation: Installation) -> None:
    """No dependency is missing and none contradicts another."""
    python = str(installation.bin / "python")
    run(["uv", "pip", "check", "--python", python], cwd=installation.cwd)
    installation.run("python", "-P", "-c", "import rekindle, rekindle_wire.recover_pb2_grpc")


def test_the_command_says_what_it_can_do(installation: Installation) -> None:
    """`rekindle --help` runs from an empty directory and names the demo."""
    assert "demo" in installation.run("rekindle", "--help")


def test_the_demo_recovers_from_an_installed_wheel(installation: Installation) -> None:
    """The demo runs from an empty directory, with four pods and without a terminal. It ends by itself, and its panel shows the
    result."""
    printed = installation.run("rekindle", "demo", "hot-switch", "--pods", "4", "--pod-rank", "3", "--seed", "11")
    for words in ("recovered", "equal bit for bit", "pause of training", "Temporal UI", "rank 3"):
        assert words in printed, printed
