"""Figures and tables of the study ``device``: labels, numbers by hand, and a machine without
kernels."""

import numpy as np
import pytest

from experiments.analysis import figures, style, tables
from experiments.store import tidy
from tests.experiments.analysis import kept

pytestmark = pytest.mark.usefixtures("computed")


@pytest.fixture(scope="module")
def frames():
    return kept.frames(kept.make(seeds=2), name="device")


def draw(name, frames):
    with style.sheet():
        return figures.load(name).draw(*frames)


def words(figure):
    """Everything that is written in a figure."""
    texts = [axes.get_title(loc="left") for axes in figure.axes]
    legends = [axes.get_legend() for axes in figure.axes] + figure.legends
    texts += [text.get_text() for legend in legends if legend for text in legend.get_texts()]
    return " ".join(texts + [axes.get_xlabel() for axes in figure.axes])


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("device_speedup", ["measured", "published", "simulated", "ideal"]),
        ("gpt_step", ["measured step", "estimate"]),
    ],
)
def test_what_is_measured_and_what_is_simulated_is_written_on_the_figure(name, labels, frames):
    assert all(label in words(draw(name, frames)) for label in labels)


def test_what_is_simulated_passes_near_what_is_published(frames):
    rows = figures.load("device_speedup").data(*frames)
    ours = rows[rows["series"] == "simulated"].sort_values("sparsity")
    theirs = rows[rows["series"] == "published"]
    assert len(theirs) == 10 and theirs["sparsity"].max() == pytest.approx(0.9)
    at = 1 / np.interp(theirs["sparsity"], ours["sparsity"], 1 / ours["speedup"])
    assert at == pytest.approx(theirs["speedup"], rel=0.015)
    beyond = ours["sparsity"] > 0.9
    assert ours["label"].str.contains("extrapolated").eq(beyond).all()
    table = tables.load("layer_speed").make(*frames).set_index("sparsity")
    assert table.loc[0.9, "CS-2, published"] == 8.36
    assert table.loc[0.9, "CS-2, simulated"] == pytest.approx(1 / (0.1 + 0.9 * 0.02078), rel=1e-3)
    assert table.loc[0.9, "this CPU, measured"] > 0
    table = tables.load("whole_model_speedup").make(*frames)
    row = table[(table["model"] == "GPT-3 XL") & (table["sparsity"] == 0.75)].iloc[0]
    assert row["ratio of FLOPs"] == pytest.approx(2.49, abs=0.01)
    assert row["ratio of FLOPs (published)"] == "2.48 to 2.49"
    assert row["ratio of FLOPs"] > row["speed-up, computing alone (simulated)"] > 1


def test_without_kernels_the_rest_is_still_drawn(monkeypatch, frames):
    kept = {
        "layer_speed": lambda rows: rows[:0],
        "speedup": lambda rows: rows[rows["series"] != "measured"],
        "amdahl": lambda rows: rows[:1],
    }
    read = tidy.computed

    def computed(scale, name, table):
        return kept.get(table, lambda rows: rows)(read(scale, name, table))

    monkeypatch.setattr(tidy, "computed", computed)
    for name in ("device_speedup", "gpt_step"):
        draw(name, frames)
