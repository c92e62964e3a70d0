"""Datasets of images: glyphs drawn here, CIFAR-100 from a mirror."""

import hashlib
import io

import numpy as np
import pytest

from experiments import data
from experiments.data import base, cifar, glyphs, images, rendering

IDENTITY = {"ANGLE": 0.0, "SHEAR": 0.0, "SCALE": (1.0, 1.0), "SHIFT": 0.0}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glyphs")
    meta = data.prepare("glyphs", out=folder, num_images=470)
    return folder, meta


def test_glyphs_are_the_same_every_time(prepared, tmp_path):
    _, meta = prepared
    again = data.prepare("glyphs", out=tmp_path, num_images=470)
    assert again == meta
    assert data.prepare("glyphs", out=tmp_path, num_images=471)["hash"] != meta["hash"]


def test_glyphs_have_their_sizes_types_and_even_classes(prepared):
    folder, meta = prepared
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


def test_no_font_is_in_two_splits_and_their_files_are_hashed(prepared):
    _, meta = prepared
    fonts = [font for names in glyphs.FONTS.values() for font in names]
    assert len(fonts) == len(set(fonts)) == len(meta["font_hashes"])
    path = rendering.font_folder() / "cmr10.ttf"
    assert meta["font_hashes"]["cmr10.ttf"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert set(meta["versions"]) == {"freetype", "matplotlib", "numpy"}


def test_every_font_draws_every_class_differently():
    folder = rendering.font_folder()
    for font in [name for names in glyphs.FONTS.values() for name in names]:
        drawn = rendering.draw_font(folder / font, glyphs.CLASSES)
        assert all(20 < ink.sum() < 1000 for ink in drawn)
        assert len({ink.tobytes() for ink in drawn}) == len(glyphs.CLASSES) == 47
    with pytest.raises(ValueError, match="cmr10.ttf has no 'ж'"):
        rendering.draw_font(folder / "cmr10.ttf", ["a", "ж"])


def affine(monkeypatch, ink, **changes):
    for name, value in (IDENTITY | changes).items():
        monkeypatch.setattr(rendering, name, value)
    rng = np.random.default_rng(0)
    return rendering._affine(ink[None], rng).reshape(rendering.SIZE, rendering.SIZE)


def test_the_affine_map_against_exact_cases(monkeypatch):
    ink = np.random.default_rng(0).random((rendering.CANVAS,) * 2, dtype=np.float32)
    middle = ink[20:52, 20:52]
    assert np.allclose(affine(monkeypatch, ink), middle, atol=1e-4)
    monkeypatch.setattr(rendering, "_draws", lambda rng, num, low, high: np.full((1, 1), high))
    quarter = affine(monkeypatch, ink, ANGLE=90.0)
    assert np.allclose(quarter, np.rot90(middle), atol=1e-3) or np.allclose(
        quarter, np.rot90(middle, -1), atol=1e-3
    )
    shifted = affine(monkeypatch, ink, SHIFT=3.0)
    assert np.allclose(shifted, ink[17:49, 17:49], atol=1e-4)
    larger = affine(monkeypatch, ink, SCALE=(2.0, 2.0))
    half = affine(monkeypatch, ink, SCALE=(0.5, 0.5))
    upper = 0.25 * ink[27, 27] + 0.75 * ink[27, 28]
    lower = 0.25 * ink[28, 27] + 0.75 * ink[28, 28]
    assert larger[0, 0] == pytest.approx(0.25 * upper + 0.75 * lower, abs=1e-4)
    assert half[15, 15] == pytest.approx(
        0.25 * (ink[34, 34] + ink[34, 35] + ink[35, 34] + ink[35, 35]), abs=1e-4
    )


def encoded(pixels) -> dict:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return {"bytes": file.getvalue(), "path": None}


def write_cifar(mirror, order, splits=("train", "test")):
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = mirror / cifar.HUB_ID
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    features = '{"info": {"features": {"img": {"_type": "Image"}, "fine_label": '
    features += '{"dtype": "int64", "_type": "Value"}}}}'
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("img", image), ("fine_label", pa.int64())])
    schema = schema.with_metadata({"huggingface": features})
    header = ["---", "configs:", "- config_name: cifar100", "  data_files:"]
    for split in splits:
        rows = [{"img": encoded(pixels[i]), "fine_label": i % 2} for i in order]
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / f"{split}-0.parquet")
        header += [f"  - split: {split}", f"    path: {split}-*"]
    (folder / "README.md").write_text("\n".join([*header, "---", ""]))
    return pixels


def test_cifar_does_not_depend_on_the_order_of_the_mirror(tmp_path):
    forward, backward = range(40), range(39, -1, -1)
    pixels = write_cifar(tmp_path / "a", forward)
    write_cifar(tmp_path / "b", backward)
    metas = [
        data.prepare("cifar100", out=tmp_path / f"out-{name}", mirror=tmp_path / name)
        for name in ("a", "b")
    ]
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
    with pytest.raises(ValueError, match="num_images is 0, but must be at least 1"):
        data.prepare("glyphs", out=tmp_path, num_images=0)
    with pytest.raises(ValueError, match="data.vocab_size is missing, but grammar is text"):
        data.prepare("grammar", out=tmp_path)
    assert "uoft-cs/cifar100, which is not mirrored" in data.available("cifar100")
    with pytest.raises(base.MissingData, match="cifar100 needs uoft-cs/cifar100"):
        data.prepare("cifar100", out=tmp_path, mirror=tmp_path)
    write_cifar(tmp_path / "part", range(40), splits=("train",))
    assert "test split" in data.available("cifar100", mirror=tmp_path / "part")
    write_cifar(tmp_path / "all", range(40))
    with pytest.raises(ValueError, match="num_images is 37, but cifar100 has only 36"):
        data.prepare("cifar100", out=tmp_path, mirror=tmp_path / "all", num_images=37)
    assert data.available("cifar100", mirror=tmp_path / "all") is None


def test_hold_out_takes_a_tenth_of_each_class():
    labels = np.repeat([0, 1, 2], [10, 25, 9])
    split = base.Split(np.arange(44)[:, None], labels)
    train, held = cifar.hold_out(split)
    assert held.labels.tolist() == [0, 1, 1] and held.pixels[:, 0].tolist() == [0, 10, 11]
    assert sorted([*train.pixels[:, 0], *held.pixels[:, 0]]) == list(range(44))


def test_moments_are_those_of_numpy():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 4), dtype=np.uint8)
    mean, std = images._moments(pixels)
    assert mean == pytest.approx((pixels / 255).mean((0, 2, 3)))
    assert std == pytest.approx((pixels / 255).std((0, 2, 3)))


def test_imagenet_is_cut_to_squares_and_says_what_is_missing(tmp_path):
    from PIL import Image

    from experiments.data import imagenet

    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, 2:6] = 200
    squared = imagenet.square(Image.fromarray(wide), 4)
    assert squared.shape == (3, 4, 4) and (squared == 200).all()

    class Rows:
        def take(self, count):
            image = Image.fromarray(wide)
            return [{"image": image, "label": i} for i in range(min(count, 3))]

    split = imagenet.take(Rows(), 5, size=4)
    assert split.pixels.shape == (3, 3, 4, 4) and split.labels.tolist() == [0, 1, 2]
    with pytest.raises(base.MissingData, match="imagenet needs ILSVRC/imagenet-1k"):
        data.prepare("imagenet", out=tmp_path)
