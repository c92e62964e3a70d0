"""What each weight of a model is: kind, orientation, fan-in, fan-out, role, ties.

This is the one place that knows torch's Linear and convolutions, transformers' transposed
``Conv1D``, embeddings, norms and heads. Filters, distributions, FLOP counts, plans, Sparse-IFT and
the device ask it instead of looking at module types themselves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.utils import parametrize

_HEAD_NAMES = frozenset(
    {"lm_head", "head", "classifier", "score", "embed_out", "output_projection", "qa_outputs"}
)
_EMBEDDING_PATTERN = re.compile(r"embedding|embed_|_embed\b|\bwte\b|\bwpe\b|pe_helper|rel_pos")
_NORM_PATTERN = re.compile(r"norm|\bln_?\w*\b|\bbn_?\d*\b")
# Names of weights that torch.nn.utils.parametrize computes from others, which it calls original.
_PARAMETRIZED = re.compile(r"\bparametrizations\.(\w+)\.original\d*$")
_WEIGHT_NAME = re.compile(r"weight|kernel|proj|^[wv]_?\d*(_|$)")
_GAIN_PATTERN = re.compile(r"(_g|\bparametrizations\.\w+\.original0)$")
_MATMULS = ("linear", "conv1d", "conv2d", "convnd", "conv_transpose")
_CONV_TYPES = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CONV_TRANSPOSE_TYPES = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_BATCH_NORM = nn.modules.batchnorm._NormBase


@dataclass(frozen=True, slots=True)
class LayerDescription:
    """One weight tensor and the layer that uses it.

    Attributes:
        name: Module path, ``""`` for the model itself.
        weight_name: Full parameter name, for example ``model.layers.0.mlp.up_proj.weight``.
        kind: ``"linear"``, ``"conv1d"`` (transformers' transposed linear layer), ``"conv2d"``,
            ``"convnd"`` (torch ``Conv1d``/``Conv3d``), ``"conv_transpose"``, ``"embedding"``,
            ``"norm"`` or ``"parameter"`` (a weight whose use is not known).
        weight_shape: Shape of the weight as stored.
        fan_in: Inputs that one output sums over (channels per group times kernel positions).
        fan_out: Outputs that one input reaches, counted per group, kernel positions included.
        role: ``"block"``, ``"stem"`` (first convolution), ``"embedding"``, ``"norm"`` or
            ``"head"``.
        transposed: True where the weight is stored as (inputs, outputs).
        groups: Number of groups of a convolution, else 1.
        tied_to: Full name under which the same parameter appears first, else None.
    """

    name: str
    weight_name: str
    kind: str
    weight_shape: tuple[int, ...]
    fan_in: int
    fan_out: int
    role: str
    transposed: bool = False
    groups: int = 1
    tied_to: str | None = None

    @property
    def numel(self) -> int:
        """Number of weights."""
        return math.prod(self.weight_shape)

    @property
    def is_matmul(self) -> bool:
        """True if the layer multiplies its input by the weight (embeddings only look up)."""
        return self.kind not in ("embedding", "norm")


def layer_kind(module: nn.Module) -> str | None:
    """Names the kind of a module that owns a ``weight``, or None if it is not known.

    transformers' ``Conv1D`` is recognised by its class name and its ``nf`` attribute, so that
    transformers need not be installed.
    """
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.Conv2d):
        return "conv2d"
    if isinstance(module, _CONV_TRANSPOSE_TYPES):
        return "conv_transpose"
    if isinstance(module, _CONV_TYPES):
        return "convnd"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embedding"
    if isinstance(module, _BATCH_NORM | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm):
        return "norm"
    name = type(module).__name__
    if name == "Conv1D" and hasattr(module, "nf"):
        return "conv1d"
    if name.endswith("Norm"):
        return "norm"
    return None


def fans(weight_shape: tuple[int, ...], *, kind: str, groups: int = 1) -> tuple[int, int]:
    """Fan-in and fan-out of a weight as stored by a layer of this kind.

    Args:
        weight_shape: Linear (out, in); transformers' Conv1D (in, out); convolution
            (out, in / groups, *kernel); transposed convolution (in, out / groups, *kernel).
        kind: A kind of ``LayerDescription``.
        groups: Number of groups of a convolution.

    Returns:
        Inputs per output, and outputs per input, kernel positions included in both.
    """
    if len(weight_shape) < 2:
        return 1, 1
    first, second, kernel = weight_shape[0], weight_shape[1], math.prod(weight_shape[2:])
    if kind in ("conv1d", "embedding"):
        return first, second
    if kind == "conv_transpose":
        return first // groups * kernel, second * kernel
    return second * kernel, first // groups * kernel


def describe(model: nn.Module) -> list[LayerDescription]:
    """Describes every weight of a model, in module order.

    Biases are left out. A tied weight appears once for each module that uses it; all but the
    first carry ``tied_to``. Parameters with two or more dimensions in modules of unknown kind
    appear as ``"parameter"``.

    Args:
        model: Any module, on any device (meta too).

    Returns:
        One description per use of a weight.
    """
    head = _output_embeddings(model)
    first_names: dict[int, str] = {}
    descriptions: list[LayerDescription] = []
    for module_name, module in model.named_modules():
        for weight_name, parameter, kind in _weights(module_name, module):
            tied_to = first_names.setdefault(id(parameter), weight_name)
            groups = int(getattr(module, "groups", 1)) if kind.startswith("conv") else 1
            role = _role(weight_name, kind)
            if role == "head" and _is_inner_fc(weight_name, model):
                role = "block"
            role = "head" if module is head else role
            tie = None if tied_to == weight_name else tied_to
            shape = tuple(parameter.shape)
            descriptions.append(
                _described(module_name, weight_name, kind, shape, role, groups=groups, tied_to=tie)
            )
    return _with_stem(descriptions)


def describe_packed(model: nn.Module) -> list[tuple[LayerDescription, nn.Parameter]]:
    """Describe layers that hold their unmasked weights alone, as what they were.

    Args:
        model: Any module.

    Returns:
        Description by the dense weight's name and shape, and the parameter that has the unmasked
        weights, for each layer that `sparse_lib.device.pack` packed, in module order.
    """
    found = []
    for path, module in model.named_modules():
        if not getattr(module, "is_packed", False):
            continue
        kind, name = layer_kind(module._layer) or "parameter", f"{path}.weight".lstrip(".")
        groups = int(getattr(module._layer, "groups", 1))
        shape, role = tuple(module.weight_shape), _role(name, kind)
        found.append((_described(path, name, kind, shape, role, groups=groups), module.values))
    return found


def _described(
    name: str,
    weight_name: str,
    kind: str,
    shape: tuple[int, ...],
    role: str,
    *,
    groups: int,
    tied_to: str | None = None,
) -> LayerDescription:
    fan_in, fan_out = fans(shape, kind=kind, groups=groups)
    return LayerDescription(
        name=name,
        weight_name=weight_name,
        kind=kind,
        weight_shape=shape,
        fan_in=fan_in,
        fan_out=fan_out,
        role=role,
        transposed=kind in ("conv1d", "conv_transpose"),
        groups=groups,
        tied_to=tied_to,
    )


def default_filter(
    name: str, param: nn.Parameter | torch.Tensor, model: nn.Module | None = None
) -> bool:
    """Says whether a parameter is sparsified when the user names no filter.

    True for weights of linear and convolution layers that belong to no embedding, norm or output
    head. What a module of unknown kind owns counts as such by its name: ``weight``, ``kernel``,
    ``..._proj`` or ``w1``, of two or more dimensions. So experts that are stored together and the
    projections of ``nn.MultiheadAttention`` are sparse; Mamba's ``A_log`` or a bias table is not.
    The Cerebras library decides by name alone (``embedding``, ``norm``, ``lm_head``,
    ``pe_helper``) and so sparsifies ``embed_tokens``, ``wte`` and heads called otherwise; here
    these stay dense too (``lm_head``, ``head``, ``classifier``, ``score``, and a model's own
    ``fc``). Given the model, module types and tied weights count as well, and ``fc`` is a head
    only if no other linear layer or convolution comes after it.

    Of a weight under ``weight_norm`` (of either torch API) the direction is sparsified and the
    gain, which has one number for each output, stays dense. Of a weight under ``spectral_norm``
    or another parametrization the original is sparsified.

    Args:
        name: Full parameter name.
        param: The parameter; only its shape is read.
        model: The model that owns it, if known.
    """
    role = role_of_name(name)
    if model is not None and role == "head" and _is_inner_fc(name, model):
        role = "block"
    if param.dim() < 2 or role != "block" or _is_gain(name, param):
        return False
    if not _is_called_weight(name):
        return False
    if model is None:
        return True
    head = _output_embeddings(model)
    for module in model.modules():
        if any(own is param for own in _own_parameters(module)):
            if module is head or layer_kind(module) in ("embedding", "norm"):
                return False
    return True


def _is_called_weight(name: str) -> bool:
    leaf = _PARAMETRIZED.sub(r"\1", name).rpartition(".")[2].lower()
    return _WEIGHT_NAME.search(leaf) is not None and "bias" not in leaf


def _is_inner_fc(weight_name: str, model: nn.Module) -> bool:
    """Whether a weight is of a model's own layer ``fc`` and others multiply after it."""
    parts = _PARAMETRIZED.sub(r"\1", weight_name).lower().split(".")
    if parts[:-1] != ["fc"]:
        return False
    names = [name for name, module in model.named_modules() if layer_kind(module) in _MATMULS]
    return bool(names) and names[-1].lower() != "fc"


def role_of_name(name: str) -> str:
    """What a full parameter name alone says: ``"embedding"``, ``"norm"``, ``"head"``, ``"block"``.

    >>> role_of_name("model.embed_tokens.weight"), role_of_name("encoder.fc.weight")
    ('embedding', 'block')
    """
    return _role(name, "parameter")


def _own_parameters(module: nn.Module) -> Iterator[nn.Parameter | None]:
    """Parameters of a module itself, and those that its own parametrized weights are made of."""
    yield from module._parameters.values()
    parametrizations = module._modules.get("parametrizations")
    if parametrizations is not None and parametrize.is_parametrized(module):
        yield from parametrizations.parameters()


def _is_gain(name: str, parameter: torch.Tensor) -> bool:
    """Whether a parameter is the magnitude that ``weight_norm`` splits off a weight."""
    is_vector = sum(size != 1 for size in parameter.shape) <= 1
    return is_vector and _GAIN_PATTERN.search(name) is not None


def _weights(module_name: str, module: nn.Module) -> Iterator[tuple[str, nn.Parameter, str]]:
    """Yields (full name, parameter, kind) for the weights that a module owns itself."""
    kind = layer_kind(module)
    prefix = f"{module_name}." if module_name else ""
    for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        if kind is not None and name == "weight":
            yield prefix + name, parameter, kind
        elif parameter.dim() > 1:
            is_norm = kind == "norm" or _is_gain(prefix + name, parameter)
            yield prefix + name, parameter, "norm" if is_norm else "parameter"


def _output_embeddings(model: nn.Module) -> nn.Module | None:
    getter = getattr(model, "get_output_embeddings", None)
    return getter() if callable(getter) else None


def _role(weight_name: str, kind: str) -> str:
    weight_name = _PARAMETRIZED.sub(r"\1", weight_name)
    parts = weight_name.lower().split(".")
    if kind in ("embedding", "norm"):
        return kind
    if _HEAD_NAMES.intersection(parts):
        return "head"
    if kind == "parameter":
        if any(_NORM_PATTERN.search(part) for part in parts):
            return "norm"
        if _EMBEDDING_PATTERN.search(weight_name.lower()):
            return "embedding"
    return "head" if parts[:-1] == ["fc"] else "block"


def _with_stem(descriptions: list[LayerDescription]) -> list[LayerDescription]:
    """Gives the first layer the role ``"stem"`` where it is a convolution."""
    matmuls = [d for d in descriptions if d.is_matmul]
    if not matmuls or not matmuls[0].kind.startswith("conv") or matmuls[0].kind == "conv1d":
        return descriptions
    stem = replace(matmuls[0], role="stem")
    return [stem if d is matmuls[0] else d for d in descriptions]
