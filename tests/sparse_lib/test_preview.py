"""plan: exact counts, reasons, FLOPs and warnings, and a model left alone."""

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.core.mistakes import unreached
from sparse_lib.flops.model import count
from tests.cases import descend, driven
from tests.sparse_lib import tiny_models


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
    sizes = {"batch_size": 2, "sequence_length": 5}
    result = sl.plan(Tiny(), {"algorithm": "static", "sparsity": 0.9}, **sizes)
    flops = count(Tiny(), **sizes)
    dense, start, end = result.flops_records()
    assert dense["inference_flops"] == flops.forward()
    levels = {"up.weight": 0.9, "down.weight": 0.9}
    assert start["training_flops"] == flops.training_step(levels)
    assert start == {**end, "when": "start"}
    table = rows(result)
    assert table["up.weight"]["num_nonzero"] == 100
    assert table["up.weight"]["algorithm"] == "Static"
    assert table["embed_tokens.weight"]["reason"] == "embedding"
    assert table["lm_head.weight"]["reason"] == "head"
    assert table["up.bias"]["reason"] == "one dimension"
    assert result.num_parameters - result.num_nonzero == 1800
    assert result.warnings == ()


def test_the_final_sparsity_is_that_of_a_run():
    schedule = {"type": "cubic", "init_sparsity": 0.3, "end_sparsity": 0.8,
                "sparsity_start_step": 1, "sparsity_end_step": 6}  # fmt: skip
    for config in (
        {"algorithm": "set", "schedule": schedule, "update": {"freq": 2, "start": 1}},
        {"algorithm": "rigl", "schedule": [0.3, 0.4, 0.5, 0.6], "update": {"steps": [2, 5]}},
        {"algorithm": "gmp", "schedule": [0.3, 0.4, 0.5, 0.6], "update": {"freq": 3}},
        {"algorithm": "static", "sparsity": 0.7},
        {"algorithm": "acdc", "sparsity": 0.9, "update": {"freq": 2, "start": 2}},
        {"algorithm": "acdc", "sparsity": 0.9, "update": {"freq": 3, "start": 3}},
    ):
        model = Tiny()
        expected = rows(sl.plan(model, config, num_steps=7))["up.weight"]["final_sparsity"]
        group = sl.configure(config)
        optimizer = driven(group, model, lr=0.01)
        for _ in range(7):
            descend(optimizer, model(torch.arange(11).view(1, 11)).sum())
        assert group.sparse_params["up.weight"].sparsity == pytest.approx(expected, abs=5e-4)


def test_gpt2_and_the_memory_of_masks_by_hand():
    result = sl.plan(tiny_models.gpt2(), 0.75, sequence_length=4)
    block = "transformer.h.0."
    sparse = {name: row["num_nonzero"] for name, row in rows(result).items() if row["algorithm"]}
    counts = {"attn.c_attn": 48, "attn.c_proj": 16, "mlp.c_fc": 64, "mlp.c_proj": 64}
    assert sparse == {f"{block}{name}.weight": count for name, count in counts.items()}
    assert rows(result)["transformer.wte.weight"]["reason"] == "embedding (also lm_head.weight)"
    assert result.num_parameters == 1104 and result.num_nonzero == 1104 - 576
    dense, start, _ = result.flops_records()
    # 2 FLOPs per multiply-add, 4 tokens, 576 of 768 weights gone
    assert dense["inference_flops"] - start["inference_flops"] == 2 * 4 * 576
    model = torch.nn.Sequential(torch.nn.Linear(1025, 1024, bias=False), torch.nn.Linear(1024, 8))
    planned = sl.plan(model, {"algorithm": "rigl", "sparsity": 0.9})
    large, small = 1025 * 1024, 1024 * 8  # the small one's mask is kept in words of 4 bytes too
    assert planned.mask_bytes == 2 * large + (2 + 4) * small
    assert f"masks take {planned.mask_bytes:,} bytes" in str(planned)
    assert sl.plan(model, 0.9).mask_bytes == large + 5 * small


@pytest.mark.parametrize(
    "config",
    [
        0.9,
        {"algorithm": "rigl", "sparsity": 0.9, "balance_out_groups": 4, "update": 10},
        {"algorithm": "topk", "sparsity": 0.97, "min_per_output": 1},
        {"algorithm": "gmp", "sparsity": 0.3, "distribution": "erk", "init_method": "topk"},
        {"algorithm": "static", "sparsity": 0.5, "score_shaper": "2:4"},
        {"algorithm": "acdc", "sparsity": 0.9, "update": 5},
        [{"param_filter": "0.*", "sparsity": 0.5}, {"algorithm": "set", "sparsity": 0.8}],
        {"algorithm": "set", "sparsity": 0.8, "distribution": {"2.*": 0.1}},
    ],
)
def test_a_plan_by_shape_is_what_apply_does(config):
    def build():
        return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.Linear(8, 4))

    with torch.device("meta"):
        hollow = build()
    model = build()
    made = sl.configure(config)
    planned = sl.plan(hollow, config).records()
    made.apply(model)
    counts = {name: int(sparse.mask.sum()) for name, sparse in made.sparse_params.items()}
    assert {row["name"]: row["num_nonzero"] for row in planned if row["algorithm"]} == counts
    assert all(p.device.type == "meta" for p in hollow.parameters()) and not sl.is_sparse(hollow)
    assert planned == sl.plan(build(), config).records()


def test_a_gradual_schedule_ends_at_its_last_update_and_is_unknown_without_a_length():
    schedule = {"type": "linear", "init": 0.0, "slope": 0.01}
    config = {"algorithm": "gmp", "schedule": schedule, "update": {"freq": 20, "stop": 99}}
    for num_steps, final in ((10, 0.0), (20, 0.2), (39, 0.2), (70, 0.6), (1000, 0.8)):
        row = rows(sl.plan(Tiny(), config, num_steps=num_steps))["up.weight"]
        assert row["sparsity"] == 0.0 and row["num_nonzero"] == 1000
        assert row["final_sparsity"] == pytest.approx(final)
    result = sl.plan(Tiny(), config, sequence_length=4)
    assert rows(result)["up.weight"]["final_sparsity"] is None
    assert [record["when"] for record in result.flops_records()] == ["dense", "start"]


CUBIC = {"type": "cubic", "init_sparsity": 0, "end_sparsity": 0.8}
CUBIC |= {"sparsity_start_step": 0, "sparsity_end_step": 500}


@pytest.mark.parametrize(
    ("update", "last"),
    [
        ({"freq": 7}, 994),
        ({"freq": 7, "start": 3}, 997),
        ({"freq": 7, "start": 3, "stop": 10}, 3),
        ({"freq": 7, "stop": 700}, 693),
        (1, 1000),
        (lambda step: step % 400 == 0, 800),
    ],
)
def test_the_last_update_is_found_without_a_look_at_each_step(update, last):
    algorithm = sl.GMP({**CUBIC, "sparsity_end_step": 10**6}, update)
    (note,) = unreached(algorithm, 1000)
    assert f"at step {last} of 1000" in note
    if not callable(update):
        assert len(unreached(algorithm, 10**15)) == ("stop" in str(update))


def test_ends_of_phases_and_of_cosines_that_a_run_does_not_reach_are_told():
    cosine = {"type": "cosine", "init": 0.0, "half_period": 100, "minimum": 0.8}
    (note,) = unreached(sl.GMP(cosine, 10), 55)
    assert "0.40 after its last mask update, at step 50 of 55" in note and "to 0.80" in note
    phases = sl.ACDC(0.9, update=10)
    assert unreached(phases, 35) == []
    assert unreached(phases, 45) == ["ACDC ends dense, since 4 mask updates are due in 45 steps"]
    (note,) = unreached(sl.Static(cosine), 100)
    assert "Static is at a sparsity of 0.00 and never changes masks, and its schedule" in note


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"sparsity": 0.5, "param_filter": "embed_tokens*"}, ["embed_tokens.weight", "embedding"]),
        ({"sparsity": 0.99, "param_filter": "up.weight"}, ["up.weight keeps 10 weights"]),
        ({"algorithm": "set", "sparsity": 0.5, "update": 1001}, ["SET changes no mask in 1000"]),
        (
            {"algorithm": "gmp", "sparsity": [0.2, 0.5, 0.6, 0.9], "update": 400},
            ["0.60 after", "step 800 of 1000", "0.90"],
        ),
        ({"algorithm": "set", "sparsity": 0.5, "update": 1000}, []),
        ({"algorithm": "static", "sparsity": {"up.weigth": 0.9, "*": 0.5}}, ["'up.weigth'"]),
        *[
            (
                {"algorithm": "gmp", "sparsity": level, "update": {"freq": 10, "stop": stop}},
                ["GMP", "0.36", "step 90 of 1000", "0.80"] if stop == 100 else [],
            )
            for level in (CUBIC, {"up.*": 0.9, "*": CUBIC})
            for stop in (100, 501)
        ],
    ],
)
def test_what_a_run_may_not_mean_is_warned_of(config, words):
    notes = sl.plan(Tiny(), config, num_steps=1000).warnings
    assert all(any(word in note for note in notes) for word in words)
    assert bool(words) or not notes


GLOBAL = {"sparsity": 0.5, "distribution": "global"}


@pytest.mark.parametrize(
    ("make", "config", "options", "error", "message"),
    [
        (lambda: 3, 0.5, {}, TypeError, "torch module, not 3"),
        (Tiny, 0.5, {"num_steps": 0}, ValueError, "num_steps"),
        (Tiny, {"algorithm": "static", "sparsity": {"down.*": 0.9}}, {}, ValueError, "'up.weight'"),
        (Tiny, {"sparsity": 0.5, "param_filter": "head*"}, {}, ValueError, r"'head\*'"),
        (Tiny, GLOBAL | {"init_method": "snip"}, {}, ValueError, "needs gradients"),
        (lambda: nn.Linear(4, 4, device="meta"), GLOBAL, {}, ValueError, "meta device"),
    ],
)
def test_what_cannot_be_planned_is_named(make, config, options, error, message):
    with pytest.raises(error, match=message):
        sl.plan(make(), config, **options)
