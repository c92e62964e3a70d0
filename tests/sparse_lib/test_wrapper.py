"""The blog's snippets: the optimizer-style API, and the cstorch namespace."""

import torch
from torch import nn

from sparse_lib import optim
from sparse_lib.algorithms.static import Static
from sparse_lib.compat import cstorch
from sparse_lib.configure import configure
from sparse_lib.wrapper import BaseHyperParameter, BaseSparsityOptimizer, configure_sparsity_wrapper
from tests.sparse_lib.algorithm_cases import assert_enforced, make_model, train


def test_the_wrapper_is_a_drop_in():
    model = make_model()
    optimizer = configure_sparsity_wrapper(
        model,
        optim.SGD(model.parameters(), 0.1, momentum=0.9),
        sparsity_type="rigl",
        sparsity=0.5,
        init_method="random",
        schedule=2,
    )
    train(model, optimizer, 4)
    assert_enforced(optimizer.sparsity, optimizer.optimizer)
    assert optimizer.sparsity[0].num_updates == 2
    other_model = make_model()
    other = configure_sparsity_wrapper(
        other_model, torch.optim.SGD(other_model.parameters(), 0.1), "rigl", sparsity=0.5
    )
    assert not other.sparsity[0].is_update_step(999) and other.sparsity[0].is_update_step(1000)
    other.load_state_dict(optimizer.state_dict())
    assert other.sparsity.step == 4


class BlogCubic(BaseHyperParameter):
    """The blog's Figure 7, with its slips mended."""

    TYPE = "blog_cubic"

    def __init__(self, init_sparsity, end_sparsity, start, end, every):
        self.s_init, self.s_end, self.every = init_sparsity, end_sparsity, every
        self.first, self.total = int(start / every), int(end / every) - int(start / every)

    def __call__(self, step: torch.Tensor, is_update_step: torch.Tensor):
        done = ((step / self.every).int() - self.first) / self.total
        value = self.s_end + (self.s_init - self.s_end) * (1 - done) ** 3
        return torch.clamp(value, min=self.s_init, max=self.s_end)

    def get_min_max_end(self, begin, end):
        return self.s_init, self.s_end, self.s_end


def test_a_blog_schedule_is_found_by_its_type():
    schedule = {"type": "blog_cubic", "init_sparsity": 0.5, "end_sparsity": 0.8, "start": 0,
                "end": 10, "every": 2}  # fmt: skip
    algorithm = configure({"algorithm": "rigl", "schedule": schedule})[0]
    values = [round(algorithm.sparsity["x"](step), 4) for step in (0, 1, 2, 10)]
    assert values == [0.5, 0.5, round(0.8 - 0.3 * 0.8**3, 4), 0.8]


def test_an_old_style_sparsity_optimizer():
    class Half(BaseSparsityOptimizer):
        def _get_target_sparsity_level_of_group(self, group):
            return group["level"]

        def update_mask(self, p, mask, sparsity):
            return ~mask

    model = make_model()
    pairs = [(name, p) for name, p in model.named_parameters() if name.endswith("weight")]
    sparsity = Half(model, pairs, defaults={"level": 0.5})
    try:
        sparsity.step()
    except RuntimeError as error:
        assert "apply_sparsity" in str(error)
    sparsity.apply_sparsity(torch.optim.SGD(model.parameters(), 0.1))
    before = model[0].weight_mask.clone()
    model(torch.ones(1, 12)).sum().backward()
    sparsity.step()
    assert torch.equal(model[0].weight_mask, ~before)


def test_the_documents_script_with_another_import_line():
    backend = cstorch.backend("CPU")
    with backend.device:
        model = nn.Linear(10, 10)
    cstorch.compile(model, backend)
    sparsity = cstorch.sparse.Static(sparsity=0.3)
    model.apply(sparsity)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.apply(sparsity)
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    assert int(model.weight_mask.sum()) == 70


def test_every_torch_optimizer_has_apply():
    model = nn.Linear(4, 4)
    sparsity = Static(0.5)
    model.apply(sparsity)
    assert optim.AdamW(model.parameters()).apply(sparsity) is not None
    assert {"SGD", "Adam", "AdamW", "Adagrad", "RMSprop"} <= set(optim.__all__)
