"""Source of the script's functions, as syntax trees."""

import ast
import linecache
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_trees: dict[str, ast.Module] = {}
_functions: dict[str, dict[tuple[str, int], list[_Function]]] = {}
"""Functions by their file, and there by name and line."""


def body_of(code: CodeType, names: Mapping[str, Any]) -> Sequence[ast.stmt]:
    """Returns the statements of a function or module; none where its source is not known, or two lambdas share a line.

    Args:
        names: its globals.
    """
    tree = tree_of(code, names)
    if code.co_name == "<module>":
        return tree.body
    found = _functions[code.co_filename].get((code.co_name, code.co_firstlineno), [])
    match found:
        case [ast.Lambda(body=body)]:
            return [ast.copy_location(ast.Return(body), body)]
        case [ast.FunctionDef(body=statements) | ast.AsyncFunctionDef(body=statements)]:
            return statements
    return []


def tree_of(code: CodeType, names: Mapping[str, Any]) -> ast.Module:
    """Returns the source of the file; nothing where it is not known."""
    file = code.co_filename
    if file not in _trees:
        try:
            tree = ast.parse("".join(linecache.getlines(file, dict(names))))
        except SyntaxError:
            tree = ast.Module([], [])
        _trees[file], _functions[file] = tree, {}
        for node in ast.walk(tree):
            if isinstance(node, _Function):
                _functions[file].setdefault((getattr(node, "name", "<lambda>"), _begins(node)), []).append(node)
    return _trees[file]


def forget() -> None:
    """Drops the sources that were read."""
    _trees.clear()
    _functions.clear()


def _begins(function: _Function) -> int:
    decorators = [] if isinstance(function, ast.Lambda) else function.decorator_list
    return min([function.lineno, *(decorator.lineno for decorator in decorators)])
