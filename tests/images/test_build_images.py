"""`make images`: its choice of a tool, what it orders, and what it leaves. Scripts stand for the tools."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import build_images
from deploy.build_images import CONTROL_PLANE, IMAGES, TRAINING, locked
from rekindle import __version__
from tests.kubernetes.world.manifests import container, workloads
from tests.support.charts import given, objects

ROOT = Path(__file__).parents[2]

DIGESTS = {CONTROL_PLANE.name: f"sha256:{'a' * 64}", TRAINING.name: f"sha256:{'b' * 64}"}
SECONDS = 1_780_000_000

TOOL = """\
#!/bin/sh
printf '%s\\n' "{name} $*" >>{log}
{before}
case "$*" in *rekindle-training*) digest={training} ;; *) digest={control_plane} ;; esac
while [ $# -gt 0 ]; do
    case $1 in
        --digestfile) printf '%s\\n' "$digest" >"$2" ;;
        --metadata-file) printf '{{"containerimage.digest": "%s"}}' "$digest" >"$2" ;;
    esac
    shift
done
"""
"""Tool that builds nothing, and reports a digest as it would."""

BROKEN = 'case "$1" in info | version) echo "first line" >&2; echo "cannot connect to the daemon" >&2; exit 125 ;; esac'
FAILS = 'case "$*" in *build\\ *--file*) exit 17 ;; esac'


class Machine:
    """Checkout with the Dockerfiles, and a PATH with nothing but git and scripts."""

    def __init__(self, folder: Path) -> None:
        self.root, self.programs, self.log = folder / "checkout", folder / "programs", folder / "log"
        self.target = self.root / "build" / "images"
        shutil.copytree(ROOT / "deploy" / "images", self.root / "deploy" / "images")
        (self.root / ".gitignore").write_text("/build/\n")
        self.programs.mkdir()
        git = shutil.which("git")
        assert git
        (self.programs / "git").symlink_to(git)
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "first")

    def git(self, *arguments: str) -> str:
        identity = {f"GIT_{who}_{what}": "somebody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        dates = {"GIT_AUTHOR_DATE": f"@{SECONDS} +0200", "GIT_COMMITTER_DATE": f"@{SECONDS} +0200"}
        environment = {"PATH": str(self.programs), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
        return subprocess.run(
            ["git", *arguments],
            cwd=self.root,
            env={**environment, **identity, **dates},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    def has(self, name: str, before: str = "") -> None:
        """Installs a tool."""
        script = TOOL.format(
            name=name, log=self.log, before=before, training=DIGESTS[TRAINING.name], control_plane=DIGESTS[CONTROL_PLANE.name]
        )
        (self.programs / name).write_text(script)
        (self.programs / name).chmod(0o755)

    def make(self, *arguments: str) -> int:
        return build_images.main(arguments, self.root)

    def orders(self, scratch: str = "") -> list[str]:
        """Returns what the tool was called with. Its temporary folder may be given another name."""
        text = self.log.read_text()
        (folder,) = {word.removesuffix("/context") for word in text.split() if word.endswith("/context")}
        return text.replace(folder, scratch or folder).splitlines()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(machine.programs))
    return machine


@pytest.mark.parametrize(
    ("tools", "arguments", "expected"),
    [
        ({"buildah": "", "podman": "", "docker": ""}, (), "buildah"),
        ({"podman": "", "docker": ""}, (), "podman"),
        ({"docker": ""}, (), "docker"),
        ({"buildah": BROKEN, "docker": ""}, (), "docker"),
        ({"buildah": "", "docker": ""}, ("--tool", "docker"), "docker"),
    ],
)
def test_a_tool_that_works_builds_and_its_digests_are_kept(
    machine: Machine, tools: dict[str, str], arguments: tuple[str, ...], expected: str
) -> None:
    """The first one of buildah, podman and docker is taken, or the one that is named. Each digest file has what it reported."""
    for name, before in tools.items():
        machine.has(name, before)
    assert machine.make(*arguments) == 0
    assert {order.split()[0] for order in machine.orders() if "--file" in order} == {expected}
    for image in IMAGES:
        assert (machine.target / f"{image.name}.digest").read_text() == f"{DIGESTS[image.name]}\n"


def test_without_a_tool_the_error_says_what_was_found(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names each tool with what is wrong, and what is accepted. Nothing is written."""
    machine.has("podman", BROKEN)
    machine.has("docker", 'case "$1" in buildx) echo "docker: buildx is not a docker command" >&2; exit 1 ;; esac')
    assert machine.make() == 1
    said = capsys.readouterr().err
    for words in (
        "buildah: not found in PATH",
        f"podman: {machine.programs / 'podman'} was found, but `podman info` failed: cannot connect to the daemon",
        "`docker buildx version` failed: docker: buildx is not a docker command",
        "Accepted are buildah, podman, and docker with its plugin buildx and a daemon that answers",
    ):
        assert words in said
    assert not machine.target.exists()


def test_a_build_that_fails_is_an_error(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """The tool has said why, and the error says which command it was. No digest is left."""
    machine.has("buildah", FAILS)
    assert machine.make() == 1
    assert "`buildah build` ended with 17" in capsys.readouterr().err
    assert list(machine.target.iterdir()) == []


@pytest.mark.parametrize("changed", ["deploy/images/training.lock", "new.py"])
def test_files_that_differ_from_the_commit_are_refused(
    machine: Machine, changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An image says of which commit it is, so that it cannot have other files."""
    machine.has("buildah")
    (machine.root / changed).write_text("changed\n")
    assert machine.make() == 1
    assert f"files differ from the commit: {changed}" in capsys.readouterr().err
    assert not machine.log.exists()


def test_a_folder_without_git_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what images are built from."""
    assert build_images.main([], tmp_path) == 1
    assert "Images are built from a commit of a git checkout" in capsys.readouterr().err


def test_a_folder_that_git_ignores_is_refused(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """The checkout around it is clean, and git writes no archive of an ignored folder."""
    machine.has("buildah")
    inside = machine.root / "build" / "inside"
    shutil.copytree(ROOT / "deploy" / "images", inside / "deploy" / "images")
    assert build_images.main([], inside) == 1
    assert "`git archive` wrote nothing" in capsys.readouterr().err


@pytest.mark.parametrize("registry", ["https://example.com", "example.com/my team", "r\nimage: other", "example.com/Team"])
def test_a_registry_that_is_none_is_refused(machine: Machine, registry: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The registry becomes a part of the chart's values. The message says what is accepted."""
    machine.has("buildah")
    with pytest.raises(SystemExit):
        machine.make("--registry", registry)
    assert "accepted: registry.example.com:5000/team" in capsys.readouterr().err
    assert not machine.log.exists()


@pytest.mark.parametrize(("tool", "named"), [("buildah", "oci-archive:{0}.tar:"), ("docker", "type=oci,dest={0}.tar,")])
def test_the_path_of_the_checkout_may_have_any_character(machine: Machine, tool: str, named: str) -> None:
    """Tools run in the folder of the archives, as they would take a colon or a comma for the end of the path."""
    machine.root = machine.root.rename(machine.root.with_name("a b:c,d"))
    machine.target = machine.root / "build" / "images"
    machine.has(tool, 'case "$*" in *oci-archive* | *type=oci*) echo written >"$PWD/here" ;; esac')
    assert machine.make() == 0
    orders = "\n".join(machine.orders())
    assert all(named.format(image.name) in orders for image in IMAGES)
    assert (machine.target / "here").exists()


@pytest.mark.parametrize("what", ["file", "link"])
def test_what_stands_in_the_way_of_the_images_is_replaced(machine: Machine, what: str, tmp_path: Path) -> None:
    """A file or a link is replaced by the folder, and the target of the link is not touched."""
    machine.has("buildah")
    machine.target.parent.mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").write_text("kept")
    if what == "file":
        machine.target.write_text("old")
    else:
        machine.target.symlink_to(tmp_path / "other")
    assert machine.make() == 0
    assert [file.name for file in (tmp_path / "other").iterdir()] == ["kept"]
    assert machine.target.is_dir()


def test_a_tool_that_does_not_run_or_reports_nothing_is_said(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """A program of another machine was found. An empty digest would run any image of the name."""
    (machine.programs / "buildah").write_bytes(b"\x7fELF of another machine")
    (machine.programs / "buildah").chmod(0o755)
    machine.has("podman", 'case "$1" in push) echo "" >"$3"; exit 0 ;; esac')
    assert machine.make("--tool", "buildah") == 1
    assert "was found, and does not run: Exec format error" in capsys.readouterr().err
    assert machine.make() == 1
    assert "podman reported no digest of rekindle-control-plane, but ''" in capsys.readouterr().err
    assert not (machine.target / "values.yaml").exists()


def test_variables_of_make_are_one_argument_each() -> None:
    """An address with & would start another command, and a blank another argument."""
    command = ["make", "--silent", "--assume-old=setup", "images", "SOURCE=https://example.com/?a=1&b=2", "TOOL=no such; tool"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "argument --tool: invalid choice: 'no such; tool'" in done.stderr


def test_what_is_pushed_needs_a_registry(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the option that is missing."""
    with pytest.raises(SystemExit):
        machine.make("--push")
    assert "--push: it needs a registry: --registry my-registry" in capsys.readouterr().err


@pytest.mark.parametrize("tool", ["buildah", "docker"])
def test_two_builds_of_a_commit_are_ordered_alike(machine: Machine, tool: str) -> None:
    """All times are that of the commit. Version and commit are the tags, and the commit is a label too."""
    machine.has(tool)
    revision = machine.git("rev-parse", "HEAD")
    runs = []
    for _ in range(2):
        assert machine.make() == 0
        runs.append((machine.orders("SCRATCH"), [(file.name, file.read_text()) for file in sorted(machine.target.iterdir())]))
        machine.log.unlink()
    assert runs[0] == runs[1]
    builds = [order for order in runs[0][0] if "--file" in order]
    assert len(builds) == 2
    for image, order in zip(IMAGES, builds, strict=True):
        for words in (
            f"--tag {image.name}:{__version__} --tag {image.name}:{revision[:12]}",
            f"--build-arg REVISION={revision}",
            f"--build-arg VERSION={__version__}",
            f"--build-arg SOURCE_DATE_EPOCH={SECONDS}",
            {"buildah": f"--timestamp {SECONDS}", "docker": "rewrite-timestamp=true"}[tool],
        ):
            assert words in order


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("podman", "push --digestfile {digest} {name}:{version} docker://{name}:{commit}"),
        ("docker", "--output type=image,push=true,unpack=false,rewrite-timestamp=true"),
    ],
)
def test_images_are_pushed_to_their_registry(machine: Machine, tool: str, expected: str) -> None:
    """Names have the registry, and both tags are pushed. Bases and source are those that were given."""
    machine.has(tool)
    given_options = (
        "--python-image",
        "python@sha256:1",
        "--training-base",
        "torch@sha256:2",
        "--source",
        "https://example.com/code",
    )
    assert machine.make("--registry", "example.com:5000/team/", "--push", *given_options) == 0
    orders = "\n".join(machine.orders("SCRATCH"))
    name, commit = "example.com:5000/team/rekindle-control-plane", machine.git("rev-parse", "HEAD")[:12]
    assert expected.format(name=name, version=__version__, commit=commit, digest="SCRATCH/digest") in orders
    of_control_plane, of_training = (order for order in machine.orders() if "--file" in order)
    assert f"--tag {name}:{__version__} --tag {name}:{commit}" in of_control_plane
    assert "--build-arg PYTHON=python@sha256:1" in of_control_plane
    assert "--build-arg SOURCE=https://example.com/code" in of_control_plane
    assert "BASE=" not in of_control_plane
    assert "--build-arg BASE=torch@sha256:2" in of_training
    assert not list(machine.target.glob("*.tar"))


def test_the_chart_runs_exactly_these_images(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed values are those of the file, and the chart takes them."""
    machine.has("buildah")
    assert machine.make("--registry", "example.com/team") == 0
    written = (machine.target / "values.yaml").read_text()
    assert capsys.readouterr().out.endswith(written)
    found = objects({**given(), **yaml.safe_load(written)})
    expected = f"example.com/team/rekindle-control-plane@{DIGESTS[CONTROL_PLANE.name]}"
    assert {container(one)["image"] for one in workloads(found)} == {expected}
    (job,) = (one for one in found if one["kind"] == "TrainingJob")
    assert job["spec"]["kubernetes"]["image"] == f"example.com/team/rekindle-training@{DIGESTS[TRAINING.name]}"


def test_the_sbom_lists_every_package_of_the_lock(machine: Machine) -> None:
    """The SBOM has the distributions of ours too, and the image with its digest as what they are parts of."""
    machine.has("buildah")
    assert machine.make() == 0
    for image in IMAGES:
        sbom: Any = json.loads((machine.target / f"{image.name}.cdx.json").read_text())
        assert (sbom["bomFormat"], sbom["metadata"]["component"]["name"]) == ("CycloneDX", image.name)
        assert DIGESTS[image.name].replace(":", "%3A") in sbom["metadata"]["component"]["purl"].replace("sha256:", "sha256%3A")
        lock = set(locked((ROOT / image.lock).read_text()))
        assert len(lock) >= 3
        parts = {(one["name"], one["version"]) for one in sbom["components"]}
        assert parts == lock | {(name, __version__) for name in image.distributions}
        assert {f"pkg:pypi/{name}@{version}" for name, version in lock} <= {one["purl"] for one in sbom["components"]}
