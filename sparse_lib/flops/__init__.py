"""FLOPs: closed forms of a model and its layers, and the ledger of what a step executes."""

from sparse_lib.flops.model import LayerFlops, ModelFlops, count, gpt_training_step

__all__ = ["LayerFlops", "ModelFlops", "count", "gpt_training_step"]
