"""The recurrent language model: its cell against torch's, its work by hand, its export."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from experiments.evaluation.exported import read_model
from experiments.evaluation.lm.scoring import Scorer, Span
from experiments.models import gru
from experiments.models._recurrent import GRU
from experiments.specs.run import RunSpec
from experiments.tasks import lm
from sparse_lib.configure import configure
from sparse_lib.flops.model import count

SIZES = {"embedding_size": 6, "hidden_size": 10, "readout_sizes": [8, 4]}
VOCABULARY, CONTEXT, BATCH = 32, 5, 3


def build(**changes):
    torch.manual_seed(0)
    config = gru.Config(**(SIZES | changes))
    return gru.build(config, vocab_size=VOCABULARY, context=CONTEXT, eos_id=0)


def test_the_cell_is_torchs():
    torch.manual_seed(0)
    own, known = GRU(6, 10), nn.GRU(6, 10, batch_first=True)
    pairs = {"weight_ih_l0": own.input.weight, "weight_hh_l0": own.recurrent.weight,
             "bias_ih_l0": own.input.bias, "bias_hh_l0": own.recurrent.bias}  # fmt: skip
    known.load_state_dict({name: value.detach() for name, value in pairs.items()})
    inputs = torch.randn(2, 7, 6)
    expected, _ = known(inputs)
    found = own(inputs)
    assert torch.allclose(found, expected, atol=1e-6)
    (found**2).sum().backward()
    (expected**2).sum().backward()
    for name, value in pairs.items():
        assert torch.allclose(value.grad, getattr(known, name).grad, atol=1e-5)


def test_logits_depend_on_earlier_tokens_alone():
    model, tokens = build(), torch.randint(VOCABULARY, (BATCH, CONTEXT))
    before = model(input_ids=tokens).logits
    tokens[:, 3] = (tokens[:, 3] + 1) % VOCABULARY
    after = model(input_ids=tokens).logits
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3:], after[:, 3:])


@pytest.mark.parametrize("sparsity", [0.0, 0.75])
def test_work_is_that_of_the_unrolled_cell(sparsity):
    # Each weight works once for each token: the recurrent ones too, in the first step on zeros.
    sizes = {"gru.input": 30 * 6, "gru.recurrent": 30 * 10, "readout.0": 8 * 10, "readout.1": 4 * 8}
    assert all(size * 0.75 == int(size * 0.75) for size in sizes.values())
    head, tokens = VOCABULARY * 4, BATCH * CONTEXT
    flops = count(build(), batch_size=BATCH, sequence_length=CONTEXT)
    levels = {f"{name}.weight": sparsity for name in sizes}
    left = sum(sizes.values()) * (1 - sparsity)
    assert flops.forward(levels) == 2 * tokens * (left + head)
    assert flops.training_step(levels) == 3 * 2 * tokens * (left + head)
    dense = flops.parts(levels, dense_weight_grad=True)["weight_gradient"]
    assert dense == 2 * tokens * (sum(sizes.values()) + head)


def test_a_step_of_real_training_is_counted_the_same():
    model = build()
    flops = count(model, batch_size=BATCH, sequence_length=CONTEXT)
    algorithm = configure({"algorithm": "set", "sparsity": 0.75, "update": {"freq": 10}, "seed": 0})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    algorithm.apply(model)
    algorithm.apply(optimizer)
    model(input_ids=torch.randint(VOCABULARY, (BATCH, CONTEXT))).logits.sum().backward()
    optimizer.step()
    levels = {name: param.sparsity for name, param in algorithm.sparse_params.items()}
    assert sorted(levels) == [
        "gru.input.weight", "gru.recurrent.weight", "readout.0.weight", "readout.1.weight",
    ]  # fmt: skip
    assert algorithm.metrics(flops)["flops"]["run"] == flops.training_step(levels)
    assert not model.gru.recurrent.weight[~model.gru.recurrent.weight_mask].any()


def test_an_exported_model_scores_as_the_trained_one(corpus, tmp_path):
    recipe = {"tokens": 9600, "batch_size": 4, "learning_rate": 0.01, "steps": 100}
    spec = RunSpec(
        id="x", task="lm", seed=0, recipe=recipe,
        model={"name": "gru", "label": "gru", **SIZES},
        data={"name": "grammar", "vocab_size": 256, "context": 24},
    )  # fmt: skip
    task = lm.Task(spec, corpus)
    model = task.build_model()
    task.export(model, tmp_path)
    twin = read_model(tmp_path, AutoModelForCausalLM)
    tokens = task.batch(0)[:, :-1]
    logits = model(input_ids=tokens).logits
    assert torch.equal(logits, twin(input_ids=tokens).logits)
    scorer = Scorer(twin, SimpleNamespace(bos_token_id=0, eos_token_id=0), batch_size=4)
    assert scorer.context == 24
    spans = [Span(tuple(row), tuple(row[-3:])) for row in tokens.tolist()]
    expected = logits.log_softmax(-1)[:, -3:].gather(2, tokens[:, -3:, None]).sum((1, 2))
    scores = torch.tensor([nats for nats, _ in scorer.score(spans)])
    assert torch.allclose(scores, expected, atol=1e-4)
