"""Every computation at its smallest, made once, where figures and tables look for it."""

import pytest

from experiments import computations
from experiments.specs.read import computation_names


@pytest.fixture(scope="session")
def computed_root(tmp_path_factory):
    """A folder with the results of all computations."""
    root = tmp_path_factory.mktemp("root")
    for name in computation_names():
        computations.write(name, "smoke", root / "results/small/computations" / name)
    return root


@pytest.fixture(scope="module")
def computed(computed_root):
    """That folder as the current one, for the tests of one file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(computed_root)
        yield
