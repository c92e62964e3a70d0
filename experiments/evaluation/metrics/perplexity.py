"""Exponential of the mean loss of a token."""

from experiments.evaluation.outputs import Estimate, Tokens, exponential, ratio

OF = Tokens


def compute(outputs: Tokens) -> Estimate:
    """Perplexity per token."""
    return Estimate(
        *exponential(*ratio(outputs.losses, outputs.sizes)), num_items=sum(outputs.sizes)
    )
