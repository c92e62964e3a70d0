"""Initial values and rates over width and density: the table of the source, and what it is for."""

import pytest
import torch

from experiments.analysis.figures.coordinate_check import spreads
from experiments.computations import coordinate_check
from experiments.models import _parameterization as parameterization
from experiments.models import llama
from sparse_lib.configure import configure
from tests.experiments.specs.edit import edited
from tests.experiments.training.short import run_training, short_spec


def model(width: int, sparsity: float = 0.0, **config):
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_layers": 1}
    built = llama.build(
        llama.Config(**sizes, num_heads=width // 16, **config), vocab_size=96, context=8, eos_id=0
    )
    if sparsity:
        configure({"algorithm": "static", "sparsity": sparsity, "seed": 0}).apply(built)
    return built


def chosen(rule: str) -> parameterization.Parameterization:
    return parameterization.Parameterization(rule=rule, base_width=32, init_std=0.1)


Q, HEAD, TABLE = (
    "model.layers.0.self_attn.q_proj.weight",
    "lm_head.weight",
    "model.embed_tokens.weight",
)


@pytest.mark.parametrize(
    ("rule", "variance", "rate", "head"),
    [("standard", 1, 1, 1), ("mup", 1 / 4, 1 / 4, 1 / 4), ("supar", 1, 1, 1 / 4)],
)
def test_factors_are_those_of_the_source(rule, variance, rate, head):
    # Four times as wide with a quarter of the weights: m_d = 4, m_rho = 1 / 4.
    found = parameterization.factors(model(128, 0.75), chosen(rule))
    assert found[Q].std ** 2 == pytest.approx(variance)
    assert found[Q].rate == pytest.approx(rate)
    assert found[HEAD].std == found[HEAD].rate == pytest.approx(head)
    assert found[TABLE] == found["model.norm.weight"] == parameterization.Factors()


@pytest.mark.parametrize("rule", ["standard", "mup", "supar"])
def test_weights_are_drawn_so(rule):
    built = model(128, 0.75)
    before = {name: param.clone() for name, param in built.named_parameters()}
    parameterization.initialise(built, chosen(rule))
    for name, factor in parameterization.factors(built, chosen(rule)).items():
        param = dict(built.named_parameters())[name].detach()
        there = param[before[name] != 0]
        if param.dim() == 1:
            assert torch.equal(param, before[name])
            continue
        assert float(there.std()) == pytest.approx(0.1 * factor.std, rel=0.05)
        assert torch.equal(param == 0, before[name] == 0)


def test_steps_move_weights_by_their_factor_of_the_rate(corpus, tmp_path):
    def scaled(spec):
        spec["recipe"]["parameterization"] = vars(chosen("supar"))
        spec["recipe"]["stable"] = {"warmup_steps": 0, "decay": 0}

    spec = edited(short_spec("static", steps=1), scaled)
    # The first step of Adam moves every weight by its rate, whatever the gradient.
    from experiments.training import loop

    trainer = loop.Trainer(spec, data_dir=corpus, state_dir=tmp_path)
    before = {name: param.detach().clone() for name, param in trainer.model.named_parameters()}
    found = parameterization.factors(trainer.model, chosen("supar"))
    trainer.step()
    for name in (Q, HEAD):
        param = dict(trainer.model.named_parameters())[name].detach()
        moved = (param - before[name]).abs()[param != 0]
        decayed = spec.recipe.weight_decay * spec.recipe.learning_rate * before[name].abs().max()
        expected = spec.recipe.learning_rate * found[name].rate
        assert float(moved.median()) == pytest.approx(expected, rel=0.1, abs=float(decayed))


def test_weight_decay_takes_the_same_share_of_every_weight():
    groups = parameterization.groups(model(128, 0.75), chosen("mup"), 0.1)
    shares = {g["weight_decay"] * g["rate_factor"] for g in groups if g["weight_decay"]}
    assert max(shares) == pytest.approx(min(shares)) == pytest.approx(0.1)
    assert groups[0]["rate_factor"] == 1.0


def test_an_embedding_that_is_the_head_is_one_sentence():
    with pytest.raises(ValueError, match="tie_embeddings is true"):
        parameterization.factors(model(64, tie_embeddings=True), chosen("supar"))


def test_a_run_is_trained_so_and_says_so(corpus, tmp_path):
    def scaled(spec):
        spec["recipe"]["parameterization"] = vars(chosen("supar"))

    spec = edited(short_spec("static", steps=4), scaled)
    record = run_training(spec, corpus, tmp_path)
    assert record["spec"]["recipe"]["parameterization"]["rule"] == "supar"
    assert "parameterization" not in short_spec("static").to_json()["recipe"]
    assert "stable" not in short_spec("static").to_json()["recipe"]


def test_activations_keep_their_size_under_supar_only(monkeypatch):
    grid = ((32, 128), (0.0, 0.75), 1)
    monkeypatch.setitem(coordinate_check.GRIDS, "smoke", grid)
    rows = coordinate_check.compute("smoke")["activations"]
    found = spreads(rows).set_index(["rule", "step"])["spread"]
    for step in coordinate_check.STEPS:
        assert found["supar", step] < 1.3
        assert found["mup", step] > 4
        assert found["standard", step] > 20
