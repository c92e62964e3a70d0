"""Records as Parquet files: nothing lost, nothing silently read that is damaged."""

import pandas as pd
import pytest

from experiments.errors import UserError
from experiments.store import parquet
from tests.experiments.analysis import kept


@pytest.fixture(scope="module")
def made():
    return kept.make(seeds=2)


def test_records_come_back_as_they_were_and_are_read_by_pandas_alone(made, tmp_path):
    odd = made[0] | {"run": "odd", "curve": [], "layers": [], "evaluation": None, "cpu": None}
    odd |= {"large": 2**70 + 1, "extra": {"a": [1, None]}}
    rows = [{"kind": "train", "step": 1, "x": 1, "y": None}, {"kind": "train", "x": 0.5}]
    mixed = made[1] | {"run": "mixed", "large": 0.5, "curve": rows}
    parquet.write([odd, *made, mixed], tmp_path)
    wanted = {record["run"]: record for record in (odd, *made, mixed)}
    assert {record["run"]: record for record in parquet.read(tmp_path)} == wanted
    assert parquet.read(tmp_path, ["odd"]) == [odd] and parquet.read(tmp_path, []) == []
    assert parquet.write(wanted.values(), tmp_path) == []  # equal records, equal files
    parquet.write(made, tmp_path)
    runs = pd.read_parquet(tmp_path / "runs.parquet").set_index("run")
    curves = pd.read_parquet(tmp_path / "curves.parquet")
    for record in made:
        row = runs.loc[record["run"]]
        assert row["method"] == record["spec"]["method"] and row["seed"] == record["spec"]["seed"]
        losses = curves.loc[curves["run"] == record["run"], "loss"]
        assert list(losses) == [point["loss"] for point in record["curve"]]


@pytest.mark.parametrize("name", parquet.TABLES)
@pytest.mark.parametrize("damage", ["cut", "text", "foreign", "missing"])
def test_a_damaged_file_is_named_in_one_sentence(made, tmp_path, name, damage):
    parquet.write(made[:2], tmp_path)
    path = tmp_path / f"{name}.parquet"
    content = path.read_bytes()
    if damage == "foreign":
        pd.DataFrame({"a": [1]}).to_parquet(path)
    elif damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"no Parquet")
    with pytest.raises(UserError, match=f"^{path} (is|has)") as caught:
        parquet.read(tmp_path)
    assert "\n" not in str(caught.value)
    if damage == "missing":  # of a folder that git does not have
        assert "git checkout" not in str(caught.value)
