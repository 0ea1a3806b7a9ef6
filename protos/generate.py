"""Generates the Python code of the wire contract. `make protos` runs it; the checks run it with --check.

The generator is pinned in a tool environment of its own: code made by grpcio-tools 1.71.2 loads on protobuf 5.29, 6 and 7, and
training images belong to somebody else.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
PACKAGE = "rekindle_wire"
TARGET = ROOT / "training" / "src"
TOOLS = ("grpcio-tools==1.71.2", "mypy-protobuf==3.7.0", "setuptools<81")


def generate(into: Path) -> None:
    """Writes `rekindle_wire/*_pb2*.py[i]` below a folder; the proto path gives the files their package."""
    with tempfile.TemporaryDirectory() as scratch:
        sources = Path(scratch) / PACKAGE
        sources.mkdir()
        for proto in sorted(PROTOS.glob("*.proto")):
            (sources / proto.name).write_text(proto.read_text())
        command = ["uv", "run", "--quiet", "--no-project", "--isolated"]
        for tool in TOOLS:
            command += ["--with", tool]
        command += ["python", "-m", "grpc_tools.protoc", f"-I{scratch}"]
        command += [f"--{kind}_out={into}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
        subprocess.run([*command, *(str(path) for path in sorted(sources.glob("*.proto")))], check=True)


def drift(fresh: Path) -> list[str]:
    """Names of the generated files that differ from the committed ones, in either direction."""
    committed = TARGET / PACKAGE
    names = {path.name for tree in (fresh / PACKAGE, committed) for path in tree.glob("*_pb2*")}
    return sorted(name for name in names if _content(fresh / PACKAGE / name) != _content(committed / name))


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when the committed code differs")
    if not parser.parse_args().check:
        generate(TARGET)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        stale = drift(Path(scratch))
    if stale:
        print("generated code differs from protos/, run `make protos`:", ", ".join(stale), file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
