"""Facts of each weight of a model: kind, orientation, fan-in, fan-out, role, ties.

This is the one place that knows torch's layers, transformers' transposed ``Conv1D`` and fused
experts, embeddings, norms, routers and heads. Filters, masks, distributions, FLOP counts, plans,
Sparse-IFT and the device ask it instead of looking at module types themselves.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

_HEAD_NAMES = frozenset(
    {"lm_head", "head", "classifier", "score", "embed_out", "output_projection", "qa_outputs"}
)
_EMBEDDING_PATTERN = re.compile(r"embedding|embed_|_embed\b|\bwte\b|\bwpe\b|pe_helper|rel_pos")
_NORM_PATTERN = re.compile(r"(?<!prelayer)norm|\bln_?\w*\b|\bbn_?\d*\b")
# Names of weights that torch.nn.utils.parametrize computes from others, which it calls original.
_PARAMETRIZED = re.compile(r"\bparametrizations\.(\w+)\.original\d*$")
_WEIGHT_NAME = re.compile(r"weight|kernel|proj|^[wv]_?\d*(_|$)")
_GAIN_PATTERN = re.compile(r"(_g|\bparametrizations\.\w+\.original0)$")
_ROUTER_PATTERN = re.compile(r"router|expert_gate")
_GATE_PATTERN = re.compile(r"^(gate|gating|wg)$|_gate$")
_MATMULS = ("linear", "conv1d", "conv2d", "convnd", "conv_transpose")
DENSE_ROLES = ("embedding", "norm", "router", "head")
"""Roles of weights that stay dense unless a user asks for them."""
_INPUTS_FIRST = ("conv1d", "conv_transpose", "embedding")
# Modules of transformers that store experts together and do not say in which order.
_EXPERTS_ARE_TRANSPOSED = {"Llama4TextExperts": True, "JetMoeParallelExperts": False}
_KINDS: tuple[tuple[Any, str], ...] = (
    (nn.Linear, "linear"),
    (nn.Conv2d, "conv2d"),
    ((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), "conv_transpose"),
    ((nn.Conv1d, nn.Conv3d), "convnd"),
    (nn.Bilinear, "bilinear"),
    ((nn.Embedding, nn.EmbeddingBag), "embedding"),
    ((nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm), "norm"),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """The dimensions of outputs and of inputs in a weight.

    Attributes:
        inputs_first: True if the weight is stored as (inputs, outputs).
        groups: Number of groups of a convolution, else 1.
        has_experts: True if dimension 0 counts experts, each of which is a layer of its own.
    """

    inputs_first: bool = False
    groups: int = 1
    has_experts: bool = False

    def matrices(self, tensor: Tensor) -> Tensor:
        """A tensor of the weight's shape as [experts, groups, outputs, inputs, kernel positions].

        Outputs and inputs are those of one group of one expert. The elements of a vector are
        outputs with one input each.
        """
        parts = tensor if self.has_experts else tensor.unsqueeze(0)
        parts = parts[(..., *(None,) * (4 - parts.dim()))].flatten(3)
        parts = parts.unflatten(1, (self.groups, parts.shape[1] // self.groups))
        return parts.transpose(2, 3) if self.inputs_first else parts

    def restore(self, matrices: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
        """The inverse of `matrices`, for a weight of this shape."""
        return (matrices.transpose(2, 3) if self.inputs_first else matrices).reshape(shape)

    def sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes of `matrices`."""
        return tuple(self.matrices(torch.empty(shape, device="meta")).shape)


def layout_of(module: nn.Module, name: str, parameter: Tensor) -> Layout | None:
    """The `Layout` of a module's parameter, or None if it is not known.

    Known are torch's linear, convolution (grouped and transposed ones too), bilinear, embedding,
    recurrent and attention layers, transformers' ``Conv1D``, vectors, and experts that are stored
    together: of any module with a bool attribute ``is_transposed``, which says whether its
    parameters of three dimensions are (experts, inputs, outputs). ``name`` is that of the parameter
    in the module, or of the parametrized weight that it makes.
    """
    kind, dims = layer_kind(module), parameter.dim()
    if dims < 2:
        return Layout()
    if kind is not None and kind != "norm":
        wanted = 3 if kind == "bilinear" else 2 + len(getattr(module, "kernel_size", ()))
        groups = int(getattr(module, "groups", 1)) if kind.startswith("conv") else 1
        is_weight = (
            name.startswith("weight") and dims == wanted and parameter.shape[0] % groups == 0
        )
        is_turned = is_weight and kind == "linear" and _is_turned(module, parameter)
        return Layout(kind in _INPUTS_FIRST or is_turned, groups) if is_weight else None
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return Layout()
    if isinstance(module, nn.MultiheadAttention):
        return Layout() if name.endswith("proj_weight") else None
    known = _EXPERTS_ARE_TRANSPOSED.get(type(module).__name__)
    is_transposed = getattr(module, "is_transposed", known)
    if dims == 3 and isinstance(is_transposed, bool):
        return Layout(is_transposed, has_experts=True)
    return None


@torch.no_grad()
def _is_turned(module: nn.Module, weight: Tensor) -> bool:
    """Whether a subclass of Linear stores its weight transposed; if square, its pass tells."""
    sizes: Any = getattr(module, "in_features", None), getattr(module, "out_features", None)
    if tuple(weight.shape) != sizes or sizes[0] != sizes[1]:
        return tuple(weight.shape) == sizes
    if type(module).forward is nn.Linear.forward:
        return False
    size = sizes[0]
    memo: Any = {id(t): t.to("meta") for t in (*module.parameters(), *module.buffers())}
    memo[id(weight)] = torch.empty(size, size + 1, device="meta")
    if (bias := module._parameters.get("bias")) is not None:
        memo[id(bias)] = torch.empty(size + 1, device="meta")
    try:
        out = copy.deepcopy(module, memo).forward(torch.empty(2, size, device="meta"))
        return out.shape[-1] > size
    except Exception:  # of whatever kind a user's pass raises
        return False


def layouts(model: nn.Module) -> dict[int, Layout | None]:
    """`layout_of` each parameter of a model, by ``id``; a tied one by its first product.

    An embedding looks up alone, so a head that shares its weight says which dimension is which.
    """
    found: dict[int, Layout | None] = {}
    for module in sorted(model.modules(), key=lambda m: layer_kind(m) == "embedding"):
        for name, parameter in _own_parameters(module):
            found.setdefault(id(parameter), layout_of(module, name, parameter))
    return found


@dataclass(frozen=True, slots=True)
class LayerDescription:
    """One weight tensor and the layer that uses it.

    Attributes:
        name: Module path, ``""`` for the model itself.
        weight_name: Full parameter name, for example ``model.layers.0.mlp.up_proj.weight``.
        kind: ``"linear"``, ``"conv1d"`` (transformers' transposed linear layer), ``"conv2d"``,
            ``"convnd"`` (torch ``Conv1d``/``Conv3d``), ``"conv_transpose"``, ``"bilinear"``,
            ``"experts"`` (stored together), ``"embedding"``, ``"norm"`` or ``"parameter"`` (a
            weight whose use is not known).
        weight_shape: Shape of the weight as stored.
        role: ``"block"``, ``"stem"`` (first convolution), ``"embedding"``, ``"norm"``, ``"router"``
            or ``"head"``.
        layout: Where its outputs and inputs are; None if that is not known.
        dense_reason: Why `default_filter` leaves it dense; None where it does not.
        tied_to: Full name under which the same parameter appears first, else None.
    """

    name: str
    weight_name: str
    kind: str
    weight_shape: tuple[int, ...]
    role: str
    layout: Layout | None = None
    dense_reason: str | None = None
    tied_to: str | None = None

    @property
    def fan_in(self) -> int:
        """Inputs that one output sums over (channels per group times kernel positions)."""
        return fans(self.weight_shape, self.layout or Layout())[0]

    @property
    def fan_out(self) -> int:
        """Outputs that one input reaches, counted per group, kernel positions included."""
        return fans(self.weight_shape, self.layout or Layout())[1]

    @property
    def groups(self) -> int:
        """Number of groups of a convolution, else 1."""
        return 1 if self.layout is None else self.layout.groups

    @property
    def numel(self) -> int:
        """Number of weights."""
        return math.prod(self.weight_shape)

    @property
    def is_matmul(self) -> bool:
        """True if the layer multiplies its input by the weight (embeddings only look up)."""
        return self.kind not in ("embedding", "norm")


def original(module: nn.Module) -> nn.Module:
    """The module that one made by `sparse_lib.device.compile` stands for; else the module."""
    return module.__dict__.get("_original", module)


def is_packed(module: nn.Module) -> bool:
    """Whether a layer holds its unmasked weights alone; see `sparse_lib.device.pack`."""
    return getattr(module, "is_packed", False)


def layer_kind(module: nn.Module) -> str | None:
    """Names the kind of a module that owns a ``weight``, or None if it is not known.

    transformers' ``Conv1D`` is recognised without an import of transformers.
    """
    for types, kind in _KINDS:
        if isinstance(module, types):
            return kind
    if any(c.__name__ == "Conv1D" for c in type(module).__mro__) and hasattr(module, "nf"):
        return "conv1d"
    if type(module).__name__.endswith("Norm"):
        return "norm"
    return None


def fans(weight_shape: tuple[int, ...], layout: Layout) -> tuple[int, int]:
    """Inputs per output and outputs per input of a weight, kernel positions included."""
    if len(weight_shape) < 2:
        return 1, 1
    _, _, outputs, inputs, positions = layout.sizes(weight_shape)
    return inputs * positions, outputs * positions


def describe(model: nn.Module) -> list[LayerDescription]:
    """Describes every weight of a model on any device (meta too), in module order.

    Biases are left out. A tied weight appears once for each module that uses it; all but the first
    carry ``tied_to``. Parameters with two or more dimensions in modules of unknown kind appear as
    ``"parameter"``, layers that `sparse_lib.device.pack` packed as what they were.
    """
    head = _output_embeddings(model)
    known = layouts(model)
    first_names: dict[int, str] = {}
    descriptions: list[LayerDescription] = []
    for module_name, module in model.named_modules():
        for weight_name, parameter, kind in _weights(module_name, module):
            tied_to = first_names.setdefault(id(parameter), weight_name)
            packed: Any = module if is_packed(module) else None
            shape = tuple(packed.weight_shape if packed else parameter.shape)
            weight = torch.empty(shape, device="meta") if packed else parameter
            layout = layout_of(module, weight_name.rpartition(".")[2], weight)
            layout = known[id(parameter)] if layout is None else layout
            if kind == "parameter" and layout is not None and layout.has_experts:
                kind = "experts"
            role = "head" if module is head else _role_in(model, weight_name, kind)
            by_name = _role_in(model, weight_name, "parameter")
            tie = None if tied_to == weight_name else tied_to
            dense = _dense_reason(weight_name, shape, kind, (role, by_name), layout)
            descriptions.append(
                LayerDescription(module_name, weight_name, kind, shape, role, layout, dense, tie)
            )
    return _with_stem(descriptions)


def default_filter(name: str, param: nn.Parameter | Tensor, model: nn.Module | None = None) -> bool:
    """Says whether a parameter is sparsified when the user names no filter.

    True for weights of linear and convolution layers that belong to no embedding, norm, router of
    experts or output head, but for depthwise convolutions (each input channel has outputs of its
    own; RigL and its successors keep them dense) and ``nn.Bilinear``. What a module of unknown kind
    owns counts as such by its name: ``weight``, ``kernel``, ``..._proj`` or ``w1``, of two or more
    dimensions. So experts that are stored together and the projections of
    ``nn.MultiheadAttention`` are sparse; Mamba's ``A_log`` or a bias table is not. The Cerebras
    library decides by name alone (``embedding``, ``norm``, ``lm_head``, ``pe_helper``) and so
    sparsifies ``embed_tokens``, ``wte`` and heads called otherwise; here these stay dense too
    (``lm_head``, ``head``, ``classifier``, ``score``, and a model's own ``fc``). Given the model,
    module types and tied weights count as well, and ``fc`` is a head only if no other linear layer
    or convolution comes after it.

    Of a weight under ``weight_norm`` (of either torch API) the direction is sparsified and the
    gain, which has one number for each output, stays dense. Of a weight under ``spectral_norm``
    or another parametrization the original is sparsified.

    Args:
        name: Full parameter name.
        param: The parameter; only its shape is read.
        model: The model that owns it, if known.
    """
    return why_dense(name, param, model) is None


def why_dense(
    name: str, param: nn.Parameter | Tensor, model: nn.Module | None = None
) -> str | None:
    """Why `default_filter` leaves a parameter dense, in a few words; None where it does not."""
    shape, role = tuple(param.shape), _role_in(model, name, "parameter")
    reason = _dense_reason(name, shape, "parameter", (role,), None)
    if reason is not None or model is None:
        return reason
    head = _output_embeddings(model)
    for module in model.modules():
        if not any(own is param for _, own in _own_parameters(module)):
            continue
        if module is head:
            return "head"
        kind = layer_kind(module) or "parameter"
        layout = layout_of(module, "weight", param)
        if reason := _dense_reason(name, shape, kind, (kind,), layout):
            return reason
    return None


def _dense_reason(
    name: str, shape: tuple[int, ...], kind: str, roles: tuple[str, ...], layout: Layout | None
) -> str | None:
    if len(shape) < 2 or _is_gain(name, shape):
        return "one dimension"
    for role in DENSE_ROLES:
        if role in roles:
            return role
    if kind == "bilinear":
        return "bilinear layer"
    if layout is not None and layout.groups > 1 and layout.sizes(shape)[3] == 1:
        return "depthwise convolution"
    leaf = _PARAMETRIZED.sub(r"\1", name).rpartition(".")[2].lower()
    if _WEIGHT_NAME.search(leaf) is None or "bias" in leaf:
        return "no weight of a linear or convolution layer"
    return None


def _role_in(model: nn.Module | None, weight_name: str, kind: str) -> str:
    """The role of a weight, of its name and of the modules around it."""
    role = _role(weight_name, kind)
    if model is None or role in ("embedding", "norm"):
        return role
    if _is_gate_of_experts(weight_name, model):
        return "router"
    return "block" if role == "head" and _is_inner_fc(weight_name, model) else role


def _is_gate_of_experts(weight_name: str, model: nn.Module) -> bool:
    """Whether a weight belongs to something called a gate that has experts beside it."""
    owner: nn.Module | None = model
    for part in weight_name.split("."):
        if owner is None:
            return False
        beside = (*owner._modules, *owner._parameters)
        if _GATE_PATTERN.search(part) and any("expert" in name for name in beside):
            return True
        owner = owner._modules.get(part)
    return False


def _is_inner_fc(weight_name: str, model: nn.Module) -> bool:
    """Whether a weight is of a model's own layer ``fc`` and others multiply after it."""
    parts = _PARAMETRIZED.sub(r"\1", weight_name).lower().split(".")
    if parts[:-1] != ["fc"]:
        return False
    names = [name for name, module in model.named_modules() if layer_kind(module) in _MATMULS]
    return bool(names) and names[-1].lower() != "fc"


def required_dense(model: nn.Module) -> set[int]:
    """Ids of parameters that carry ``requires_dense``, or lie inside a module that does."""
    owners = [m for m in model.modules() if getattr(m, "requires_dense", False)]
    own = {id(p) for p in model.parameters() if getattr(p, "requires_dense", False)}
    return own | {id(p) for owner in owners for p in owner.parameters()}


def _own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters of a module by name; those of a parametrized weight are the layer's."""
    if not isinstance(module, parametrize.ParametrizationList):
        yield from module.named_parameters(recurse=False, remove_duplicate=False)
    if parametrize.is_parametrized(module):
        for name, parts in module.parametrizations.items():  # type: ignore[operator, union-attr]
            yield from ((name, parameter) for parameter in parts.parameters())


def _is_gain(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a parameter is the magnitude that ``weight_norm`` splits off a weight."""
    is_vector = sum(size != 1 for size in shape) <= 1
    return is_vector and _GAIN_PATTERN.search(name) is not None


def _weights(module_name: str, module: nn.Module) -> Iterator[tuple[str, nn.Parameter, str]]:
    """Yields (full name, parameter, kind) for the weights that a module owns itself."""
    kind = layer_kind(module)
    prefix = f"{module_name}." if module_name else ""
    if is_packed(module):
        yield f"{prefix}weight", module.values, kind or "parameter"  # type: ignore[misc]
    for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        if kind is not None and name == "weight":
            yield prefix + name, parameter, kind
        elif parameter.dim() > 1:
            is_norm = kind == "norm" or _is_gain(prefix + name, tuple(parameter.shape))
            yield prefix + name, parameter, "norm" if is_norm else "parameter"


def _output_embeddings(model: nn.Module) -> nn.Module | None:
    getter = getattr(model, "get_output_embeddings", None)
    return getter() if callable(getter) else None


def _role(weight_name: str, kind: str) -> str:
    weight_name = _PARAMETRIZED.sub(r"\1", weight_name)
    parts = weight_name.lower().split(".")
    if kind in ("embedding", "norm"):
        return kind
    if any(_ROUTER_PATTERN.search(part) for part in parts):
        return "router"
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
