"""Sparse-IFT on the models of the paper, against the numbers that its authors print."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import sparse_lib as sl
from experiments.computations._authors_flops import authors_flops
from sparse_lib import ift
from tests.sparse_lib import tiny_models

RESNET18, RESNET34 = (2, 2, 2, 2), (3, 4, 6, 3)


def resnet(depths, *, cifar=False):
    """ResNet for ImageNet, or for 32 x 32 images of 100 classes, without memory."""
    sizes = {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": list(depths)}
    with torch.device("meta"):
        return tiny_models.resnet(cifar=cifar, num_labels=100 if cifar else 1000, **sizes)


@pytest.fixture(scope="module")
def gpt3_small():
    with torch.device("meta"):
        return GPT2LMHeadModel(GPT2Config())


@pytest.mark.parametrize(
    ("depths", "published"), [(RESNET18, 3_647_128_359), (RESNET34, 7_355_270_501)]
)
def test_resnets_for_imagenet_as_the_authors_count(depths, published):
    assert authors_flops(resnet(depths), image_size=224) == published


def test_what_the_authors_count_beyond_multiply_adds():
    model = resnet(RESNET18, cifar=True)
    assert authors_flops(model, image_size=32, pooling=False) == 1_115_226_800
    # The global pooling of 512 channels of 4 x 4 is a module here and a function there.
    assert authors_flops(model, image_size=32) == 1_115_226_800 + 512 * 4 * 4
    model = resnet(RESNET18)
    ours = sl.count_flops(model, batch_size=1, image_size=224).forward()
    # By hand: width, side of the maps and number of convolutions (each with its norm).
    convolutions = [(64, 112, 1), (64, 56, 4), (128, 28, 5), (256, 14, 5), (512, 7, 5)]
    norms = sum(n * (7 * width * side**2 - width) for width, side, n in convolutions)
    first_additions = sum(n * side**2 for _, side, n in convolutions)
    pooling = 64 * 56**2 * 8 + 512 * 7**2
    # In the head, the first addition of each output that is none and the bias cancel out.
    assert 3_647_128_359 == ours + norms - first_additions + pooling


@pytest.mark.parametrize(("sparsity", "width", "ratio"), [(0.5, 1092, 1.18), (0.75, 1536, 1.40)])
def test_gpt3_small_wide(gpt3_small, sparsity, width, ratio):
    new, _, report = ift.transform(gpt3_small, "wide", sparsity, sequence_length=1024)
    assert new.config.n_embd == width and new.config.n_head == 12
    assert new.transformer.h[0].mlp.c_fc.weight.shape == (width, 4 * width)
    assert round(report.flops_ratio, 2) == ratio
    blocks = [row.ratio for row in report.layers if row.sparsity]
    assert len(blocks) == 48 and max(blocks) == pytest.approx((width / 768) ** 2 * (1 - sparsity))


@pytest.mark.parametrize("sparsity", [0.5, 0.75])
def test_gpt3_small_at_the_dense_budget(gpt3_small, sparsity):
    _, config, report = ift.transform(gpt3_small, "wide", sparsity, budget="dense")
    assert abs(report.flops_ratio - 1) <= 1e-3
    # By hand, per token: heads and attention grow by the width, which the blocks make up for.
    width = {0.5: 1092, 0.75: 1536}[sparsity]
    blocks, rest = 2 * 12 * 12 * 768**2, (4 * 12 * 1024 + 2 * 50257) * 768
    left = blocks + rest - rest * width / 768
    assert 1 - config["sparsity"] == pytest.approx(left / (blocks * (width / 768) ** 2), rel=1e-3)


@pytest.mark.parametrize(("sparsity", "width"), [(0.5, 91), (0.75, 128), (0.9, 202)])
def test_resnet18_for_cifar_wide(sparsity, width):
    model = resnet(RESNET18, cifar=True)
    new, _, report = ift.transform(model, "wide", sparsity, image_size=32)
    stem = new.resnet.embedder.embedder.convolution
    assert stem.weight.shape == (width, 3, 3, 3)
    assert report.flops_ratio == pytest.approx(1, abs=0.01)
    # Stem and head face the images and the classes on one side only.
    stem_row, head_row = report.layers[0], report.layers[-1]
    assert stem_row.ratio == width / 64
    assert head_row.ratio == new.config.hidden_sizes[-1] / 512
    _, _, report = ift.transform(model, "wide", sparsity, budget="dense", image_size=32)
    assert abs(report.flops_ratio - 1) <= 1e-3
