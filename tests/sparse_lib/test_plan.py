"""plan: exact counts, reasons, FLOPs and warnings, and a model left alone."""

import torch
from torch import nn

from sparse_lib.flops import count
from sparse_lib.plan import plan


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(11, 10)
        self.up = nn.Linear(10, 100)
        self.down = nn.Linear(100, 10)
        self.norm = nn.LayerNorm(10)
        self.lm_head = nn.Linear(10, 11, bias=False)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        return self.lm_head(self.norm(x + self.down(torch.relu(self.up(x)))))


def rows(result):
    return {row["name"]: row for row in result.records()}


def test_counts_are_exact_and_reasons_given():
    result = plan(Tiny(), {"algorithm": "static", "sparsity": 0.9})
    table = rows(result)
    assert table["up.weight"]["num_nonzero"] == 100
    assert table["up.weight"]["algorithm"] == "Static"
    assert table["embed_tokens.weight"]["reason"] == "embedding"
    assert table["lm_head.weight"]["reason"] == "head"
    assert table["up.bias"]["reason"] == "one dimension"
    assert result.num_parameters - result.num_nonzero == 1800
    assert result.warnings == ()


def test_flops_are_those_of_the_closed_form():
    model = Tiny()
    result = plan(model, 0.9, batch_size=2, sequence_length=5)
    flops = count(model, batch_size=2, sequence_length=5)
    levels = {"up.weight": 0.9, "down.weight": 0.9}
    dense, start, end = result.flops_records()
    assert dense["inference_flops"] == flops.forward()
    assert start["training_flops"] == flops.training_step(levels)
    assert start == {**end, "when": "start"}


def test_gradual_schedules_end_elsewhere():
    schedule = {"type": "linear", "init": 0.0, "slope": 0.01}
    config = {"algorithm": "gmp", "schedule": schedule, "update": {"freq": 1}}
    row = rows(plan(Tiny(), config, num_steps=51))["up.weight"]
    assert row["sparsity"] == 0.0
    assert abs(row["final_sparsity"] - 0.5) < 1e-9


def test_warnings_name_collapse_embedding_and_idle_filter():
    config = [
        {"sparsity": 0.5, "param_filter": "embed_tokens*"},
        {"sparsity": 0.99, "param_filter": "up.weight"},
        {"sparsity": 0.5, "param_filter": "nothing*"},
    ]
    text = " ".join(plan(Tiny(), config).warnings)
    assert "embed_tokens.weight has the role 'embedding'" in text
    assert "up.weight keeps 10 weights" in text
    assert "nothing*" in text


def test_the_model_is_left_alone():
    model = Tiny()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan(model, 0.9)
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_dense_plan_and_its_markdown():
    result = plan(Tiny(), None, sequence_length=4)
    assert result.num_nonzero == result.num_parameters
    assert str(result) == result.to_markdown()
    assert "| up.weight | linear | 100 x 10 | 0 | 0 | 1,000 / 1,000 | no filter matched |" in str(
        result
    )
