"""Sparse training in company: several optimizers, replaced modules, copies, averages, compile."""

import copy
import pickle

import pytest
import torch
from torch import nn

import sparse_lib as sl
from tests.cases import assert_equal, descend, driven, fit, messages
from tests.cases import snapshot as state

ALGORITHMS = {
    "gmp": lambda: sl.GMP(sl.schedules.Linear(0.2, 0.05), update=1, seed=0),
    "set": lambda: sl.SET(0.5, update=1, seed=0),
    "rigl": lambda: sl.RigL(0.5, update=2, seed=0),
    "group": lambda: sl.Group({"0.*": sl.RigL(0.5, update=1), "*": sl.SET(0.5, update=1)}, seed=0),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def batches(count=3):
    source = torch.Generator().manual_seed(1)
    return [torch.randn(16, 8, generator=source) for _ in range(count)]


def train(model, optimizer, steps=3):
    fit(model, optimizer, batches(steps))


def is_masked(model):
    return all(
        not model.get_parameter(name)[~mask].any()
        for name, mask in sl.checkpoint.masks_of(model).items()
    )


def test_an_optimizer_that_lacks_sparse_parameters_is_warned_of_unless_they_are_frozen():
    model, algorithm = network(), sl.SET(0.5, update=1, seed=0)
    algorithm.apply(model)
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)
    with pytest.warns(UserWarning, match=r"does not hold '2\.weight' and 1 more"):
        algorithm.apply(first)
    for inputs in batches(4):
        model(inputs).square().mean().backward()
        first.step()
        second.step()
    assert not is_masked(model)  # the second optimizer's momentum moved what is masked
    model(batches(1)[0])
    assert is_masked(model)
    model, algorithm = network(), sl.SET(0.5, update=1, seed=0)
    algorithm.apply(model)
    model[2].requires_grad_(False)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    assert messages(algorithm.apply, optimizer) == []
    model[2].requires_grad_(True)
    optimizer.add_param_group({"params": model[2].parameters()})
    train(model, optimizer)
    assert is_masked(model)


def by_a_new_module(model):
    model[2] = nn.Linear(16, 8)


def by_another_shape(model):
    model[0].weight = nn.Parameter(torch.randn(32, 8))
    model[0].bias = nn.Parameter(torch.randn(32))
    model[2].weight = nn.Parameter(torch.randn(8, 32))


def by_a_module_of_its_weights(model):
    """As prepare_qat(model, inplace=True)."""
    new = nn.Linear(8, 16)
    new.weight, new.bias = model[0].weight, model[0].bias
    model[0] = new


@pytest.mark.parametrize("make", ALGORITHMS.values(), ids=ALGORITHMS)
@pytest.mark.parametrize(
    ("replaced", "name", "more"),
    [(by_a_new_module, 2, 1), (by_another_shape, 0, 2), (by_a_module_of_its_weights, 0, 1)],
)
def test_what_was_replaced_is_refused_until_sparsity_is_applied_again(replaced, name, more, make):
    model, algorithm = network(), make()
    optimizer = driven(algorithm, model, torch.optim.SGD, 0.1, momentum=0.9)
    train(model, optimizer)
    held, kept = {*model.parameters()}, model[0].weight_mask.clone()
    replaced(model)
    if new := [param for param in model.parameters() if param not in held]:
        optimizer.add_param_group({"params": new})
    said = rf"module or weight of '{name}\.weight' and {more} more was replaced in the model"
    for step in (lambda: train(model, optimizer, steps=1), lambda: algorithm.apply(optimizer)):
        with pytest.raises(ValueError, match=said):
            step()
    algorithm.apply(model)
    algorithm.apply(optimizer)
    before = model[name].weight_mask.clone()
    assert algorithm.sparse_params[f"{name}.weight"].module is model[name]
    assert replaced is not by_a_module_of_its_weights or torch.equal(before, kept)
    train(model, optimizer)
    assert is_masked(model) and not model[name].weight_mask.all()
    assert not torch.equal(model[name].weight_mask, before)


@pytest.mark.parametrize("make", ALGORITHMS.values(), ids=ALGORITHMS)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_a_copy_of_model_algorithm_and_optimizer_trains_as_the_original(make, duplicate, order):
    model, algorithm = network(), make()
    optimizer = driven(algorithm, model, torch.optim.SGD, 0.1, momentum=0.9)
    train(model, optimizer)
    things = (model, algorithm, optimizer)
    twins = duplicate([things[place] for place in order])
    twin, twin_algorithm, twin_optimizer = (twins[order.index(place)] for place in range(3))
    assert twin_algorithm.drives_optimizer
    before = state(model)
    train(twin, twin_optimizer)
    assert_equal(state(model), before)
    train(model, optimizer)
    assert twin_algorithm.step == algorithm.step == 6
    assert_equal(state(model), after := state(twin))
    assert any("mask" in name and not torch.equal(after[name], before[name]) for name in after)
    assert is_masked(twin)


def rigl(model=None):
    model, algorithm = model or network(), sl.RigL(0.5, update=2, seed=0)
    return model, algorithm, driven(algorithm, model)


def test_a_weight_resized_in_place_is_refused_until_sparsity_is_applied_again():
    optimizer = driven(algorithm := sl.RigL(0.5, update=1, seed=0), model := network())
    fit(model, optimizer, batches(2))
    model[2].weight.data = torch.randn(12, 16)  # as resize_token_embeddings does
    model[2].bias.data = torch.zeros(12)
    with pytest.raises(ValueError, match=r"'2.weight' and 1 more was replaced in the model"):
        model(batches(1)[0])
    algorithm.detach(optimizer)
    algorithm.apply(model)
    algorithm.apply(optimizer := torch.optim.SGD(model.parameters(), 0.1))
    fit(model, optimizer, batches(2))
    assert model[2].weight_mask.shape == (12, 16) and int(model[2].weight_mask.sum()) == 96
    assert not model[2].weight[~model[2].weight_mask].any()


def test_a_replaced_block_is_refused_a_wrapped_one_goes_on_and_a_replaced_weight_is_masked():
    model, _, optimizer = rigl(nn.Sequential(network(), nn.Linear(8, 8)))
    model[0] = nn.Sequential(model[0])
    train(model, optimizer)
    assert is_masked(model)
    model[0] = network()
    with pytest.raises(ValueError, match=r"'0\.0\.weight' and 3 more was replaced"):
        train(model, optimizer, steps=1)
    model, _, optimizer = rigl()
    new = torch.randn(16, 8)
    model[0].weight = nn.Parameter(new.clone())
    expected = torch.eye(8) @ (new * model[0].weight_mask).T + model[0].bias
    torch.testing.assert_close(model[0](torch.eye(8)), expected)
    with pytest.warns(UserWarning, match=r"does not hold '0\.weight'"):
        train(model, optimizer)
    assert is_masked(model)


def test_an_algorithm_goes_on_with_a_copy_of_its_model():
    model, algorithm = network(), sl.Static(0.5, seed=0)
    algorithm.apply(model)
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"call detach\(\) on the algorithm and apply it to the"):
        algorithm.apply(optimizer)
    algorithm.detach()
    algorithm.apply(twin)
    algorithm.apply(optimizer)
    assert torch.equal(twin[0].weight_mask, model[0].weight_mask)


def test_zeros_of_pruned_weights_that_train_again_are_told():
    model = nn.Linear(16, 8, bias=False)
    zero = torch.rand(8, 16, generator=torch.Generator().manual_seed(0)).argsort(1) >= 5  # of 16
    with torch.no_grad():
        model.weight.masked_fill_(zero, 0)
    # 5 weights of each row are left, and half of the 16 is asked for.
    with pytest.warns(UserWarning, match="lets 24 of 88 train again; init_method='from_zeros'"):
        sl.Static(0.5, "balanced-topk").apply(model)
    sl.finalize(model)
    assert messages(sl.Static(0.5, "from_zeros", score_shaper="2:4").apply, model) == []


@pytest.mark.parametrize(
    ("size", "arguments", "share"),
    [((8, 16), {"score_shaper": {"type": "block", "block": 32}}, "0.00, not 0.90, since Block"),
     ((16, 8), {}, "0.50, not 0.90, since masks that are there")],
)  # fmt: skip
def test_a_sparsity_that_masks_do_not_get_is_told(size, arguments, share):
    model = nn.Linear(*size, bias=False)
    if not arguments:
        model.register_buffer("weight_mask", torch.arange(128).reshape(8, 16) % 2 == 0)
    (said,) = messages(sl.SET(0.9, update=5, **arguments).apply, model)
    assert f"the sparsity of 'weight' is {share}" in said
    planned = sl.plan(nn.Linear(*size, bias=False), sl.SET(0.9, update=5, **arguments))
    assert any("0.00 in place of 0.90" in note for note in planned.warnings) == bool(arguments)


@pytest.mark.parametrize("init_method", ["random", "from_zeros"])
def test_frozen_weights_that_lose_values_are_told_while_others_train(init_method):
    model = network()
    model[0].requires_grad_(False)
    said = messages(sl.Static(0.5, init_method).apply, model)
    frozen = "'0.weight' and 1 more is frozen: what the mask drops"
    assert [frozen in text for text in said] == [True] * (init_method == "random")
    whole = network().requires_grad_(False)  # pruned to be used
    assert messages(sl.Static(0.5).apply, whole) == []


@pytest.mark.parametrize(
    ("name", "backend"),
    [("set", "eager"), ("group", "eager"), ("rigl", "aot_eager")],
)
def test_a_compiled_step_does_what_a_plain_one_does(name, backend):
    torch._dynamo.reset()
    models = []
    for compiled in (False, True):
        model, algorithm = network(), ALGORITHMS[name]()
        optimizer = driven(algorithm, model, torch.optim.SGD, 0.1, momentum=0.9)
        step = torch.compile(lambda opt=optimizer: opt.step(), backend=backend)
        for inputs in batches(5):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            step() if compiled else optimizer.step()
        assert algorithm.step == 5
        models.append(state(model))
    assert_equal(*models)


def test_a_scripted_model_is_refused_and_left_as_it_was():
    """Its parameters lie in C++, where no mask can be put beside them."""
    part = nn.Sequential(nn.Linear(6, 4), torch.jit.script(nn.Linear(4, 2)))
    for model, name in ((torch.jit.script(network()), "the model"), (part, "1")):
        algorithm = sl.SET(0.5, update=1, seed=0)
        with pytest.raises(ValueError, match=f"^{name} is scripted or traced already"):
            algorithm.apply(model)
        assert not algorithm.sparse_params and not dict(model.named_buffers())


@pytest.mark.parametrize("grown_init", ["gradient", "gradient_sign"])
def test_sparse_gradients_start_grown_weights_as_dense_ones_do(grown_init):
    models = []
    for is_sparse in (True, False):
        torch.manual_seed(0)
        model = nn.Embedding(10, 8, sparse=is_sparse)
        algorithm = sl.RigL(0.5, update=1, seed=0, grown_init=grown_init)
        optimizer = driven(algorithm, model)
        places, factor = torch.tensor([1, 2, 2, 5]), torch.randn(4, 8)
        for _ in range(4):
            descend(optimizer, (model(places) * factor).sum())
        models.append(model)
    assert torch.equal(models[0].weight_mask, models[1].weight_mask)
    assert torch.allclose(models[0].weight, models[1].weight, atol=1e-6)


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
def test_a_mask_that_empties_a_direction_of_weight_norm_is_refused(norm):
    model = norm(nn.Linear(8, 64))
    algorithm = sl.configure({"algorithm": "static", "sparsity": 0.9, "seed": 0})
    names = set(dict(model.named_buffers()))
    with pytest.raises(ValueError, match="leaves an output without weights, and weight_norm"):
        algorithm.apply(model)
    assert set(dict(model.named_buffers())) == names and not algorithm.sparse_params


def test_an_average_of_weights_alone_is_not_cut_by_its_old_mask():
    model = nn.Sequential(nn.Linear(8, 8, bias=False))
    algorithm = sl.SET(0.5, update=1, drop_fraction=0.3, seed=0)
    optimizer = driven(algorithm, model)
    average = copy.deepcopy(model).requires_grad_(False)
    for _ in range(5):
        train(model, optimizer, 1)
        with torch.no_grad():
            average[0].weight.lerp_(model[0].weight, 0.5)
    before = average[0].weight.clone()
    assert int((before != 0).sum()) > int((model[0].weight != 0).sum())
    inputs = torch.randn(4, 8)
    assert torch.equal(average(inputs), inputs @ before.T)
    assert torch.equal(average[0].weight, before)


def test_functional_calls_leave_the_tensors_they_are_given():
    model = nn.Linear(8, 8)
    sl.Static(0.5, seed=0).apply(model)
    given = {"weight": torch.ones(8, 8), "bias": torch.zeros(8)}
    out = torch.func.functional_call(model, given, (torch.ones(1, 8),))
    assert int(given["weight"].sum()) == 64 and torch.equal(out, torch.full((1, 8), 8.0))
    params, inputs = dict(model.named_parameters()), torch.randn(3, 8)
    loss = model(inputs).square().sum()
    gradients = torch.autograd.grad(loss, [*params.values()], create_graph=True)
    stepped = {key: params[key] - 0.1 * g for key, g in zip(params, gradients, strict=True)}
    torch.func.functional_call(model, stepped, (inputs,)).sum().backward()
    assert model.weight.grad is not None


def test_lists_go_on_at_manual_updates_and_for_each_member_by_itself():
    model = nn.Linear(16, 16, bias=False)
    algorithm = sl.GMP([0.125, 0.25, 0.5, 0.75], update=1, seed=0, init_method="topk")
    optimizer = driven(algorithm, model)
    algorithm.autoupdate = False
    seen = []
    for _ in range(3):
        fit(model, optimizer, [torch.randn(4, 16)])
        algorithm.update()
        seen.append(algorithm.metrics()["sparsity"])
    assert seen == pytest.approx([0.25, 0.5, 0.75])
    shared = sl.schedules.Cycling([0.125, 0.25, 0.5, 0.75], repeat=False)
    model = nn.ModuleDict({"a": nn.Linear(16, 16), "b": nn.Linear(16, 16)})
    group = sl.Group({f"{key}.*": sl.GMP(shared, update=1, seed=0) for key in "ab"})
    optimizer = driven(group, model)
    for _ in range(2):
        descend(optimizer, model["b"](model["a"](torch.randn(4, 16))).square().mean())
    levels = {name: t["sparsity"] for name, t in group.metrics()["tensors"].items()}
    assert levels["a.weight"] == levels["b.weight"] == pytest.approx(0.5)


def test_counts_and_switches_of_a_wrong_type_are_refused():
    for algorithm in (sl.RigL(0.5), sl.Group({"*": sl.RigL(0.5)})):
        for name, value in (("step", -3), ("step", "3"), ("step", 1.5), ("autoupdate", "false")):
            with pytest.raises(ValueError, match=f"{name} must be"):
                setattr(algorithm, name, value)


def test_a_tied_weight_that_requires_dense_under_one_name_stays_dense():
    model = nn.Module()
    model.first, model.head = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    model.head.weight, model.head.requires_dense = model.first.weight, True
    sl.Static(0.5).apply(model)
    assert bool((model.head.weight != 0).all())


def test_another_optimizer_can_take_over():
    model, algorithm = nn.Linear(8, 8), sl.GMP(sl.schedules.Linear(0.0, 0.1), update=1, seed=0)
    optimizer = driven(algorithm, model)
    train(model, optimizer)
    algorithm.apply(optimizer)  # the same one again
    before = algorithm.state_dict()
    other = torch.optim.AdamW(model.parameters())
    with pytest.raises(ValueError, match=r"detach\(optimizer\)"):
        algorithm.apply(other)
    with pytest.raises(ValueError, match="another optimizer"):
        algorithm.detach(other)
    algorithm.detach(optimizer)
    algorithm.apply(other)
    after = algorithm.state_dict()
    assert after["step"] == before["step"] == 3
    assert after["params"]["weight"]["target"] == before["params"]["weight"]["target"]
    train(model, other, 1)
    assert algorithm.step == 4 and algorithm.metrics()["sparsity"] == pytest.approx(0.4, abs=0.02)
    train(model, optimizer, 1)
    assert algorithm.step == 4


def test_surgery_after_apply():
    model = nn.Sequential(nn.Linear(8, 8))
    algorithm = sl.Static(0.5, seed=0)
    optimizer = driven(algorithm, model)
    torch.nn.utils.parametrizations.weight_norm(model[0])
    model(torch.randn(2, 8)).sum().backward()
    with pytest.raises(RuntimeError, match="'0.weight' was taken out of its module"):
        optimizer.step()


@pytest.mark.parametrize("drives", [True, False])
def test_weights_tied_after_apply(drives):
    model, algorithm = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), sl.SET(0.5, update=2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    algorithm.apply(model)
    if drives:
        algorithm.apply(optimizer)
    model[1].weight = model[0].weight
    model(torch.randn(2, 8)).sum().backward()
    said = "^'1.weight' was tied to '0.weight' after sparsity was applied, .*; tie weights first"
    with pytest.raises(RuntimeError, match=said):
        optimizer.step() if drives else algorithm.apply(optimizer)
    assert algorithm.drives_optimizer is drives


@pytest.mark.parametrize(
    ("parametrize", "fills"),
    [
        (nn.utils.parametrizations.orthogonal, True),
        (nn.utils.parametrizations.spectral_norm, False),
        (nn.utils.parametrizations.weight_norm, False),
    ],
)
def test_parametrizations_that_fill_zeros_are_told(parametrize, fills, recwarn):
    model = parametrize(nn.Linear(8, 8))
    state = copy.deepcopy(model.state_dict())
    sl.configure({"algorithm": "rigl", "sparsity": 0.5, "seed": 0}).apply(model)
    told = [w for w in recwarn if "_Orthogonal fills masked zeros of 'para" in str(w.message)]
    assert bool(told) == fills
    for name, tensor in model.state_dict().items():  # vectors of spectral_norm stay
        assert name.endswith(("original", "original1", "mask")) or torch.equal(tensor, state[name])
    assert int((model.weight == 0).sum()) == (0 if fills else 32)
