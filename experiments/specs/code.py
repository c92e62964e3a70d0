"""Which code a result depends on: the files that a file imports, and a hash of their syntax."""

from __future__ import annotations

import ast
import functools
import hashlib
from pathlib import Path

from experiments.specs.digest import digest

ROOT = Path(__file__).resolve().parents[2]


def imported_files(*entries: Path) -> list[Path]:
    """Files of this repository that the entries import, directly or not, entries included.

    Packages' ``__init__`` count only where they are imported by name, so discovery folders
    (algorithms, models) do not tie each run to every file in them. Prepared data is covered by
    its own hash, so ``experiments/data`` is left out.
    """
    found: set[Path] = set()
    queue = list(entries)
    while queue:
        path = queue.pop()
        if path not in found:
            found.add(path)
            modules, _ = _syntax(path)
            queue += [file for name in modules for file in module_files(name)]
    return sorted(found)


@functools.cache
def module_files(module: str) -> tuple[Path, ...]:
    """The file of a module of ours, or nothing."""
    if module.split(".")[0] not in ("sparse_lib", "experiments"):
        return ()
    if module == "sparse_lib" or module.startswith("experiments.data"):
        return ()
    base = ROOT.joinpath(*module.split("."))
    candidates = [base.with_suffix(".py"), base / "__init__.py"]
    return tuple(path for path in candidates if path.is_file())


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file; raises `ValueError` with one sentence where it has none."""
    try:
        return ast.parse(path.read_text(), filename=str(path))
    except SyntaxError as error:
        where = f"{path.relative_to(ROOT)}, line {error.lineno}"
        raise ValueError(f"{where}: not valid Python: {error.msg}") from None


@functools.cache
def _syntax(path: Path) -> tuple[tuple[str, ...], str]:
    """Modules that a file names in imports, and the hash of its tree without docstrings."""
    tree = parse(path)
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
        elif (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:]
    return tuple(sorted(modules)), hashlib.sha256(ast.dump(tree).encode()).hexdigest()


@functools.cache
def code_hash(*entries: Path) -> str:
    """Hash of the syntax trees of the import closure: comments and docstrings do not count."""
    files = imported_files(*entries)
    return digest({path.relative_to(ROOT).as_posix(): _syntax(path)[1] for path in files})
