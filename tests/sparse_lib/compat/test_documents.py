"""Scripts that make the calls which the Cerebras documents show, on models small enough to check.

The sources: the training docs' page on sparsifying models (two editions), the announcements of the
sparsity library and of Sparse-IFT, and the oldest docs page, with sideband YAML.
"""

import pytest
import torch
from torch import nn

import sparse_lib.compat.cstorch as cstorch
from sparse_lib.configure import configure
from sparse_lib.preview import plan
from tests.sparse_lib.algorithm_cases import assert_enforced, assert_equal, snapshot

yaml = pytest.importorskip("yaml")


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(25, 20)
        self.fc2 = nn.Linear(20, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def sparsities(algorithm):
    return {name: round(s.sparsity, 6) for name, s in algorithm.sparse_params.items()}


def learn(model, optimizer, num_steps=3):
    for step in range(num_steps):
        generator = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(8, 25, generator=generator)).square().mean().backward()
        optimizer.step()


# The training docs: model.apply, optimizer.apply


@pytest.mark.parametrize("kind", ["CPU", "CSX"])
@pytest.mark.parametrize("order", ["apply after compile", "apply before compile"])
def test_a_script_runs_with_its_import_line_changed(kind, order):
    backend = cstorch.backend(kind)
    torch.manual_seed(0)
    with backend.device:
        model = TwoLayers()
    sparsity = cstorch.sparse.Static(sparsity=0.3)
    if order == "apply before compile":
        model.apply(sparsity)
    compiled_model = cstorch.compile(model, backend)
    if order == "apply after compile":
        model.apply(sparsity)
    # every parameter, the biases too
    assert sparsities(sparsity) == {
        "fc1.weight": 0.3,
        "fc1.bias": 0.3,
        "fc2.weight": 0.3,
        "fc2.bias": 0.3,
    }
    optimizer = cstorch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.apply(sparsity)
    before = {name: s.mask.clone() for name, s in sparsity.sparse_params.items()}
    learn(compiled_model, optimizer)
    assert_enforced(sparsity, optimizer)
    assert all(torch.equal(before[n], s.mask) for n, s in sparsity.sparse_params.items())


def test_compiling_before_or_after_gives_the_same_masks():
    results = []
    for before in (True, False):
        torch.manual_seed(0)
        model = TwoLayers()
        sparsity = cstorch.sparse.SET(sparsity=0.5, update={"freq": 1})
        if before:
            model.apply(sparsity)
        compiled = cstorch.compile(model, cstorch.backend("CPU"))
        if not before:
            compiled.apply(sparsity)
        optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.apply(sparsity)
        learn(compiled, optimizer)
        results.append(snapshot(model))
    assert_equal(*results)


def test_parameters_and_states_that_require_dense():
    model = TwoLayers()
    model.fc1.bias.requires_dense = True
    model.fc2.bias.requires_dense = False
    sparsity = cstorch.sparse.Static(sparsity=0.5)
    model.apply(sparsity)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.apply(sparsity)
    assert "fc1.bias" not in sparsity.sparse_params and "fc2.bias" in sparsity.sparse_params
    learn(model, optimizer, 1)
    p, name = model.fc1.weight, "momentum_buffer"
    optimizer.state[p][name].requires_dense = True
    optimizer.state[p][name].fill_(1.0)
    learn(model, optimizer, 1)
    assert optimizer.state[p][name].all()
    assert not p.detach()[~model.fc1.weight_mask].any()


def test_automatic_updates_can_be_turned_off():
    torch.manual_seed(0)
    model = TwoLayers()
    sparsity = cstorch.sparse.SET(sparsity=0.5, update={"freq": 1}, drop_fraction=0.3)
    model.apply(sparsity)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.apply(sparsity)
    sparsity.autoupdate = False
    before = model.fc1.weight_mask.clone()
    learn(model, optimizer)
    assert torch.equal(before, model.fc1.weight_mask)
    sparsity.update()
    assert not torch.equal(before, model.fc1.weight_mask)


def test_a_group_of_two_algorithms():
    model = TwoLayers()
    sparsity = cstorch.sparse.Group(
        {
            "fc1.*": cstorch.sparse.Static(sparsity=0.3),
            "fc2.*": cstorch.sparse.SET(sparsity=0.9, update={"freq": 1000}, drop_fraction=0.3),
        }
    )
    model.apply(sparsity)
    assert sparsities(sparsity) == {
        "fc1.weight": 0.3,
        "fc1.bias": 0.3,
        "fc2.weight": 0.9,
        "fc2.bias": 0.9,
    }
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.apply(sparsity)
    learn(model, optimizer)
    assert [a.step for a in sparsity] == [3, 3] and sparsity[1].num_updates == 0


class ShiftMasks(cstorch.sparse.SparsityAlgorithm):
    """An algorithm with settings of its own and the one abstract method."""

    def __init__(self, shift=1, **kwargs):
        self.shift = shift
        super().__init__(**kwargs)

    def update(self):
        for sparse_param in self.sparse_params.values():
            mask = sparse_param.mask
            assert sparse_param.data.shape == mask.shape
            sparse_param.mask = mask.roll(self.shift, 0)


class KeepStrongRows(cstorch.sparse.DynamicSparsityAlgorithm):
    """A dynamic algorithm, from the building blocks."""

    def __init__(self, decay=0.5, **kwargs):
        self.decay = decay
        super().__init__(**kwargs)

    def update_mask(self, p, mask, sparsity) -> torch.Tensor:
        score = p.abs() * (1 - self.decay * (~mask))
        return cstorch.sparse.make_mask_topk_sparsity(score, sparsity)


@pytest.mark.parametrize("by_name", [False, True])
def test_custom_algorithms_directly_and_by_name(by_name):
    model = TwoLayers()
    if by_name:
        config = {"algorithm": "ShiftMasks", "shift": 2, "sparsity": 0.5, "param_filter": "*"}
        sparsity = cstorch.sparse.configure(config)
    else:
        sparsity = ShiftMasks(shift=2, sparsity=0.5)
    model.apply(sparsity)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.apply(sparsity)
    before = model.fc1.weight_mask.clone()
    learn(model, optimizer, 2)
    assert torch.equal(model.fc1.weight_mask, before.roll(4, 0))
    assert_enforced(sparsity)


def test_a_custom_dynamic_algorithm_with_a_schedule():
    text = """
    algorithm: keepstrongrows
    decay: 0.25
    schedule: {type: linear, init: 0.2, slope: 0.2}
    update: {freq: 2}
    param_filter: ["fc*.weight"]
    """
    model = TwoLayers()
    sparsity = configure(yaml.safe_load(text))
    model.apply(sparsity)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.apply(sparsity)
    assert sparsities(sparsity) == {"fc1.weight": 0.2, "fc2.weight": 0.2}
    learn(model, optimizer, 3)
    assert sparsities(sparsity) == {"fc1.weight": 0.6, "fc2.weight": 0.6}


def test_the_state_dict_gains_one_mask_per_parameter():
    model = nn.Linear(2, 2, bias=False)
    assert list(model.state_dict()) == ["weight"]
    model.apply(cstorch.sparse.Static(sparsity=0.5))
    assert list(model.state_dict()) == ["weight", "weight_mask"]
    assert int(model.weight_mask.sum()) == 2


# The announcement of the library: the wrapper, schedules, YAML


@pytest.mark.parametrize("sparsity_type", ["static", "gmp", "set", "rigl"])
def test_the_wrapper_replaces_the_optimizer(sparsity_type):
    model = TwoLayers()
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = cstorch.sparse.configure_sparsity_wrapper(
        model,
        optimizer,
        sparsity_type=sparsity_type,
        sparsity=[0.8] if sparsity_type == "gmp" else 0.8,
        init_method="random",
    )
    loss = model(torch.ones(4, 25)).square().mean()
    loss.backward()
    optimizer.step()
    assert model.fc1.weight_mask.sum() == 100
    assert_enforced(optimizer.sparsity, optimizer.optimizer)


def user_schedules():
    """Classes of the names of built-in ones; here, since they take their place in configs."""

    class Constant(cstorch.sparse.BaseHyperParameter):
        """The same value at every step."""

        TYPE = "constant"

        def __init__(self, value):
            self.value = torch.tensor(value)

        def __call__(self, step: torch.Tensor, is_update_step: torch.Tensor):
            return self.value

    class Cubic(cstorch.sparse.BaseHyperParameter):
        """The announcement's equation as it is meant."""

        TYPE = "cubic"

        def __init__(
            self,
            init_sparsity,
            end_sparsity,
            sparsity_start_step,
            sparsity_end_step,
            prune_every_k_steps,
        ):
            self.s_init, self.s_end = init_sparsity, end_sparsity
            self.update_iter = prune_every_k_steps
            self.init_iter = int(sparsity_start_step / prune_every_k_steps)
            self.total_iters = int(sparsity_end_step / prune_every_k_steps) - self.init_iter

        def __call__(self, step: torch.Tensor, is_update_step: torch.Tensor):
            curr_iter = (step / self.update_iter).int()
            decay = (1 - (curr_iter - self.init_iter) / self.total_iters) ** 3
            rate = self.s_end + (self.s_init - self.s_end) * decay
            return torch.clamp(rate, min=self.s_init, max=self.s_end)

        def get_min_max_end(self, begin: int, end: int):
            return self.s_init, self.s_end, self.s_end

    return Constant, Cubic


CUBIC = {
    "init_sparsity": 0.5,
    "end_sparsity": 0.8,
    "sparsity_start_step": 0,
    "sparsity_end_step": 60,
    "prune_every_k_steps": 20,
}


def test_a_user_defined_cubic_equals_the_built_in_one():
    Constant, Cubic = user_schedules()
    mine, built_in = Cubic(**CUBIC), cstorch.sparse.Cubic(**CUBIC)
    for step in range(61):
        assert mine(step, False) == pytest.approx(built_in(step), abs=1e-6)
    assert mine.get_min_max_end(0, 60) == built_in.get_min_max_end(0, 60) == (0.5, 0.8, 0.8)
    assert Constant(0.25)(torch.tensor(3), torch.tensor(True)) == 0.25


RIGL_YAML = """
sparsity:
  type: rigl
  sparsity: 0.8
  init_method: random
  schedule:
    start: 0
    freq: 2
    stop: 75
  drop_fraction:
    type: cosine
    init: 0.5
    half_period: 75
"""

GRANET_YAML = """
sparsity:
  type: rigl
  sparsity:
    type: cubic
    init_sparsity: 0.5
    end_sparsity: 0.8
    sparsity_start_step: 0
    sparsity_end_step: 60
    prune_every_k_steps: 20
  init_method: random
  schedule: {start: 0, freq: 2, stop: 75}
  drop_fraction: {type: cosine, init: 0.5, half_period: 75}
"""


def test_rigl_and_granet_differ_by_the_sparsity_schedule_only():
    rigl, granet = configure(yaml.safe_load(RIGL_YAML)), configure(yaml.safe_load(GRANET_YAML))
    assert type(rigl[0]) is type(granet[0]) is cstorch.sparse.RigL
    for step in range(100):
        assert (
            rigl[0].is_update_step(step)
            == granet[0].is_update_step(step)
            == (step % 2 == 0 and step < 75)
        )
        assert rigl[0].drop_schedule(step) == granet[0].drop_schedule(step)
        assert rigl[0].sparsity["x"](step) == 0.8
    assert [round(granet[0].sparsity["x"](t), 4) for t in (0, 19, 20, 40, 60, 99)] == [
        0.5,
        0.5,
        round(0.8 - 0.3 * (2 / 3) ** 3, 4),
        round(0.8 - 0.3 / 27, 4),
        0.8,
        0.8,
    ]
    assert rigl[0].drop_schedule(75) == 0


def test_granet_with_a_user_defined_schedule():
    _, Cubic = user_schedules()
    granet = configure(yaml.safe_load(GRANET_YAML))
    schedule = granet[0].sparsity["x"]
    assert type(schedule) is Cubic
    assert [round(schedule(t), 4) for t in (0, 20, 60)] == [0.5, 0.7111, 0.8]
    model = TwoLayers()
    granet.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    granet.apply(optimizer)
    learn(model, optimizer, 22)
    assert sparsities(granet) == {"fc1.weight": 0.712, "fc2.weight": 0.71}


# The oldest docs: sideband YAML


class FcLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 10)
        self.fc_layers = nn.ModuleList([nn.Linear(10, 10), nn.Linear(10, 10)])
        self.norm = nn.LayerNorm(10)
        self.final_layer = nn.Linear(10, 10)


DEFAULT = {"fc_layers.0.weight": 0.3, "fc_layers.1.weight": 0.3, "final_layer.weight": 0.3}
SIDEBAND = {
    "heuristic": (
        """
sparsity:
  type: sideband
  sparsity: 0.3
  init_method: "random"
  seed: 1234
""",
        DEFAULT,
    ),
    "heuristic without indentation": (
        """
sparsity:
type: sideband
sparsity: 0.3
init_method: "random"
seed: 1234
""",
        DEFAULT,
    ),
    "one pattern": (
        """
sparsity:
  type: sideband
  sparsity: 0.3
  init_method: "random"
  param_name_patterns: "fc_layers.*weight"
  seed: 1234
""",
        {"fc_layers.0.weight": 0.3, "fc_layers.1.weight": 0.3},
    ),
    "several patterns": (
        """
sparsity:
  type: sideband
  sparsity: 0.3
  init_method: "topk"
  param_name_patterns:
    - "fc_layers.*weight"
    - "final_layer.*weight"
""",
        DEFAULT,
    ),
    "settings for each pattern": (
        """
sparsity:
  type: sideband
  param_name_patterns:
    fc_layers.*weight:
      sparsity: 0.3
    final_layer.*weight:
      sparsity: 0.4
      init_method: random
      seed: 7
""",
        {**DEFAULT, "final_layer.weight": 0.4},
    ),
}


@pytest.mark.parametrize("form", SIDEBAND)
@pytest.mark.parametrize("outer", [True, False])
def test_sideband(form, outer):
    text, expected = SIDEBAND[form]
    config = yaml.safe_load(text)
    if not outer and set(config) == {"sparsity"}:
        config = config["sparsity"]
    model = FcLayers()
    size = model.fc_layers[0].weight.detach().abs()
    group = configure(config)
    model.apply(group)
    assert sparsities(group) == expected
    kept = model.fc_layers[0].weight_mask
    is_topk = bool(size[kept].min() >= size[~kept].max())
    assert is_topk == ("random" not in text.split("final_layer")[0])


# The Sparse-IFT announcement: a level, a type, layers and a width


def test_a_wider_and_sparser_gpt_from_one_config():
    from transformers import GPT2Config, GPT2LMHeadModel

    def gpt(width):
        config = GPT2Config(
            n_layer=1, n_head=2, n_embd=width, n_inner=4 * width, vocab_size=11, n_positions=8
        )
        return GPT2LMHeadModel(config)

    config = yaml.safe_load("sparsity: {type: static, sparsity: 0.75, init_method: random}")
    dense, wide = plan(gpt(16), None), plan(gpt(32), config)
    count = {
        name: sum(row["num_nonzero"] for row in result.records() if ".h." in row["name"])
        for name, result in (("dense", dense), ("wide", wide))
    }
    biases = 9 * 32 + 4 * 32 - (9 * 16 + 4 * 16)
    assert count["wide"] - count["dense"] == biases
