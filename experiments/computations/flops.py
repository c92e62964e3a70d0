"""The FLOP counts that the blogs and their papers publish, beside ours.

Ours are counted on models, not taken from formulas. ``counted as published`` repeats our count
under the source's own convention where it differs from ours, and ``explanation`` says what that is.
A row is ``met`` if either is within 1% of the published value, or prints the same digits.
"""

from collections.abc import Iterator

import pandas as pd
import torch

from experiments.computations._authors_flops import authors_flops
from experiments.computations._language_flops import gpt3_rows, spdf_rows
from experiments.computations._published_flops import COLUMNS, Row, published_rows, row
from experiments.models import resnet
from sparse_lib.flops.model import count

#: Layers of each stage, stem, classes and pixels per side.
RESNETS = {
    "ResNet-18 CIFAR": ([2, 2, 2, 2], "cifar", 100, 32),
    "ResNet-18 ImageNet": ([2, 2, 2, 2], "imagenet", 1000, 224),
    "ResNet-34 ImageNet": ([3, 4, 6, 3], "imagenet", 1000, 224),
}


def compute(scale: str) -> dict[str, pd.DataFrame]:
    """The table ``published``, one row per number; it is the same at every scale."""
    rows = [*spdf_rows(), *ift_rows(), *gpt3_rows()]
    return {"published": pd.DataFrame(rows, columns=COLUMNS)}


def ift_rows() -> Iterator[Row]:
    """The FLOP budgets in the configurations of Sparse-IFT."""
    for printed in published_rows("SPARSE_IFT_ICML24", "FLOP budget used for iso-FLOP matching"):
        depths, stem, classes, size = RESNETS[printed["model"]]
        widths = {"hidden_sizes": [64, 128, 256, 512], "embedding_size": 64}
        config = resnet.Config.model_validate({"depths": depths, "stem": stem, **widths})
        names = [str(number) for number in range(classes)]
        with torch.device("meta"):
            model = resnet.build(config, classes=names, num_channels=3, image_size=size)
        yield row(
            printed,
            float(count(model, batch_size=1, image_size=size).forward()),
            as_published=float(authors_flops(model, image_size=size, pooling=stem == "imagenet")),
            explanation="the authors' profiler also counts batch norm at 7 per element, pooling "
            "and biases, and one addition less per output",
        )
