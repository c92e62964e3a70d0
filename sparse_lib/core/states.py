"""Whether a saved state is one of an algorithm with these parameters and settings."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from sparse_lib.core.parameter import SparseParameter, warn


def check_state(
    state_dict: Mapping[str, Any], sparse_params: Mapping[str, SparseParameter]
) -> None:
    """Raise ValueError, naming the key, unless a state is of an algorithm with these parameters.

    It may also be one that cerebras-pytorch saved.
    """
    check_counters(state_dict)
    if "groups" in state_dict:
        raise ValueError(
            "the state is that of a Group; load it into one, or give one of its groups"
        )
    if "params" not in state_dict:
        return
    params = state_dict["params"]
    if not isinstance(params, Mapping) or not all(isinstance(p, Mapping) for p in params.values()):
        raise ValueError(f"the state has params={params!r:.80}, which must hold mappings")
    for name in params.keys() - sparse_params.keys():
        raise ValueError(f"the state has {name!r}, which the algorithm does not sparsify")
    for name in sorted(sparse_params.keys() - params.keys()):
        raise ValueError(f"the state lacks {name!r}, which the algorithm sparsifies")
    for name, entry in params.items():
        _check_entry(name, entry, sparse_params[name])


def check_counters(state_dict: Mapping[str, Any]) -> None:
    """Raise ValueError if a state has no step, or no count or seed where one must be."""
    if "step" not in state_dict:
        found = f", but {', '.join(map(repr, state_dict))}" if state_dict else ""
        raise ValueError(f"the state has no 'step'{found:.80}")
    for key in ("step", "num_updates"):
        value = state_dict.get(key, 0)
        if not _is_integer(value) or isinstance(value, bool) or not 0 <= int(value) < 2**63:
            raise ValueError(f"the state has {key}={value!r:.80}, which must be a count")
    seed = state_dict.get("seed")
    if seed is not None and not _is_integer(seed):
        raise ValueError(f"the state has seed={seed!r:.80}, which must be an integer or None")


def _is_integer(value: Any) -> bool:
    try:
        operator.index(value)
    except (TypeError, RuntimeError):
        return False
    return True


def _check_entry(name: str, entry: Mapping[str, Any], sparse: SparseParameter) -> None:
    """Raise ValueError if a parameter's part of a state is not one of its shape."""
    known = {"history": sparse.history.state_dict(), "work": asdict(sparse.work)}
    target = entry.get("target")
    if not isinstance(target, int | float) or not 0 <= target <= 1:
        raise ValueError(f"the state of {name!r} has target={target!r:.80}, which is no sparsity")
    for key, own in known.items():
        saved = entry.get(key)
        if not isinstance(saved, Mapping) or own.keys() != saved.keys():
            raise ValueError(f"the state of {name!r} has no numbers {list(own)} in {key!r}")
    flags = entry["history"]["flags"]
    fits = isinstance(flags, Tensor) and tuple(flags.shape) == tuple(sparse.mask.shape)
    if flags is not None and not fits:
        raise ValueError(f"the history of {name!r} has no bytes of its shape")


def saved_tensors(
    state_dict: Any,
    key: str,
    sparse_params: Mapping[str, SparseParameter],
    *,
    all_of_them: bool = False,
) -> Mapping[str, Tensor]:
    """Tensors by name that a state has under a key, of the shapes of the parameters.

    Raises:
        ValueError: If one has no parameter or another shape, or ``all_of_them`` are not there.
    """
    saved = state_dict.get(key) if isinstance(state_dict, Mapping) else None
    if not isinstance(saved, Mapping):
        raise ValueError(f"the state has {key}={saved!r:.80}, which must be a mapping")
    if all_of_them and (lacking := sparse_params.keys() - saved.keys()):
        raise ValueError(f"the state has no {key} of {min(lacking)!r}")
    for name, tensor in saved.items():
        if name not in sparse_params:
            raise ValueError(f"the state has {name!r}, which the algorithm does not sparsify")
        if not isinstance(tensor, Tensor) or tensor.shape != sparse_params[name].mask.shape:
            raise ValueError(f"{key} of {name!r} in the state has another shape than the parameter")
    return saved


def warn_of_changes(before: Any, now: Mapping[str, str | None], updates_masks: bool) -> None:
    """Warn where a state was saved under other schedules than those of the algorithm.

    They are texts by name, None for functions of users.
    """
    saved = before if isinstance(before, Mapping) else {}
    stay = "masks go there at their next update" if updates_masks else "masks stay"
    then = {"sparsity": stay, "update": "masks are updated by the latter"}
    for key, own in now.items():
        if isinstance(old := saved.get(key), str) and own not in (None, old):
            warn(f"the state was saved with {key} {old} and is loaded with {own}; {then[key]}")


def warn_of_seed(state_dict: Mapping[str, Any], given: int | None) -> None:
    """Warn where a state was saved under another seed than the one that was given, if any was."""
    saved = state_dict.get("seed")
    if saved is not None and given not in (None, saved):
        warn(
            f"the state was saved with seed {saved} and is loaded with {given}; "
            f"draws go on with {saved}"
        )
