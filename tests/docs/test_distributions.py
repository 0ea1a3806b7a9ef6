"""Names of distributions in commands that are printed or documented: only ours, and as `pyproject.toml` has them."""

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = {tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]["name"] for folder in (".", "training")}
INSTALLED = re.compile(r"""(?:pip|pipx|uv)\s+(?:install|add)\b[^\n`&]*?(?<![\w./=-])(rekindle[\w-]*)""")


def test_a_command_that_installs_names_only_what_we_publish() -> None:
    """`rekindle` on PyPI is a foreign program, which our error said to install."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    texts = [
        ROOT / name for name in listed if name.endswith((".py", ".md", ".toml", "Dockerfile")) and ROOT / name != Path(__file__)
    ]
    named = {(found, path.name) for path in texts for found in INSTALLED.findall(path.read_text())}
    assert {name for name, _ in named} == OURS, named
