"""Expected calibration error (Guo et al. 2017, equation 3) over bins of equal width."""

import numpy as np

from experiments.evaluation.outputs import Estimate, Images

OF, HIGHER_IS_BETTER = Images, False
NUM_BINS = 15
#: Bootstrap resamples of the images, for the standard error.
NUM_RESAMPLES = 200


def compute(outputs: Images) -> Estimate:
    """The error of the predicted classes' probabilities."""
    confidence = np.exp(outputs.log_probabilities.max(1))
    correct = (outputs.ranks == 0).astype(float)
    value, count = error(confidence, correct, NUM_BINS), len(confidence)
    if count < 2:
        return Estimate(value, None, count)
    rng = np.random.default_rng(0)
    draws = (rng.integers(count, size=count) for _ in range(NUM_RESAMPLES))
    errors = [error(confidence[draw], correct[draw], NUM_BINS) for draw in draws]
    return Estimate(value, float(np.std(errors, ddof=1)), count)


def error(confidence: np.ndarray, correct: np.ndarray, num_bins: int) -> float:
    """Mean distance of confidence and accuracy, weighted by the images of a bin.

    Args:
        confidence: (N,), probability of the predicted class, in (0, 1].
        correct: (N,), 1.0 where the prediction is right, else 0.0.
        num_bins: the bin of a confidence c is (i / num_bins, (i + 1) / num_bins].
    """
    places = np.ceil(confidence * num_bins).astype(int).clip(1, num_bins) - 1
    gaps = np.bincount(places, weights=correct - confidence, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(confidence))
