"""Builds the images of `deploy/images` from the last commit, with buildah, podman or docker. `make images` runs it.

For each image, `build/images` gets an OCI archive (unless it is pushed), its digest, and an SBOM in CycloneDX's JSON. The file
`values.yaml` there has the values of the chart that run exactly these images.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

from rekindle import __version__

ROOT = Path(__file__).resolve().parent.parent
SOURCES = Path("deploy") / "images"
TARGET = Path("build") / "images"

REGISTRY = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:\d{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

ANSWERS_WITHIN = 30
"""Seconds in which a tool shows that it works. A daemon that hangs is none."""


class Refused(Exception):
    """Images cannot be built. The message says why, and what is accepted."""


@dataclass(frozen=True)
class Image:
    """Image of `deploy/images`. Its Dockerfile and its lock have the name of its part."""

    part: str

    distributions: tuple[str, ...]
    """Ours that are installed in it."""

    bases: tuple[str, ...]
    """Arguments of the Dockerfile that name the images it is built from."""

    @property
    def name(self) -> str:
        return f"rekindle-{self.part}"

    @property
    def dockerfile(self) -> Path:
        return SOURCES / f"{self.part}.Dockerfile"

    @property
    def lock(self) -> Path:
        return SOURCES / f"{self.part}.lock"


CONTROL_PLANE = Image("control-plane", ("rekindle-recovery", "rekindle-recovery-training"), ("PYTHON",))
TRAINING = Image("training", ("rekindle-recovery-training",), ("PYTHON", "BASE"))
IMAGES = (CONTROL_PLANE, TRAINING)


@dataclass(frozen=True)
class Commit:
    """Commit that is built."""

    revision: str

    seconds: int
    """Time of the commit in seconds since 1970. Files that we add to an image are as old."""

    @classmethod
    def of(cls, root: Path) -> Commit:
        """Returns the commit that is checked out.

        Raises:
            Refused: files differ from it, or the folder is no git checkout.
        """
        changed = _git(root, "status", "--porcelain").splitlines()
        if changed:
            listed = ", ".join(line[3:] for line in changed[:5]) + (", ..." if len(changed) > 5 else "")
            raise Refused(f"files differ from the commit: {listed}. Images are built from a commit: commit, stash or ignore them")
        revision, seconds = _git(root, "log", "-1", "--no-show-signature", "--format=%H %ct").split()
        return cls(revision, int(seconds))


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, errors="replace", check=False)
    except FileNotFoundError:
        raise Refused("git was not found. Images are built from a commit of a git checkout") from None
    if done.returncode:
        raise Refused(
            f"`git {arguments[0]}` failed in {root}: {done.stderr.strip()}. Images are built from a commit of a git checkout"
        )
    return done.stdout


@dataclass(frozen=True)
class Order:
    """Everything that a tool needs to build one image."""

    context: Path
    dockerfile: Path
    arguments: Mapping[str, str]
    """Build arguments of the Dockerfile."""

    names: tuple[str, ...]
    """Names of the image, with registry and tag."""

    seconds: int
    """Time of the files in it, in seconds since 1970."""

    archive: Path | None
    """OCI archive to write. None: the image is pushed to the registry that its names contain.

    Tools run in its folder and get its name only: they would take a colon or a comma of the path for the end of it.
    """

    def options(self) -> list[str]:
        """Returns the options that all tools understand."""
        options = ["--file", str(self.dockerfile)]
        for key, value in self.arguments.items():
            options += ["--build-arg", f"{key}={value}"]
        for name in self.names:
            options += ["--tag", name]
        return options


class Tool(Protocol):
    """Program that builds images."""

    @property
    def name(self) -> str: ...

    @property
    def checks(self) -> Sequence[Sequence[str]]:
        """Arguments of commands that succeed if it can build."""

    def build(self, order: Order, scratch: Path) -> str:
        """Builds an image, writes or pushes it, and returns the digest of its manifest as the tool reported it."""


@dataclass(frozen=True)
class Containers:
    """buildah or podman, which have the same options and need no daemon."""

    name: str
    checks = (("info",),)

    def build(self, order: Order, scratch: Path) -> str:
        times = ["--format", "oci", "--timestamp", str(order.seconds)]
        _run([self.name, "build", *times, *order.options(), str(order.context)])
        digest, folder = scratch / "digest", order.archive.parent if order.archive else None
        # An archive has one image, and a registry each name.
        targets = [f"docker://{name}" for name in order.names]
        if order.archive:
            targets = [f"oci-archive:{order.archive.name}:{order.names[0]}"]
        for target in targets:
            _run([self.name, "push", "--digestfile", str(digest), order.names[0], target], folder)
        return digest.read_text().strip()


@dataclass(frozen=True)
class Docker:
    """docker with buildx: the classic builder cannot set the time of files."""

    name: str = "docker"
    checks = (("version",), ("buildx", "version"))

    def build(self, order: Order, scratch: Path) -> str:
        output = f"type=oci,dest={order.archive.name}" if order.archive else "type=image,push=true,unpack=false"
        metadata = scratch / "metadata.json"
        # A provenance contains the time of the build.
        options = [
            "--provenance=false",
            "--sbom=false",
            "--output",
            f"{output},rewrite-timestamp=true",
            "--metadata-file",
            str(metadata),
        ]
        folder = order.archive.parent if order.archive else None
        _run([self.name, "buildx", "build", *options, *order.options(), str(order.context)], folder)
        return str(json.loads(metadata.read_text()).get("containerimage.digest"))


TOOLS: tuple[Tool, ...] = (Containers("buildah"), Containers("podman"), Docker())
"""Tools in the order in which they are looked for: those without a daemon first."""


def _run(command: Sequence[str], folder: Path | None = None) -> None:
    """Runs a command that shows its progress itself, in a folder or here."""
    if status := subprocess.run(command, cwd=folder, check=False).returncode:
        raise Refused(f"`{' '.join(command[:2])}` ended with {status}; it says above why")


def chosen(wanted: str | None) -> Tool:
    """Returns the first tool that works.

    Args:
        wanted: name of the only tool that may be taken.

    Raises:
        Refused: none works; the message says what was found of each.
    """
    problems = []
    for tool in TOOLS:
        if wanted in (None, tool.name):
            problem = _problem(tool)
            if not problem:
                return tool
            problems.append(f"\n  {tool.name}: {problem}")
    raise Refused(
        f"no tool that builds images works:{''.join(problems)}\n"
        "Accepted are buildah, podman, and docker with its plugin buildx and a daemon that answers"
    )


def _problem(tool: Tool) -> str:
    """Returns why a tool cannot build. Empty: it can."""
    path = shutil.which(tool.name)
    if path is None:
        return "not found in PATH"
    for check in tool.checks:
        command = f"`{tool.name} {' '.join(check)}`"
        try:
            done = subprocess.run(
                [path, *check], capture_output=True, text=True, errors="replace", check=False, timeout=ANSWERS_WITHIN
            )
        except subprocess.TimeoutExpired:
            return f"{path} was found, but {command} did not answer within {ANSWERS_WITHIN} s"
        except OSError as error:
            return f"{path} was found, and does not run: {error.strerror}"
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or f"it ended with {done.returncode}").splitlines()[-1]
            return f"{path} was found, but {command} failed: {last}"
    return ""


def locked(lock: str) -> Iterator[tuple[str, str]]:
    """Yields name and version of each package of a lock."""
    for line in lock.splitlines():
        if line and not line.startswith((" ", "#")):
            requirement = Requirement(line.removesuffix("\\"))
            (pin,) = requirement.specifier
            yield requirement.name, pin.version


def sbom(image: Image, lock: str, digest: str, seconds: int) -> str:
    """Returns the bill of materials of an image: our distributions, and the packages of its lock. Its base brings others."""
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, f"{image.name}@{digest}"))
    bom.metadata.timestamp = datetime.fromtimestamp(seconds, UTC)
    of_oci = PackageURL("oci", None, image.name, digest)
    whole = Component(name=image.name, version=__version__, type=ComponentType.CONTAINER, purl=of_oci, bom_ref=image.name)
    bom.metadata.component = whole
    packages = [(name, __version__) for name in image.distributions] + sorted(locked(lock))
    parts = [
        Component(name=name, version=version, purl=PackageURL("pypi", None, name, version), bom_ref=f"{name}=={version}")
        for name, version in packages
    ]
    bom.components.update(parts)
    bom.register_dependency(whole, parts)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def values(registry: str, digests: Mapping[str, str]) -> str:
    """Returns values of the chart, as YAML, that run exactly these images."""
    return (
        f"image:\n  repository: {registry}{CONTROL_PLANE.name}\n  digest: {digests[CONTROL_PLANE.name]}\n"
        f"test:\n  image: {registry}{TRAINING.name}@{digests[TRAINING.name]}\n"
    )


@dataclass(frozen=True)
class Options:
    """Options of a build."""

    registry: str
    """Prefix of the names, with a slash at its end unless it is empty."""

    push: bool
    source: str
    """Address of the source, for the label. Empty: not said."""

    bases: Mapping[str, str]
    """Images to build from, by the argument that names them. A Dockerfile has a default for each that is missing."""


def build(root: Path, tool: Tool, commit: Commit, options: Options) -> str:
    """Builds all images, writes what belongs to them, and returns the values of the chart."""
    target = root / TARGET
    _empty(target)
    of_commit = {"REVISION": commit.revision, "VERSION": __version__, "SOURCE_DATE_EPOCH": str(commit.seconds)}
    said = {**of_commit, "SOURCE": options.source}
    digests = {}
    with tempfile.TemporaryDirectory() as scratch:
        context = Path(scratch) / "context"
        _checkout(root, commit, context)
        for image in IMAGES:
            name = f"{options.registry}{image.name}"
            order = Order(
                context=context,
                dockerfile=context / image.dockerfile,
                arguments={**said, **{key: base for key, base in options.bases.items() if key in image.bases}},
                names=(f"{name}:{__version__}", f"{name}:{commit.revision[:12]}"),
                seconds=commit.seconds,
                archive=None if options.push else target / f"{image.name}.tar",
            )
            digests[image.name] = digest = tool.build(order, Path(scratch))
            if not DIGEST.fullmatch(digest):
                raise Refused(f"{tool.name} reported no digest of {image.name}, but {digest!r}")
            (target / f"{image.name}.digest").write_text(f"{digest}\n")
            (target / f"{image.name}.cdx.json").write_text(
                sbom(image, (context / image.lock).read_text(), digest, commit.seconds)
            )
    text = values(options.registry, digests)
    (target / "values.yaml").write_text(text)
    return text


def _empty(folder: Path) -> None:
    """Makes a folder that has nothing in it: what an earlier commit left would be taken for this one's."""
    try:
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
        elif folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
    except OSError as error:
        raise Refused(f"{folder} cannot be emptied and made anew: {error.strerror}") from error


def _checkout(root: Path, commit: Commit, into: Path) -> None:
    """Writes the files of a commit into a folder, so that no ignored file of this checkout gets into an image."""
    command = ["git", "-c", "tar.umask=0022", "archive", commit.revision]
    archive = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE)
    try:
        with archive, tarfile.open(fileobj=archive.stdout, mode="r|") as files:
            files.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has no filters
            files.extractall(into)
    except tarfile.ReadError:  # git says above why
        raise Refused(f"`git archive` wrote nothing in {root}. Images are built from a commit of a git checkout") from None
    if archive.returncode:
        raise Refused(f"`git archive` ended with {archive.returncode} in {root}; it says above why")


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--registry", default="", help="where the images belong: my-registry, or registry.example.com:5000/team")
    parser.add_argument("--push", action="store_true", help="push them there; otherwise they are written as OCI archives")
    parser.add_argument(
        "--tool", choices=[tool.name for tool in TOOLS], help="the only tool that may be taken; default: the first one"
    )
    parser.add_argument("--python-image", metavar="IMAGE", help="base with Python, such as python:3.11-slim@sha256:...")
    parser.add_argument("--training-base", metavar="IMAGE", help="base of the training image, with PyTorch")
    parser.add_argument("--source", metavar="URL", default="", help="address of the source, for the images' label")
    return parser


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = _options()
    given = parser.parse_args(arguments)
    if given.push and not given.registry:
        parser.error("argument --push: it needs a registry: --registry my-registry")
    if given.registry and not REGISTRY.fullmatch(given.registry.rstrip("/")):
        parser.error(f"argument --registry: {given.registry!r} is no place of images (accepted: registry.example.com:5000/team)")
    registry = f"{given.registry.rstrip('/')}/" if given.registry else ""
    bases = {key: base for key, base in (("PYTHON", given.python_image), ("BASE", given.training_base)) if base}
    try:
        commit, tool = Commit.of(root), chosen(given.tool)
        text = build(root, tool, commit, Options(registry, given.push, given.source, bases))
    except Refused as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    if any("@sha256:" not in bases.get(key, "") for key in TRAINING.bases):
        print("images: a base was not given by its digest, so that a later build of this commit may differ", file=sys.stderr)
    print(
        f"\n{tool.name} built {commit.revision}, into {TARGET}. Values of the chart, in {TARGET / 'values.yaml'}:\n\n{text}",
        end="",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
