"""No name leads out of its folder."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.specs.schema import SpecError
from experiments.store import paths

FOLDER = Path("results/smoke")
FOLDERS = {
    "data": (paths.data, paths.DATA),
    "run": (lambda name: paths.run("smoke", name), FOLDER / "runs"),
    "study": (lambda name: paths.study("smoke", name), FOLDER),
    "page": (lambda name: paths.page("smoke", name), Path("reports/smoke")),
}
FOLDERS["computation"] = lambda name: paths.computation("smoke", name), FOLDER / "computations"


@pytest.mark.parametrize("scale", ["", ".", "..", "../../etc", "reference", "smoke/x"])
def test_a_scale_is_one_of_the_scales(scale):
    for folder in (paths.scale, paths.reports):
        with pytest.raises(SpecError, match="scale is"):
            folder(scale)


@pytest.mark.parametrize("name", paths.RESERVED)
def test_a_study_takes_no_folder_of_others(name):
    with pytest.raises(SpecError, match="folder of results"):
        paths.study("smoke", name)


@given(st.text(max_size=20), st.sampled_from(sorted(FOLDERS)))
def test_any_name_is_a_direct_child_or_refused(name, kind):
    folder, parent = FOLDERS[kind]
    try:
        found = folder(name)
    except SpecError:
        return
    assert found.parent == parent and found.name == name
    assert (Path("/top") / found).resolve() == Path("/top") / parent / name
