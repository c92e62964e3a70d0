"""Distorted glyphs as arrays: FreeType draws each one once, numpy distorts copies of it.

Shape suffixes: N images, P pixels of an image.
"""

import hashlib
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from experiments.data.base import Split
from experiments.digest import file_digest

SIZE = 32
#: Pixels per em and per side of a drawn glyph, which fits with room for every affine map.
EM, CANVAS = 44, 72
CHUNK = 1024

# Ranges of the uniform draws. Angles in degrees, lengths in pixels of the image, grey in [0, 1].
ANGLE = 15.0
SHEAR = 0.2
SCALE = (0.5, 0.85)
SHIFT = 2.5
CONTRAST = (0.3, 0.9)
SLOPE = 0.25
NOISE = (0.02, 0.12)
RECTANGLES = 2
RECTANGLE = (4, 13)


def font_folder() -> Path:
    """Folder of the fonts that matplotlib brings along."""
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def facts(fonts: Sequence[Path]) -> dict[str, Any]:
    """Hashes and versions that the pixels depend on: fonts, FreeType, matplotlib, numpy."""
    from matplotlib import ft2font

    return {
        "font_hashes": {font.name: file_digest(font) for font in sorted(fonts)},
        "versions": {
            "freetype": ft2font.__freetype_version__,
            "matplotlib": version("matplotlib"),
            "numpy": version("numpy"),
        },
    }


def draw_font(font: Path, characters: Sequence[str]) -> np.ndarray:
    """Draw characters, the box of each one's ink centred, float32 ink from 0 to 1.

    Returns:
        Shape (number of characters, CANVAS, CANVAS).

    Raises:
        ValueError: If the font lacks a character.
    """
    from matplotlib.ft2font import FT2Font, LoadFlags

    face = FT2Font(str(font))
    face.set_size(EM, 72)
    known = face.get_charmap()
    canvases = np.zeros((len(characters), CANVAS, CANVAS), dtype=np.float32)
    for canvas, character in zip(canvases, characters, strict=True):
        if ord(character) not in known:
            raise ValueError(f"{font.name} has no {character!r}.")
        face.set_text(character, 0, flags=LoadFlags.NO_HINTING)
        face.draw_glyphs_to_bitmap(antialiased=True)
        ink = np.asarray(face.get_image(), dtype=np.float32) / 255
        rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
        ink = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        top, left = (CANVAS - ink.shape[0]) // 2, (CANVAS - ink.shape[1]) // 2
        canvas[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
    return canvases


def draw(fonts: Sequence[Path], characters: Sequence[str], count: int, *, seed: str) -> Split:
    """Draw distorted glyphs, classes as even as the count allows, fonts at random.

    Returns:
        Pixels (count, 1, SIZE, SIZE) and labels, in random order.
    """
    key = hashlib.sha256(f"glyphs {seed}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(key[:8], "big"))
    glyphs = np.stack([draw_font(font, characters) for font in fonts])
    labels = rng.permutation(np.arange(count) % len(characters))
    chosen = rng.integers(len(fonts), size=count)
    parts = [
        distort(glyphs[chosen[start : start + CHUNK], labels[start : start + CHUNK]], rng)
        for start in range(0, count, CHUNK)
    ]
    return Split(np.concatenate(parts)[:, None], labels.astype(np.int64))


def distort(glyphs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Turn glyphs (N, CANVAS, CANVAS) into images (N, SIZE, SIZE), uint8."""
    num = len(glyphs)
    ink = _affine(glyphs, rng)
    down, across = _coordinates()
    ground = _draws(rng, num, 0, 1)
    contrast = _draws(rng, num, *CONTRAST)
    # Ink is lighter or darker than the ground, whichever there is more room for.
    colour = np.where(ground < 0.5, ground + contrast, ground - contrast).clip(0, 1)
    slopes = [_draws(rng, num, -SLOPE, SLOPE) / SIZE for _ in range(2)]
    shade = ground + slopes[0] * down + slopes[1] * across
    image = shade + ink * (colour - shade)
    for covered, grey in _rectangles(num, rng):
        image = np.where(covered, grey, image)
    noise = rng.standard_normal(image.shape, dtype=np.float32) * _draws(rng, num, *NOISE)
    image = (image + noise).clip(0, 1) * 255
    return (image + np.float32(0.5)).astype(np.uint8).reshape(num, SIZE, SIZE)


def _draws(rng: np.random.Generator, num: int, low: float, high: float) -> np.ndarray:
    """Uniform draws, shape (N, 1), float32."""
    return (low + (high - low) * rng.random((num, 1))).astype(np.float32)


def _coordinates() -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of an image's pixels from its centre, shape (1, P) each."""
    axis = np.arange(SIZE, dtype=np.float32) - (SIZE - 1) / 2
    down, across = np.meshgrid(axis, axis, indexing="ij")
    return down.reshape(1, -1), across.reshape(1, -1)


def _affine(glyphs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Ink of each pixel (N, P) under random rotation, shear, scale and shift; bilinear."""
    num = len(glyphs)
    angle = _draws(rng, num, -ANGLE, ANGLE) * np.float32(np.pi / 180)
    shear = _draws(rng, num, -SHEAR, SHEAR)
    down, across = _coordinates()
    down = down - _draws(rng, num, -SHIFT, SHIFT)
    across = across - _draws(rng, num, -SHIFT, SHIFT)
    cos, sin = np.cos(angle), np.sin(angle)
    row = (cos * down - sin * across) / _draws(rng, num, *SCALE)
    column = (sin * down + cos * across) / _draws(rng, num, *SCALE) + shear * row
    centre = np.float32((CANVAS - 1) / 2)
    row, column = (row + centre).clip(0, CANVAS - 1.001), (column + centre).clip(0, CANVAS - 1.001)
    top, left = row.astype(np.int32), column.astype(np.int32)
    lower, right = row - top, column - left
    flat = glyphs.reshape(num, -1)
    corner = top * CANVAS + left
    upper_ink = _mix(flat, corner, right)
    return upper_ink + lower * (_mix(flat, corner + CANVAS, right) - upper_ink)


def _mix(flat: np.ndarray, index: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Between a pixel and its right neighbour."""
    here = np.take_along_axis(flat, index, 1)
    return here + weight * (np.take_along_axis(flat, index + 1, 1) - here)


def _rectangles(num: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Covered pixels (N, P) and the grey (N, 1) that covers them; half the rectangles exist."""
    down, across = _coordinates()
    for _ in range(RECTANGLES):
        exists = rng.random((num, 1)) < 0.5
        inside = exists
        for axis in (down, across):
            centre = _draws(rng, num, -SIZE / 2, SIZE / 2)
            inside = inside & (np.abs(axis - centre) <= _draws(rng, num, *RECTANGLE) / 2)
        yield inside, _draws(rng, num, 0, 1)
