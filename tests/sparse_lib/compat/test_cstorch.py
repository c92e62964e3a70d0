"""Scripts that make the calls of the Cerebras documents, with the import line changed."""

import pytest
import torch
from torch import nn

from sparse_lib.compat import cstorch
from sparse_lib.configure import configure
from tests.cases import assert_enforced, fit, make_model


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
    seeds = map(torch.Generator().manual_seed, range(num_steps))
    fit(model, optimizer, (torch.randn(8, 25, generator=seed) for seed in seeds))


def trained(sparsity, num_steps):
    model = TwoLayers()
    model.apply(sparsity)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.apply(sparsity)
    before = model.fc1.weight_mask.clone()
    learn(model, optimizer, num_steps)
    assert_enforced(sparsity)
    return model, before


@pytest.mark.parametrize("kind", ["CPU", "CSX"])
@pytest.mark.parametrize("compile_first", [True, False])
def test_a_script_for_static_sparsity(kind, compile_first):
    backend = cstorch.backend(kind)
    with backend.device:
        model = TwoLayers()
    sparsity = cstorch.sparse.Static(sparsity=0.3)
    if not compile_first:
        model.apply(sparsity)
    compiled = cstorch.compile(model, backend)
    if compile_first:
        model.apply(sparsity)
    names = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
    assert sparsities(sparsity) == dict.fromkeys(names, 0.3)
    optimizer = cstorch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.apply(sparsity)
    before = {name: s.mask.clone() for name, s in sparsity.sparse_params.items()}
    learn(compiled, optimizer)
    assert_enforced(sparsity, optimizer)
    assert all(torch.equal(before[n], s.mask) for n, s in sparsity.sparse_params.items())


class ShiftMasks(cstorch.sparse.SparsityAlgorithm):
    """An algorithm with settings of its own and the one abstract method."""

    def __init__(self, shift=1, **kwargs):
        self.shift = shift
        super().__init__(**kwargs)

    def update(self):
        for sparse_param in self.sparse_params.values():
            assert sparse_param.data.shape == sparse_param.mask.shape
            sparse_param.mask = sparse_param.mask.roll(self.shift, 0)


def test_a_custom_algorithm_directly_and_by_name():
    config = {"algorithm": "ShiftMasks", "shift": 2, "sparsity": 0.5, "param_filter": "*"}
    for made in (ShiftMasks(shift=2, sparsity=0.5), cstorch.sparse.configure(config)):
        model, before = trained(made, 2)
        assert torch.equal(model.fc1.weight_mask, before.roll(4, 0))


class UserCubic(cstorch.sparse.BaseHyperParameter):
    """The equation of the announcement, with tensors, under the older protocol."""

    TYPE = "user_cubic"

    def __init__(self, init_sparsity, end_sparsity, **steps):
        self.s_init, self.s_end = init_sparsity, end_sparsity
        self.update_iter = steps["prune_every_k_steps"]
        self.init_iter = int(steps["sparsity_start_step"] / self.update_iter)
        self.total_iters = int(steps["sparsity_end_step"] / self.update_iter) - self.init_iter

    def __call__(self, step: torch.Tensor, is_update_step: torch.Tensor):
        curr_iter = (step / self.update_iter).int()
        decay = (1 - (curr_iter - self.init_iter) / self.total_iters) ** 3
        rate = self.s_end + (self.s_init - self.s_end) * decay
        return torch.clamp(rate, min=self.s_init, max=self.s_end)

    def get_min_max_end(self, begin: int, end: int):
        return self.s_init, self.s_end, self.s_end


CUBIC = {"init_sparsity": 0.5, "end_sparsity": 0.8, "sparsity_start_step": 0}
CUBIC |= {"sparsity_end_step": 60, "prune_every_k_steps": 20}
RIGL = {"type": "rigl", "sparsity": 0.8, "init_method": "random"}
RIGL["schedule"] = {"start": 0, "freq": 2, "stop": 75}
RIGL["drop_fraction"] = {"type": "cosine", "init": 0.5, "half_period": 75}


@pytest.mark.parametrize("name", ["cubic", "user_cubic"])
def test_granet_is_rigl_with_a_cubic_of_the_library_or_of_the_user(name):
    rigl = configure({"sparsity": RIGL})
    granet = configure({"sparsity": {**RIGL, "sparsity": {"type": name, **CUBIC}}})
    assert type(rigl[0]) is type(granet[0]) is cstorch.sparse.RigL
    for step in range(100):
        due = step % 2 == 0 and step < 75
        assert rigl[0].is_update_step(step) == granet[0].is_update_step(step) == due
        assert rigl[0].drop_schedule(step) == granet[0].drop_schedule(step)
    schedule = granet[0].sparsity["x"]
    expected = [0.5, 0.5, 0.8 - 0.3 * (2 / 3) ** 3, 0.8 - 0.3 / 27, 0.8]
    assert [schedule(t) for t in (0, 19, 20, 40, 60)] == pytest.approx(expected, abs=1e-6)
    assert schedule.get_min_max_end(0, 60) == (0.5, 0.8, 0.8)
    trained(granet, 22)
    assert sparsities(granet) == {"fc1.weight": 0.712, "fc2.weight": 0.71}


def test_backends_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cstorch.backend("csx").torch_device.type == "cpu"
    assert repr(cstorch.backend("CPU", compile_dir=".")) == "Backend('CPU')"
    for name, words in (("GPU", "needs a CUDA device"), ("TPU", "'CPU', 'GPU' or 'CSX'")):
        with pytest.raises(ValueError, match=words):
            cstorch.backend(name)
    with pytest.raises(TypeError, match="torch module"):
        cstorch.compile(lambda x: x, cstorch.backend())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cstorch.backend("GPU").torch_device.type == "cuda"


@pytest.mark.parametrize(
    ("name", "options", "states"),
    [
        ("SGD", {"lr": 0.1}, []),
        ("SGD", {"lr": 0.1, "momentum": 0.9}, ["momentum_buffer"]),
        ("AdamW", {}, ["exp_avg", "exp_avg_sq"]),
        ("Adam", {"amsgrad": True}, ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]),
        ("Adagrad", {}, ["sum"]),
        ("SparseAdam", {}, ["exp_avg", "exp_avg_sq"]),
        ("LBFGS", {}, []),
    ],
)
def test_optimizers_name_the_states_that_become_sparse(name, options, states):
    model, sparsity = make_model(), cstorch.sparse.Static(sparsity=0.5)
    model.apply(sparsity)
    optimizer = getattr(cstorch.optim, name)(model.parameters(), **options)
    assert optimizer.state_names_to_sparsify() == states
    assert all(not state for state in optimizer.state.values()) or name == "Adagrad"
    assert optimizer.apply(sparsity) is optimizer and sparsity.drives_optimizer
    with pytest.raises(TypeError, match="apply takes a sparsity algorithm, not 3"):
        optimizer.apply(3)
