"""Mean cross-entropy in nats: of an image's own class, or of a token."""

import math

import numpy as np

from experiments.evaluation.outputs import Estimate, Images, Tokens, mean, ratio

OF = Images, Tokens


def compute(outputs: Images | Tokens) -> Estimate:
    """Nats per image or token."""
    if isinstance(outputs, Tokens):
        return Estimate(*ratio(outputs.losses, outputs.sizes), sum(outputs.sizes))
    places = np.arange(len(outputs.labels))
    losses = -outputs.log_probabilities[places, outputs.labels]
    return mean(losses, math.log(len(outputs.classes)))
