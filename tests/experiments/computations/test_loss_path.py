"""The line between two solutions against losses computed by hand."""

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers.modeling_outputs import ImageClassifierOutput

from experiments.computations import loss_path
from experiments.store import paths


class Classifier(nn.Module):
    """A linear classifier, with or without a norm before it."""

    def __init__(self, seed: int, norm: bool) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()
        self.linear = nn.Linear(4, 3)

    def forward(self, pixel_values):
        return ImageClassifierOutput(logits=self.linear(self.norm(pixel_values.flatten(1))))


def batches(seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(40, 1, 2, 2, generator=generator) + 1.0
    labels = torch.randint(3, (40,), generator=generator)
    return list(zip(images.split(20), labels.split(20), strict=True))


def test_ends_are_the_models_and_the_middle_is_their_mean():
    first, last = (Classifier(seed, norm=False) for seed in (1, 2))
    parts = {"train": batches(0), "validation": batches(1)}
    before = [end.linear.weight.clone() for end in (first, last)]
    rows = loss_path.along(first, last, parts)
    assert [row["share"] for row in rows] == pytest.approx([i / 20 for i in range(21)])
    for place, share in ((0, 0.0), (10, 0.5), (20, 1.0)):
        mixed = [
            (1 - share) * a + share * b
            for a, b in zip(first.parameters(), last.parameters(), strict=True)
        ]
        for name, own in parts.items():
            images, labels = (torch.cat(part) for part in zip(*own, strict=True))
            expected = cross_entropy(images.flatten(1) @ mixed[0].T + mixed[1], labels)
            assert rows[place][name] == pytest.approx(expected.item(), rel=1e-5)
    assert all(
        torch.equal(end.linear.weight, was) for end, was in zip((first, last), before, strict=True)
    )


def test_statistics_of_norms_are_those_of_the_training_images():
    first, parts = Classifier(1, norm=True), {"train": batches(0)}
    first.norm.running_mean.fill_(50.0)
    images, labels = (torch.cat(part) for part in zip(*parts["train"], strict=True))
    halves = images.flatten(1).split(20)
    mean = torch.stack([half.mean(0) for half in halves]).mean(0)
    var = torch.stack([half.var(0) for half in halves]).mean(0)
    expected = cross_entropy(first.linear((images.flatten(1) - mean) / (var + 1e-5).sqrt()), labels)
    for row in loss_path.along(first, first, parts):
        assert row["train"] == pytest.approx(expected.item(), rel=1e-5)
    assert first.norm.running_mean.eq(50.0).all()


def test_without_models_the_committed_points_stand(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(paths, "REFERENCE", tmp_path / "reference")
    assert loss_path.compute("small")["path"].columns.tolist() == loss_path.COLUMNS
    assert loss_path.compute("small")["path"].empty
    static, pruned = next(loss_path._pairs("small"))
    row = {
        "static": static.id,
        "pruned": pruned.id,
        "seed": 0,
        "share": 0.5,
        "train": 2.0,
        "validation": 3.0,
    }
    kept = pd.DataFrame([row, row | {"static": "another"}])
    (tmp_path / "reference" / "loss_path").mkdir(parents=True)
    kept.to_csv(tmp_path / "reference" / "loss_path" / "path.csv", index=False)
    found = loss_path.compute("small")["path"]
    assert found.to_dict("records") == [row]
    assert len(list(loss_path._pairs("small"))) == 5 and not list(loss_path._pairs("quick"))
