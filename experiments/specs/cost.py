"""Resources of a run's job, estimated from its spec without torch."""

from __future__ import annotations

from typing import Any

from experiments.specs.run import RunSpec

#: Bytes of a weight in training: itself, its gradient, two states, a state being saved, its mask.
TRAINING_BYTES = 4 * 6 + 1
#: Memory that Python, torch and the data take.
BASE_MB = 1500


def num_weights(spec: RunSpec) -> int:
    """Weights of a decoder, from its sizes; 25 million for a model of other sizes."""
    sizes: dict[str, Any] = {"num_layers": 0, **(spec.model.model_extra or {})}
    width = sizes.get("hidden_size")
    if not width or not sizes["num_layers"]:
        return 25_000_000
    inner = sizes.get("intermediate_size") or 4 * width
    vocabulary = getattr(spec.data, "vocab_size", 0)
    return 2 * vocabulary * width + sizes["num_layers"] * (4 * width**2 + 3 * width * inner)


def memory_mb(spec: RunSpec) -> int:
    """Memory of a run: weights with all that goes with them, and activations."""
    samples, context = spec.recipe.batch_size, getattr(spec.data, "context", 1)
    logits = 4 * 4 * samples * context * getattr(spec.data, "vocab_size", 1000)
    sizes = spec.model.model_extra or {}
    width, layers = sizes.get("hidden_size", 512), sizes.get("num_layers", 20)
    activations = 4 * 24 * samples * context * width * layers
    needed = TRAINING_BYTES * num_weights(spec) + logits + activations
    return BASE_MB + round(1.25 * needed / 2**20)
