"""Share of images whose own class is among the five likeliest."""

from experiments.evaluation.outputs import Estimate, Images, mean

OF, HIGHER_IS_BETTER = Images, True
TOP = 5


def compute(outputs: Images) -> Estimate:
    """Top-5 accuracy."""
    num_classes = len(outputs.classes)
    return mean((outputs.ranks < TOP).astype(float), min(TOP, num_classes) / num_classes)
