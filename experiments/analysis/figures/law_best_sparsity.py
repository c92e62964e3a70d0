"""The sparsity of least loss at fixed non-zero weights against training compute, by the law of
gradual pruning, whose runs are dense at first: training costs more for sparser models, so they see
less text (Frantar et al., section 3.1). Compute is in tokens that a dense model of that size could
be trained on. Lines are the middle size, bands 95% of the bootstrap; shaded is beyond the fitted
budgets."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import scaling, style
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
GRADUAL = "gmp"
BEYOND = 10
COLUMNS = ["nonzero", "tokens", "sparsity", "low", "high", "extrapolated"]


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per amount of compute."""
    law = scaling.fit_all(scaling.finished(records, study)).get(GRADUAL)
    if law is None:
        return pd.DataFrame(columns=COLUMNS)
    highest = float(law.rows["sparsity"].max())
    nonzero = float(np.median(law.rows["nonzero"]))
    fitted = law.rows["tokens"]
    rows = []
    for tokens in np.geomspace(fitted.min(), BEYOND * fitted.max(), 17):
        best = [one.best_sparsity(nonzero, tokens, highest=highest) for one in law.draws]
        low, high = scaling.interval(np.array(best))
        point = law.law.best_sparsity(nonzero, tokens, highest=highest)
        rows.append((nonzero, tokens, point, low, high, tokens > fitted.max()))
    return pd.DataFrame(rows, columns=COLUMNS)


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel."""
    rows = data(records, curves, study)
    figure, (panel,) = style.panels(1, height=2.8)
    if rows.empty:
        style.say_empty(panel, "Gradual pruning has no law yet.")
        return figure
    panel.fill_between(rows["tokens"], 100 * rows["low"], 100 * rows["high"], alpha=0.2, lw=0)
    panel.plot(rows["tokens"], 100 * rows["sparsity"])
    beyond = rows[rows["extrapolated"]]["tokens"]
    if len(beyond):
        panel.axvspan(beyond.min(), beyond.max(), color="0.93", zorder=0)
    style.count_axis(panel, "tokens of dense training of equal cost (shaded: extrapolated)")
    panel.set_ylabel("best sparsity (%)")
    panel.set_ylim(0, 100)
    panel.set_title(f"{rows['nonzero'].iloc[0]:,.0f} non-zero weights, GMP")
    return figure
