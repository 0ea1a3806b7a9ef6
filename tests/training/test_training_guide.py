"""`docs/training-guide.md`: what it shows runs, and goes on where a rank is lost."""

import ast
import re
from pathlib import Path

import pytest

import rekindle_training
from rekindle_training.launcher import flags
from tests.training.standalone import Standalone

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "training-guide.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
SCRIPTS = {match[1]: block for block in BLOCKS if (match := re.match(r"# (\w+)\.py\n", block))}
STRUCK = str(Path(__file__).with_name("scripts").joinpath("struck.py"))


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_script_of_the_guide_outlives_a_rank(name: str, alone: Standalone, tmp_path: Path) -> None:
    """A script from the guide runs as it stands on the page."""
    script = tmp_path / f"{name}.py"
    script.write_text(SCRIPTS[name])
    printed = await alone.run("--spares=1", STRUCK, script=str(script), FAULTS="1:7:kill")
    assert "repaired step=6" in printed


def test_what_the_guide_shows_is_python() -> None:
    """All Python blocks of the guide are valid Python, whole scripts and parts of scripts."""
    assert len(SCRIPTS) > 1
    for block in BLOCKS:
        ast.parse(block)


@pytest.mark.parametrize("flag", sorted(set(re.findall(r"^\| `(--[a-z-]+)", GUIDE, re.MULTILINE))))
def test_a_flag_of_the_guide_is_one(flag: str) -> None:
    """The default of a flag is the one that the guide states."""
    stated = re.search(rf"`{flag}[^`]*` \((\w+)\)", GUIDE)
    parsed = vars(flags.read(["train.py"], {}))
    assert flag[2:].replace("-", "_") in parsed
    if stated is not None:
        assert parsed[flag[2:].replace("-", "_")] == stated[1]


PACKAGE = Path(rekindle_training.__file__).parent
MESSAGES = re.findall(
    r"^\| `+ ?(.+?) ?`+(?:, `+ ?(.+?) ?`+)*(?:, `+ ?(.+?) ?`+)? \|", GUIDE.partition("## When it does not go on")[2], re.MULTILINE
)


def _templates() -> list[str]:
    """Texts of the program, with a space for each value that is put in."""
    nodes = (node for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    return [text for node in nodes if (text := _text(node))]


def _text(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(value) or " " for value in values)
    return ""


@pytest.mark.parametrize("message", [message for row in MESSAGES for message in row if message])
def test_a_message_of_the_guide_is_what_the_program_says(message: str) -> None:
    """The parts of a message that are plain text occur in texts of the program."""
    if message.startswith("EADDRINUSE"):  # of the operating system
        return
    fragments = [words.strip() for words in re.split(r"\S*[\d'.:=/]\S*|\.\.\.|\b[A-Z]\w*\b", message) if len(words.strip()) > 8]
    assert fragments
    texts = _templates()
    assert [fragment for fragment in fragments if not _is_said(fragment, texts)] == []


def _is_said(words: str, texts: list[str]) -> bool:
    """Returns whether a text occurs in one text of the program, or split over two of which one is inserted into the other."""
    parts = words.split()
    pairs = ((" ".join(parts[:at]), " ".join(parts[at:])) for at in range(len(parts)))
    return any(all(any(part.strip(",") in text for text in texts) for part in pair) for pair in pairs)
