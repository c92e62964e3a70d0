"""The kernels against dense torch, at every vector width that this machine has."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sparse_lib
from sparse_lib.execution import kernels
from sparse_lib.execution.kernels import Structure, gradients, image_view, rows_view
from tests.sparse_lib.execution.test_backend import TOLERANCE, relative_error

# Tokens, inputs, outputs: with and without what blocks of 16 and of 8 leave.
SHAPES = [(1, 5, 3), (37, 130, 67), (64, 64, 64), (65, 33, 17), (100, 600, 300), (3, 1, 1)]
SHAPES += [(25, 24, 40)]


# 32, 48 and 64: 16 lanes, the panels of Intel, of Zen 4 and of Zen 5.
@pytest.fixture(params=(4, 8, 32, 48, 64), ids="lanes{}".format)
def lanes(request):
    return request.param


def random_mask(rows, columns, sparsity):
    mask = torch.rand(rows, columns) >= sparsity
    mask[rows // 2] = False
    mask[:, columns // 3] = False
    return mask


def run_both(mask, weight, source, gradient, bias, lanes, inputs_first=False, tile=None):
    """Output and the gradients of source, weight and bias.

    Weight and mask are stored as `inputs_first` says, the output beside numbers that must stay.
    """
    stored_weight = weight.T.contiguous() if inputs_first else weight
    stored_mask = mask.T.contiguous() if inputs_first else mask
    options = {"lanes": lanes, "tile": tile}
    forward = Structure(stored_mask, transposed=inputs_first, **options)
    backward = Structure(stored_mask, transposed=not inputs_first, **options)
    wide = torch.full((source.shape[0], mask.shape[0] + 3), torch.nan, dtype=source.dtype)
    target, source_gradient = wide[:, : mask.shape[0]], torch.full_like(source, torch.nan)
    bias_gradient = torch.full((mask.shape[0],), torch.nan)
    forward.multiply(stored_weight, rows_view(source), rows_view(target), bias)
    weight_gradient = gradients(
        forward, backward, stored_weight, rows_view(source), rows_view(gradient),
        rows_view(source_gradient), bias_gradient,
    )  # fmt: skip
    assert wide[:, mask.shape[0] :].isnan().all() and weight_gradient.dtype is weight.dtype
    weight_gradient = weight_gradient.T if inputs_first else weight_gradient
    return target, source_gradient, weight_gradient, bias_gradient


STORED = list(itertools.product((0.0, 0.5, 0.95, 1.0), (False, True)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_equal_masked_dense(shape, lanes):
    tokens, inputs, outputs = shape
    for sparsity, inputs_first in STORED:
        torch.manual_seed(0)
        mask = torch.full((outputs, inputs), sparsity == 0)
        mask = random_mask(outputs, inputs, sparsity) if 0 < sparsity < 1 else mask
        weight, bias = torch.randn(outputs, inputs), torch.randn(outputs)
        source, gradient = torch.randn(tokens, inputs), torch.randn(tokens, outputs)
        unread = weight.masked_fill(~mask, torch.nan)
        results = run_both(mask, unread, source, gradient, bias, lanes, inputs_first)
        masked = (weight * mask).double()
        expected = (
            source.double() @ masked.T + bias,
            gradient.double() @ masked,
            (gradient.double().T @ source.double()) * mask,
            gradient.double().sum(0),
        )
        for result, truth in zip(results, expected, strict=True):
            assert relative_error(result, truth) < TOLERANCE, (sparsity, inputs_first)
        assert not results[2][~mask].any()


@pytest.mark.parametrize("tokens", (31, 33, 63, 65, 127, 129, 300))
def test_batches_tiles_and_threads_of_any_number_leave_each_token_alone(tokens, lanes):
    torch.manual_seed(5)
    mask, weight = random_mask(50, 90, 0.6), torch.randn(50, 90)
    source, gradient = torch.randn(300, 90), torch.randn(300, 50)
    whole = run_both(mask, weight, source, gradient, None, lanes)
    source, gradient = source[:tokens], gradient[:tokens]
    expected = (gradient.double().T @ source.double()) * mask
    for tile, threads in ((None, 1), (None, 2), (1, 1), (7, 1), (4096, 1)):
        torch.set_num_threads(threads)  # each test begins with one
        part = run_both(mask, weight, source, gradient, None, lanes, tile=tile)
        if tile is None:
            assert torch.equal(part[0], whole[0][:tokens])
            assert torch.equal(part[1], whole[1][:tokens])
        assert relative_error(part[0], source @ (weight * mask).T) < TOLERANCE
        assert relative_error(part[2], expected) < TOLERANCE


CONVOLUTIONS = [
    {"kernel": (1, 1)},
    {"kernel": (3, 3), "padding": (1, 1)},
    {"kernel": (3, 2), "padding": (0, 1), "stride": (2, 1)},
    {"kernel": (1, 1), "stride": (2, 2)},
    {"kernel": (3, 3), "padding": (2, 3), "dilation": (2, 2)},
]


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("size", ((9, 11), (4, 4)), ids=str)
def test_windows_equal_conv2d(options, size, lanes):
    torch.manual_seed(4)
    rest = {key: value for key, value in options.items() if key != "kernel"}
    weight = torch.randn(10, 6, *options["kernel"], requires_grad=True)
    mask = random_mask(10, weight[0].numel(), 0.6)
    images = torch.randn(5, 6, *size, requires_grad=True)
    masked = weight * mask.view_as(weight)
    expected = torch.nn.functional.conv2d(images, masked, **rest)
    gradient = torch.randn_like(expected)
    expected.backward(gradient)

    dense = weight.detach()
    out_size = expected.shape[2:]
    target, image_gradient = torch.zeros_like(expected), torch.zeros_like(images)
    source = image_view(images, out_size=out_size, **options)
    back = image_view(image_gradient, out_size=out_size, **options)
    target_view = image_view(target, out_size=out_size)
    forward = Structure(mask, lanes=lanes)
    forward.multiply(dense, source, target_view)
    transposed = Structure(mask, transposed=True, lanes=lanes)
    weight_gradient = gradients(
        forward, transposed, dense, source, image_view(gradient, out_size=out_size), back
    )
    assert relative_error(target, expected.detach()) < TOLERANCE
    assert relative_error(image_gradient, images.grad) < TOLERANCE
    assert relative_error(weight_gradient, weight.grad) < TOLERANCE


def test_fingerprint_sees_every_single_change():
    mask = torch.rand(7, 19) > 0.5
    changes = torch.eye(mask.numel() + 1, mask.numel()).bool().view(-1, 7, 19)  # the last is none
    assert len({kernels.fingerprint(mask ^ change) for change in changes}) == len(changes)


@pytest.mark.skipif(not kernels.takes_half(48), reason="no fast bfloat16 products")
@pytest.mark.parametrize("half_lanes", (48, 64), ids="lanes{}".format)
@pytest.mark.parametrize("shape", [*SHAPES, (128, 64, 96), (300, 31, 95)], ids=str)
def test_products_of_bfloat16_round_once(shape, half_lanes):
    for weight_type in (torch.float32, torch.bfloat16):
        for sparsity, inputs_first in STORED:
            check_rounding(*shape, half_lanes, weight_type, sparsity, inputs_first)


def check_rounding(tokens, inputs, outputs, lanes, weight_type, sparsity, inputs_first):
    torch.manual_seed(0)
    mask = torch.rand(outputs, inputs) >= sparsity
    weight = torch.randn(outputs, inputs).bfloat16().to(weight_type)
    weight[~mask] = torch.nan
    source, gradient = (torch.randn(tokens, n).bfloat16() for n in (inputs, outputs))
    bias = torch.randn(outputs)
    target, source_gradient, weight_gradient, bias_gradient = run_both(
        mask, weight, source, gradient, bias, lanes, inputs_first
    )
    exact = weight.double().where(mask, 0.0)
    assert_rounded_once(target, source.double() @ exact.T + bias)
    assert_rounded_once(source_gradient, gradient.double() @ exact)
    assert_rounded_once(weight_gradient, (gradient.double().T @ source.double()) * mask)
    assert relative_error(bias_gradient, gradient.double().sum(0)) < TOLERANCE


def assert_rounded_once(result, exact):
    """Within the half unit of bfloat16, and what float32 sums add where terms cancel."""
    unit = 2.0**-8 if result.dtype is torch.bfloat16 else 0.0
    error = (result.double() - exact).abs()
    assert (error <= 1.001 * unit * exact.abs() + 1e-5 * exact.abs().max()).all()


@pytest.mark.skipif(not kernels.takes_half(48), reason="no fast bfloat16 products")
@pytest.mark.parametrize("half_lanes", (48, 64), ids="lanes{}".format)
@pytest.mark.parametrize("tokens", (1, 31, 33, 63, 65, 127, 129))
def test_bfloat16_batches_of_any_size_leave_each_token_alone(tokens, half_lanes):
    torch.manual_seed(5)
    mask, weight = random_mask(50, 90, 0.6), torch.randn(50, 90).bfloat16()
    source, target = torch.randn(300, 90).bfloat16(), torch.empty(300, 50).bfloat16()
    structure = Structure(mask, lanes=half_lanes)
    part = torch.empty(tokens, 50).bfloat16()
    structure.multiply(weight, rows_view(source), rows_view(target))
    structure.multiply(weight, rows_view(source[:tokens]), rows_view(part))
    assert torch.equal(part, target[:tokens])


@pytest.mark.parametrize(
    ("rows", "columns", "tokens", "dtype", "message"),
    (
        (6, 3, 2, torch.float32, "5, 3, 15, 2"),
        (5, 4, 2, torch.float32, "5, 3, 15, 2"),
        (5, 3, 1, torch.float32, "5, 3, 15, 2"),
        (5, 3, 2, torch.bfloat16, "bfloat16"),
    ),
)
def test_tensors_that_do_not_fit_are_refused(rows, columns, tokens, dtype, message):
    for mask in (torch.ones(3, 3), torch.ones(3, dtype=torch.bool)):
        with pytest.raises(ValueError, match="mask.*contiguous bool matrix"):
            Structure(mask)
    mask, weight = torch.ones(3, 5, dtype=torch.bool), torch.ones(3, 5)
    forward, backward = Structure(mask), Structure(mask, transposed=True)
    source = rows_view(torch.ones(2, rows))
    target = rows_view(torch.ones(tokens, columns, dtype=dtype))
    with pytest.raises(ValueError, match=message):
        forward.multiply(weight, source, target)
    with pytest.raises(ValueError, match=message):
        gradients(forward, backward, weight, source, target, None)


def start(folder, **environment):
    """A process that builds the kernels, in a cache of its own, and says what keeps it from it.

    It imports a copy of the package, without the library that an installation has built.
    """
    source = folder / "source"
    if not source.exists():
        package = Path(sparse_lib.__file__).parent
        built = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(package, source / package.name, ignore=built)
    code = "from sparse_lib.execution import kernels; print(kernels.unavailable())"
    own = {"XDG_CACHE_HOME": str(folder), "PYTHONPATH": str(source)}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=source,
        env={**os.environ, **own, **environment},
    )  # fmt: skip


def said(process):
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output.strip()


@pytest.mark.slow
def test_processes_build_at_once_and_again_what_was_cut_short(tmp_path):
    folder = tmp_path / "sparse_lib"
    assert [said(p) for p in [start(tmp_path), start(tmp_path)]] == ["None", "None"]
    (built,) = folder.iterdir()
    size = built.stat().st_size
    built.unlink()
    built.write_bytes(b"\x7fELF")
    assert said(start(tmp_path)) == "None" and built.stat().st_size == size


def test_a_compiler_that_is_missing_or_makes_nothing_is_reported(tmp_path):
    path = tmp_path / "bin"
    path.mkdir()
    where = {"PATH": str(path), "CC": "cc-of-mine"}
    assert "no C compiler was found" in said(start(tmp_path, **where))
    (path / "cc-of-mine").write_text("#!/bin/sh\n")
    (path / "cc-of-mine").chmod(0o755)
    assert "the C compiler failed on kernels.c" in said(start(tmp_path, **where))
    assert not list((tmp_path / "sparse_lib").iterdir())
