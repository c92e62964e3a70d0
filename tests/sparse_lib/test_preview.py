"""plan: exact counts, reasons, FLOPs and warnings, and a model left alone."""

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import sparse_lib as sl
from sparse_lib.algorithms.rigl import RigL
from sparse_lib.algorithms.static import Static
from sparse_lib.configure import configure
from sparse_lib.core.group import Group
from sparse_lib.flops.model import count
from sparse_lib.preview import plan


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


@pytest.mark.parametrize("sparsity", ["cubic", "by name"])
def test_a_schedule_that_the_mask_updates_do_not_reach_the_end_of_is_told(sparsity):
    cubic = {"type": "cubic", "init_sparsity": 0, "end_sparsity": 0.8}
    cubic |= {"sparsity_start_step": 0, "sparsity_end_step": 500}
    level = cubic if sparsity == "cubic" else {"up.*": 0.9, "*": cubic}
    config = {"algorithm": "gmp", "sparsity": level, "update": {"freq": 10, "stop": 100}}
    result = plan(Tiny(), config, num_steps=1000)
    assert rows(result)["down.weight"]["final_sparsity"] == pytest.approx(0.8 * (1 - 0.82**3))
    (note,) = result.warnings
    assert note.startswith(
        "GMP is at a sparsity of 0.36 after its last mask update, at step 90 of 1000, and its "
        "schedule goes on to 0.80: Cubic("
    )
    config["update"]["stop"] = 501
    assert not plan(Tiny(), config, num_steps=1000).warnings


def test_flops_are_those_of_the_closed_form():
    model = Tiny()
    result = plan(model, 0.9, batch_size=2, sequence_length=5)
    flops = count(model, batch_size=2, sequence_length=5)
    levels = {"up.weight": 0.9, "down.weight": 0.9}
    dense, start, end = result.flops_records()
    assert dense["inference_flops"] == flops.forward()
    assert start["training_flops"] == flops.training_step(levels)
    assert start == {**end, "when": "start"}


def test_flops_of_a_model_of_features_need_a_batch_size_only():
    model = nn.Sequential(nn.Linear(10, 20, bias=False), nn.ReLU(), nn.Linear(20, 5, bias=False))
    dense, start, _ = plan(model, 0.5, batch_size=3).flops_records()
    assert dense["inference_flops"] == 2 * 3 * (200 + 100)
    assert start["inference_flops"] == 2 * 3 * (100 + 50)
    assert start["training_flops_dense_weight_grad"] == 2 * 3 * (2 * 150 + 300)
    assert plan(model, 0.5).flops_records() == []


def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match="plan takes a torch module, not 3"):
        plan(3, 0.5)


def test_gradual_schedules_end_elsewhere():
    schedule = {"type": "linear", "init": 0.0, "slope": 0.01}
    config = {"algorithm": "gmp", "schedule": schedule, "update": {"freq": 20, "stop": 99}}
    for num_steps, final in ((10, 0.0), (20, 0.2), (39, 0.2), (70, 0.6), (1000, 0.8)):
        row = rows(plan(Tiny(), config, num_steps=num_steps))["up.weight"]
        assert row["sparsity"] == 0.0 and row["num_nonzero"] == 1000
        assert row["final_sparsity"] == pytest.approx(final)
    result = plan(Tiny(), config, sequence_length=4)
    assert rows(result)["up.weight"]["final_sparsity"] is None
    assert [record["when"] for record in result.flops_records()] == ["dense", "start"]
    assert "| 0 | ? |" in str(result)
    listed = {"algorithm": "gmp", "schedule": [0.1, 0.2, 0.999], "update": {"freq": 5}}
    result = plan(Tiny(), listed, num_steps=12, sequence_length=4)
    assert rows(result)["up.weight"]["final_sparsity"] == 0.999
    assert any("up.weight keeps 1 weights" in note for note in result.warnings)
    assert rows(plan(Tiny(), listed, num_steps=9))["up.weight"]["final_sparsity"] == 0.2
    with pytest.raises(ValueError, match="num_steps"):
        plan(Tiny(), listed, num_steps=0)


def test_the_final_sparsity_is_that_of_a_run():
    schedule = {"type": "cubic", "init_sparsity": 0.3, "end_sparsity": 0.8,
                "sparsity_start_step": 1, "sparsity_end_step": 6}  # fmt: skip
    for config in (
        {"algorithm": "set", "schedule": schedule, "update": {"freq": 2, "start": 1}},
        {"algorithm": "rigl", "schedule": [0.3, 0.4, 0.5, 0.6], "update": {"steps": [2, 5]}},
        {"algorithm": "gmp", "schedule": [0.3, 0.4, 0.5, 0.6], "update": {"freq": 3}},
        {"algorithm": "static", "sparsity": 0.7},
    ):
        model = Tiny()
        expected = rows(plan(model, config, num_steps=7))["up.weight"]["final_sparsity"]
        group = configure(config)
        group.apply(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        group.apply(optimizer)
        for _ in range(7):
            model(torch.arange(11).view(1, 11)).sum().backward()
            optimizer.step()
        assert group.sparse_params["up.weight"].sparsity == pytest.approx(expected, abs=5e-4)


def test_warnings_name_collapse_and_embedding():
    config = [
        {"sparsity": 0.5, "param_filter": "embed_tokens*"},
        {"sparsity": 0.99, "param_filter": "up.weight"},
    ]
    text = " ".join(plan(Tiny(), config).warnings)
    assert "embed_tokens.weight has the role 'embedding'" in text
    assert "up.weight keeps 10 weights" in text


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


def gpt2():
    return GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11, n_positions=16))


def llama(tied=False):
    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=1,
            hidden_size=8,
            intermediate_size=12,
            num_attention_heads=2,
            vocab_size=11,
            tie_word_embeddings=tied,
        )
    )


def test_gpt2_by_hand():
    result = plan(gpt2(), 0.75, sequence_length=4)
    block = "transformer.h.0."
    sparse = {name: row["num_nonzero"] for name, row in rows(result).items() if row["algorithm"]}
    assert sparse == {
        block + "attn.c_attn.weight": 48,
        block + "attn.c_proj.weight": 16,
        block + "mlp.c_fc.weight": 64,
        block + "mlp.c_proj.weight": 64,
    }
    assert rows(result)["transformer.wte.weight"]["reason"] == "embedding (also lm_head.weight)"
    assert result.num_parameters == 1104 and result.num_nonzero == 1104 - 576
    dense, start, _ = result.flops_records()
    # 2 FLOPs per multiply-add, 4 tokens, 576 of 768 weights gone
    assert dense["inference_flops"] - start["inference_flops"] == 2 * 4 * 576


@pytest.mark.parametrize("tied", [False, True])
def test_llama_with_and_without_a_tied_head(tied):
    result = plan(llama(tied), {"algorithm": "rigl", "sparsity": 0.8, "distribution": "erk"})
    table = rows(result)
    assert table["model.embed_tokens.weight"]["algorithm"] is None
    assert table["model.norm.weight"]["reason"] == "one dimension"
    assert ("lm_head.weight" in table) == (not tied)
    assert "lm_head" in table["model.embed_tokens.weight"]["reason"] or not tied
    sizes = [row["num_weights"] for row in table.values() if row["algorithm"]]
    counts = [row["num_nonzero"] for row in table.values() if row["algorithm"]]
    assert len(sizes) == 7 and sum(counts) == round(0.2 * sum(sizes))


def test_warnings_about_tied_weights_and_idle_filters():
    config = [
        {"sparsity": 0.5, "param_filter": "*wte*"},
        {"sparsity": 0.5, "param_filter": "lm_head*"},
    ]
    notes = plan(gpt2(), config[:1]).warnings
    assert any("'embedding'" in note for note in notes)
    assert any("wte.weight is also lm_head.weight" in note for note in notes)
    with pytest.raises(ValueError, match=r"no parameter matches 'lm_head\*'"):
        plan(gpt2(), config)


def test_warnings_about_idle_names_of_a_map():
    config = {"algorithm": "static", "sparsity": {"up.weigth": 0.9, "*": 0.5}}
    result = plan(Tiny(), config)
    assert result.warnings == ("no parameter matches 'up.weigth', given a sparsity",)
    with pytest.raises(ValueError, match="nothing for 'up.weight'.*add '\\*'"):
        plan(Tiny(), {"algorithm": "static", "sparsity": {"down.*": 0.9}})


def test_an_algorithm_is_planned_as_it_would_be_applied_and_stays_fresh():
    model = Tiny()
    for algorithm in (Static(0.5, seed=1), Group({"up.*": RigL(0.5)})):
        result = plan(model, algorithm)
        assert not algorithm.sparse_params
        algorithm.apply(other := Tiny())
        sparse = {row["name"] for row in result.records() if row["algorithm"]}
        assert sparse == set(algorithm.sparse_params)
        counts = {n: int(s.mask.sum()) for n, s in algorithm.sparse_params.items()}
        assert counts == {name: rows(result)[name]["num_nonzero"] for name in counts}
        assert other is not model


def test_snip_is_planned_with_the_gradients_that_are_there():
    model = Tiny()
    config = {"sparsity": 0.5, "init_method": "snip", "distribution": "global"}
    with pytest.raises(ValueError, match="needs gradients"):
        plan(model, config)
    model(torch.arange(11).view(1, 11)).pow(2).sum().backward()
    result = plan(model, config)
    assert sum(r["num_nonzero"] for r in result.records() if r["algorithm"]) == 1000


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
def test_a_plan_by_shape_is_what_apply_does(config, monkeypatch):
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


def test_a_plan_that_reads_weights_needs_them():
    with torch.device("meta"):
        hollow = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="meta device"):
        sl.plan(hollow, {"sparsity": 0.5, "distribution": "global"})


def test_a_billion_weights_are_planned_without_memory():
    with torch.device("meta"):
        large = nn.Sequential(*(nn.Linear(8192, 8192, bias=False) for _ in range(16)))
    plan = sl.plan(large, {"algorithm": "rigl", "sparsity": 0.9, "update": 100})
    assert plan.num_parameters == 16 * 8192**2
    assert plan.num_nonzero == 16 * sl.masks.num_nonzero(0.9, 8192**2)


def test_memory_of_masks_is_what_the_masks_take():
    model = torch.nn.Sequential(torch.nn.Linear(1025, 1024, bias=False), torch.nn.Linear(1024, 8))
    planned = plan(model, {"algorithm": "rigl", "sparsity": 0.9})
    large, small = 1025 * 1024, 1024 * 8  # the small one's mask is kept in words of 4 bytes too
    assert planned.mask_bytes == 2 * large + (2 + 4) * small
    assert f"masks take {planned.mask_bytes:,} bytes" in str(planned)
    assert plan(model, 0.9).mask_bytes == large + 5 * small


@pytest.mark.parametrize(("num_steps", "final"), [(5, 0.0), (10, 0.9), (20, 0.0), (30, 0.9)])
def test_acdc_ends_as_its_last_phase_is(num_steps, final):
    config = {"algorithm": "acdc", "sparsity": 0.9, "update": {"freq": 10, "start": 10}}
    rows = [row for row in plan(Tiny(), config, num_steps=num_steps).parameters if row.algorithm]
    assert rows and {(row.sparsity, row.final_sparsity) for row in rows} == {(0.0, final)}


def test_masks_that_never_change_within_the_run_are_warned_of():
    config = {"algorithm": "set", "sparsity": 0.5, "update": 1000}
    notes = plan(Tiny(), config, num_steps=100).warnings
    assert any(
        "SET changes no mask in 100 steps; its update is FreqSchedule(freq=1000" in n for n in notes
    )
    assert not any("changes no mask" in n for n in plan(Tiny(), config, num_steps=1000).warnings)
