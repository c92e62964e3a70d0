"""A folder of edited studies."""

import copy

import pytest
import yaml

from tests.experiments.specs.edit import BASE


@pytest.fixture
def write(tmp_path):
    """Write an edited study and return its folder."""

    def edit(change, name="sparsity_library"):
        study = copy.deepcopy(BASE)
        change(study)
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(study))
        return tmp_path

    return edit
