"""SlimPajama: web text, books, code and papers (Soboleva et al. 2023), streamed.

Of the whole, 627 billion tokens in 590 million documents, the first 120 million are taken: more
tokens than any study trains on, in 250 GB of prepared data. The hub's files need the package
zstandard. The sample of 6 billion tokens is a user's of the hub.
"""

from experiments.data.streaming import streamed_dataset

LICENSE = "that of each source; see the data card"

DATASETS = (
    streamed_dataset(
        "slimpajama", "cerebras/SlimPajama-627B", license=LICENSE, num_train=120_000_000
    ),
    streamed_dataset("slimpajama-6b", "DKYoon/SlimPajama-6B", license=LICENSE),
)
