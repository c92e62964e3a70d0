"""The vision task and its models: sizes, batches, schedules, export."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from experiments import data
from experiments.evaluation.vision import load_classifier
from experiments.models import _transform as transforms
from experiments.models import resnet
from experiments.specs.expand import make_spec
from experiments.specs.read import load_study
from experiments.specs.run import RunSpec
from experiments.tasks import vision
from sparse_lib import ift
from sparse_lib.flops.model import count
from tests.experiments.specs.edit import edited
from tests.experiments.training.short import with_and_without_interruptions

WIDTHS = {"basic": [64, 128, 256, 512], "bottleneck": [256, 512, 1024, 2048]}
TINY = {"depths": [1, 1], "hidden_sizes": [4, 8], "embedding_size": 4}


def names(num: int) -> list[str]:
    return [str(i) for i in range(num)]


def resnet_of(depths, kind, stem="imagenet"):
    sizes = {"depths": depths, "hidden_sizes": WIDTHS[kind], "embedding_size": 64}
    return resnet.Config(**sizes, layer_type=kind, stem=stem)


# Parameters as published with the architectures; FLOPs of convolutions and head.
@pytest.mark.parametrize(
    ("config", "size", "parameters", "flops"),
    [
        (resnet_of([2, 2, 2, 2], "basic", "cifar"), 32, 11_220_132, 1_110_937_600),
        (resnet_of([2, 2, 2, 2], "basic"), 224, 11_689_512, 3_628_146_688),
        (resnet_of([3, 4, 6, 3], "basic"), 224, 21_797_672, 7_327_522_816),
        (resnet_of([3, 4, 6, 3], "bottleneck"), 224, 25_557_032, 8_178_368_512),
    ],
)
def test_resnets_have_their_published_sizes(config, size, parameters, flops):
    classes = names(100 if size == 32 else 1000)
    with torch.device("meta"):
        model = resnet.build(config, classes=classes, num_channels=3, image_size=size)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert count(model, batch_size=1, image_size=size).forward() == flops


@pytest.mark.parametrize("family", [None, "wide", "parallel", "factorized", "doped"])
@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_residual_branches_start_at_zero(family, stem):
    config = resnet.Config(**TINY, stem=stem)
    model = resnet.build(config, classes=names(3), num_channels=1, image_size=32)
    if family is not None:
        model, _, _ = ift.transform(model, family, 0.75, image_size=32)
    block = model.resnet.encoder.stages[1].layers[0]
    x = torch.rand(2, block.shortcut.convolution.in_channels, 8, 8)
    assert torch.equal(block(x), block.activation(block.shortcut(x)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_sizes": [4]}, "hidden_sizes is .4.; it must have one width for each of the 2"),
        ({"hidden_sizes": [4, 6], "layer_type": "bottleneck"}, "hidden_sizes holds 6"),
        ({"depth": 3}, "depth"),
    ],
)
def test_wrong_sizes_are_refused(changes, words):
    with pytest.raises(ValidationError, match=words):
        resnet.Config(**TINY | changes)


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glyphs")
    data.prepare("glyphs", out=folder, num_images=94)
    return folder


def spec(seed=0, steps=24, **recipe) -> RunSpec:
    settings = {"epochs": 4, "batch_size": 16, "learning_rate": 0.1, "steps": steps, **recipe}
    return RunSpec(
        id="x", task="vision", seed=seed, recipe=settings,
        model={"name": "resnet", "label": "tiny", **TINY},
        data={"name": "glyphs", "num_images": 94},
    )  # fmt: skip


def test_batches_depend_on_seed_and_step_only(glyphs):
    task = vision.Task(spec(), glyphs)
    third = [task.batch(step) for step in range(4)][3]
    pixels, labels = vision.Task(spec(), glyphs).batch(3)
    assert torch.equal(pixels, third[0]) and torch.equal(labels, third[1])
    assert not torch.equal(pixels, vision.Task(spec(seed=1), glyphs).batch(3)[0])
    assert pixels.shape == (16, 1, 32, 32) and pixels.dtype == torch.float32
    assert pixels.stride() == (1024, 1024, 32, 1)
    assert labels.dtype == torch.int64


def test_colours_are_stored_last_and_normalised():
    pixels = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8)
    mean, std = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]
    ours = vision.normalise(pixels, {"mean": mean, "std": std})
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (mean, std))
    expected = (pixels.double() / 255 - mean) / std
    torch.testing.assert_close(ours.double(), expected, atol=1e-6, rtol=0)
    assert ours.stride() == (75, 1, 15, 3) and ours.dtype == torch.float32


def test_an_epoch_shows_every_image_once_as_it_is(glyphs):
    task = vision.Task(spec(crop_padding=0), glyphs)
    batches = [task.batch(step) for step in range(47)]  # 752 images: 8 epochs of 94
    other, _ = vision.Task(spec(seed=1, crop_padding=0), glyphs).batch(0)
    assert not torch.equal(other, batches[0][0])
    pixels = torch.cat([batch[0] for batch in batches]).reshape(8, 94, -1)
    split = task.images.split("train")
    wanted = vision.normalise(torch.from_numpy(np.array(split.pixels)), task.meta).reshape(94, -1)
    assert abs(wanted.mean()) < 1e-5 and abs(wanted.std() - 1) < 1e-3
    rows = sorted(map(tuple, wanted.tolist()))
    assert sorted(map(tuple, pixels[0].tolist())) == rows
    assert sorted(map(tuple, pixels[7].tolist())) == rows
    assert not torch.equal(pixels[0], pixels[7])


def test_augmentation_crops_and_mirrors_what_it_pads():
    images = torch.randint(1, 256, (64, 3, 5, 5), dtype=torch.uint8)
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    for flip in (False, True):
        generator = torch.Generator().manual_seed(0)
        out = vision.augment(images, generator, crop_padding=2, flip=flip)
        found = []
        for image, whole in zip(out, padded, strict=True):
            crops = [
                (i, j, mirror)
                for i in range(5)
                for j in range(5)
                for mirror in (False, True)
                if torch.equal(whole[:, i : i + 5, j : j + 5].flip(2) if mirror
                               else whole[:, i : i + 5, j : j + 5], image)
            ]  # fmt: skip
            assert len(crops) == 1
            found += crops
        assert {i for i, _, _ in found} == {j for _, j, _ in found} == set(range(5))
        mirrored = sum(mirror for _, _, mirror in found)
        assert mirrored == 0 if not flip else 16 < mirrored < 48


def test_steps_are_epochs_over_batches_and_rates_follow_both_schedules(glyphs):
    step = spec(steps=200, schedule="step", milestones=[0.3, 0.6, 0.8])
    task = vision.Task(step, glyphs)
    rates = [task.learning_rate(step) for step in (0, 59, 60, 119, 120, 159, 160, 199)]
    assert rates == pytest.approx([0.1, 0.1, 0.02, 0.02, 4e-3, 4e-3, 8e-4, 8e-4])
    cosine = vision.Task(spec(steps=200), glyphs)
    rates = [cosine.learning_rate(step) for step in (0, 100, 200)]
    assert rates == pytest.approx([0.1, 0.05, 0.0])
    with pytest.raises(ValueError, match="schedule is 'step', but a recipe with stable has no"):
        spec(stable={"warmup_steps": 4, "decay": 0.25}, schedule="step")

    def steps(epochs, batch_size, num_images):
        recipe = vision.Recipe(epochs=epochs, batch_size=batch_size, learning_rate=0.1)
        return recipe.num_steps(vision.Data(name="glyphs", num_images=num_images), batch_size)

    assert steps(200, 128, 50_000) == 78_125
    with pytest.raises(ValueError, match="batch_size is 1000, but 2 epochs have only 600 images"):
        steps(2, 1000, 300)


def test_label_smoothing_is_torchs_and_validation_has_none(glyphs):
    task = vision.Task(spec(label_smoothing=0.1), glyphs)
    model = task.build_model().eval()
    pixels, labels = task.batch(0)
    logits = model(pixel_values=pixels).logits
    log_p = logits.log_softmax(1)
    own = log_p.gather(1, labels[:, None]).squeeze(1)
    expected = -(0.9 * own + 0.1 * log_p.mean(1)).mean()
    assert task.loss(model, (pixels, labels)).item() == pytest.approx(expected.item(), rel=1e-5)
    split = task.images.split("validation")
    with torch.no_grad():
        inputs = vision.normalise(torch.from_numpy(np.array(split.pixels)), task.meta)
        logits = model(pixel_values=inputs).logits
        scores = task.validate(model, full=True)
    plain = torch.nn.functional.cross_entropy(logits, torch.from_numpy(split.labels))
    assert scores["loss"] == pytest.approx(plain.item(), rel=1e-5)
    assert scores["accuracy"] == pytest.approx((logits.argmax(1).numpy() == split.labels).mean())


@pytest.mark.parametrize("family", [None, "wide", "parallel", "factorized", "doped"])
def test_exported_models_give_the_same_logits(family, glyphs, tmp_path):
    transform = {"family": family, "sparsity": 0.75}
    task = vision.Task(spec(), glyphs)
    model = task.build_model()
    if family is not None:
        dense = model
        model, _, _ = ift.transform(dense, **transform)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.uniform_(0.5, 1.5)
    model.register_buffer("some_mask", torch.ones(3, dtype=torch.bool))
    task.export(model, tmp_path / "model")
    if family is not None:
        transforms.write(tmp_path / "model", dense.config.to_dict(), transform)
    loaded = load_classifier(tmp_path / "model")
    pixels, _ = task.batch(0)
    with torch.no_grad():
        assert torch.equal(loaded(pixels).logits, model.eval()(pixels).logits)
    labels = json.loads((tmp_path / "model" / "config.json").read_text())["id2label"]
    assert labels["10"] == "A"


@pytest.mark.parametrize("method", ["wide75-rigl", "gmp80"])
def test_an_interrupted_run_ends_with_the_same_bits(method, glyphs, tmp_path, monkeypatch):
    study = load_study("sparse_ift_vision")
    grid = study.scales["smoke"][0].model_copy(deep=True)
    grid.data["num_images"], grid.recipe["batch_size"] = 94, 8
    chosen = edited(
        make_spec(study, "smoke", grid, method, 0),
        lambda spec: spec["sparsity"].update(update={"freq": 2, "stop": 9}),
    )

    record, _ = with_and_without_interruptions(chosen, glyphs, tmp_path, monkeypatch, steps=(3, 7))
    assert 0 <= record["final"]["validation_accuracy"] < 1 and record["final"]["images"] == 88
    assert record["flops"]["executed"] < record["flops"]["dense_equivalent"]


@pytest.mark.slow
def test_transformers_alone_loads_an_export(glyphs, tmp_path):
    task = vision.Task(spec(), glyphs)
    model = task.build_model().eval()
    task.export(model, tmp_path / "model")
    pixels = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(pixels).logits[0, :3].tolist()
    code = f"""
import sys, torch
from transformers import AutoModelForImageClassification
model = AutoModelForImageClassification.from_pretrained({str(tmp_path / "model")!r},
                                                        trust_remote_code=True)
assert "experiments" not in sys.modules and "sparse_lib" not in sys.modules
pixels = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
print(*model.eval()(pixels).logits[0, :3].tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True,
        env={"PATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"),
             "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert [float(x) for x in done.stdout.split()] == pytest.approx(expected, rel=1e-4)
