"""The callback in a real ``Trainer``: train, be killed, resume, with the bits of one run."""

import json
import logging
from functools import partial

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM, Trainer, TrainerCallback

import sparse_lib as sl
from sparse_lib.integrations.transformers import SparsityCallback, from_pretrained
from tests.cases import assert_equal as assert_same
from tests.cases import descend, same, snapshot
from tests.sparse_lib import tiny_models

RIGL = {"algorithm": "rigl", "sparsity": 0.75, "update": 2, "drop_fraction": 0.5, "seed": 1}


class Killed(Exception):
    pass


class KillAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise Killed


def make_model(seed=0, kind=tiny_models.llama, intermediate_size=24):
    torch.manual_seed(seed)
    return kind(vocab_size=24, hidden_size=16, intermediate_size=intermediate_size)


make_mixtral = partial(make_model, kind=tiny_models.mixtral, intermediate_size=32)


def dataset(seed, size=48):
    tokens = torch.randint(0, 24, (size, 8), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": row} for row in tokens]


def make_trainer(folder, *callbacks, model=None, **options):
    arguments = {"per_device_train_batch_size": 4, "max_steps": 8, "save_steps": 2, "seed": 3}
    arguments |= {"logging_steps": 2, "learning_rate": 0.05}
    arguments |= {"report_to": [], "use_cpu": True, "disable_tqdm": True}
    return Trainer(
        model=make_model() if model is None else model,
        args=transformers.TrainingArguments(str(folder), **(arguments | options)),
        train_dataset=dataset(1),
        eval_dataset=dataset(2, 8),
        callbacks=list(callbacks),
    )


def state_of(trainer):
    return snapshot(trainer.model)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (make_model, {}),
        (make_model, {"gradient_accumulation_steps": 3, "bf16": True, "max_grad_norm": 0.5}),
        (make_mixtral, {}),
    ],
    ids=["plain", "accumulating-bf16", "mixture of experts"],
)
def test_a_killed_training_ends_with_the_bits_of_one(tmp_path, make, options):
    whole = SparsityCallback(RIGL)
    straight = make_trainer(tmp_path / "whole", whole, model=make(0), **options)
    straight.train()
    assert whole.algorithm.step == 8 and whole.algorithm[0].num_updates == 4

    cut = SparsityCallback(RIGL), KillAt(5)
    stopped = make_trainer(tmp_path / "cut", *cut, model=make(0), **options)
    with pytest.raises(Killed):
        stopped.train()
    resumed = SparsityCallback(RIGL)
    again = make_trainer(tmp_path / "cut", resumed, model=make(9), **options)
    again.train(resume_from_checkpoint=True)
    assert resumed.algorithm.step == 8
    assert_same(state_of(straight), state_of(again))
    assert whole.algorithm.metrics() == resumed.algorithm.metrics()
    part = "experts.down_proj" if make is make_mixtral else "up_proj.weight"
    assert f"model.layers.0.mlp.{part}_mask" in state_of(again)
    assert whole.algorithm.metrics()["sparsity"] == pytest.approx(0.75, abs=0.01)


def test_masks_exist_before_the_optimizer_and_metrics_are_logged(tmp_path):
    seen = {}

    class Watched(Trainer):
        def create_optimizer(self, model=None):
            seen["sparse"] = sl.is_sparse(self.model)
            return super().create_optimizer(model)

    class Tracker(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            seen.setdefault("logs", []).append(dict(logs))

    callback = SparsityCallback(RIGL)
    plain = make_trainer(tmp_path, max_steps=4, save_strategy="no")
    options = {"args": plain.args, "train_dataset": plain.train_dataset}
    trainer = Watched(model=plain.model, callbacks=[Tracker(), callback], **options)
    callback.first(trainer)
    trainer.train()
    assert seen["sparse"]
    assert seen["logs"][0]["sparsity/sparsity"] == pytest.approx(0.75, abs=0.01)
    assert "sparsity/churn" in trainer.state.log_history[0]


def test_the_best_model_comes_with_its_masks(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
    options |= {"metric_for_best_model": "eval_loss", "learning_rate": 0.5}
    options["greater_is_better"] = True  # the loss falls, so that an early model is the "best"
    trainer = make_trainer(tmp_path, SparsityCallback(RIGL), **options)
    trainer.train()
    best = trainer.state.best_model_checkpoint
    assert best is not None and not best.endswith("-8")
    saved = load_file(f"{best}/model.safetensors")
    last = load_file(tmp_path / "checkpoint-8" / "model.safetensors")
    state = trainer.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in saved.items())
    moved = [n for n in saved if n.endswith("_mask") and not torch.equal(saved[n], last[n])]
    assert moved
    for name in (name for name in saved if name.endswith("_mask")):
        assert not state[name.removesuffix("_mask")][~state[name]].any()


def test_model_init_is_masked_and_its_resume_refused(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=4)
    callback = SparsityCallback(RIGL)
    options = {"args": trainer.args, "train_dataset": trainer.train_dataset}
    Trainer(model_init=lambda: make_model(), callbacks=[callback], **options).train()
    assert callback.algorithm.step == 4
    late = Trainer(model_init=lambda: make_model(), callbacks=[SparsityCallback(RIGL)], **options)
    with pytest.raises(ValueError, match="before the model had masks"):
        late.train(resume_from_checkpoint=True)


def test_saved_models_load_densely_and_say_how_to_load_the_masks(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, SparsityCallback(RIGL), max_steps=2)
    trainer.train()
    trainer.model.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert "sparse_lib.integrations.transformers.from_pretrained" in config["sparse_lib"]
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert not sl.is_sparse(plain)
    reported = []
    logger = logging.getLogger("transformers.modeling_utils")
    monkeypatch.setattr(logger, "warning", lambda *words, **_: reported.append(str(words)))
    own = vars(LlamaForCausalLM).get("_keys_to_ignore_on_load_unexpected")
    LlamaForCausalLM.from_pretrained(tmp_path / "saved")
    assert "up_proj.weight_mask" in "".join(reported)
    reported.clear()
    masked = from_pretrained(tmp_path / "saved")
    assert not reported
    assert vars(LlamaForCausalLM).get("_keys_to_ignore_on_load_unexpected") == own
    assert type(masked) is LlamaForCausalLM
    assert_same(trainer.model.state_dict(), masked.state_dict())
    # The masks are enforced: training the loaded model keeps its zeros.
    optimizer = torch.optim.AdamW(masked.parameters(), 0.1)
    descend(optimizer, masked(**{k: v[None] for k, v in dataset(4, 1)[0].items()}).loss)
    masked(torch.zeros(1, 2, dtype=torch.long))
    up = masked.model.layers[0].mlp.up_proj
    assert not up.weight[~up.weight_mask].any() and up.weight[up.weight_mask].any()
    plain.save_pretrained(tmp_path / "dense")
    with pytest.raises(ValueError, match="no masks"):
        from_pretrained(tmp_path / "dense")


def in_ranks(folder, rank):
    """Ends of a whole training and of a stopped one; called on every rank."""
    options = {"max_steps": 6, "ddp_backend": "gloo", "gradient_accumulation_steps": 2}
    whole, cut = (
        make_trainer(folder / part, SparsityCallback(RIGL), model=make_model(rank), **options)
        for part in ("whole", "cut")
    )
    whole.train()
    cut.add_callback(KillAt(5))
    with pytest.raises(Killed):
        cut.train()
    callback, model = SparsityCallback(RIGL), make_model(rank + 2)
    again = make_trainer(folder / "cut", callback, model=model, **options)
    again.train(resume_from_checkpoint=True)
    return [state_of(whole), state_of(again)]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_hidden_layers": 1}, "has 7 masks, such as 'model.layers.1.mlp.down_proj.weight_mas"),
        ({"architectures": ["Mine"]}, "is of a Mine, which transformers lacks"),
        ({"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}, "trust_remote_code=True"),
    ],
)
def test_masks_of_another_model_are_refused(tmp_path, monkeypatch, change, sentence):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on the terminal"))
    model = tiny_models.llama(num_hidden_layers=2)
    sl.configure(0.5).apply(model)
    model.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    with pytest.raises(ValueError, match=sentence):
        from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_a_damaged_file_of_a_folder_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"{")
    with pytest.raises(ValueError, match=f"^{tmp_path / name} is no .*safetensors file.*$"):
        from_pretrained(tmp_path)


def test_a_training_without_the_state_or_after_another_says_where_it_goes_on(tmp_path):
    trainer = make_trainer(tmp_path, SparsityCallback(RIGL), save_only_model=True, max_steps=4)
    trainer.train()
    again = make_trainer(tmp_path, SparsityCallback(RIGL), max_steps=6)
    with pytest.warns(UserWarning, match="step 4 holds no state of the algorithm"):
        again.train(resume_from_checkpoint=True)
    with pytest.warns(UserWarning, match="begins at step 0, but .* go on from step 4 of"):
        trainer.train()


def test_targets_that_are_missed_are_told_before_training_or_after_it(tmp_path):
    def rising(final, stop):
        level = {"type": "polynomial", "init": 0.0, "final": final, "start": 0, "stop": stop}
        return SparsityCallback({"algorithm": "gmp", "sparsity": level, "update": 2})

    options = {"max_steps": 4, "gradient_accumulation_steps": 4}
    trainer = make_trainer(tmp_path, rising(0.9, 100), **options)
    with pytest.warns(UserWarning, match="at a sparsity of 0.10 .* step 4 of 4, .* to 0.90"):
        trainer.train()
    stop = transformers.EarlyStoppingCallback(1, early_stopping_threshold=1e9)
    options = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss"}
    trainer = make_trainer(tmp_path, rising(0.8, 8), stop, load_best_model_at_end=True, **options)
    # 0.8 * (1 - (1 - 4 / 8)**3), at the second evaluation
    with pytest.warns(UserWarning, match="at a sparsity of 0.70 .* step 4 of 4, .* to 0.80"):
        trainer.train()


def make_vit():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes))


@pytest.mark.parametrize("make", [make_mixtral, make_vit])
def test_masks_follow_the_renaming_of_keys(make, tmp_path):
    # Mixtral's file has a tensor per expert where the model has fused ones, ViT's has other names.
    model = make()
    sl.configure({"sparsity": 0.5, "seed": 0}).apply(model)
    model.save_pretrained(tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys() != model.state_dict().keys()
    assert same({**model.state_dict()}, {**from_pretrained(tmp_path).state_dict()})
    from_file = from_pretrained(tmp_path)
    with torch.no_grad():
        for param in from_file.parameters():
            param.zero_()
    from_file.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert same({**model.state_dict()}, {**from_file.state_dict()})
