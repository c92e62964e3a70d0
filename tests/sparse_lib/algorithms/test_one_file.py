"""A file in ``sparse_lib/algorithms`` is all that a new algorithm takes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_algorithm_of_the_documentation_passes_all_tests_of_algorithms(tmp_path):
    no_caches = shutil.ignore_patterns("__pycache__")
    for folder in ("sparse_lib", "tests/sparse_lib", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=no_caches)
    for file in ("tests/__init__.py", "tests/test_docs.py", "tests/test_imports.py"):
        shutil.copy(ROOT / file, tmp_path / file)
    text = (ROOT / "docs/extending.md").read_text()
    path, code = re.search(
        r"`(sparse_lib/algorithms/\w+\.py)`.*?```python\n(.*?)```", text, re.S
    ).groups()
    (tmp_path / path).write_text(code)
    name = Path(path).stem
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", name]
    command += [
        "tests/sparse_lib/algorithms/test_conformance.py",
        "tests/sparse_lib/core/test_guard.py",
    ]
    command += ["tests/test_docs.py", "tests/test_imports.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 12
