"""What the language model of the last tokens sees, and that it is read back."""

import pytest
import torch

from experiments.evaluation.exported import read_model
from experiments.models import window_mlp
from sparse_lib.flops.model import count

WINDOW, SIZE, WIDTH, VOCAB = 4, 3, 8, 11


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = window_mlp.Config(window=WINDOW, embedding_size=SIZE, hidden_size=WIDTH, num_layers=3)
    return window_mlp.build(config, vocab_size=VOCAB, context=16, eos_id=0)


def test_a_token_reaches_the_next_places_of_its_window_and_no_others(model):
    ids = torch.randint(VOCAB, (1, 12))
    changed = ids.clone()
    changed[0, 5] = (ids[0, 5] + 1) % VOCAB
    with torch.no_grad():
        moved = (model(ids).logits - model(changed).logits).abs().amax(-1)[0] > 0
    assert moved.nonzero().flatten().tolist() == [5, 6, 7, 8]


def test_the_loss_is_that_of_the_next_tokens(model):
    ids = torch.randint(VOCAB, (2, 9))
    with torch.no_grad():
        found = model(ids, labels=ids)
    scores = found.logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])
    torch.testing.assert_close(found.loss, -scores.mean())


def test_weights_and_flops_are_those_of_its_matrices(model):
    config = window_mlp.Config(window=WINDOW, embedding_size=SIZE, hidden_size=WIDTH, num_layers=3)
    weights = WINDOW * SIZE * WIDTH + 2 * WIDTH**2
    assert config.block_weights == weights
    flops = count(model, batch_size=2, sequence_length=16).training_step()
    assert flops == 3 * 2 * 2 * 16 * (weights + WIDTH * VOCAB)


def test_an_exported_model_is_read_back(model, tmp_path):
    from transformers import AutoModelForCausalLM

    model.save_pretrained(tmp_path)
    ids = torch.randint(VOCAB, (1, 7))
    with torch.no_grad():
        expected = model.eval()(ids).logits
        assert torch.equal(read_model(tmp_path, AutoModelForCausalLM)(ids).logits, expected)
