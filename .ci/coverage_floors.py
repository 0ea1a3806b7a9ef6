"""Prints what the tests covered, folder by folder, and fails below the floors of pyproject.toml. `.ci/checks` runs it last."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNTED = ("num_statements", "num_branches", "covered_lines", "covered_branches")


def measured() -> dict[str, Counter[str]]:
    """What was covered, for each first folder below the root."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "coverage.json"
        if subprocess.run(["coverage", "json", "--quiet", "-o", str(report)], cwd=ROOT, check=False).returncode:
            return {}  # coverage said why: no test has run any of it
        files = json.loads(report.read_text())["files"]
    folders: dict[str, Counter[str]] = {}
    for name, file in files.items():
        summary = {key: file["summary"][key] for key in COUNTED}
        folders.setdefault(Path(name).parts[0], Counter()).update(summary)
    return folders


def percent(counts: Counter[str]) -> float:
    """Lines and branches together, as coverage counts them."""
    everything = counts["num_statements"] + counts["num_branches"]
    return 100 * (counts["covered_lines"] + counts["covered_branches"]) / everything if everything else 0


def main() -> int:
    floors: dict[str, float] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["rekindle"]["coverage-floors"]
    folders = measured()
    below = [folder for folder, floor in floors.items() if percent(folders.get(folder, Counter())) < floor]
    for folder, floor in floors.items():
        counts = folders.get(folder, Counter())
        print(f"    {folder:<12} {percent(counts):5.1f} %  of {counts['num_statements']:5} lines   (floor {floor} %)")
    if below:
        print("    below the floor:", ", ".join(below))
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
