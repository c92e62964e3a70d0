"""The import graph follows docs/architecture.md."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Modules that a file imports; inside functions too unless told otherwise."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree)
    if top_level_only:
        nodes = iter(tree.body)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a tree but for those below ``if TYPE_CHECKING``, which never run."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from run_nodes(node)


def import_graph(package: str) -> dict[str, set[str]]:
    """Modules of a package and the modules that each imports, anywhere in its file."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files(package)
    }
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = set()
        for node in run_nodes(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {full if full in modules else node.module for full in inner}
        graph[name] = found & modules.keys()
    return graph


# Each room of the library and the rooms that it may import, besides checks and its own.
ROOMS = {
    "checks": "",
    "tables": "",
    "rules": "",
    "layers": "",
    "masks": "rules layers",
    "schedules": "rules",
    "flops": "masks layers",
    "ift": "masks layers flops",
    "simulation": "masks layers flops",
    "execution": "masks layers flops simulation",
    "core": "rules masks schedules layers flops",
    "optim": "core",
    "checkpoint": "core",
    "algorithms": "rules masks schedules layers flops core",
    "configure": "masks schedules layers core",
    "preview": "masks schedules layers flops core algorithms configure",
    "conformance": "masks core",
    "finetune": "layers core algorithms",
    "integrations": "core configure checkpoint finetune preview",
    "packed": "core execution",
    "device": "flops execution simulation packed",
    "compat": "rules masks schedules layers core algorithms configure optim finetune",
}


# The same of experiments; ``cli`` stands above all others.
EXPERIMENT_ROOMS = {
    "machine": "",
    "memory": "",
    "errors": "",
    "strict": "",
    "published": "",
    "data": "",
    "models": "",
    "tasks": "data models",
    "specs": "data models tasks",
    "store": "tasks specs",
    "evaluation": "machine memory data models tasks specs store",
    "training": "machine memory data models tasks specs store",
    "findings": "tasks specs store",
    "analysis": "published specs store findings",
    "computations": "machine memory data models tasks published specs store evaluation analysis",
    "report": "published specs store findings analysis",
    "request": "data specs store evaluation",
    "preload": "evaluation",
    "pack": "tasks specs store evaluation",
    "go": "",
    "progress": "",
}


@pytest.mark.parametrize("package", ["sparse_lib", "experiments"])
def test_no_import_leads_back(package):
    order = graphlib.TopologicalSorter(import_graph(package))
    assert list(order.static_order())  # raises CycleError, which names the modules


def test_rooms_of_the_library_import_only_what_lies_below():
    for module, imported in import_graph("sparse_lib").items():
        if module == "sparse_lib":
            continue
        room = module.split(".")[1]
        allowed = {"checks", "tables", room, *ROOMS[room].split()}
        for name in imported:
            assert name.split(".")[1] in allowed, f"{module} imports {name}"


def test_rooms_of_experiments_import_only_what_lies_below():
    order = graphlib.TopologicalSorter({a: b.split() for a, b in EXPERIMENT_ROOMS.items()})
    assert {*order.static_order()} == {*EXPERIMENT_ROOMS}
    for module, imported in import_graph("experiments").items():
        room = (module.split(".") + [""])[1]
        if room in ("", "__main__", "cli"):
            continue
        for name in imported - {"experiments"}:
            allowed = {"errors", "strict", room, *EXPERIMENT_ROOMS[room].split()}
            assert name.split(".")[1] in allowed, f"{module} imports {name}"


def roots(modules: set[str]) -> set[str]:
    return {module.split(".")[0] for module in modules}


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", files("sparse_lib"), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_library_needs_only_torch_and_numpy(path):
    allowed = set(sys.stdlib_module_names) | {"torch", "numpy", "sparse_lib"}
    if path.parent.name == "integrations":  # a file there is for one library, and named after it
        allowed |= {path.stem} | ({"safetensors"} if path.stem == "transformers" else set())
    assert roots(imports(path, top_level_only=True)) <= allowed
    assert "experiments" not in roots(imports(path))


@pytest.mark.parametrize(
    "path",
    files("experiments/analysis") + files("experiments/report"),
    ids=lambda p: p.relative_to(ROOT).as_posix(),
)
def test_analysis_never_imports_torch(path):
    assert not roots(imports(path)) & {"torch", "transformers", "sparse_lib"}


PLANNING = (
    "from experiments import preload, progress, request",
    "from experiments.errors import UserError",
    "from experiments.specs import code",
)


def test_rules_import_only_what_plans():
    for path in sorted((ROOT / "workflow").rglob("*.smk")):
        lines = [line for line in path.read_text().splitlines() if "experiments" in line]
        for line in lines:
            if line.startswith(("import ", "from ")):
                assert line in PLANNING


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import experiments.request, experiments.preload", "torch matplotlib"),
        (
            "from experiments import data; [data.available(name) for name in data.names()]",
            "torch numpy tokenizers pyarrow",
        ),
        (
            "from experiments.evaluation.suite import *; suite_files(load_suite('small'))",
            "torch numpy lm_eval",
        ),
        # Dynamo takes half of the time that importing torch takes.
        (
            "import sparse_lib as sl; assert sl.optim and sl.device and sl.ift",
            "safetensors rich experiments torch._dynamo",
        ),
    ],
)
def test_planning_and_the_library_load_nothing_heavy(statement, heavy):
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*done.stdout.split()} & {"transformers", "pandas", "datasets", *heavy.split()}
