"""The library as a stranger installs it: a wheel without a compiler, and the README's lines."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The library's wheel, built from a copy of the sources by a compiler that fails."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    hidden = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "sparse_lib", source / "sparse_lib", ignore=hidden)
    (source / "experiments").mkdir()
    (source / "experiments" / "__init__.py").touch()
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(target), str(source)]
    subprocess.run(command, check=True, env={"CC": "false", "PATH": "/usr/bin:/bin"})
    (built,) = target.iterdir()
    return built


@pytest.mark.slow
def test_the_wheel_holds_the_library_alone_and_runs_the_readme(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert {name.split("/")[0].split("-")[0] for name in names} == {"sparse_lib", "sparse_training"}
    assert "sparse_lib/execution/kernels.c" in names and "sparse_lib/py.typed" in names
    assert not any(name.endswith(".so") for name in names)
    code = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)[1]
    step = "model(torch.ones(2, 64)).sum().backward(); optimizer.step()"
    ends = (
        f"{code}\n{step}\nimport sys; print(sl.__file__, sl.is_sparse(model))\n"
        "print({'experiments', 'transformers', 'pandas'} & set(sys.modules))"
    )
    # -I and the folder first: nothing of the clone is in reach, only the site's torch and NumPy.
    script = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n{ends}"
    run = [sys.executable, "-I", "-c", script]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, check=True)
    where, rest = done.stdout.strip().split(" ", 1)
    assert Path(where).is_relative_to(tmp_path) and rest.split("\n") == ["True", "set()"]


def test_requirements_of_the_library_are_torch_and_numpy():
    library = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=]", need)[0] for need in library["dependencies"]}
    assert names == {"torch", "numpy"}
    studies = tomllib.loads((ROOT / "experiments" / "pyproject.toml").read_text())["project"]
    assert studies["dependencies"] == [f"{library['name']}[experiments]"]
    assert studies["version"] == library["version"]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of libraries")
def test_one_openmp_runtime_in_the_process():
    code = (
        "import re, torch\nfrom sparse_lib.execution import kernels\n"
        "torch.ones(300, 300) @ torch.ones(300, 300)\n"
        "print(kernels.unavailable())\n"
        "maps = open('/proc/self/maps').read()\n"
        "print(*sorted(set(re.findall(r'(/\\S*lib(?:gomp|iomp5|omp)\\S*)', maps))))"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT)
    why, *runtimes = done.stdout.strip().split("\n")
    if why != "None":
        pytest.skip(f"no kernels: {why}")
    assert len(runtimes[0].split()) == 1 and "/torch" in runtimes[0]
