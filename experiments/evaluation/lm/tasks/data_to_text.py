"""The score of the task data_to_text.yaml; lm-eval loads this file by its name there."""

from typing import Any

#: lm-eval's corpus BLEU wants as many references for each text; None stands for no further one.
NUM_REFERENCES = 64


def score(doc: dict[str, Any], results: list[str]) -> dict[str, Any]:
    """A text with its references, for corpus BLEU.

    Args:
        doc: Row with ``references``, one sentence or more, of which the first 64 count.
    """
    references = doc["references"][:NUM_REFERENCES]
    missing = [None] * (NUM_REFERENCES - len(references))
    return {"bleu": ([*references, *missing], results[0].strip())}
