"""Exponential of the loss per word, which does not depend on the tokenizer."""

from experiments.evaluation.outputs import Documents, Estimate, exponential, ratio

OF, HIGHER_IS_BETTER = Documents, False


def compute(outputs: Documents) -> Estimate:
    """Perplexity per word."""
    loss = ratio(outputs.losses, outputs.words)
    return Estimate(*exponential(*loss), num_items=len(outputs.losses))
