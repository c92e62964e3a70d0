"""Laws of sizes, sparsities and tokens: known ones are recovered, and bands cover them."""

import dataclasses
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from scipy import stats

from experiments import published
from experiments.analysis import (
    advice,
    clocks,
    effects,
    law_cells,
    law_fit,
    predictions,
    scaling,
    tables,
)
from experiments.analysis import figures as all_figures
from experiments.analysis.figures import (
    law_against_dense,
    law_best_sparsity,
    law_break_even,
    law_curves,
    law_effects,
    law_residuals,
    law_time,
)
from experiments.analysis.methods import Methods, algorithm_name
from experiments.analysis.tables import (
    law_advice,
    law_claims,
    law_contrasts,
    law_crossings,
    law_predictions,
    law_schedules,
    law_signs,
    laws,
)
from experiments.errors import UserError
from experiments.report import render, summary
from experiments.specs.digest import digest
from experiments.specs.lookup import planned_study
from experiments.specs.planned import PlannedStudy
from experiments.specs.read import load_study
from experiments.specs.run import Run, RunSpec, Transform
from experiments.store.collect import curves_table, records_table
from tests.experiments.analysis import law_runs, synthetic
from tests.experiments.analysis.law_runs import LAWS
from tests.experiments.specs.edit import edited

PLACES = [(0.75, 40_000, 2e6), (0.0, 1e5, 1e6), (0.5, 338_688, 8e6), (0.875, 20_000, 1e6)]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("laws"))
        return scaling.fit_all(law_runs.runs(LAWS, source=6), draws=40)


def test_a_known_law_is_recovered(fitted):
    for name, true in LAWS.items():
        found = fitted[name].law
        for place in PLACES:
            assert found(*place) == pytest.approx(true(*place), rel=0.01)
        for place in PLACES:
            assert found.worth(*place) == pytest.approx(true.worth(*place), rel=0.1)
    assert fitted["static"].seed_sd == pytest.approx(0, abs=0.006)


def test_all_laws_are_one_for_dense_models_however_far_away(fitted):
    for place in [*PLACES, (0.0, 3e8, 3e10)]:
        dense, *others = (fitted[name].law(0.0, *place[1:]) for name in ("dense", *LAWS))
        assert others == pytest.approx([dense] * len(others), rel=1e-12)
        drawn = [fitted[name].sample(0.0, *place[1:]) for name in ("dense", *LAWS)]
        assert np.allclose(drawn[1:], drawn[0], rtol=1e-12)


def test_a_method_that_loses_by_sparsity_is_fitted_too():
    true = scaling.SparsityLaw(0.2, -0.5, 0.4, 0.3, 0.12, 0.6, 1.2, **law_runs.UNITS)
    found = scaling.fit(law_runs.runs({"static": true}, source=1), ["static"], draws=0)[
        "static"
    ].law
    assert found.multiplier(0.75) < 0.9
    assert found(*PLACES[0]) == pytest.approx(true(*PLACES[0]), rel=0.006)


def test_bands_cover_the_truth_at_about_their_rate():
    hits = total = 0
    for source in range(8):
        rows = law_runs.runs({"static": LAWS["static"]}, source=100 + source, cell_sd=0.003)
        found = scaling.fit(rows, ["static"], draws=40)["static"]
        for place in PLACES:
            low, high = effects.interval(found.sample(*place))
            hits += low <= LAWS["static"](*place) <= high
            total += 1
    # Nominal is 95%; places of one source are not independent.
    assert 0.78 <= hits / total


def test_the_crossing_of_two_methods_is_found(fitted):
    nonzero, sparsity = 42_336, 0.75

    def true(tokens):
        return LAWS["rigl"](sparsity, nonzero, tokens) - LAWS["static"](sparsity, nonzero, tokens)

    grid = np.geomspace(5e5, 4e7, 4000)
    where = grid[np.flatnonzero(np.diff(np.sign(true(grid))))]
    a, b = fitted["rigl"], fitted["static"]
    found = effects.crossing(
        lambda d: a.law(sparsity, nonzero, d) - b.law(sparsity, nonzero, d),
        lambda d: a.sample(sparsity, nonzero, d) - b.sample(sparsity, nonzero, d),
        (5e5, 4e7),
    )
    assert len(where) == 1, "the two laws cross once"
    assert found.low <= where[0] <= found.high
    assert found.share > 0.5


def test_no_crossing_is_no_number(fitted):
    a = fitted["static"]
    found = effects.crossing(
        lambda d: a.law(0.75, 1e5, d), lambda d: a.sample(0.75, 1e5, d), (1e6, 1e7)
    )
    assert np.isnan(found.data) and np.isnan(found.low) and found.share == 0


def test_the_plain_law_recovers_a_plain_truth():
    rows = law_runs.runs(LAWS)
    s, n, d = (rows[key].to_numpy(float) for key in ("sparsity", "nonzero", "data"))
    rows["loss"] = np.exp(2.0 - 0.05 * np.log(n) - 0.03 * np.log(d) + 0.02 * np.log(1 - s))
    found = law_fit.fit_plain(rows, "static")
    assert found.weights == pytest.approx([2.0, -0.05, -0.03, 0.02], abs=1e-6)
    assert found(0.5, 1e5, 1e6) == pytest.approx(
        np.exp(2.0 - 0.05 * np.log(1e5) - 0.03 * np.log(1e6) + 0.02 * np.log(0.5))
    )


def test_what_is_left_over_turns_by_name_and_draw_alone():
    names = pd.Series(["dense/bytes-32/0.0", "rigl/bytes-32/0.5", "dense/bytes-48/0.0"])
    for draw in range(5):
        signs = scaling._factors(names, draw)
        assert set(signs) <= {-1.0, 1.0}
        assert signs[0] == scaling._factors(names[:1], draw)[0]
    for values in (scaling.SIGNS, scaling.WEBB):
        many = np.array([scaling._factors(names, draw, values) for draw in range(400)])
        assert set(many.ravel()) == set(values)
        assert np.abs(many.mean(0)).max() < 0.15
        assert many.var(0) == pytest.approx([1, 1, 1], abs=0.15)
        assert np.abs(np.corrcoef(many.T)[0, 1]) < 0.15


def test_a_band_holds_what_the_form_misses():
    """The middle size learns at a pace of its own, in all methods alike, which no form says."""
    rows = law_runs.runs({"static": LAWS["static"]}, source=3, seed_sd=0.001)
    pace = rows["model"].map({"bytes-32": 1.0, "bytes-48": -1.0, "bytes-64": 1.0}).to_numpy(float)
    tilt = 0.015 * pace * np.log2(rows["data"] / 1.45e6) / 1.5
    bent = rows.assign(loss=rows["loss"] * np.exp(tilt))
    straight, found = (scaling.fit(own, ["static"], draws=60) for own in (rows, bent))
    assert straight["static"].misfit.common < 0.002
    assert found["static"].misfit.common == pytest.approx(0.012, rel=0.5)
    means = bent.groupby(["algorithm", "model", "sparsity", "data"])["loss"].mean()
    inside = []
    for budget in law_runs.TOKENS:  # as many non-zero weights in either
        true = means["static", "bytes-64", 0.75, budget] - means["dense", "bytes-32", 0.0, budget]
        _, low, high = effects.effect(found["static"], found["dense"], 0.75, 75_264, budget)
        inside.append(low <= true <= high)
    assert all(inside)
    # Two methods of one model share what is missed.
    both = found["static"].sample(0.75, 75_264, 1e6) / found["static"].sample(0.875, 37_632, 1e6)
    apart = found["static"].sample(0.75, 75_264, 1e6) / found["dense"].sample(0.0, 75_264, 1e6)
    assert np.log(both).std() < 0.5 * np.log(apart).std()


def test_a_band_holds_both_forms():
    """Large models learn more slowly: the form with b_m says so, the other one cannot."""
    true = dataclasses.replace(LAWS["static"], b_m=-0.35)
    rows = law_runs.runs({"static": true}, source=5, seed_sd=0.001)
    found = scaling.fit(rows, ["static"], draws=60)
    law = found["static"]
    assert law.law.b_m == 0 and law.other.b_m == pytest.approx(-0.35, abs=0.05)
    for place in PLACES:
        assert law.other(*place) == pytest.approx(true(*place), rel=0.004)
    assert law.misfit.common < 0.002
    assert [one.b_m == 0 for one in law.draws] == [True, False] * 30
    for budget in law_runs.TOKENS:
        difference = true(0.75, 75_264, budget) - true(0.0, 75_264, budget)
        _, low, high = effects.effect(law, found["dense"], 0.75, 75_264, budget)
        assert low <= difference <= high


def test_what_waits_is_said():
    rows = law_runs.runs({"static": LAWS["static"]})
    assert law_cells.waits_for(rows, "static") == ""
    one = rows[rows["model"] == "bytes-32"]
    assert law_cells.waits_for(one, "static") == "1 of 2 sizes"
    assert "1 of 3 budgets" in law_cells.waits_for(rows[rows["data"] == 512_000], "static")
    dense = rows[rows["sparsity"] == 0]
    assert law_cells.waits_for(dense, "static") == "0 of 2 sparsities besides dense"
    some = rows[rows["sparsity"].isin([0.0, 0.75])]
    assert law_cells.waits_for(some, "static") == "1 of 2 sparsities besides dense"
    assert law_cells.waits_for(some, "dense") == ""
    with pytest.raises(ValueError, match="waits for runs: it has 1 of 2 sizes"):
        scaling.fit(one, ["static"])


# From records to pages


@dataclass(frozen=True)
class Counted(Run):
    """A run of a model with so many weights in its blocks."""

    weights: int = 0

    @property
    def block_weights(self) -> int:
        return self.weights


def study_of(rows: pd.DataFrame) -> PlannedStudy:
    """A study that plans the runs of these rows."""
    runs = []
    for row in rows.to_dict("records"):
        spec = synthetic.spec("dense", row["seed"], scale="small", label=row["model"])
        masks = {"algorithm": row["algorithm"], "sparsity": row["sparsity"], "seed": row["seed"]}
        spec |= {
            "id": row["run"],
            "method": row["method"],
            "final_sparsity": row["sparsity"],
            "sparsity": None if row["algorithm"] == "dense" else masks,
        }
        spec["recipe"] = {
            **spec["recipe"],
            "batch_size": 16,
            "steps": row["data"] // (16 * 64),
            "stable": {"warmup_steps": 5, "decay": 0.2},
        }
        spec = RunSpec.model_validate(spec)
        runs.append(Counted(spec, held_out=row["held_out"], weights=row["weights"]))
    methods = {
        row["method"]: {
            "recipe": "b8",
            "final_sparsity": row["sparsity"],
            "sparsity": None if row["algorithm"] == "dense" else {"algorithm": row["algorithm"]},
        }
        for row in rows.drop_duplicates("method").to_dict("records")
    }
    study = synthetic.planned([], name="scaling", scale="small", methods=methods)
    return study.changed(runs=tuple(runs))


def records_of(rows: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Records in which each run has the loss of its row."""
    empty = records_table([], study)
    found = []
    for row in rows.to_dict("records"):
        shared = {"run": row["run"], "model": row["model"], "method": row["method"],
                  "algorithm": row["algorithm"], "sparsity": row["sparsity"], "seed": row["seed"],
                  "recipe": f"b{row['data'] // 512_000}", "study": "scaling",
                  "dataset": "enwiki-slice"}  # fmt: skip
        found.append({**shared, "metric": "bits_per_byte", "value": row["loss"],
                      "split": "validation", "task": "perplexity"})  # fmt: skip
        flops = 6.0 * row["data"] * row["nonzero"]
        for metric, value in (
            ("wall_s", row["data"] / 4e4),
            ("flops_executed", flops),
            ("flops_dense_equivalent", flops / (1 - row["sparsity"])),
        ):
            found.append({**shared, "metric": metric, "value": value, "split": "train",
                          "task": "training"})  # fmt: skip
    return pd.DataFrame(found, columns=empty.columns)


@pytest.fixture(scope="module")
def whole():
    """All cells and their records; GMP has the law of RigL."""
    rows = law_runs.runs({**LAWS, "gmp": LAWS["rigl"]}, source=2, held_out=True)
    study = study_of(rows)
    return rows, records_of(rows, study), study


@pytest.fixture(autouse=True)
def few_draws(monkeypatch, tmp_path):
    """Bands of few draws; simulated devices as the computation writes them."""
    fit_all = scaling.fit_all
    monkeypatch.setattr(scaling, "fit_all", lambda rows, draws=12: fit_all(rows, draws=draws))
    monkeypatch.setattr(law_time, "NUM_TIMES", 6)
    monkeypatch.setattr(law_break_even, "NUM_BUDGETS", 5)
    monkeypatch.setattr(law_best_sparsity, "NUM_BUDGETS", 4)
    monkeypatch.setattr(clocks, "NUM_SIZES", 24)
    folder = tmp_path / "results/small/computations/device"
    folder.mkdir(parents=True)
    facts = [("CS-2", "sparse_overhead", 0.0208), ("CS-2", "peak_flops", 7.5e15)]
    pd.DataFrame(facts, columns=["device", "fact", "value"]).to_csv(
        folder / "facts.csv", index=False
    )
    pd.DataFrame({"width": [1000], "tokens": [1000], "dense_s": [0.02]}).to_csv(
        folder / "layer_speed.csv", index=False
    )
    speed = [("measured", 0.0, 0.7), ("measured", 0.5, 1.5), ("measured", 0.95, 8.0)]
    speed += [(name.replace("measured", "simulated"), s, v) for name, s, v in speed]
    pd.DataFrame(speed, columns=["series", "sparsity", "speedup"]).to_csv(
        folder / "speedup.csv", index=False
    )
    monkeypatch.chdir(tmp_path)


def test_held_out_runs_are_in_no_fit(whole):
    rows, records, study = whole
    finished = law_cells.finished(records, study)
    assert len(finished) == len(rows)
    assert finished["held_out"].sum() == rows["held_out"].sum() > 0
    found = scaling.fit_all(finished)
    assert not any(law.rows["held_out"].any() for law in found.values())


@pytest.mark.parametrize(
    "figure",
    [
        law_curves,
        law_effects,
        law_against_dense,
        law_best_sparsity,
        law_residuals,
        law_time,
        law_break_even,
    ],
)
def test_figures_show_all_some_and_none(figure, whole):
    rows, records, study = whole
    assert len(figure.draw(records, pd.DataFrame(), study).axes)
    assert len(figure.data(records, pd.DataFrame(), study))
    few = records[records["model"] == "bytes-32"]
    figure.draw(few, pd.DataFrame(), study)
    figure.draw(records.iloc[:0], pd.DataFrame(), study)


def test_the_legend_explains_every_colour_of_a_panel(whole):
    """Cells and best lines of `law_time` alike; a marker where there are cells."""
    _, records, study = whole
    for panel in law_time.draw(records, pd.DataFrame(), study).axes:
        handles = panel.get_legend().legend_handles
        dots, named_dots = (
            {to_hex(line.get_color()) for line in lines if line.get_marker() == "."}
            for lines in (panel.lines, handles)
        )
        best = {to_hex(line.get_color()) for line in panel.lines if line.get_linestyle() != "None"}
        named_best = {to_hex(line.get_color()) for line in handles if line.get_linewidth()}
        assert len(dots) == 4  # dense and three sparsities
        assert (named_dots, named_best) == (dots, best)


def test_the_caption_of_times_counts_them_in_sentences(whole, monkeypatch):
    _, records, study = whole
    names = ["clock", "kind", "minus dense low", "minus dense high", "extrapolated"]
    cases = {
        "cpu": [(-2, -1, False), (-1, 1, False), (1, 2, False), (-3, -1, False), (-1, 1, True)],
        "cs2": [(-1, 1, True), (-2, 1, True)],
    }
    rows = [(key, "sparse", *case) for key, own in cases.items() for case in own]
    rows += [(key, "dense", np.nan, np.nan, False) for key in cases]
    made = pd.DataFrame(rows, columns=names)
    monkeypatch.setattr(law_time, "data", lambda records, curves, study: made)
    text = law_time.caption(records, pd.DataFrame(), study)
    cpu, cs2 = (clocks.clocks("small")[key].title for key in cases)
    assert text.startswith("Compared are the best size of a dense model and the best size")
    assert "The table law_advice compares models of equal non-zero weights instead. " in text
    assert (
        f"{cpu}: Of 4 times within what was fitted, the sparse model is better at 2 and the dense "
        "one at 1; 1 have no answer. At the one time beyond what was fitted, the band of sparse "
        f"minus dense covers zero: no answer. {cs2}: No time lies within what was fitted. At all 2 "
        "times beyond what was fitted, the band of sparse minus dense covers zero: no answer."
    ) in text


def test_a_device_that_is_too_slow_does_not_reach_the_speedup_needed():
    said = [law_break_even._pays(speedup, 1.2, 1.5) for speedup in (1.17, 1.3, 1.6)]
    assert said == ["(1.17) does not reach it", "(1.30) no answer", "(1.60) gives it"]


def test_the_break_even_of_laws_is_on_a_logarithmic_axis_under_its_legend(whole):
    _, records, study = whole
    figure = law_break_even.draw(records, pd.DataFrame(), study)
    assert {panel.get_yscale() for panel in figure.axes} == {"log"}
    assert all(panel.get_legend() is None for panel in figure.axes)
    assert all(panel.get_ylim()[0] < 1 for panel in figure.axes)
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert len(set(names)) == len(names) == 2 * 3  # Static, SET and RigL at two sizes
    figure.draw_without_rendering()
    bottom = legend.get_window_extent().y0
    assert all(panel.get_tightbbox().y1 <= bottom for panel in figure.axes)


def test_tables_say_what_the_laws_say(whole):
    rows, records, study = whole
    table = laws.make(records, pd.DataFrame(), study).set_index("method")
    assert table.loc["static", "worth of 75%"] == pytest.approx(
        LAWS["static"].worth(0.75, 75_264, 4_096_000), rel=0.1
    )
    # The truth has the form of the law, so it foresees better than what is linear in logarithms.
    assert table.loc["static", "error held out (%)"] < table.loc["static", "plain, held out (%)"]
    waiting = laws.make(records[records["model"] == "bytes-32"], pd.DataFrame(), study)
    assert set(waiting["waits for"]) == {"1 of 2 sizes"}
    crossings = law_crossings.make(records, pd.DataFrame(), study)
    assert len(crossings) == 3 * 3 + 3 * 3  # pairs, and each against dense
    one = crossings[(crossings["a"] == "RigL") & (crossings["b"] == "Static")]
    assert set(one["better at ten times"]) <= {"RigL", "no answer"}


def test_schedules_are_compared_by_seed(whole):
    rows, _, _ = whole
    some = rows[(rows["model"] == "bytes-48") & (rows["data"] == 2_048_000)]
    cosine = some.assign(run=some["run"] + "-cosine", loss=some["loss"] - 0.01)
    both = study_of(pd.concat([some, cosine]))
    runs = [
        replace(run, spec=edited(run.spec, lambda spec: spec["recipe"].pop("stable")))
        if run.id.endswith("-cosine")
        else run
        for run in both.runs
    ]
    both = both.changed(runs=tuple(runs))
    records = records_of(pd.concat([some, cosine]), both)
    table = law_schedules.make(records, pd.DataFrame(), both)
    assert len(table) == some.groupby(["algorithm", "sparsity"]).ngroups
    assert table["difference"].to_numpy() == pytest.approx(0.01)
    assert set(table["seeds"]) == {3}
    assert law_schedules.make(records.iloc[:0], pd.DataFrame(), both).empty
    one_kind = both.changed(runs=tuple(run for run in both.runs if "cosine" not in run.id))
    assert law_schedules.make(records, pd.DataFrame(), one_kind).empty


def test_claims_are_asked_at_the_size_of_their_source(whole):
    _, records, study = whole
    table = law_claims.make(records, pd.DataFrame(), study).set_index("claim")
    place = 0.8, 0.2 * 1.3e9, 1.12e11
    assert table.loc["C002", "place"] == "extrapolated"
    assert table.loc["C002", "low"] <= LAWS["rigl"](*place) - LAWS["static"](*place)
    assert table.loc["C002", "says"] in ("RigL is better", "no answer")
    assert "waits for runs: SET has" in table.loc["C001", "says"]
    # The truth behind GMP here: every step of sparsity helps, and 75% are worth what its law says.
    gradual = table[table["asked"].str.startswith("GMP")]
    assert gradual.loc["C070", "says"] == "agrees"
    true = LAWS["rigl"].worth(0.75, gradual.loc["C071", "non-zero weights"], 4_096_000)
    assert gradual.loc["C071", "value"] == pytest.approx(true, rel=0.15)
    assert gradual.loc["C072", "says"] in ("agrees", "no answer")
    assert table[table["asked"].str.startswith("Static")].loc["C070", "says"] == "agrees"


def test_where_laws_are_asked_was_registered():
    """A change of a place shows: register it anew, with the day."""
    for claim, place in published.places().items():
        registered = published.registrations()[claim]["law"]
        assert registered["place"] == digest(place), f"the place of {claim} was changed"


def test_errors_of_a_method_are_those_of_its_own_cells(whole, monkeypatch):
    """GMP's held-out runs have not been trained; those of dense, Static and RigL have."""
    rows, records, study = whole
    out = rows[rows["held_out"]]
    missing = out[out["algorithm"] == "gmp"]["run"]
    some = records[~records["run"].isin(missing)]
    said = {"losses": [{"method": m, "predicted": 2.0} for m in out["method"].unique()]}
    monkeypatch.setattr(predictions, "registered", lambda study, scale: said)
    table = laws.make(some, pd.DataFrame(), study).set_index("method")
    held_out = [name for name in laws.COLUMNS if "held out" in name]
    text = law_curves.caption(some, pd.DataFrame(), study)
    assert "in the 7 cells held out (Dense, Static, RigL)." in text
    assert len(held_out) == 4 and table.loc["gmp", held_out].isna().all()
    fits = scaling.fit_all(law_cells.finished(some, study))
    for name in ("dense", "static", "rigl"):
        own = out[out["algorithm"] == name]
        means = own.groupby(["sparsity", "nonzero", "data"])["loss"].mean().reset_index()
        s, n, d, loss = means.to_numpy(float).T
        for column, expected in (
            ("error held out (%)", fits[name].law(s, n, d)),
            ("with b_m, held out (%)", fits[name].other(s, n, d)),
            ("registered, held out (%)", 2.0),
        ):
            error = 100 * np.sqrt(np.mean((expected / loss - 1) ** 2))
            assert table.loc[name, column] == pytest.approx(error)
    fitted = rows[~rows["held_out"] & (rows["algorithm"] == "gmp")]
    cells = fitted.groupby(["sparsity", "nonzero", "data"])["loss"].mean().reset_index()
    s, n, d, loss = cells.to_numpy(float).T
    error = 100 * np.sqrt(np.mean((fits["gmp"].law(s, n, d) / loss - 1) ** 2))
    assert table.loc["gmp", "error in the fit (%)"] == pytest.approx(error)


def test_questions_about_one_law_have_one_place_whatever_runs_are_added(whole):
    rows, records, study = whole
    more = rows.assign(sparsity=0.95, nonzero=rows["weights"] * 0.05, run=rows["run"] + "-95")
    more = more[(more["algorithm"] == "static") & (more["model"] == "bytes-64") & ~more["held_out"]]
    fits = [scaling.fit(own[~own["held_out"]], ["static"], draws=0)["static"]
            for own in (rows, pd.concat([rows, more]))]  # fmt: skip
    # Dense of width 32 and 75% of width 64, both trained on four million tokens.
    assert [law.place for law in fits] == [(0.25 * 301_056, 4_096_000)] * 2
    assert not fits[0].difference_extrapolated(0.75, *fits[0].place)
    table = laws.make(records, pd.DataFrame(), study).set_index("method")
    asked = law_claims.make(records, pd.DataFrame(), study).set_index("asked")
    for name in ("static", "gmp"):
        row = asked.loc[f"{algorithm_name(name)}: worth of 75% sparsity"]
        assert (row["non-zero weights"], row["data"]) == (75_264, 4_096_000)
        assert table.loc[name, "worth of 75%"] == row["value"]
        assert table.loc[name, ["low", "high"]].tolist() == row[["low", "high"]].tolist()


WAITING = "GMP has no law yet: 0 of 2 sparsities besides dense."


@pytest.fixture(scope="module")
def partial(whole):
    """Records of Dense and Static alone; GMP is planned and waits."""
    rows, records, _ = whole
    rows = rows[rows["algorithm"] != "rigl"]
    records = records[records["algorithm"].isin(["dense", "static"])]
    return records, study_of(rows)


def test_two_methods_alone_fill_a_page(partial, tmp_path):
    records, study = partial
    names = [name for name in load_study("scaling").tables if name != "runs"]
    drawn = ["law_against_dense"]
    study = study.changed(tables=names, figures=drawn, scale="small")
    reports, curves = tmp_path / "reports" / "small", curves_table([])
    page = reports / study.name
    for name in names:
        tables.write(name, records, curves, study, page / "tables")
    for name in drawn:
        all_figures.write(name, records, curves, study, page / "figures")
    render.render_study(study, records, curves, tmp_path / "runs", page / "figures",
                        page / "tables", tmp_path / "claims.csv", page)  # fmt: skip
    fitted = pd.read_csv(page / "tables" / "laws.csv").set_index("method")
    # Runs of every budget count, not of their method's own alone.
    assert fitted.loc["static", "waits for"] != fitted.loc["static", "waits for"]
    assert fitted.loc["gmp", "waits for"] == "0 of 2 sparsities besides dense"
    assert WAITING in (page / "README.md").read_text()
    answers = summary.law_answers({study.name: page / "tables"})
    assert [answer["text"] for answer in answers["C002"]] == [
        "extrapolated: RigL minus Static at 80%: waits for runs: RigL has "
        "0 of 2 sparsities besides dense"
    ]
    assert "Static: worth of 75% sparsity" in answers["C071"][1]["text"]


def test_two_methods_alone_give_advice(partial):
    records, study = partial
    rows = advice.options(records, study, 37_632, 2e6, "cpu")
    assert set(rows["method"]) == {"dense", "static"}
    waiting = law_cells.waiting(law_cells.finished(records, study), study)
    assert waiting == [WAITING]
    assert advice.text(rows, study, 37_632, 2e6, waiting).splitlines()[-1] == WAITING


def test_a_prediction_grows_by_methods_that_had_no_law(whole, partial):
    rows, records, study = whole
    out = set(rows[rows["held_out"]]["run"])
    some = partial[0][~partial[0]["run"].isin(out)]
    first = predictions.predict(some, study, date="2026-11-24")
    assert {loss["method"] for loss in first["losses"] if "predicted" in loss} == {
        "dense", "static-50", "static-75", "static-87.5"
    }  # fmt: skip
    with pytest.raises(ValueError, match="no further law can be fitted yet: RigL has no law"):
        predictions.predict(some, study, date="2026-11-25", earlier=first)
    # Dense and Static may have been trained since: their predictions stay as they are.
    since = records[~records["run"].isin(out) | records["algorithm"].isin(["dense", "static"])]
    second = predictions.predict(since, study, date="2026-11-25", earlier=first)
    kept = {loss["method"]: loss for loss in second["losses"]}
    for loss in first["losses"]:
        assert "predicted" not in loss or kept[loss["method"]] == loss
    assert {kept["dense"]["date"], kept["gmp-75"]["date"]} == {"2026-11-24", "2026-11-25"}
    assert second["signs"][: len(first["signs"])] == first["signs"]
    assert second["earlier"] == [first["hash"]] and second["hash"] == predictions.digest(second)
    with pytest.raises(ValueError, match="can no longer be predicted"):
        predictions.predict(records, study, date="2026-11-25", earlier=first)


def test_static_minus_dense_is_that_of_the_law(partial):
    records, study = partial
    shown = law_against_dense.data(records, pd.DataFrame(), study)
    true = LAWS["static"]
    for row in shown[shown["data"] < 4e6].to_dict("records"):
        place = row["nonzero"], row["data"]
        assert row["effect"] == pytest.approx(true(row["sparsity"], *place) - true(0.0, *place),
                                              abs=0.02)  # fmt: skip
    # Dense models as small as 87.5% of the largest leaves were not trained.
    assert shown[shown["sparsity"] == 0.875]["extrapolated"].all()
    assert not shown[(shown["sparsity"] == 0.5) & (shown["data"] < 4e6)]["extrapolated"].any()


# Time


def test_a_sparse_step_needs_the_speedup_that_its_weights_are_not_worth():
    compute = np.array([1e11, 1e12])
    sizes = (1e3, 1e8)
    # A weight is worth as much as a dense one: the step must be as fast as it has fewer weights.
    same = scaling.SparsityLaw(0.0, 0.0, 0.75, 0.3, 0.12, 0.6, 1.2, **law_runs.UNITS)
    assert clocks.break_even(same, 0.75, compute, sizes).speedup == pytest.approx(4.0, rel=0.02)
    # Worth twice: the optimum of c N^-b + a D^-b moves to half of the weights on equal data.
    half = 2**-0.3
    twice = scaling.SparsityLaw(0.75 * (1 - half), 200.0, 0.75 * half, 0.3, 0.12, 0.6, 1.2,
                                **law_runs.UNITS)  # fmt: skip
    assert twice.multiplier(0.75) == pytest.approx(2.0)
    assert clocks.break_even(twice, 0.75, compute, sizes).speedup == pytest.approx(2.0, rel=0.04)


def test_at_a_fixed_size_a_longer_training_needs_less_speedup():
    law = scaling.SparsityLaw(0.35, 0.3, 0.4, 0.3, 0.12, 0.6, 1.2, **law_runs.UNITS)
    compute, size = 75_264 * np.array([1e6, 4e6]), (75_264.0, 75_264.0)
    needed = clocks.break_even(law, 0.5, compute, size).speedup
    for at, speedup in zip(compute, needed, strict=True):
        data = at / 75_264
        # A sparse model of as many non-zeros meets the dense loss on so much data, by hand.
        seen = speedup * 0.5 * data
        assert law(0.5, 75_264, seen) == pytest.approx(law(0.0, 75_264, data), rel=1e-3)
    assert needed[1] < needed[0] < 2


def test_the_best_size_of_a_compute_is_that_of_the_closed_form():
    law = scaling.SparsityLaw(0.0, 0.0, 0.75, 0.3, 0.12, 0.6, 1.2, **law_runs.UNITS)
    found = clocks.best(law, 0.0, np.array([1e11]), (1e4, 1e6))
    # c N^-b + (a N / C)^d is least where b c N^-b = d (a N / C)^d, N and C in their units.
    size = (0.3 * 0.75 / 0.6 / 0.12**0.6 * 1.0**0.6) ** (1 / 0.9)
    assert found.nonzero[0] / 1e5 == pytest.approx(size, rel=0.2)
    assert found.data * found.nonzero == pytest.approx(1e11)


def test_a_clock_runs_dense_where_skipping_does_not_pay():
    clock = clocks.Clock("", 1.0, (0.0, 0.5, 1.0), (0.7, 1.5, 8.0))
    assert clock.speedup(0.1) == 1.0
    assert clock.cost(np.full(9, 0.5)) == pytest.approx(1 / 1.5)
    assert clock.cost(np.array([0.0, 0.5])) == pytest.approx((1 + 1 / 1.5) / 2)


def test_the_path_of_gradual_pruning_is_that_of_its_runs():
    study = planned_study(load_study("scaling"), "small")
    path = clocks.path(study, "gmp", 0.75)
    assert (path[:49] == 0).all() and path[-1] == 0.75 and (np.diff(path) >= 0).all()
    assert path.mean() == pytest.approx(0.75 * (0.5 * 0.75 + 0.25), abs=0.005)
    assert set(clocks.path(study, "static", 0.5)) == {0.5}
    assert clocks.path(study, "granet", 0.875)[0] == pytest.approx(0.5, abs=0.02)


def test_predictions_are_made_before_and_held_against_the_runs(whole, tmp_path, monkeypatch):
    rows, records, study = whole
    monkeypatch.setattr(predictions, "FOLDER", tmp_path)
    held_out = set(rows[rows["held_out"]]["run"])
    with pytest.raises(ValueError, match="has finished, so its loss can no longer be predicted"):
        predictions.predict(records, study, date="2026-11-23")
    before = records[~records["run"].isin(held_out)]
    table = law_predictions.make(before, pd.DataFrame(), study)
    assert set(table["registered"]) == {law_predictions.NOT_YET}
    assert law_signs.make(before, pd.DataFrame(), study).empty
    content = predictions.predict(before, study, date="2026-11-23")
    file = predictions.path("scaling", "small")
    file.parent.mkdir()
    file.write_text(json.dumps(content))
    table = law_predictions.make(before, pd.DataFrame(), study)
    assert set(table["inside"]) == {law_predictions.WAITS}
    assert table["predicted"].notna().all()
    signs = law_signs.make(before, pd.DataFrame(), study)
    assert len(signs) == len(content["signs"]) and set(signs["agrees"]) == {law_predictions.WAITS}
    # A band is of all seeds: with some of them the numbers are shown, and nothing is judged.
    last = rows[rows["held_out"] & (rows["seed"] == rows["seed"].max())]["run"]
    part = records[~records["run"].isin(last)]
    table = law_predictions.make(part, pd.DataFrame(), study)
    assert set(table["inside"]) == {law_predictions.WAITS} and table["measured"].notna().all()
    signs = law_signs.make(part, pd.DataFrame(), study)
    assert set(signs["agrees"]) == {law_predictions.WAITS} and signs["measured"].notna().all()
    table = law_predictions.make(records, pd.DataFrame(), study)
    assert (table["error (%)"].abs() < 2).all()
    assert set(table["inside"]) <= {"yes", "no"}
    signs = law_signs.make(records, pd.DataFrame(), study)
    assert set(signs["agrees"]) <= {"yes", "no"}
    out, methods = rows[rows["held_out"]], Methods(study)
    names = {key: methods.treatment(key, methods[key].sparsity) for key in out["method"]}
    losses = out.groupby(out["method"].map(names))["loss"].mean()
    apart = losses[signs["first"]].to_numpy() - losses[signs["second"]].to_numpy()
    assert signs["measured"].to_numpy() == pytest.approx(apart, abs=1e-9)
    assert signs["agrees"].tolist() == [
        "yes" if low <= value <= high else "no"
        for low, value, high in zip(signs["low"], apart, signs["high"], strict=True)
    ]
    content["losses"][0]["predicted"] += 0.1
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="changed after it was registered"):
        law_predictions.make(records, pd.DataFrame(), study)


def test_advice_names_a_method_with_its_band(whole):
    _, records, study = whole
    rows = advice.options(records, study, 37_632, 2e6, "cpu")
    assert rows["loss"].is_monotonic_increasing
    static = rows[(rows["method"] == "static") & (rows["sparsity"] == 0.5)].iloc[0]
    assert static["loss"] == pytest.approx(LAWS["static"](0.5, 37_632, 2e6), rel=0.01)
    assert static["time"] == pytest.approx(1 / 1.5 / 0.5)
    # One dense model for all: what a row says of dense is the distance to the row of dense.
    dense = rows[rows["method"] == "dense"].iloc[0]
    for place in ((37_632, 2e6), (1e6, 5e7)):
        shown = advice.options(records, study, *place, "cpu")
        base = shown[shown["method"] == "dense"]["loss"].iloc[0]
        assert (shown["loss"] - base).to_numpy() == pytest.approx(shown["minus dense"].to_numpy())
        assert shown["minus dense"].is_monotonic_increasing
    assert dense["minus dense"] == 0
    answer = advice.text(rows, study, 37_632, 2e6)
    assert answer.startswith("At 37,632 non-zero weights of the blocks and 2,000,000 tokens: ")
    # 50% of 75,264 is the smallest that was trained sparse; a dense one of as many was not.
    assert "extrapolated" in answer.splitlines()[0]
    inside = advice.options(records, study, 75_264, 2e6, "cpu")
    levels = inside.groupby("sparsity")["extrapolated"].first()
    # 87.5% of so many would need a larger model than any.
    assert levels.to_dict() == {0.0: False, 0.5: False, 0.75: False, 0.875: True}
    beyond = advice.text(advice.options(records, study, 1e6, 5e7, "cs2"), study, 1e6, 5e7)
    assert "extrapolated" in beyond.splitlines()[0]
    for params, tokens in ((1, 2e6), (1e9, 2e6), (37_632, 1e12), (37_632, 1e5)):
        with pytest.raises(UserError, match="were trained, and the laws are asked from"):
            advice.options(records, study, params, tokens, "cpu")
    nothing = advice.options(records.iloc[:0], study, 1e6, 5e7, "cpu")
    said = advice.text(nothing, study, 1e6, 5e7)
    assert said.startswith(
        "There is no answer for 1,000,000 non-zero weights of the blocks and 50,000,000 tokens"
    )


def test_advice_is_given_at_equal_time_too(whole):
    _, records, study = whole
    rows = advice.options(records, study, 75_264, 2e6, "cpu")
    static = rows[(rows["method"] == "static") & (rows["sparsity"] == 0.75)].iloc[0]
    laws = scaling.fit_all(law_cells.finished(records, study))
    fewer = laws["static"].law(0.75, 75_264, 2e6 / static["time"])
    assert static["at equal time"] == pytest.approx(
        float(fewer - laws["dense"].law(0.0, 75_264, 2e6))
    )
    assert static["time"] < 1 and static["at equal time"] < static["minus dense"]
    said = advice.text(rows, study, 75_264, 2e6).splitlines()
    assert said[1].startswith("In the time that this dense model takes: ")
    clockless = rows.assign(**{key: np.nan for key in rows if "time" in key})
    assert "In the time" not in advice.text(clockless, study, 75_264, 2e6)


def _widened(study: PlannedStudy) -> PlannedStudy:
    """The study with the runs of RigL and Static as Sparse-Wide."""

    def family(run: Run) -> Run:
        if run.spec.algorithm not in ("rigl", "static"):
            return run
        wide = Transform(family="wide", sparsity=run.spec.final_sparsity)
        return replace(run, spec=run.spec.model_copy(update={"transform": wide}))

    return study.changed(runs=tuple(map(family, study.runs)))


def test_an_algorithm_is_called_by_its_family_where_all_its_runs_are_sparse_wide(whole):
    _, _, study = whole
    vision = planned_study(load_study("scaling_vision"), "small")
    names = [law_cells.name_of(vision, key) for key in ("rigl", "dense", "set")]
    assert names == ["Sparse-Wide RigL", "Dense", "SET"]
    assert law_cells.name_of(study, "rigl") == "RigL"
    wide = _widened(study)
    assert law_cells.name_of(wide, "rigl") == "Sparse-Wide RigL"
    both = study.changed(runs=(*wide.runs, *study.runs))
    assert law_cells.name_of(both, "rigl") == "RigL"
    assert law_cells.subject(vision).size == "stage weights of the dense network of equal FLOPs"
    assert clocks.of_study(vision) == {} and clocks.of_study(study)
    assert law_cells.waiting(law_cells.EMPTY.astype(law_cells.TYPES), vision)[1].startswith(
        "Sparse-Wide RigL has no law yet: "
    )


@pytest.fixture
def images(whole, monkeypatch):
    """Records and study of `whole`, read as Sparse-Wide networks on images."""
    rows, records, study = whole
    some = rows[rows["algorithm"].isin(["dense", "rigl", "static"])]
    wide = some.assign(nonzero=some["weights"])
    monkeypatch.setattr(law_cells, "finished", lambda records, study: wide)
    monkeypatch.setattr(law_cells, "subject", lambda study: law_cells.SUBJECTS["vision"])
    return wide, records, _widened(study)


def test_advice_on_images_says_no_times(images):
    _, records, study = images
    rows = advice.options(records, study, 75_264, 2_048_000, "cpu")
    assert rows.loc[rows["sparsity"] > 0, ["time", "at equal time"]].isna().all(axis=None)
    said = advice.text(rows, study, 75_264, 2_048_000).splitlines()
    assert said[0].startswith(
        "At 75,264 stage weights of the dense network of equal FLOPs and 2,048,000 images: "
    )
    assert "Times of convolutions are not measured here." in said
    assert not any(word in line for line in said for word in ("training time", "faster", "tokens"))
    assert any(line.startswith("Sparse-Wide RigL  ") for line in said)
    assert said[-1].startswith("Bands hold two forms") and "at equal FLOPs" in said[-1]
    with pytest.raises(UserError, match="no advice for 1 stage weight of the dense network of "):
        advice.options(records, study, 1, 2e6, "cpu")


def test_figures_of_images_name_sparse_wide_and_have_no_clock(images):
    _, records, study = images
    figure = law_against_dense.draw(records, pd.DataFrame(), study)
    titles = [panel.get_title() for panel in figure.axes]
    assert "Sparse-Wide RigL minus dense, equal FLOPs" in titles
    assert "Sparse-Wide RigL at 75%: " in law_against_dense.caption(records, pd.DataFrame(), study)
    curves_shown = law_curves.draw(records, pd.DataFrame(), study)
    assert "Sparse-Wide RigL" in [panel.get_title() for panel in curves_shown.axes]
    assert law_time.data(records, pd.DataFrame(), study).empty
    (panel,) = law_time.draw(records, pd.DataFrame(), study).axes
    assert clocks.missing(study) in [" ".join(t.get_text().split()) for t in panel.texts]


def test_the_grey_band_is_of_the_seeds_that_are_planned(whole):
    rows, records, study = whole
    fewer = study.changed(
        runs=tuple(run for run in study.runs if run.spec.algorithm != "rigl" or run.spec.seed < 2)
    )
    assert [law_residuals.seeds(fewer, name) for name in ("static", "rigl")] == [3, 2]
    vision = planned_study(load_study("scaling_vision"), "small")
    assert [law_residuals.seeds(vision, name) for name in ("dense", "rigl")] == [2, 2]
    said = law_residuals.caption(records, pd.DataFrame(), fewer)
    assert said.startswith("Seeds behind the grey band: 3 for Dense, ") and "2 for RigL" in said


def test_where_the_laws_have_no_answer_the_measured_difference_is_said(whole):
    _, records, study = whole
    contrasts = law_contrasts.make(records, pd.DataFrame(), study)
    rows = pd.DataFrame(
        [
            _option("static", 0.75, -0.020, -0.050, 0.010),
            _option("dense", 0.0, 0.0, 0.0, 0.0),
        ]
    )
    one = contrasts[
        (contrasts["method"] == "static")
        & (contrasts["other sparsity"] == 0)
        & (contrasts["data"] == 2_048_000)
    ].iloc[0]
    said = advice.text(rows, study, 75_264, 2_048_000, (), contrasts).splitlines()
    assert said[1] == (
        f"Measured there: Static at 75% minus dense, {one['measured']:+.3f} "
        f"({one['low']:+.3f} to {one['high']:+.3f}) bits per byte, 3 seeds."
    )
    elsewhere = advice.text(rows, study, 80_000, 2_048_000, (), contrasts)
    sure = rows.assign(**{"minus dense high": -0.001})
    answered = advice.text(sure, study, 75_264, 2_048_000, (), contrasts)
    assert "Measured there" not in elsewhere + answered


def _option(method, sparsity, change, low, high, *, ties=False):
    values = {"method": method, "sparsity": sparsity, "loss": 2 + change, "low": 2.0, "high": 2.1,
              "minus dense": change, "minus dense low": low, "minus dense high": high,
              "ties": ties}  # fmt: skip
    return dict.fromkeys(advice.COLUMNS, np.nan) | values | {"extrapolated": False}


def test_what_is_surely_better_than_dense_is_advised_before_what_may_be(whole):
    _, _, study = whole
    rows = pd.DataFrame(
        [
            _option("static", 0.75, -0.020, -0.050, 0.010, ties=True),
            _option("static", 0.5, -0.014, -0.028, -0.0002),
            _option("dense", 0.0, 0.0, 0.0, 0.0),
        ]
    )
    said = advice.text(rows, study, 75_264, 2e6).splitlines()[0]
    assert "Static at 50%, -0.028 to -2.0e-04 bits per byte against a dense model" in said
    assert said.endswith("Not told apart from it: Static 75%.")
    neither = advice.text(rows.drop(index=1), study, 75_264, 2e6).splitlines()[0]
    assert "no answer; Static at 75% is -0.050 to +0.010" in neither


def test_a_page_answers_at_sizes_and_budgets(whole):
    rows, records, study = whole
    table = law_advice.make(records, pd.DataFrame(), study)
    assert list(table["non-zero weights"].unique()) == [75_264, 301_056, 3_010_560]
    assert len(table) == 9
    beyond = table[table["non-zero weights"] > 301_056]
    assert beyond["at equal data"].str.endswith("*").all()
    answer = table.iloc[0]["at equal data"]
    laws = scaling.fit_all(law_cells.finished(records, study))
    named = answer.split(" (")[0]
    assert named in {"dense", "no answer"} | {
        f"{algorithm_name(name)} {level:g}%" for name in laws for level in (50, 75, 87.5)
    }
    assert law_advice.make(records.iloc[:0], pd.DataFrame(), study).empty


def test_models_of_equal_weights_are_compared_without_a_law(whole):
    rows, records, study = whole
    table = law_contrasts.make(records, pd.DataFrame(), study)
    one = table[(table["method"] == "static") & (table["other sparsity"] == 0)]
    assert list(one["data"]) == [512_000, 1_024_000, 2_048_000, 4_096_000]
    assert set(one["model"]) == {"bytes-64"} and set(one["other model"]) == {"bytes-32"}
    first = one.iloc[0]
    at = rows[rows["data"] == 512_000]
    sparse = at[(at["model"] == "bytes-64") & (at["method"] == "static-75")]["loss"]
    dense = at[(at["model"] == "bytes-32") & (at["method"] == "dense")]["loss"]
    assert first["measured"] == pytest.approx(sparse.mean() - dense.mean())
    # Welch (Biometrika, 1947), by hand.
    errors = [own.var() / len(own) for own in (sparse, dense)]
    freedom = sum(errors) ** 2 / sum(error**2 / (len(sparse) - 1) for error in errors)
    half = stats.t.ppf(0.975, freedom) * sum(errors) ** 0.5
    assert (first["low"], first["high"]) == pytest.approx(
        (first["measured"] - half, first["measured"] + half)
    )
    # 50% of the smallest has as many as 87.5% of the largest.
    assert ((table["sparsity"] == 0.875) & (table["other sparsity"] == 0.5)).any()
    assert (table["inside"] == "yes").mean() > 0.8  # the truth is a law of the form
    alone = records[(records["seed"] == 0) | (records["method"] == "dense")]
    waiting = law_contrasts.make(alone, pd.DataFrame(), study)
    assert set(waiting["better"]) == {"waits for seeds: 1 of 2"}


def test_what_a_claim_is_asked_beyond_the_fit_is_extrapolated(whole):
    _, records, study = whole
    table = law_claims.make(records, pd.DataFrame(), study).set_index(["claim", "asked"])
    worth = table.loc[("C071", "Static: worth of 75% sparsity")]
    assert worth["non-zero weights"] == 75_264 and worth["place"] == "trained"
    # At 87.5% a model of that size is larger than the largest that was trained.
    falls = table.loc[("C070", "Static: largest step of loss between sparsities")]
    assert falls["non-zero weights"] == 75_264 and falls["place"] == "extrapolated"


@pytest.mark.parametrize(
    ("task", "size", "unit"),
    [
        ("lm", "non-zero weights of the blocks", "tokens"),
        ("vision", "stage weights of the dense network of equal FLOPs", "images"),
    ],
)
def test_an_answer_names_what_its_size_and_budget_count(
    whole, monkeypatch, tmp_path, task, size, unit
):
    _, records, study = whole
    finished = law_cells.finished(records, study)
    monkeypatch.setattr(law_cells, "finished", lambda records, study: finished)
    monkeypatch.setattr(law_cells, "subject", lambda study: law_cells.SUBJECTS[task])
    tables.write("law_claims", records, pd.DataFrame(), study, tmp_path)
    answers = summary.law_answers({study.name: tmp_path})
    assert f" at 7.5e+04 {size}, 4.1e+06 {unit}: " in answers["C071"][0]["text"]
    assert f", 1.1e+11 {unit}: " in answers["C002"][0]["text"]


def test_an_edge_is_inside_and_a_step_beyond_it_is_not(fitted):
    law = fitted["static"]
    assert not law.extrapolated(0.5, 75_264 / 2, 512_000)
    assert law.extrapolated(0.5, 75_264 / 2.1, 512_000)
    assert law.extrapolated(0.5, 75_264 / 2, 500_000)
    assert law.extrapolated(0.95, 20_000, 1e6)
    assert law.difference_extrapolated(0.5, 75_264 / 2, 512_000)  # no dense one is so small


def test_draws_that_never_tie_leave_the_band_open():
    values = np.array([*np.linspace(1, 2, 90), *[np.inf] * 10])
    low, high = effects.interval(values)
    assert 1 <= low < 1.1 and high == np.inf


def test_a_law_is_fitted_once_for_the_same_rows(monkeypatch):
    rows, calls = law_runs.runs(LAWS, source=6), []
    scaling._fit_all.cache_clear()
    fit = scaling.fit

    def counted(rows, algorithms, **options):
        calls.append(algorithms)
        return fit(rows, algorithms, **options)

    monkeypatch.setattr(scaling, "fit", counted)
    first = scaling.fit_all(rows)
    scaling._fit_all.cache_clear()  # as in another process
    again = scaling.fit_all(rows)
    assert calls == [["rigl", "static"]] and list(first) == ["dense", "rigl", "static"]
    for name, law in first.items():
        assert (again[name].law, again[name].draws) == (law.law, law.draws)
        assert (again[name].misfit, again[name].seed_sd) == (law.misfit, law.seed_sd)
        pd.testing.assert_frame_equal(again[name].rows, law.rows)
    # One other loss: laws that share coefficients are fitted anew.
    changed = rows.copy()
    last = changed.index[changed["algorithm"] == "static"][-1]
    changed.loc[last, "loss"] *= 1.01
    scaling._fit_all.cache_clear()
    scaling.fit_all(changed)
    assert len(calls) == 2


def test_a_damaged_kept_law_is_fitted_again():
    rows = law_runs.runs(LAWS, source=6)
    scaling._fit_all.cache_clear()
    first = scaling.fit_all(rows)
    (kept,) = Path("state/laws").glob("*.json")
    kept.write_text("{")
    scaling._fit_all.cache_clear()
    assert scaling.fit_all(rows)["static"].law == first["static"].law
