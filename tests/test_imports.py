"""The import graph follows docs/architecture.md."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a tree but for those below ``if TYPE_CHECKING``, which never run."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from run_nodes(node)


def imports(nodes: Iterable[ast.AST]) -> set[str]:
    """The modules that statements import, or what they import from one, which may be a module."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def import_graph(package: str) -> dict[str, set[str]]:
    """Modules of a package and the modules that each imports, anywhere in its file."""
    graph = {module_of(p): imports(run_nodes(ast.parse(p.read_text()))) for p in files(package)}
    for name, found in graph.items():
        whole = {full if full in graph else full.rpartition(".")[0] for full in found}
        graph[name] = whole & graph.keys()
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
    "execution": "masks layers flops",
    "core": "rules masks schedules layers flops",
    "optim": "core",
    "checkpoint": "core layers",
    "algorithms": "rules masks schedules layers flops core",
    "configure": "masks schedules layers core",
    "preview": "masks schedules layers flops core algorithms configure",
    "conformance": "masks core",
    "finetune": "layers core algorithms",
    "integrations": "core configure checkpoint finetune preview",
    "packed": "core execution layers masks",
    "device": "flops execution simulation packed",
    "compat": "rules masks schedules layers core algorithms configure optim finetune",
}


# The same of experiments; ``cli`` stands above all others.
EXPERIMENT_ROOMS = {
    "machine": "",
    "errors": "",
    "digest": "",
    "strict": "",
    "published": "",
    "data": "",
    "models": "",
    "tasks": "data models",
    "specs": "data models tasks",
    "store": "machine tasks specs",
    "evaluation": "machine data models tasks specs store",
    "training": "machine data models tasks specs store",
    "findings": "tasks specs store",
    "analysis": "published specs store findings",
    "computations": "machine data models tasks published specs store evaluation analysis",
    "report": "machine published specs store findings analysis",
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


@pytest.mark.parametrize(
    ("package", "rooms", "everywhere", "free"),
    [
        ("sparse_lib", ROOMS, {"checks", "tables"}, {""}),
        ("experiments", EXPERIMENT_ROOMS, {"errors", "strict", "digest"}, {"", "__main__", "cli"}),
    ],
)
def test_rooms_import_only_what_lies_below(package, rooms, everywhere, free):
    order = graphlib.TopologicalSorter({name: below.split() for name, below in rooms.items()})
    assert {*order.static_order()} == {*rooms}
    for module, imported in import_graph(package).items():
        room = (module.split(".") + [""])[1]
        for name in imported - {package} if room not in free else ():
            allowed = {room, *everywhere, *rooms[room].split()}
            assert name.split(".")[1] in allowed, f"{module} imports {name}"


def roots(modules: set[str]) -> set[str]:
    return {module.split(".")[0] for module in modules}


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", files("sparse_lib"), ids=module_of)
def test_the_library_needs_only_torch_and_numpy(path):
    allowed = set(sys.stdlib_module_names) | {"torch", "numpy", "sparse_lib"}
    if path.parent.name == "integrations":  # a file there is for one library, and named after it
        allowed |= {path.stem} | ({"safetensors"} if path.stem == "transformers" else set())
    tree = ast.parse(path.read_text())
    assert roots(imports(tree.body)) <= allowed
    assert "experiments" not in roots(imports(ast.walk(tree)))


@pytest.mark.parametrize(
    "path", files("experiments/analysis") + files("experiments/report"), ids=module_of
)
def test_analysis_never_imports_torch(path):
    found = roots(imports(ast.walk(ast.parse(path.read_text()))))
    assert not found & {"torch", "transformers", "sparse_lib"}


#: The imports of this repository in the rules.
RULES = [
    line
    for path in sorted((ROOT / "workflow").rglob("*.smk"))
    for line in path.read_text().splitlines()
    if line.startswith(("from experiments", "import experiments"))
]


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("; ".join(RULES) or "raise SystemExit('no rules')", "torch matplotlib"),
        (
            "from experiments import data; [data.available(name) for name in data.names()]",
            "torch numpy tokenizers pyarrow",
        ),
        (
            "from experiments.evaluation.suite import *; suite_files(load_suite('small'))",
            "torch numpy lm_eval",
        ),
        # Dynamo takes half of the time that importing torch takes. Torch stays as it was.
        (
            "from torch.nn.modules import module; from torch.optim.swa_utils import AveragedModel; "
            "update = AveragedModel.update_parameters; "
            "import sparse_lib as sl; assert sl.optim and sl.device and sl.ift; "
            "assert AveragedModel.update_parameters is update; "
            "assert not module._global_parameter_registration_hooks",
            "safetensors rich experiments torch._dynamo",
        ),
    ],
)
def test_planning_and_the_library_load_nothing_heavy(statement, heavy):
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*done.stdout.split()} & {"transformers", "pandas", "datasets", *heavy.split()}
