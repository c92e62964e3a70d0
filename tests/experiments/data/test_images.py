"""Datasets of images, and layouts in which people keep local copies of hub datasets."""

import hashlib
import re

import numpy as np
import pytest

from experiments import data
from experiments.data import base, enwiki_slice, glyphs, images, rendering
from experiments.data.base import Source
from experiments.data.hub_images import hold_out
from experiments.errors import UserError
from tests.experiments.data import mirrors
from tests.experiments.data.mirrors import write_images


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glyphs")
    meta = data.prepare("glyphs", out=folder, num_images=470)
    return folder, meta


def test_glyphs_have_their_sizes_even_classes_and_fonts_of_one_split(prepared, tmp_path):
    folder, meta = prepared
    assert data.prepare("glyphs", out=tmp_path, num_images=470) == meta  # the same every time
    assert data.prepare("glyphs", out=tmp_path, num_images=471)["hash"] != meta["hash"]
    opened = data.load(folder)
    assert meta["num_images"] == {"train": 470, "validation": 156, "test": 156}
    for name, count in meta["num_images"].items():
        split = opened.split(name)
        assert split.pixels.shape == (count, 1, 32, 32) and split.pixels.dtype == np.uint8
        counts = np.bincount(split.labels, minlength=47)
        assert len(counts) == 47 and counts.max() - counts.min() <= 1
        assert not (split.labels[:-1] <= split.labels[1:]).all()
    pixels = opened.split("train").pixels / 255
    assert meta["mean"] == pytest.approx([pixels.mean()])
    assert meta["std"] == pytest.approx([pixels.std()])
    assert not meta["flip"]
    assert (47, 1, 32) == _size(meta) == _size(data.get("glyphs").declared)
    _, meta = prepared
    fonts = [font for names in glyphs.FONTS.values() for font in names]
    assert len(fonts) == len(set(fonts)) == len(meta["font_hashes"])
    path = rendering.font_folder() / "cmr10.ttf"
    assert meta["font_hashes"]["cmr10.ttf"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert set(meta["versions"]) == {"freetype", "matplotlib", "numpy"}


def _size(meta):
    return len(meta["classes"]), meta["num_channels"], meta["image_size"]


CIFAR = {"image": "img", "label": "fine_label"}


def test_cifar_does_not_depend_on_the_order_of_the_mirror(tmp_path):
    metas = []
    for name, order in (("a", range(40)), ("b", range(39, -1, -1))):
        mirror = tmp_path / name
        pixels = write_images(mirror, "uoft-cs/cifar100", "cifar100", order=order, **CIFAR)
        metas.append(data.prepare("cifar100", out=tmp_path / f"out-{name}", mirror=mirror))
    assert metas[0] == metas[1]
    assert metas[0]["num_images"] == {"train": 36, "validation": 4, "test": 40}
    opened = data.load(tmp_path / "out-a")
    assert sorted(opened.split("validation").labels) == [0, 0, 1, 1]
    seen = np.concatenate([opened.split(s).pixels for s in ("train", "validation")])
    expected = {image.transpose(2, 0, 1).tobytes(): i % 2 for i, image in enumerate(pixels)}
    labels = np.concatenate([opened.split(s).labels for s in ("train", "validation")])
    got = {image.tobytes(): label for image, label in zip(seen, labels, strict=True)}
    assert got == expected


def test_wrong_requests_are_one_sentence_each(tmp_path):
    part, whole = tmp_path / "part", tmp_path / "all"
    write_images(part, "uoft-cs/cifar100", "cifar100", splits=("train",), **CIFAR)
    write_images(whole, "uoft-cs/cifar100", "cifar100", **CIFAR)
    assert "uoft-cs/cifar100 (cifar100), which is not mirrored" in data.available("cifar100")
    assert data.available("cifar100", mirror=whole) is None
    for name, options, words in (
        ("glyphs", {"num_images": 0}, "num_images is 0, but must be at least 1"),
        ("wikipedia-start", {}, "data.vocab_size is missing, but wikipedia-start is text"),
        ("cifar100", {"mirror": tmp_path}, "cifar100 needs uoft-cs/cifar100"),
        ("cifar100", {"mirror": part}, "has no test split"),
        ("cifar100", {"mirror": whole, "num_images": 37}, "is 37, but cifar100 has only 36"),
    ):
        with pytest.raises(ValueError, match=words):
            data.prepare(name, out=tmp_path, **options)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"shape": (8, 8, 3)}, r"has images of \[8\] pixels .*, but 32 pixels"),
        ({"num_classes": 112, "order": range(112)}, "up to 111, but 32 pixels .* below 100"),
        ({"label": "labels"}, "has no column 'fine_label', but img, labels"),
    ],
)
def test_a_dataset_that_differs_from_its_declaration_is_one_sentence(tmp_path, options, message):
    write_images(tmp_path, "uoft-cs/cifar100", "cifar100", **CIFAR | options)
    with pytest.raises(base.MissingData, match=message):
        data.prepare("cifar100", out=tmp_path / "out", mirror=tmp_path)


@pytest.mark.parametrize(
    "pixels,labels,message",
    [
        (np.zeros((2, 4, 4), "uint8"), [0, 1], r"shape is \(4, 4\), but must be"),
        (np.zeros((2, 1, 4, 5), "uint8"), [0, 1], r"shape is \(1, 4, 5\), but must be"),
        (np.zeros((2, 1, 4, 4)), [0, 1], r"pixels of train are .*float64.* of uint8"),
        (np.zeros((3, 1, 4, 4), "uint8"), [0, 1], r"\(3, 1, 4, 4\).*must be \(2, 1, 4, 4\)"),
        (np.zeros((2, 1, 4, 4), "uint8"), [1, 2], "from 1 to 2, but there are 2 classes"),
    ],
)
def test_images_of_another_form_than_declared_are_one_sentence(tmp_path, pixels, labels, message):
    split = base.Split(pixels, np.array(labels))
    found = base.Images({"train": split}, classes=["a", "b"])
    dataset = base.ImageDataset("mine", "", "", "", read=lambda *_: found)
    with pytest.raises(UserError, match=f"^mine: .*{message}"):
        images.prepare(dataset, Source(), out=tmp_path)


@pytest.mark.parametrize("damage", ["cut", "image"])
def test_a_damaged_mirror_is_one_sentence(tmp_path, damage, monkeypatch):
    if damage == "image":
        monkeypatch.setattr(mirrors, "encoded", lambda pixels: {"bytes": b"\x89PNG", "path": None})
    write_images(tmp_path, "uoft-cs/cifar100", "cifar100", **CIFAR)
    if damage == "cut":
        path = tmp_path / "uoft-cs" / "cifar100" / "train-0.parquet"
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(base.MissingData, match="cifar100: .*cannot be read: .") as caught:
        data.prepare("cifar100", out=tmp_path / "out", mirror=tmp_path)
    assert "\n" not in str(caught.value)


def test_hold_out_takes_a_tenth_of_each_class():
    labels = np.repeat([0, 1, 2], [10, 25, 9])
    split = base.Split(np.arange(44)[:, None], labels)
    train, held = hold_out(split)
    assert held.labels.tolist() == [0, 1, 1] and held.pixels[:, 0].tolist() == [0, 10, 11]
    assert sorted([*train.pixels[:, 0], *held.pixels[:, 0]]) == list(range(44))


SPLITS = ("train", "validation", "test")
CONFIG = "wikitext-2-v1"
REPOSITORY = "datasets--Salesforce--wikitext"


def rows():
    """The same three lines in every split."""
    import datasets

    lines = ["", " = Title = ", "", " the text ", ""]
    return datasets.DatasetDict(dict.fromkeys(SPLITS, datasets.Dataset.from_dict({"text": lines})))


def write(folder, suffix):
    folder.mkdir(parents=True)
    for split, own in rows().items():
        path = str(folder / f"{split}{suffix}")
        own.to_parquet(path) if suffix.endswith("parquet") else own.to_json(path)


def cached(root):
    snapshot = root / REPOSITORY / "snapshots" / "0123"
    write(snapshot / CONFIG, "-00000-of-00001.parquet")
    (root / REPOSITORY / "refs").mkdir()
    (root / REPOSITORY / "refs" / "main").write_text("0123")


LAYOUTS = {
    "parquet by config": lambda root, own: write(own / CONFIG, "-00000-of-00001.parquet"),
    "parquet": lambda root, own: write(own, ".parquet"),
    "parquet in data": lambda root, own: write(own / "data", "-00000-of-00001.parquet"),
    "JSON Lines": lambda root, own: write(own, ".jsonl"),
    "saved": lambda root, own: rows().save_to_disk(str(own)),
    "saved config": lambda root, own: rows().save_to_disk(str(own / CONFIG)),
    "hub cache": lambda root, own: cached(root),
    "HF_HOME": lambda root, own: cached(root / "hub"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_local_copy_is_read_in_each_layout(name, tmp_path):
    LAYOUTS[name](tmp_path, tmp_path / "Salesforce/wikitext")
    assert data.available("wikitext-2", tmp_path) is None
    found = data.get("wikitext-2").read(Source(tmp_path)).splits
    assert found == dict.fromkeys(SPLITS, ["= Title = \n\n the text"])


def test_the_hubs_cache_is_read_and_missing_data_name_the_command(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    command = "`python -m experiments prepare --data wikitext-2` fetches it"
    (mirror := tmp_path / "mirror").mkdir()
    assert all(command in data.available("wikitext-2", place) for place in (None, mirror))
    (mirror / "Salesforce/wikitext").mkdir(parents=True)
    problem = data.available("wikitext-2", mirror)
    assert command in problem and "holds no parquet or JSON Lines files" in problem
    cached(tmp_path / "hub")
    assert data.available("wikitext-2") is None
    assert data.get("wikitext-2").read(Source()).splits["test"] == ["= Title = \n\n the text"]


def test_the_slice_of_wikipedia_is_joined_from_published_files_and_checked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {}
    for name, (folder, numbers, _) in enwiki_slice.PARTS.items():
        articles = [f"<doc id={n}>\n{folder} &amp; {n}\n\nA &amp; B\n</doc>\n" for n in numbers]
        for number, article in zip(numbers, articles, strict=True):
            files[f"{folder}-{number:02}"] = article
        digest = hashlib.sha256("".join(articles).encode()).hexdigest()
        monkeypatch.setitem(enwiki_slice.PARTS, name, (folder, numbers, digest))
    for name, article in files.items():
        (tmp_path / name).write_text(article)
    monkeypatch.setattr(enwiki_slice, "ADDRESS", tmp_path.as_uri() + "/{}-{:02}")
    with pytest.raises(data.MissingData, match="prepare --data enwiki-slice"):
        data.get("enwiki-slice").read(Source())
    enwiki_slice.fetch()
    found = data.get("enwiki-slice").read(Source()).splits
    assert found["validation"][1] == "AD & 1\n\nA &amp; B"  # titles alone are unescaped
    assert [len(found[split]) for split in SPLITS] == [97 + 99 + 100, 10, 10]
    (tmp_path / "AB-07").write_text("changed")
    (tmp_path / enwiki_slice.FOLDER / "train-AB.txt").unlink()
    with pytest.raises(data.MissingData, match=re.escape("train-AB.txt")):
        enwiki_slice.fetch()
