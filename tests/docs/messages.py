"""Table of every message that a user can meet in an error, a refusal or a verdict: `python -m tests.docs.messages` writes it.

A message is the text of a call whose name the product raises somewhere, such as `BadInput("--leaf: ...")`.
Values are `{}`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("messages.txt")
FOLDERS = ("rekindle", "workflows", "activities", "workers", "simulators", "training/src/rekindle_training")


def found() -> list[str]:
    """Returns a line for each message: the folder, the name of the call and the text, separated by tabs."""
    trees = {path: ast.parse(path.read_text()) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    raised = {_name(node.exc) for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Raise)} - {""}
    lines: set[str] = set()
    for path, tree in trees.items():
        folder = path.relative_to(ROOT).parts[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (name := _name(node)) in raised:
                lines.update(f"{folder}\t{name}\t{text}" for text in _texts(node))
    return sorted(lines)


def _name(call: ast.expr | None) -> str:
    return ast.unparse(call.func).rpartition(".")[2] if isinstance(call, ast.Call) else ""


def _texts(call: ast.Call) -> Iterator[str]:
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    for text in map(_text, values):
        if " " in text.strip():
            yield text.replace("\n", "\\n")


def _text(value: ast.expr) -> str:
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case ast.FormattedValue():
            return "{}"
        case ast.BinOp(left=left, op=ast.Add(), right=right) if _text(left) or _text(right):
            return (_text(left) or "{}") + (_text(right) or "{}")
    return ""


if __name__ == "__main__":
    TABLE.write_text("\n".join(found()) + "\n")
