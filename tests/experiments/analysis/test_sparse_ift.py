"""Figures and tables of the Sparse-IFT studies, from records with known truth."""

import numpy as np
import pandas as pd
import pytest

from experiments.analysis import figures, style, tables
from experiments.analysis.claims import ledger as claims
from experiments.analysis.figures import _by_flops
from experiments.analysis.methods import Methods
from experiments.specs.run import Run, RunSpec
from experiments.specs.schema import Claims
from experiments.store.collect import curves_table, records_table
from experiments.store.record import make_record
from tests.experiments.analysis import synthetic

# Method: sparsity, test accuracy, FLOPs relative to dense.
METHODS = {
    "dense": (0.0, 0.50, 1.0),
    "wide50-rigl": (0.5, 0.55, 1.01),
    "wide75-rigl": (0.75, 0.60, 1.02),
    "wide90-rigl": (0.9, 0.58, 1.03),
    "wide75-static": (0.75, 0.57, 1.0),
    "parallel75-rigl": (0.75, 0.54, 1.0),
    "doped75-rigl": (0.75, 0.45, 1.0),
    "static80": (0.8, 0.35, 0.25),
    "rigl80": (0.8, 0.40, 0.26),
}


def record(
    method, seed, *, model="resnet-1mf", accuracy=None, flops=None, dataset="glyphs", length=1
):
    sparsity, value, ratio = METHODS[method]
    value = (accuracy or value) + 0.01 * (seed - 1)
    label = f"{method}-s{sparsity:.2f}" if sparsity else method
    run = f"small__{model}__{label}__{dataset}-n9600__sgd__seed{seed}"
    spec = {
        "id": run, "scale": "small", "task": "vision", "model": {"name": "resnet", "label": model},
        "data": {"name": dataset, "num_images": 9600},
        "recipe": {"name": "sgd", "steps": 10, "epochs": 1, "batch_size": 64, "learning_rate": 0.1},
        "method": method, "final_sparsity": sparsity, "sparsity": None, "seed": seed,
    }  # fmt: skip
    family, _, algorithm = method.rstrip("0123456789").rpartition("-")
    if algorithm != "dense":
        spec["sparsity"] = {"algorithm": algorithm}
    if family:
        spec["transform"] = {"family": family.rstrip("0123456789"), "sparsity": sparsity}
    rows = []
    for step in (5, 10):
        rows.append({"kind": "train", "step": step, "images": 64 * length * step, "loss": 2.0,
                     "flops_executed": step * 1e6 * (flops or ratio), "flops_dense": step * 1e6,
                     "elapsed_s": step, "images_per_s": 64.0, "sparsity": sparsity})  # fmt: skip
    rows.append(
        {"kind": "validation", "step": 10, "images": 640, "loss": 2.6 - value, "accuracy": value}
    )
    train = {
        "run": run, "spec": spec, "spec_hash": "0", "code_hash": "1", "cpu": "Example CPU",
        "data": {"name": dataset, "hash": "2"}, "versions": {"torch": "2.0"}, "num_threads": 1,
        "wall_s": 1.0, "num_parameters": 1000, "num_nonzero": 500, "final": {}, "layers": [],
        "flops": {"executed": 1e7 * (flops or ratio), "dense_equivalent": 1e7},
        "command": f"snakemake rerun --config run={run}",
    }  # fmt: skip
    shared = {"num_items": 400, "chance": 0.02, "higher_is_better": True, "num_fewshot": 0,
              "data_hash": "2", "stderr": 0.02, "split": "test"}  # fmt: skip
    scores = [
        {"task": "images", "metric": "accuracy", "value": value, **shared},
        {"task": "images", "metric": "accuracy_top5", "value": value + 0.2, **shared},
        {"task": "images", "metric": "loss", "value": 2.2, **shared},
        {"task": "images", "metric": "calibration_error", "value": 0.05, **shared},
        {"task": "class:A", "metric": "class_accuracy", "value": value, **shared},
        {"task": "class:B", "metric": "class_accuracy", "value": value / 2, **shared},
    ]
    evaluation = {"run": run, "suite": "vision", "scores": scores}
    return make_record(train, evaluation, rows)


STUDY = synthetic.planned(
    [],
    name="sparse_ift_vision",
    source="Thangarasa et al., Sparse-IFT, ICML 2024, PMLR 235 (arXiv:2303.11525)",
    scale="small",
)


@pytest.fixture(scope="module")
def full():
    made = [record(method, seed) for method in METHODS for seed in (0, 1, 2)]
    made.append(record("dense", 0, model="resnet-2mf", accuracy=0.56, flops=2.1))
    runs = tuple(Run(RunSpec.model_validate(r["spec"])) for r in made)
    study = STUDY.changed(runs=runs)
    return records_table(made, study), curves_table(made), study


def test_the_arrows_lead_to_all_variants_and_to_none_picked_on_the_test_split(full):
    rows = figures.load("accuracy_by_flops").data(*full)
    assert _by_flops.base_model(rows) == "resnet-1mf"
    table = _by_flops.means(rows)
    corners = _by_flops.corners(table, "resnet-1mf")
    assert corners["D"]["model"] == "resnet-2mf"
    assert corners["D"]["ratio"] == pytest.approx(2.1)
    at_dense = [value for sparsity, value, ratio in METHODS.values() if sparsity and ratio > 0.85]
    assert corners["C"]["count"] == len(at_dense) > 3
    assert corners["C"]["value"] == pytest.approx(np.mean(at_dense))
    assert corners["B"]["value"] == pytest.approx((0.35 + 0.40) / 2)
    text = figures.caption("accuracy_by_flops", *full)
    assert "A (resnet-1mf, dense) has 50.0%" in text
    assert f"the {len(at_dense)} variants of C have 45.0 to 60.0%" in text
    assert "Sparse-Wide RigL" not in text
    assert "Highest" not in figures.caption("sparse_ift_families", *full)


def test_no_letter_averages_over_runs_of_different_length():
    """RigL at three times the images, and a longer dense control, stand beside A and B."""
    made = [record("dense", 0), record("static80", 0)]
    made += [record("rigl80", 0, accuracy=0.58, flops=0.78, length=3)]
    longer = record("dense", 0, accuracy=0.62, flops=3.0, length=3)
    runs = tuple(Run(RunSpec.model_validate(r["spec"])) for r in made)
    study = STUDY.changed(runs=runs)
    rows = figures.load("accuracy_by_flops").data(
        records_table(made, study), curves_table(made), study
    )
    assert rows.set_index("method")["data"].to_dict() == {
        "dense": 640, "static80": 640, "rigl80": 1920,
    }  # fmt: skip
    alone = records_table([longer], study).assign(run="longer", method="dense-long")
    everything = pd.concat([alone, records_table(made, study)])
    drawn = everything, curves_table(made), study
    table = _by_flops.means(figures.load("accuracy_by_flops").data(*drawn))
    corners = _by_flops.corners(table, "resnet-1mf")
    assert corners["A"]["value"] == pytest.approx(0.49) and corners["A"]["ratio"] == 1
    assert corners["B"]["value"] == pytest.approx(0.34)
    assert corners["B"]["ratio"] == pytest.approx(0.25) and corners["B"]["count"] == 1
    text = figures.caption("accuracy_by_flops", *drawn)
    assert "RigL 80% (3x as long, 57.0% at 0.78x the FLOPs)" in text
    assert "dense-long (3x as long, 61.0% at 3.00x the FLOPs)" in text
    (panel,) = figures.load("accuracy_by_flops").draw(*drawn).axes
    names = {text.get_text() for text in panel.get_legend().get_texts()}
    assert {"Dense", "RigL (3x as long)", "dense-long (3x as long)"} <= names


def test_a_wider_model_of_other_flops_than_dense_is_in_no_letter_and_named():
    made = [record("dense", 0), record("wide75-rigl", 0), record("wide75-static", 0, flops=2.6)]
    study = STUDY.changed(runs=tuple(Run(RunSpec.model_validate(r["spec"])) for r in made))
    text = figures.caption(
        "accuracy_by_flops", records_table(made, study), curves_table(made), study
    )
    assert "C (Sparse-Wide RigL 75%) 59.0% at 1.02x the FLOPs" in text
    assert "by FLOPs other than A's: Sparse-Wide Static 75% (56.0% at 2.60x the FLOPs)." in text


@pytest.mark.parametrize(("count", "shown"), [(9, True), (25, False)])
def test_points_above_each_other_have_their_sparsity_beside_them_each_apart(count, shown):
    """Nine wider models at the dense model's FLOPs, as many as three methods at three levels."""
    table = pd.DataFrame({
        "ratio": 1.0, "value": [50 + 0.1 * i for i in range(count)], "method": "wide50-rigl",
        "sparsity": [0.01 * (i + 1) for i in range(count)],
    })  # fmt: skip
    _, (panel,) = style.panels(1, height=3.6)
    panel.set_xlim(0.2, 2)
    panel.set_ylim(40, 60)
    _by_flops._label_sparsity(panel, table, Methods(STUDY))
    assert [text.get_text() for text in panel.texts] == [
        f"{i + 1}" for i in range(count if shown else 0)
    ]
    heights = [text.get_position()[1] for text in panel.texts]
    assert all(b - a > 0.04 for a, b in zip(heights, heights[1:], strict=False))
    assert all(0 < height < 1 for height in heights)
    ends = [line.get_xydata()[-1] for line in panel.lines]  # in shares of the panel
    for (_, y), value in zip(ends, table["value"] if shown else [], strict=True):
        assert y == pytest.approx((value - 40) / 20)


@pytest.mark.parametrize("name", ["accuracy_by_flops", "sparse_ift_families"])
def test_figures_show_every_point(name, full, tmp_path):
    module = figures.load(name)
    with style.sheet():
        figure = module.draw(*full)
    seen = np.concatenate(
        [line.get_ydata() for line in figure.axes[0].get_lines() if len(line.get_ydata())]
    )
    for _, value in zip(range(7), [50, 55, 60, 58, 57, 54, 45], strict=True):
        assert np.isclose(np.asarray(seen, float), value).any()


@pytest.mark.parametrize("name", ["loss_curves", "churn_itop", "schedules"])
def test_curves_of_image_models_are_drawn_over_images(name, full):
    frames, curves, study = full
    figure = figures.load(name).draw(frames, curves, study)
    lines = [line for panel in figure.axes for line in panel.lines if line.get_clip_on()]
    drawn = [line.get_xdata() for line in lines if len(line.get_xdata())]
    if name != "churn_itop":  # no run of this example has masks that move
        assert drawn
    assert all(np.isfinite(np.asarray(x, float)).any() for x in drawn)
    labels = {panel.get_xlabel() for panel in figure.axes if panel.axison}
    assert labels <= {"training images"}
    assert all("token" not in panel.get_ylabel() for panel in figure.axes)


def test_without_a_dense_model_there_are_no_arrows():
    made = [record("wide75-rigl", 0)]
    tables_of = records_table(made, STUDY), curves_table(made), STUDY
    for name in ("accuracy_by_flops", "sparse_ift_families"):
        figures.load(name).draw(*tables_of)
        assert figures.caption(name, *tables_of)
    assert tables.load("class_accuracy").make(*tables_of).empty
    assert len(tables.load("accuracy").make(*tables_of)) == 1


def test_accuracy_rows_by_hand(full):
    table = tables.load("accuracy").make(*full)
    assert len(table) == len(METHODS) + 1
    row = table[(table["method"] == "wide75-rigl")].iloc[0]
    assert row["accuracy"] == pytest.approx(0.60) and row["seeds"] == 3
    # Three values 0.01 apart: standard error 0.01 / sqrt(3), t quantile 4.303 with 2 degrees.
    assert row["high"] - row["accuracy"] == pytest.approx(4.303 * 0.01 / 3**0.5, rel=1e-3)
    assert row["minus dense"] == pytest.approx(0.10) and row["paired seeds"] == 3
    assert row["top-5"] == pytest.approx(0.80) and row["FLOPs / dense"] == pytest.approx(1.02)
    assert row["against chance"] == "above chance"
    assert row["accuracy (published)"] == "no value that we hold"
    by_method = table.set_index(["model", "method"])["accuracy (published)"]
    assert by_method["resnet-1mf", "dense"] == "0.770 (ResNet-18, CIFAR-100)"
    assert by_method["resnet-1mf", "wide90-rigl"] == "0.801 (ResNet-18, CIFAR-100)"
    assert by_method["resnet-2mf", "dense"] == "no value that we hold"
    assert row["mask sparsity"] == pytest.approx(0.75)


def test_class_rows_by_hand(full):
    table = tables.load("class_accuracy").make(*full).set_index("class")
    assert set(table.index) == {"A", "B"}
    assert table.loc["B", "dense"] == pytest.approx(0.25)
    assert table.loc["B", "chosen"] == pytest.approx(0.30)
    assert table.loc["A", "chosen by validation"] == "Sparse-Wide RigL 75%"
    assert table.loc["A", "difference"] == pytest.approx(0.10)
    assert table.loc["A", "against chance"] == "above chance"


def verdicts(made, primary):
    study = STUDY.changed(claims=Claims(primary=primary, exploratory=["C016", "C017"]))
    table = claims.evaluate(records_table(made, STUDY), study)
    return table.set_index("id")


def test_a_claim_of_several_parts_holds_only_if_each_part_does():
    made = [record(method, seed) for method in METHODS for seed in range(5)]
    for number, item in enumerate(made):  # unequal differences, so that a t test exists
        score = item["evaluation"]["scores"][0]
        score["value"] += 0.002 * (number**2 % 7)
    table = verdicts(made, ["C015"])
    assert table.loc["C015", "verdict"] == "suggests"  # its number of seeds is post hoc
    assert "wide50-rigl > Dense" in table.loc["C015", "tested_as"]
    assert "weakest of 3 links" in table.loc["C015", "reason"]
    # 90% is below 75% by construction.
    assert table.loc["C017", "verdict"] != "holds"
    assert table.loc["C016", "verdict"] == "not tested"
    worse = [item for item in made if item["spec"]["method"] != "wide90-rigl"]
    worse += [record("wide90-rigl", seed, accuracy=0.3 + 0.003 * seed**2) for seed in range(5)]
    assert verdicts(worse, ["C015"]).loc["C015", "verdict"] == "suggests against"


def test_a_transformed_model_is_compared_with_a_larger_dense_one():
    made = [record(method, seed) for method in METHODS for seed in range(5)]
    assert verdicts(made, ["C019"]).loc["C019", "verdict"] == "not tested"
    for seed in range(5):
        accuracy = 0.5 + 0.003 * seed**2
        made.append(record("dense", seed, model="resnet-2mf", accuracy=accuracy, flops=2.1))
    row = verdicts(made, ["C019"]).loc["C019"]
    assert row["num_seeds"] == 5 and row["verdict"] == "suggests"  # its margin is post hoc
    assert row["effect"] == pytest.approx(0.58 - 0.518)
