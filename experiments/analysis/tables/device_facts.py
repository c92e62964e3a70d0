"""Facts about the devices, each with its source; the machine at hand is measured by a probe. A fact
that is not verified is an assumption, a bound, or was read second hand."""

import pandas as pd

from experiments.specs.schema import PlannedStudy
from experiments.store import tidy


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per device and fact."""
    facts = tidy.computed(study.scale, "device", "facts")
    facts["fact"] = facts["fact"].str.replace("_", " ")
    cpu = tidy.computed(study.scale, "device", "machine").iloc[0]
    known = [cpu["processor"], *(f"{key} {cpu[key]}" for key in ("family", "model") if key in cpu)]
    facts["device"] = facts["device"].replace(
        "This machine's CPU", f"This machine's CPU ({', '.join(known)})"
    )
    return facts
