"""The loop: exact resume, data order, FLOPs, records; on a corpus of random tokens."""

import json
import math
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

from experiments.specs.run import RunSpec
from experiments.store.paths import MASKS
from experiments.tasks import lm, warmup_cosine
from experiments.training import loop as training
from experiments.training.state import Saved
from sparse_lib.execution import kernels
from tests.experiments.specs.edit import edited
from tests.experiments.training.short import (
    RUNS,
    dying,
    run_training,
    short_spec,
    weights,
    with_and_without_interruptions,
)


@pytest.mark.parametrize(
    ("method", "execution"), [*((method, "dense") for method in sorted(RUNS)), ("rigl", "skip")]
)
def test_an_interrupted_run_ends_with_the_same_bits(
    method, execution, corpus, tmp_path, monkeypatch
):
    options = {"steps": (7, 16), "execution": execution}
    result, expected = with_and_without_interruptions(
        short_spec(method), corpus, tmp_path, monkeypatch, **options
    )
    for key in ("layers", "num_nonzero", "flops", "execution"):
        assert result[key] == expected[key]


def rows_of(folder: Path) -> list[dict]:
    return [json.loads(row) for row in (folder / "out/metrics.jsonl").read_text().splitlines()]


def interrupted(spec, corpus, folder, computing="fp32 False") -> Saved:
    """The states of a training that a signal of the system has ended."""
    trainer = training.Trainer(spec, data_dir=corpus)
    origin = {"code": "1" * 64, "data": trainer.task.data["hash"], "first_weights": None}
    origin["computing"] = computing
    saved = Saved(folder / "state" / "run", origin, trainer.say)
    with pytest.raises(training.Interrupted) as caught:
        training.run(trainer, saved, [15])
    assert caught.value.code == 143
    return saved


def test_a_run_goes_on_with_the_choice_of_the_machine_that_began_it(
    corpus, tmp_path, monkeypatch, capsys
):
    spec = short_spec("rigl")
    monkeypatch.setenv("SPARSE_LIB_SKIP_COSTS", "0.01,0.01,1")
    expected = run_training(spec, corpus, tmp_path / "whole")
    assert expected["execution"] == "auto"
    saved = interrupted(spec, corpus, tmp_path)
    assert len(saved.files()) == 1 and "state saved" in capsys.readouterr().out
    monkeypatch.setenv("SPARSE_LIB_SKIP_COSTS", "100,100,100")
    result = run_training(spec, corpus, tmp_path)
    assert result["skip_costs"] == expected["skip_costs"] == [0.01, 0.01, 1, 1, 1, 1]
    assert weights(tmp_path) == weights(tmp_path / "whole")


def test_a_state_of_another_precision_is_not_resumed(corpus, tmp_path, capsys):
    interrupted(short_spec("dense"), corpus, tmp_path, "bf16 False")
    run_training(short_spec("dense"), corpus, tmp_path)
    assert "precision or compilation has changed since step" in capsys.readouterr().out


def test_a_run_that_moves_to_another_machine_says_so(corpus, tmp_path, monkeypatch):
    spec = short_spec("rigl")
    interrupted(spec, corpus, tmp_path)
    facts = {**training.machine.facts(1), "processor": "another"}
    monkeypatch.setattr(training.machine, "facts", lambda *_, **__: facts)
    result = run_training(spec, corpus, tmp_path)
    assert len(result["machine"]["earlier"]) == 1
    assert training.machine.key(result["machine"]) == "several machines"


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """A folder and the summaries of three runs in it."""
    folder = tmp_path_factory.mktemp("trained")
    methods = ("dense", "static", "rigl")
    return folder, {m: run_training(short_spec(m), corpus, folder / m) for m in methods}


def test_records_hold_what_the_report_needs(trained):
    folder, result = trained[0] / "rigl", trained[1]["rigl"]
    assert result["data"] == {"name": "wikipedia-start", "hash": "random"}
    assert result["final"]["steps"] == 24
    assert result["final"]["validation_perplexity"] == pytest.approx(
        math.exp(result["final"]["validation_loss"])
    )
    assert result["layers"]
    machine = result["machine"]
    assert machine["num_threads"] == 1 and machine["versions"]["sparse_lib"]
    for layer in result["layers"]:
        assert layer["sparsity"] == pytest.approx(0.8, abs=1e-3)
    text = json.dumps(result)
    assert str(folder) not in text and str(Path.home()) not in text
    rows = rows_of(folder)
    assert [row["kind"] for row in rows].count("validation") == 2
    assert rows[-1]["kind"] == "validation" and rows[-1]["step"] == 24
    dense, static, rigl = (result["flops"] for result in trained[1].values())
    assert dense["executed"] == dense["dense_equivalent"] == static["dense_equivalent"]
    assert static["executed"] < rigl["executed"] < dense["executed"]


def test_a_second_trainer_waits_and_finds_the_result(corpus, tmp_path):
    spec = short_spec("dense", steps=2)
    run_training(spec, corpus, tmp_path)
    before = (tmp_path / "out" / "train.json").stat().st_mtime_ns
    path = tmp_path / "state" / "run.lock"
    lock = FileLock(path, thread_local=False)
    lock.acquire()
    timer = threading.Timer(0.8, lock.release)
    timer.start()
    run_training(spec, corpus, tmp_path)
    timer.join()
    assert (tmp_path / "out" / "train.json").stat().st_mtime_ns == before


def test_a_diverging_run_is_one_sentence(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(training.Trainer, "step", lambda self: float("nan"))
    with pytest.raises(FloatingPointError, match="lower recipe.learning_rate"):
        run_training(short_spec("dense"), corpus, tmp_path)


def test_methods_see_the_same_tokens_in_the_same_order(corpus, tmp_path):
    """Half the batch and twice the steps read the stream that the full batch reads."""
    full = edited(short_spec("dense"), lambda spec: spec["recipe"].update(batch_size=8))
    a, b = (training.Trainer(spec, data_dir=corpus).task for spec in (full, short_spec("static")))
    for step in range(30):
        assert torch.equal(a.batch(step), torch.cat([b.batch(2 * step), b.batch(2 * step + 1)]))


def test_learning_rate_at_its_edges():
    rates = {"warmup": 0.1, "learning_rate": 1.0, "min_learning_rate": 0.2}
    recipe = lm.Recipe(tokens=1, batch_size=1, steps=100, **rates)
    found = [warmup_cosine(step, recipe) for step in (0, 9, 10, 55, 100)]
    assert found == pytest.approx([0.1, 1.0, 1.0, 0.6, 0.2])


@pytest.mark.parametrize("family", ["wide", "doped"])
def test_a_transformed_run_trains_at_the_cost_of_the_dense_one(family, corpus, tmp_path):
    transform = {"family": family, "sparsity": 0.75}
    spec = short_spec("set", steps=4, final_sparsity=0.75, transform=transform)
    spec = edited(spec, lambda spec: spec["sparsity"].pop("sparsity"))
    result = run_training(spec, corpus, tmp_path)
    assert result["transform"]["parameters_before"] < result["num_parameters"]
    for layer in result["layers"]:
        assert layer["sparsity"] == pytest.approx(0.75, abs=0.01)
    # The block's layers cost what they did; norms and a wider rest are not part of the identity.
    assert result["flops"]["executed"] < result["flops"]["dense_equivalent"]


def test_a_validation_holds_a_bounded_number_of_logits(corpus, tmp_path, monkeypatch):
    trainer = training.Trainer(short_spec("dense"), data_dir=corpus)
    window = trainer.task.context * trainer.task.corpus.meta["vocab_size"]
    sizes = []
    trainer.model.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    losses = []
    for most in (lm.MOST_LOGITS, 3 * window, window - 1):
        monkeypatch.setattr(lm, "MOST_LOGITS", most)
        with torch.no_grad():
            losses.append(trainer.task.validate(trainer.model.eval(), full=True)["loss"])
        assert max(sizes) == {3 * window: 3, window - 1: 1}.get(most, lm.MOST_WINDOWS)
        sizes.clear()
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


def second_phase(densify: bool, method: str = "dense") -> RunSpec:
    start = {"run": "smoke__first", "spec_hash": "0" * 64, "densify": densify}
    return short_spec(method, starts_from=start)


@pytest.fixture(scope="module")
def first(corpus, tmp_path_factory) -> Path:
    """The model folder of a finished SET run at 80%."""
    folder = tmp_path_factory.mktemp("first")
    run_training(short_spec("set"), corpus, folder)
    return folder / "out" / "model"


def start(spec: RunSpec, corpus: Path, first: Path) -> training.Trainer:
    return training.Trainer(spec, data_dir=corpus, first=first)


def test_a_second_phase_starts_from_the_first_ones_end(first, corpus, tmp_path):
    weights, masks = load_file(first / "model.safetensors"), load_file(first / MASKS)
    trainer = start(second_phase(densify=True), corpus, first)
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, weights[name])
    assert set(trainer.model.state_dict()) == set(weights)  # no masks are left
    name = next(iter(masks))
    for _ in range(3):
        trainer.step()
    revived = trainer.model.state_dict()[name][~masks[name]]
    assert (revived != 0).float().mean() > 0.5

    kept = start(second_phase(densify=False, method="static"), corpus, first)
    for _ in range(3):
        kept.step()
    state = kept.model.state_dict()
    assert masks
    for name, mask in masks.items():
        assert torch.equal(state[f"{name}_mask"], mask)
        assert not state[name][~mask].any()


def test_a_second_phase_resumes_only_over_the_same_first_phase(
    first, corpus, tmp_path, monkeypatch, capsys
):
    spec = second_phase(densify=True)
    with dying(monkeypatch, 1), pytest.raises(KeyboardInterrupt):
        run_training(spec, corpus, tmp_path, first=first)
    shutil.copytree(tmp_path / "state", tmp_path / "again" / "state")
    run_training(spec, corpus, tmp_path, first=first)
    assert "resumes at step 1" in capsys.readouterr().out

    run_training(short_spec("set", steps=12), corpus, tmp_path / "other")
    run_training(spec, corpus, tmp_path / "again", first=tmp_path / "other" / "out" / "model")
    assert "first phase was trained again since step 1" in capsys.readouterr().out


def test_weights_of_another_model_or_vocabulary_are_refused(first, corpus, tmp_path):
    spec = edited(second_phase(densify=True), lambda spec: spec["model"].update(hidden_size=64))
    with pytest.raises(ValueError, match="weights of smoke__first do not fit") as caught:
        start(spec, corpus, first)
    assert "\n" not in str(caught.value)
    data = shutil.copytree(corpus, tmp_path / "data")
    first = shutil.copytree(first, tmp_path / "first")
    for folder, text in ((first, "{}"), (data / "tokenizer", "[]")):
        (folder / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match="tokenizer differs from that of the run smoke__first"):
        start(second_phase(densify=True), data, first)


def test_auto_skips_only_in_runs_with_a_layer_that_gains(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSE_LIB_SKIP_COSTS", "1.4,12,1000,8")  # bfloat16 is 8 times as fast

    def execution(spec: RunSpec, precision: str = "fp32") -> str:
        return training.Trainer(spec, data_dir=corpus, precision=precision).execution

    small, dense = short_spec("static"), short_spec("dense")
    sizes = {"hidden_size": 256, "intermediate_size": 688}
    large = edited(small, lambda spec: spec["model"].update(sizes))
    assert execution(small) == execution(dense) == "dense"
    assert execution(large) == ("dense" if kernels.unavailable() else "auto")
    assert execution(large, precision="bf16") == "dense"


def test_the_clock_of_the_steps_stands_still_during_validations(corpus, tmp_path, monkeypatch):
    """Each of four validations takes 0.2 s, and a step much less."""
    validate = training.Trainer.validate

    def slowly(trainer, *, full):
        time.sleep(0.2)
        return validate(trainer, full=full)

    monkeypatch.setattr(training.Trainer, "validate", slowly)
    spec = edited(short_spec("dense"), lambda value: value["recipe"].update(validations=4))
    run_training(spec, corpus, tmp_path)
    rows = rows_of(tmp_path)
    clock = [row["trained_s"] for row in rows if row["kind"] == "validation"]
    elapsed = [row["elapsed_s"] for row in rows if row["kind"] == "train"][-1]
    assert len(clock) == 4 and clock == sorted(clock)
    assert 0.6 <= elapsed - clock[-1] < 0.6 + elapsed / 2
