"""Which files a result depends on: those that its code imports, and those that the code names."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.digest import digest, file_digest
from experiments.errors import UserError
from experiments.specs.run import RunSpec

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "experiments" / "data"
#: Files of a folder of code that are no code, and that its modules read.
BESIDE = ("*.c", "*.csv", "templates/*.j2")
_VERSION = f"{sys.implementation.cache_tag}.{file_digest(Path(__file__))[:16]}"
#: Keeps the syntax of files by the hash of their content, beside the bytecode of this one.
KEPT = Path(__file__).parent / "__pycache__" / f"syntax.{_VERSION}.json"


def imported_files(*entries: Path, data: bool = False) -> list[Path]:
    """Files of this repository that the entries import, directly or not, entries included.

    Packages' ``__init__`` count only where they are imported by name, so discovery folders
    (algorithms, models) do not tie each run to every file in them.

    Args:
        data: Whether to follow imports of ``experiments.data``. Prepared data is covered by its
            own hash, so only its preparation does.
    """
    found: set[Path] = set()
    queue = list(entries)
    while queue:
        path = queue.pop()
        if path not in found:
            found.add(path)
            queue += [
                file
                for module in _syntax(path).modules
                for file in module_files(module)
                if data or not file.is_relative_to(DATA)
            ]
    return sorted(found)


@functools.cache
def module_files(module: str) -> tuple[Path, ...]:
    """The file of a module of ours, or nothing."""
    if module.split(".")[0] not in ("sparse_lib", "experiments") or module == "sparse_lib":
        return ()
    base = ROOT.joinpath(*module.split("."))
    candidates = [base.with_suffix(".py"), base / "__init__.py"]
    return tuple(path for path in candidates if path.is_file())


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file; raises `ValueError` with one sentence where it has none."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    except SyntaxError as error:
        where = f"{path.relative_to(ROOT)}, line {error.lineno}"
        raise UserError(f"{where}: not valid Python: {error.msg}") from None


class Syntax(NamedTuple):
    """Imports and hash of a file of code.

    Attributes:
        modules: Modules that it names in imports, sorted.
        digest: Hash of its tree without docstrings.
    """

    modules: Sequence[str]
    digest: str


@functools.cache
def _kept() -> dict[str, Syntax]:
    """Read the syntax that earlier processes kept, since parsing all files takes two seconds."""
    try:
        return {key: Syntax(*made) for key, made in json.loads(KEPT.read_text("utf-8")).items()}
    except (OSError, ValueError):
        return {}


def _keep() -> None:
    """Write what this process knows, where Python may write bytecode."""
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError):
            part = KEPT.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(_kept()), encoding="utf-8")
            part.replace(KEPT)


@functools.cache
def _syntax(path: Path) -> Syntax:
    kept, content = _kept(), file_digest(path)
    if content not in kept:
        kept[content] = _parsed(path)
    return kept[content]


def _parsed(path: Path) -> Syntax:
    tree = parse(path)
    modules: set[str] = set()
    for node in _run_nodes(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise UserError(
                f"{path}, line {node.lineno}: a relative import; write a whole one, such as "
                "`from sparse_lib.algorithms.set import SET`"
            )
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
        elif (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:]
    # As Python 3.11 dumps it, so that all versions of Python give code one hash.
    shown = {"show_empty": True} if sys.version_info >= (3, 13) else {}
    dumped = ast.dump(tree, **shown).replace(", type_params=[]", "")
    return Syntax(tuple(sorted(modules)), hashlib.sha256(dumped.encode()).hexdigest())


def _run_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, but for those below ``if TYPE_CHECKING``, which never run."""
    queue = [node]
    while queue:
        yield (node := queue.pop())
        queue += [
            child
            for child in ast.iter_child_nodes(node)
            if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING")
        ]


@functools.cache
def files_beside(folder: Path) -> list[Path]:
    """Files of a folder of code that its modules read: C, tables and templates."""
    return [path for pattern in BESIDE for path in folder.glob(pattern)]


@functools.cache
def code_hash(*entries: Path, data: bool = False) -> str:
    """Hash of the syntax trees of the import closure, and of the files `BESIDE` its modules.

    Comments and docstrings do not count.
    """
    before = len(_kept())
    files = imported_files(*entries, data=data)
    if len(_kept()) > before:
        _keep()
    hashes = {path.relative_to(ROOT).as_posix(): _syntax(path).digest for path in files}
    others = {other for path in files for other in files_beside(path.parent)}
    hashes |= {path.relative_to(ROOT).as_posix(): file_digest(path) for path in others}
    return digest(hashes)


def training_code_hash(spec: RunSpec, *more: Path) -> str:
    """Hash of the code that a run's training imports, and of what lies beside it: `kernels.c`."""
    entries = [
        ROOT / "experiments" / "training" / "loop.py",
        ROOT / "experiments" / "tasks" / f"{spec.task}.py",
        ROOT / "experiments" / "models" / f"{spec.model.name}.py",
    ]
    if spec.sparsity is not None:
        entries.append(ROOT / "sparse_lib" / "algorithms" / f"{spec.algorithm}.py")
    return code_hash(*entries, *more)


def preparation_code_hash(dataset: Path, task: str, *more: Path) -> str:
    """Hash of the code that prepares a dataset, given its file and that of its tokenizer."""
    tools = code_hash(dataset, *more, DATA / "__init__.py", data=True)
    return digest([tools, _syntax(ROOT / "experiments" / "tasks" / f"{task}.py").digest])


def analysis_code_hash(kind: str, name: str) -> str:
    """Hash of the code of one figure (``kind`` is "figures") or table ("tables")."""
    folder = ROOT / "experiments" / "analysis" / kind
    return code_hash(folder / "__init__.py", folder / f"{name}.py")


def page_code_hash() -> str:
    """Hash of the code and the templates of pages, and of the findings that they state."""
    findings = sorted((ROOT / "experiments" / "findings").rglob("*.yaml"))
    report = code_hash(ROOT / "experiments" / "report" / "render.py")
    return digest([report, *(path.read_text(encoding="utf-8") for path in findings)])


def collecting_code_hash() -> str:
    """Hash of the code that turns a run's files into records and tidy tables."""
    units = sorted((ROOT / "experiments" / "tasks").glob("*.py"))  # they say what is a metric
    return code_hash(ROOT / "experiments" / "store" / "collect.py", *units)


def computation_code_hash(name: str) -> str:
    """Hash of the code of one computation."""
    folder = ROOT / "experiments" / "computations"
    return code_hash(folder / "__init__.py", folder / f"{name}.py", data=True)
