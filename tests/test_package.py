"""The distribution as a stranger installs it: from source, without a compiler, or compiled."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


COMPILERS = {"CC": "false", "PATH": "/usr/bin:/bin"}  # one that fails


def _sources(folder: Path, *parts: str) -> Path:
    """A copy of what git would have of some parts of the repository."""
    hidden = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", "build")
    for part in parts:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=hidden)
        else:
            shutil.copy(ROOT / part, folder)
    return folder


def _sdist(source: Path, target: Path) -> Path:
    """Build a source distribution as pip and `build` do, and unpack it."""
    code = f"from setuptools import build_meta; print(build_meta.build_sdist({str(target)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    (built,) = target.iterdir()
    with tarfile.open(built) as archive:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and later
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(target)
    return target / built.name.removesuffix(".tar.gz")


def _wheel(source: Path, target: Path, environment: dict[str, str] | None = None) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(target), str(source)]
    subprocess.run(command, check=True, env=environment)
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The library's source distribution, unpacked."""
    parts = ("sparse_lib", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
    source = _sources(tmp_path_factory.mktemp("source"), *parts, "CHANGELOG.md")
    (source / "experiments").mkdir()
    (source / "experiments" / "__init__.py").touch()
    return _sdist(source, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The library's wheel, built from its source distribution by a compiler that fails."""
    return _wheel(sdist, tmp_path_factory.mktemp("wheel"), COMPILERS)


@pytest.mark.slow
def test_the_wheel_holds_the_library_alone_and_runs_the_readme(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert {name.split("/")[0].split("-")[0] for name in names} == {"sparse_lib"}
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


def test_requirements_are_torch_and_numpy_and_those_of_the_build_pinned():
    library = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=]", need)[0] for need in library["dependencies"]}
    assert names == {"torch", "numpy"}
    assert library["name"] == "sparse-lib"
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert build and all(re.fullmatch(r"[\w-]+==[\d.]+", need) for need in build)


def test_the_locked_list_pins_and_hashes_what_the_constraints_pin():
    def name(text: str) -> str:
        return re.sub(r"[-_.]+", "-", text).lower()

    blocks = re.split(r"\n(?=[\w.-]+==)", (ROOT / "requirements.lock").read_text())[1:]
    locked = {}
    for block in blocks:
        pin, *hashes = block.replace("\\", "").split("--hash=sha256:")
        package, version = pin.split(";")[0].strip().split("==")
        assert hashes, f"{package} has no hash"
        assert all(re.fullmatch(r"[0-9a-f]{64}", text.strip()) for text in hashes), package
        locked[name(package)] = version
    lines = re.findall(r"^.+==.+$", (ROOT / "constraints.txt").read_text(), re.M)
    pinned = {
        name(pair[0]): pair[1] for pair in (line.split("==") for line in lines if "==" in line)
    }
    del pinned["torch"]  # from the index of its builds, see Makefile
    assert {package: locked.get(package) for package in pinned} == pinned


@pytest.mark.slow
def test_a_compiled_wheel_is_for_every_python_and_its_kernels_are_taken(sdist, tmp_path):
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler")
    built = _wheel(sdist, tmp_path / "wheel")
    assert "-py3-none-" in built.name and not built.name.endswith("-any.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(tmp_path / "site")
    (library,) = (tmp_path / "site").rglob("*.so")
    source = library.with_name("kernels.c")
    os.utime(library, (0, 0))  # as an installer may, which writes one file after the other
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "from sparse_lib.execution import kernels\n"
        "print(kernels._installed(), kernels.unavailable())"
    )
    environment = {**os.environ, "CC": "false", "PATH": "/nowhere"}
    run = [sys.executable, "-I", "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == [str(library), "None"] and source.exists()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of libraries")
def test_one_openmp_runtime_in_a_process_that_used_the_kernels_on_two_threads():
    code = (
        "import re, torch\nfrom sparse_lib.execution import kernels\n"
        "torch.set_num_threads(2)\n"
        "torch.ones(300, 300) @ torch.ones(300, 300)\n"
        "print(kernels.unavailable())\n"
        "if not kernels.unavailable():\n"
        "    mask, data, out = torch.ones(64, 64) > 0, torch.ones(512, 64), torch.empty(512, 64)\n"
        "    views = kernels.rows_view(data), kernels.rows_view(out)\n"
        "    kernels.Structure(mask).multiply(torch.ones(64, 64), *views)\n"
        "    assert bool((out == 64).all())\n"
        "maps = open('/proc/self/maps').read()\n"
        "print(*sorted(set(re.findall(r'(/\\S*lib(?:gomp|iomp5|omp)\\S*)', maps))))"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT)
    why, *runtimes = done.stdout.strip().split("\n")
    if why != "None":
        pytest.skip(f"no kernels: {why}")
    assert len(runtimes[0].split()) == 1 and "/torch" in runtimes[0]
