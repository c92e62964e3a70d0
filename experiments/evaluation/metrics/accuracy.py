"""Share of images whose own class is the likeliest."""

from experiments.evaluation.outputs import Estimate, Images, mean

OF = Images


def compute(outputs: Images) -> Estimate:
    """Top-1 accuracy; of equal logits the first class counts."""
    hits = outputs.logits.argmax(1) == outputs.labels
    return mean(hits.astype(float), 1 / len(outputs.classes))
