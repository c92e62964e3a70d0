"""SlimPajama, 627 billion tokens of web text, books, code and papers (Soboleva et al. 2023)."""

from experiments.data.hub import hub_dataset

DATASETS = (
    hub_dataset(
        "slimpajama",
        "cerebras/SlimPajama-627B",
        license="that of each source; see the data card",
    ),
)
