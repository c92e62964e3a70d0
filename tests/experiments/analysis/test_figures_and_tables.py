"""Every figure and table from full, partial and empty records; names and looks; `device`'s own."""

import matplotlib
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from experiments import computations
from experiments.analysis import figures, style, tables
from experiments.analysis.methods import Methods
from experiments.errors import UserError
from experiments.specs.lookup import planned_study
from experiments.specs.read import computation_names
from experiments.specs.run import Transform
from experiments.specs.schema import Method, Start
from experiments.store import tidy
from experiments.store.collect import curves_table, records_table
from tests.experiments.analysis import kept

pytestmark = pytest.mark.usefixtures("computed")


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """A folder with the results of all computations at their smallest, as the current one."""
    root = tmp_path_factory.mktemp("root")
    for name in computation_names():
        computations.write(name, "smoke", root / "results/small/computations" / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        yield


@pytest.fixture(scope="module")
def full():
    made = kept.make(seeds=2)
    for scores in (record["evaluation"]["scores"] for record in made):
        scores += [{**row, "metric": "copying"} for row in scores if row["metric"] == "loss"]
    return kept.frames(made)


@pytest.fixture(scope="module")
def empty(full):
    return records_table([], full[2]), curves_table([]), full[2]


@pytest.mark.parametrize("name", figures.names())
def test_figures_draw_full_and_empty_records(name, full, empty, tmp_path):
    figure = figures.draw(name, *full)
    figures.draw(name, *empty)
    for kind in ("svg", "pdf"):
        first, again = tmp_path / "a" / f"{name}.{kind}", tmp_path / "b" / f"{name}.{kind}"
        figures.save(figure, first, kind)
        figures.save(figure, again, kind)
        assert first.read_bytes() == again.read_bytes()
    figures.write(name, *full, tmp_path)
    with Image.open(tmp_path / f"{name}.png") as picture:
        assert picture.mode == "P" and picture.width > 500
    assert figures.caption(name)


@pytest.mark.parametrize("name", tables.names())
def test_tables_are_made_from_full_and_empty_records(name, full, empty):
    module = tables.load(name)
    made = module.make(*full)
    assert len(made) or name not in full[2].tables  # those of other studies find nothing here
    assert isinstance(module.make(*empty), pd.DataFrame)
    assert tables.caption(name)


def test_missing_runs_stay_in_the_run_table_and_a_figure_of_nothing_says_so(full, monkeypatch):
    shown = full[0][full[0]["method"] != "set"]
    table = tables.load("runs").make(shown, full[1], full[2]).set_index("run")
    assert set(table[table["status"] == "missing"].index) == {
        run.id for run in full[2].runs if run.spec.method == "set"
    }
    module = figures.load("loss_curves")
    monkeypatch.setattr(module, "draw", lambda *_: style.panels(1)[0])
    assert figures.has_data(figures.draw("loss_curves", *full))
    monkeypatch.setattr(module, "data", lambda *_: pd.DataFrame())
    figure = figures.draw("loss_curves", *full)
    assert not figures.has_data(figure)
    assert "loss_curves.py, selects no records" in figure.axes[0].texts[0].get_text()


def test_the_font_size_of_a_sheet_scales_the_sizes_it_leaves_and_titles_stay_inside(tmp_path):
    (own := tmp_path / "my.mplstyle").write_text("font.size: 19\naxes.labelsize: 6\n")
    with style.sheet(own, width=3.3):
        figure, (panel,) = style.panels(1)
        panel.set_title("a title that is much wider than a column of a paper")
        style.settle(figure)
        title = next(text for text in panel.get_children() if getattr(text, "get_wrap", bool)())
        sizes = [title, panel.yaxis.label, panel.get_xticklabels()[0]]
        assert [text.get_size() for text in sizes] == pytest.approx([20, 6, 18])
        assert title.get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.parametrize("line, words", [("font.sise: 9", "font.sise"), ("font.size: x", "'x'")])
def test_a_wrong_key_or_value_of_a_sheet_is_an_error_that_names_it(tmp_path, line, words):
    (own := tmp_path / "my.mplstyle").write_text(f"axes.grid: True\n{line}\n")
    with pytest.raises(UserError, match=f"my.mplstyle.*line 2.*{words}"), style.sheet(own):
        pass


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


def looks_of(**own):
    """How the methods of a study with these sections look."""
    methods = {
        key: Method.model_construct(**{"recipe": "all", "final_sparsity": 0.8, **settings})
        for key, settings in own.items()
    }
    return Methods(kept.study([], methods=methods))


def masks(algorithm, **settings):
    return {"sparsity": {"algorithm": algorithm}, **settings}


def test_names_and_looks_follow_the_facts_of_a_study():
    looks = looks_of(**{f"new-{i}": masks("new", final_sparsity=0.8) for i in range(12)})
    assert len({looks[f"new-{i}"].color for i in range(12)}) == 12
    assert looks["new-0"].name == "new"  # the first of an algorithm has its name
    assert looks["new-1"].name == "new-1"
    second = {"final_sparsity": 0.0, "starts_from": Start(method="first")}
    looks = looks_of(first=masks("static", final_sparsity=0.75), second=second)
    assert looks.phases("second") == (0.75, "dense") and looks.phases("first") is None
    kast, rigl = masks("topkast", label="Top-KAST"), masks("rigl")
    wide = {**rigl, "transform": Transform(family="wide", sparsity=0.8)}
    high = {"final_sparsity": 0.9}
    sections = {"kast": kast, "kast90": kast | high, "fast": rigl, "fast90": rigl | high}
    looks = looks_of(**sections, again=rigl, wide=wide)
    assert looks["kast"].name == looks["kast90"].name == "Top-KAST"
    assert looks["kast"].color == looks["kast90"].color
    assert looks.treatment("kast90", 0.9) == "Top-KAST 90%"
    assert looks["fast90"].name == "RigL" and looks.line("fast90") == "fast"
    assert looks["again"].name == "again" and looks["again"].color != looks["fast"].color
    assert looks["wide"].name == "Sparse-Wide RigL"
    assert looks["never-heard-of"].name == "never-heard-of"
    looks = Methods(planned_study("sparsity_library", "small"))
    names = {"dense-control": "Dense, same steps", "set-retuned": "SET, retuned", "rigl95": "RigL"}
    assert {key: looks[key].name for key in names} == names
    assert looks["set-retuned"].color == looks["set"].color and looks["set-retuned"].marker == "*"
    assert looks["rigl95"].color == "#0072B2"
    looks = Methods(planned_study("spdf", "small"))
    assert looks.treatment("dense-dense", 0) == "Dense fine-tuned"
    assert looks.treatment("spdf-75", 0) == "SPDF 75%"
    assert looks.treatment("sparse-75", 0.75) == "Sparse fine-tuned 75%"


def test_every_mean_line_has_markers(full):
    looks = Methods(full[2])
    colors = {looks[method].color for method in kept.METHODS}
    for name in ("loss_curves", "churn_itop", "schedules", "granet_vs_rigl"):
        with style.sheet(), matplotlib.rc_context({"figure.constrained_layout.use": False}):
            figure = figures.load(name).draw(*full)
        for line in (line for axes in figure.axes for line in axes.lines):
            is_mean = line.get_color() in colors and line.get_alpha() is None
            if is_mean and len(line.get_xdata()) > 2:
                assert line.get_marker() not in ("None", None), name
