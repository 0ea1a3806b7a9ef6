"""Source of the script's functions, as syntax trees."""

import ast
import linecache
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef


def body_of(code: CodeType, names: Mapping[str, Any]) -> Sequence[ast.stmt]:
    """Returns the statements of a function or module; none where its source is not known.

    Args:
        names: its globals.
    """
    tree = tree_of(code, names)
    if code.co_name == "<module>":
        return tree.body
    found = function_in(tree, code)
    return [] if found is None else found.body


def tree_of(code: CodeType, names: Mapping[str, Any]) -> ast.Module:
    """Returns the source of the file; nothing where it is not known."""
    try:
        return _parsed("".join(linecache.getlines(code.co_filename, dict(names))))
    except SyntaxError:
        return ast.Module([], [])


def function_in(tree: ast.Module, code: CodeType) -> Function | None:
    """Returns the function that was compiled to this code."""
    return _functions(tree).get((code.co_name, code.co_firstlineno))


@lru_cache(maxsize=64)
def _functions(tree: ast.Module) -> Mapping[tuple[str, int], Function]:
    return {(node.name, _begins(node)): node for node in ast.walk(tree) if isinstance(node, Function)}


@lru_cache(maxsize=64)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _begins(function: Function) -> int:
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
