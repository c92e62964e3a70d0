"""A slice of the English Wikipedia of 2014, from a local folder."""

from experiments.data.hub import hub_dataset

DATASETS = (
    hub_dataset("enwiki-slice", "local/enwiki-2014-slice", license="CC BY-SA 3.0 and GFDL"),
)
