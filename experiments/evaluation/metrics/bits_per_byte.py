"""Loss per byte of text in bits, which does not depend on the tokenizer."""

import math

from experiments.evaluation.outputs import Documents, Estimate, ratio

OF = Documents


def compute(outputs: Documents) -> Estimate:
    """Bits per byte."""
    nats, error = ratio(outputs.losses, outputs.num_bytes)
    bits = None if error is None else error / math.log(2)
    return Estimate(nats / math.log(2), bits, len(outputs.losses))
