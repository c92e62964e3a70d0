"""Mask updates happen when they are due, and read the gradients of the loss that is trained."""

import copy

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.masks.counts import num_true
from tests.cases import assert_enforced, driven, fit, messages, same

GROWING = {"rigl": sl.RigL, "granet": sl.GraNet, "srigl": sl.SRigL, "snfs": sl.SNFS}


def network(bias=False):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32, bias=bias), nn.Tanh(), nn.Linear(32, 4, bias=bias))


def batch(step):
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(step))


def started(algorithm, model=None, lr=0.1):
    model = network() if model is None else model
    return model, driven(algorithm, model, lr=lr)


def masks(algorithm):
    return {name: sparse.mask.clone() for name, sparse in algorithm.sparse_params.items()}


def log(model, step, _):
    torch.autograd.grad(model(batch(100 + step)).abs().sum(), list(model.parameters()))


def switch(_, step, algorithm):
    """It takes part at the end as at the start."""
    algorithm.autoupdate = False
    algorithm.autoupdate = True


def hutchinson(model, step, _):
    params = list(model.parameters())
    products = [p.grad for p in params], params
    torch.autograd.grad(*products, grad_outputs=[torch.ones_like(p) for p in params])


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("extra", [log, hutchinson, switch])
@pytest.mark.parametrize("name", GROWING)
def test_what_comes_between_backward_and_step_changes_no_mask(name, extra):
    def run(between):
        algorithm = GROWING[name](0.8, update=2, drop_fraction=0.5, seed=0)
        model, optimizer = started(algorithm)
        for step in range(2):
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward(create_graph=extra is hutchinson)
            if between:
                extra(model, step, algorithm)
            optimizer.step()
        assert algorithm.num_updates == 1
        return masks(algorithm)

    assert same(run(True), run(False))


def test_inner_steps_of_several_tasks_change_no_mask():
    """Of MAML: inner gradients by the parameters themselves, or by copies that no hook sees."""

    def run(direct):
        algorithm = sl.RigL(0.8, update=1, drop_fraction=0.5, seed=0)
        model, optimizer = started(algorithm)
        call = torch.func.functional_call
        named = dict(model.named_parameters())
        for task in range(2):
            inputs = batch(task)
            source = named if direct else {key: value + 0 for key, value in named.items()}
            loss = call(model, source, (inputs,)).square().mean()
            inner = torch.autograd.grad(loss, list(source.values()))
            moved = {key: source[key] - 0.5 * g for key, g in zip(source, inner, strict=True)}
            call(model, moved, (inputs.flip(0) + 1,)).square().mean().backward()
        optimizer.step()
        return masks(algorithm)

    assert same(run(True), run(False))


@pytest.mark.parametrize("grouped", [False, True])
def test_a_step_that_is_set_updates_masks_at_the_next_one_or_is_told_to_come_late(grouped):
    algorithm = sl.RigL(0.5, update=10, seed=0)
    algorithm = sl.Group({"*": algorithm}) if grouped else algorithm
    model, optimizer = started(algorithm)
    before = masks(algorithm)
    algorithm.step = 9
    fit(model, optimizer, [batch(0)])
    assert algorithm.step == 10 and not same(before, masks(algorithm))
    model(batch(0)).square().mean().backward()
    algorithm.step = 9
    with pytest.warns(UserWarning, match="masks are due at step 10, but the backward pass before"):
        optimizer.step()


def test_clipping_keeps_the_order_of_gradients():
    algorithm = sl.RigL(0.8, update=1, seed=0)
    model, optimizer = started(algorithm, nn.Linear(16, 4, bias=False))
    model(batch(0)).square().sum().backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), float(model.weight.grad.abs().max()) / 9)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    assert messages(optimizer.step) == []


@pytest.mark.parametrize("dense", [True, False])
def test_masks_grow_by_a_combination_of_dense_gradients_and_others_are_told(dense):
    class Seen(sl.RigL):
        in_registry = False

        def update_mask(self, p, mask, sparsity):
            self.seen = self.dense_gradient(p)
            return super().update_mask(p, mask, sparsity)

    algorithm = Seen(0.8, update=1, seed=0)
    model, optimizer = started(algorithm, nn.Linear(16, 4, bias=False))
    losses = [model(batch(0))[:, :2].square().sum(), model(batch(1))[:, 2:].sum()]
    gradients = []
    for loss in losses:
        if dense:
            gradients += torch.autograd.grad(loss, model.weight)
        else:
            loss.backward()
            gradients.append(model.weight.grad)
            optimizer.zero_grad()
    combined = 3 * gradients[0] + gradients[1]
    model.weight.grad = combined.clone()
    told = messages(optimizer.step)
    if dense:
        torch.testing.assert_close(algorithm.seen, combined)
    assert ["changed the gradient of 'weight'" in text for text in told] == [True] * (not dense)


@pytest.mark.parametrize("how", ["unused", "frozen"])
def test_a_target_that_a_mask_without_gradient_misses_is_told_once(how):
    model = nn.ModuleDict({"a": nn.Linear(8, 8, bias=False), "b": nn.Linear(8, 8, bias=False)})
    algorithm = sl.GMP([0.5, 0.75, 0.875], update={"freq": 2, "stop": 5}, seed=0)
    _, optimizer = started(algorithm, model)
    said = []
    for step in range(1, 9):
        model["b"].requires_grad_(not (how == "frozen" and step > 2))
        hidden = model["a"](torch.ones(4, 8) * step)
        optimizer.zero_grad()
        (model["b"](hidden) if how == "frozen" or step < 3 else hidden).square().sum().backward()
        said += messages(optimizer.step)
    reached = {name: sparse.sparsity for name, sparse in algorithm.sparse_params.items()}
    assert reached["a.weight"] > reached["b.weight"]
    assert len(said) == 1 and "no gradient reached 'b.weight' in step 4" in said[0]


class Sharpness(torch.optim.Optimizer):
    """SAM's structure: two steps of its own around the step of the optimizer that it holds."""

    def __init__(self, params, make):
        super().__init__(params, {})
        self.base_optimizer = make(self.param_groups)
        self.param_groups = self.base_optimizer.param_groups
        self.old = []

    @torch.no_grad()
    def first_step(self):
        self.old = [(p, p.clone()) for group in self.param_groups for p in group["params"]]
        for p, _ in self.old:
            p.add_(0.1 * p.grad)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for p, old in self.old:
            p.copy_(old)
        self.base_optimizer.step()
        self.zero_grad()


@pytest.mark.parametrize("inner", [False, True])
def test_an_optimizer_that_wraps_another_one_updates_masks(inner):
    model, algorithm = network(), sl.RigL(0.8, update=3, seed=0)
    algorithm.apply(model)
    optimizer = Sharpness(model.parameters(), lambda p: torch.optim.SGD(p, 0.05, momentum=0.9))
    algorithm.apply(optimizer.base_optimizer if inner else optimizer)
    before = masks(algorithm)
    for step in range(6):
        model(batch(step)).square().mean().backward()
        optimizer.first_step()
        model(batch(step)).square().mean().backward()
        optimizer.second_step()
    assert algorithm.step == 6 and algorithm.num_updates == 2 and not same(before, masks(algorithm))
    assert_enforced(algorithm, optimizer.base_optimizer)
    algorithm.detach(optimizer)
    assert not algorithm.drives_optimizer


class Lookahead(torch.optim.Optimizer):
    """Writes to the weights after the step of the optimizer that it holds."""

    def __init__(self, optimizer):
        super().__init__(optimizer.param_groups, {})
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        self.optimizer.step()
        params = [p for group in self.param_groups for p in group["params"]]
        for p, slow in zip(params, self.slow, strict=True):
            p.copy_(slow.lerp_(p, 0.5))


def test_what_a_wrapper_writes_after_the_step_is_masked():
    model, algorithm = network(), sl.SET(0.8, update=1, seed=0)
    algorithm.apply(model)
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), 0.1))
    algorithm.apply(optimizer)
    for step in range(3):
        fit(model, optimizer, [batch(step)])
        assert_enforced(algorithm)
    assert algorithm.step == algorithm.num_updates == 3


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in GROWING), ("granet", {"pruning": "global"})]
)
def test_gradients_that_are_nan_shrink_no_mask(name, options):
    algorithm = GROWING[name](0.75, update=1, drop_fraction=0.5, seed=0, **options)
    model, optimizer = started(algorithm, lr=0.0)
    before = {key: num_true(mask) for key, mask in masks(algorithm).items()}
    for _ in range(3):
        for param in model.parameters():
            param.grad = torch.full_like(param, torch.nan)
        weights = nn.utils.parameters_to_vector(model.parameters())
        optimizer.step()  # the weights of a step that diverged would be NaN
        nn.utils.vector_to_parameters(weights, model.parameters())
    after = {key: num_true(mask) for key, mask in masks(algorithm).items()}
    assert sum(after.values()) == sum(before.values())
    assert options or after == before


def test_an_algorithm_whose_masks_shrink_by_nan_is_told():
    class Lost(sl.DynamicSparsityAlgorithm):
        in_registry = False

        def update_mask(self, p, mask, sparsity):
            score = torch.full_like(p, torch.nan).masked_fill(mask.cumsum(-1) == 1, 1.0)
            return sl.masks.make_mask_topk_sparsity(score, sparsity)

    model, optimizer = started(Lost(0.5, update=1, seed=0))
    with pytest.warns(UserWarning, match="fewer than before and than the 256 of its sparsity"):
        fit(model, optimizer, [batch(0)])


@pytest.mark.parametrize("name", ["SRSTE", "TopKAST"])
@pytest.mark.parametrize("order", ["model", "both", "algorithm first"])
def test_loaded_weights_bring_no_hidden_values_of_the_old_ones(name, order):
    def trained(seed):
        algorithm = getattr(sl, name)(0.5, seed=seed)
        torch.manual_seed(seed)
        model, optimizer = started(algorithm, nn.Linear(8, 8, bias=False))
        fit(model, optimizer, (batch(step)[:, :8] for step in range(3)))
        return model, algorithm

    (source, saved), (model, algorithm) = trained(0), trained(1)
    if order == "algorithm first":
        algorithm.load_state_dict(saved.state_dict())
    model.load_state_dict(source.state_dict())
    if order == "both":
        algorithm.load_state_dict(saved.state_dict())
    expected = saved.hidden_weight(source.weight)
    if order == "model":  # the file has zeros there
        expected = expected.masked_fill(~source.weight_mask, 0)
    assert torch.equal(algorithm.hidden_weight(model.weight), expected)


@pytest.mark.parametrize("algorithm", [sl.SRSTE, sl.TopKAST])
@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize(
    "how", ["load", "copy", "move", "assign", "row", "clip", "swap", "perturb"]
)
def test_values_written_by_hand_replace_hidden_ones_unless_that_is_undone(algorithm, how, runs):
    sparsity = algorithm(0.5, seed=0)
    model, optimizer = started(sparsity, nn.Linear(8, 8, bias=False))
    fit(model, optimizer, (batch(step)[:, :8] for step in range(3)))
    model(batch(3)[:, :8]).square().mean().backward()
    expected, new = sparsity.hidden_weight(model.weight), torch.randn(8, 8)
    seen, present = model.weight.detach().clone(), model.weight_mask.clone()
    with torch.no_grad():
        if how == "load":
            model.load_state_dict({"weight": (expected := new)}, strict=False)
        elif how == "copy":
            model.weight.copy_(expected := new)
        elif how == "move":
            model.weight.data, expected = new.clone(), new
        elif how == "assign":
            model.weight, expected = nn.Parameter(new.clone()), new
            optimizer.param_groups[0]["params"][0] = model.weight
        elif how == "row":
            model.weight[3] = expected[3] = new[3]
        elif how == "clip":
            model.weight.clamp_(-0.01, 0.01)
            expected[present] = expected[present].clamp(-0.01, 0.01)
        elif how == "swap":
            model.weight.copy_(new)
            model(batch(4)[:, :8])
            model.weight.copy_(seen)
        else:  # as SAM does, up to rounding
            model.weight.add_(new)
            model(batch(4)[:, :8])
            model.weight.sub_(new)
        if runs:
            model(batch(5)[:, :8])
    torch.testing.assert_close(sparsity.hidden_weight(model.weight), expected)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    torch.testing.assert_close(sparsity.hidden_weight(model.weight), expected)
    assert not model.weight[~model.weight_mask].any()


def test_copies_of_model_algorithm_and_optimizer_know_of_written_weights():
    sparsity = sl.SRSTE(0.5, seed=0)
    all_of_it = sparsity, *started(sparsity, nn.Linear(8, 8, bias=False))
    sparsity, model, optimizer = copy.deepcopy(all_of_it)
    new = torch.randn(8, 8)
    with torch.no_grad():
        model.weight.copy_(new)
    inputs = torch.randn(4, 8)
    torch.testing.assert_close(model(inputs), inputs @ (new * model.weight_mask).T)
    assert torch.equal(sparsity.hidden_weight(model.weight), new)
