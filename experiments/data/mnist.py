"""MNIST (LeCun et al., 1998): 28 x 28 grey images of handwritten digits."""

from experiments.data.hub_images import hub_images

DATASETS = (
    hub_images(
        "mnist",
        "ylecun/mnist",
        config="mnist",
        license="MIT as stated on the hub",
        size=28,
        classes="0 1 2 3 4 5 6 7 8 9".split(),
        num_channels=1,
        flip=False,
        standardise=False,  # black stays 0, so that a pixel that is always black has no gradient
    ),
)
