"""The kernels against dense torch, at every vector width that this machine has."""

import hashlib
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

from sparse_lib.execution import kernels
from sparse_lib.execution.kernels import Structure, gradients, image_view, rows_view

TOLERANCE = 1e-5
# Tokens, inputs, outputs: with and without what blocks of 16 and of 8 leave.
SHAPES = [(1, 5, 3), (37, 130, 67), (64, 64, 64), (65, 33, 17), (100, 600, 300), (3, 1, 1)]
SHAPES += [(25, 24, 40)]


# 32, 48 and 64: 16 lanes, the panels of Intel, of Zen 4 and of Zen 5.
@pytest.fixture(params=(4, 8, 32, 48, 64), ids="lanes{}".format)
def lanes(request):
    return request.param


def relative_error(result, expected):
    return ((result - expected).abs().max() / expected.abs().max().clamp(min=1e-20)).item()


def random_mask(rows, columns, sparsity):
    mask = torch.rand(rows, columns) >= sparsity
    mask[rows // 2] = False
    mask[:, columns // 3] = False
    return mask


def run_both(mask, weight, source, gradient, bias, lanes, inputs_first=False, tile=None):
    """Output and the two gradients; weight and mask are stored as `inputs_first` says."""
    stored_weight = weight.T.contiguous() if inputs_first else weight
    stored_mask = mask.T.contiguous() if inputs_first else mask
    options = {"lanes": lanes, "tile": tile}
    forward = Structure(stored_mask, transposed=inputs_first, **options)
    backward = Structure(stored_mask, transposed=not inputs_first, **options)
    target = torch.full((source.shape[0], mask.shape[0]), torch.nan)
    source_gradient = torch.full(source.shape, torch.nan)
    forward.multiply(stored_weight, rows_view(source), rows_view(target), bias)
    weight_gradient = gradients(
        forward, backward, stored_weight, rows_view(source), rows_view(gradient),
        rows_view(source_gradient),
    )  # fmt: skip
    return target, source_gradient, weight_gradient.T if inputs_first else weight_gradient


@pytest.mark.parametrize("inputs_first", (False, True))
@pytest.mark.parametrize("sparsity", (0.0, 0.5, 0.95, 1.0))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_equal_masked_dense(shape, sparsity, inputs_first, lanes):
    tokens, inputs, outputs = shape
    torch.manual_seed(0)
    mask = random_mask(outputs, inputs, sparsity) if 0 < sparsity < 1 else None
    if mask is None:
        mask = torch.full((outputs, inputs), sparsity == 0)
    weight, bias = torch.randn(outputs, inputs), torch.randn(outputs)
    source, gradient = torch.randn(tokens, inputs), torch.randn(tokens, outputs)
    results = run_both(mask, weight, source, gradient, bias, lanes, inputs_first)
    masked = (weight * mask).double()
    expected = (
        source.double() @ masked.T + bias,
        gradient.double() @ masked,
        (gradient.double().T @ source.double()) * mask,
    )
    for result, truth in zip(results, expected, strict=True):
        assert relative_error(result, truth) < TOLERANCE
    assert not results[2][~mask].any()


@pytest.mark.parametrize("tile", (1, 7, 4096))
def test_tile_width_does_not_matter(tile, lanes):
    torch.manual_seed(1)
    mask, weight = random_mask(40, 90, 0.7), torch.randn(40, 90)
    source, gradient = torch.randn(50, 90), torch.randn(50, 40)
    result = run_both(mask, weight, source, gradient, None, lanes, tile=tile)
    assert relative_error(result[0], source @ (weight * mask).T) < TOLERANCE
    assert relative_error(result[2], (gradient.T @ source) * mask) < TOLERANCE


def test_masked_weights_are_never_read(lanes):
    mask = random_mask(20, 30, 0.8)
    weight = torch.randn(20, 30).masked_fill(~mask, torch.nan)
    source, gradient = torch.randn(9, 30), torch.randn(9, 20)
    for result in run_both(mask, weight, source, gradient, None, lanes):
        assert result.isfinite().all()


def test_threads_agree(lanes):
    torch.manual_seed(2)
    mask, weight = random_mask(70, 110, 0.8), torch.randn(70, 110)
    source, gradient = torch.randn(300, 110), torch.randn(300, 70)
    single = run_both(mask, weight, source, gradient, None, lanes)
    torch.set_num_threads(2)
    try:
        double = run_both(mask, weight, source, gradient, None, lanes)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(single[0], double[0]) and torch.equal(single[1], double[1])
    assert relative_error(double[2], single[2]) < TOLERANCE


@pytest.mark.parametrize("tokens", (31, 33, 63, 65, 127, 129))
def test_batches_of_any_size_are_right_and_leave_each_token_alone(tokens, lanes):
    torch.manual_seed(5)
    mask, weight = random_mask(50, 90, 0.6), torch.randn(50, 90)
    source, gradient = torch.randn(300, 90), torch.randn(300, 50)
    whole = run_both(mask, weight, source, gradient, None, lanes)
    part = run_both(mask, weight, source[:tokens], gradient[:tokens], None, lanes)
    assert torch.equal(part[0], whole[0][:tokens]) and torch.equal(part[1], whole[1][:tokens])
    expected = (gradient[:tokens].double().T @ source[:tokens].double()) * mask
    assert relative_error(part[2], expected) < TOLERANCE


def test_strided_rows(lanes):
    torch.manual_seed(3)
    mask, weight = random_mask(11, 13, 0.5), torch.randn(11, 13)
    wide = torch.randn(40, 29)
    target = torch.zeros(40, 11)
    Structure(mask, lanes=lanes).multiply(weight, rows_view(wide[:, 5:18]), rows_view(target))
    assert relative_error(target, wide[:, 5:18] @ (weight * mask).T) < TOLERANCE


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
    prints = {kernels.fingerprint(mask)}
    for index in range(mask.numel()):
        changed = mask.clone()
        changed.view(-1)[index] ^= True
        prints.add(kernels.fingerprint(changed))
    assert len(prints) == mask.numel() + 1


@pytest.mark.parametrize("mask", (torch.ones(3, 3), torch.ones(3, dtype=torch.bool)))
def test_structure_rejects_other_tensors(mask):
    with pytest.raises(ValueError, match="mask must be a contiguous bool matrix"):
        Structure(mask)


@pytest.mark.parametrize(
    ("num_inputs", "num_outputs", "num_tokens"), ((6, 3, 2), (5, 4, 2), (5, 3, 1))
)
def test_products_reject_views_of_other_sizes(num_inputs, num_outputs, num_tokens):
    mask, weight = torch.ones(3, 5, dtype=torch.bool), torch.ones(3, 5)
    forward, backward = Structure(mask), Structure(mask, transposed=True)
    source = kernels.rows_view(torch.ones(2, num_inputs))
    target = kernels.rows_view(torch.ones(num_tokens, num_outputs))
    with pytest.raises(ValueError, match="tokens must be 5, 3, 15, 2, got"):
        forward.multiply(weight, source, target)
    with pytest.raises(ValueError, match="tokens must be 5, 3, 15, 2, got"):
        kernels.gradients(forward, backward, weight, source, target, None)


@pytest.mark.skipif(not kernels.takes_half(48), reason="no fast bfloat16 products")
@pytest.mark.parametrize("half_lanes", (48, 64), ids="lanes{}".format)
@pytest.mark.parametrize("inputs_first", (False, True))
@pytest.mark.parametrize("weight_type", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("sparsity", (0.0, 0.5, 0.95, 1.0))
@pytest.mark.parametrize("shape", [*SHAPES, (128, 64, 96), (300, 31, 95)], ids=str)
def test_products_of_bfloat16_round_once(shape, sparsity, weight_type, inputs_first, half_lanes):
    tokens, inputs, outputs = shape
    torch.manual_seed(0)
    mask = torch.rand(outputs, inputs) >= sparsity
    weight = torch.randn(outputs, inputs).bfloat16().to(weight_type)
    weight[~mask] = torch.nan
    source, gradient = (
        torch.randn(tokens, inputs).bfloat16(),
        torch.randn(tokens, outputs).bfloat16(),
    )
    bias, bias_gradient = torch.randn(outputs), torch.full((outputs,), torch.nan)
    stored, stored_mask = (
        (weight.T.contiguous(), mask.T.contiguous()) if inputs_first else (weight, mask)
    )
    forward = Structure(stored_mask, transposed=inputs_first, lanes=half_lanes)
    backward = Structure(stored_mask, transposed=not inputs_first, lanes=half_lanes)
    wide = torch.full((tokens, outputs + 3), torch.nan, dtype=torch.bfloat16)
    target, source_gradient = wide[:, :outputs], torch.full_like(source, torch.nan)
    forward.multiply(stored, rows_view(source), rows_view(target), bias)
    weight_gradient = gradients(
        forward, backward, stored, rows_view(source), rows_view(gradient),
        rows_view(source_gradient), bias_gradient,
    )  # fmt: skip
    assert wide[:, outputs:].isnan().all() and weight_gradient.dtype is weight_type
    weight_gradient = weight_gradient.T if inputs_first else weight_gradient
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


def test_views_of_two_types_are_rejected():
    structure = Structure(torch.ones(3, 5, dtype=torch.bool))
    views = rows_view(torch.ones(2, 5)), rows_view(torch.ones(2, 3).bfloat16())
    with pytest.raises(ValueError, match="must be float32, or both bfloat16"):
        structure.multiply(torch.ones(3, 5), *views)


def test_library_is_built_once_into_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = kernels._build()
    assert built.parent == tmp_path / "sparse_lib" and kernels._build() == built
    assert list(tmp_path.rglob("*.so")) == [built]


def test_a_library_that_was_cut_short_is_built_again(monkeypatch, tmp_path):
    source = tmp_path / "kernels.c"
    source.write_text("int choose_lanes(int lanes) { return lanes; }")
    monkeypatch.setattr(kernels, "_SOURCE", source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "sparse_lib"
    built = kernels._build()
    size = built.stat().st_size
    built.unlink()
    built.write_bytes(b"\x7fELF")
    assert kernels._build() == built and built.stat().st_size == size
    idle = tmp_path / "idle"
    idle.write_text("#!/bin/sh\n")
    idle.chmod(0o755)
    built.unlink()
    monkeypatch.setenv("CC", str(idle))  # succeeds, and makes nothing
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(kernels.KernelError, match="the C compiler failed on kernels.c"):
        kernels._build()
    assert not list(folder.iterdir())


ON_ARM = r"""
#include "%s"
#include <math.h>
#include <stdio.h>

static uint32_t state = 1;
static float number(void)
{
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (1 << 23) - 1;
}

int main(void)
{
    enum { T = 77, I = 90, O = 50 };
    static float x[T * I], dy[T * O], y[T * O], dx[T * I], w[O * I], dw[O * I], b[O], db[O];
    static uint8_t mask[O * I];
    float *all[] = {x, dy, w, b};
    int sizes[] = {T * I, T * O, O * I, O}, starts[100 * I] = {0}, positions[O * I];
    uint16_t offsets[O * I + 7];
    double worst = 0, sum;
    for (int a = 0; a < 4; a++)
        for (int i = 0; i < sizes[a]; i++)
            all[a][i] = number();
    for (int i = 0; i < O * I; i++)
        mask[i] = number() > 0.4;
    static int back_starts[100 * I], back_positions[O * I];
    static uint16_t back_offsets[O * I + 7];
    Structure forward = {O, I, 30, 16, 0, starts, offsets, positions};
    Structure backward = {I, O, 30, 16, 1, back_starts, back_offsets, back_positions};
    build(&forward, mask), build(&backward, mask);
    View in = {x, 0, 0, T, I, I}, out = {y, 0, 0, T, O, O};
    View out_gradient = {dy, 0, 0, T, O, O}, in_gradient = {dx, 0, 0, T, I, I};
    Dense weight = {w, 0}, weight_gradient = {dw, 0};
    if (multiply(&forward, &weight, &in, &out, b, 1) ||
        gradients(&forward, &backward, &weight, &in, &out_gradient, &in_gradient,
                  &weight_gradient, db, 1))
        return 1;
#define COMPARE(result, first, term, size)                       \
    sum = first;                                                 \
    for (int k = 0; k < size; k++)                               \
        sum += term;                                             \
    worst = fmax(worst, fabs(sum - (result)));
    for (int t = 0; t < T; t++)
        for (int o = 0; o < O; o++) {
            COMPARE(y[t * O + o], b[o], (double)mask[o * I + k] * w[o * I + k] * x[t * I + k], I)
        }
    for (int t = 0; t < T; t++)
        for (int i = 0; i < I; i++) {
            COMPARE(dx[t * I + i], 0, (double)mask[k * I + i] * w[k * I + i] * dy[t * O + k], O)
        }
    for (int o = 0; o < O; o++) {
        for (int i = 0; i < I; i++) {
            COMPARE(dw[o * I + i], 0, (double)mask[o * I + i] * dy[k * O + o] * x[k * I + i], T)
        }
        COMPARE(db[o], 0, (double)dy[k * O + o], T)
    }
    printf("%%d %%g\n", choose_lanes(16), worst);
    return 0;
}
"""


def test_the_portable_source_is_right_on_arm(tmp_path):
    compiler, emulator = (
        shutil.which(name) for name in ("aarch64-linux-gnu-gcc", "qemu-aarch64-static")
    )
    if not compiler or not emulator:
        pytest.skip("no aarch64-linux-gnu-gcc, or no qemu-aarch64-static")
    source, program = tmp_path / "main.c", tmp_path / "main"
    source.write_text(ON_ARM % kernels._SOURCE)
    command = [compiler, "-O3", "-std=gnu11", "-static", "-o", program, source, "-lm"]
    subprocess.run(command, check=True)
    output = subprocess.run([emulator, program], check=True, capture_output=True, text=True).stdout
    lanes, worst = output.split()
    assert lanes == "4" and float(worst) < 1e-4


@pytest.mark.slow
def test_processes_may_build_at_once(tmp_path):
    code = (
        "from sparse_lib.execution import kernels; import ctypes\n"
        "assert not list(kernels._cache_dir().iterdir())\n"
        "print('ready', flush=True); input()\n"
        "print(ctypes.CDLL(str(kernels._build())).choose_lanes(4))"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], text=True, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in processes:  # neither starts before the other one is ready
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        output, errors = process.communicate(timeout=120)
        assert (process.returncode, output) == (0, "4\n"), errors
    assert len(list(tmp_path.rglob("*.so"))) == 1


def test_a_missing_compiler_is_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CC", "missing-compiler")
    with pytest.raises(kernels.KernelError, match="no C compiler was found"):
        kernels._build()


def test_a_failing_compiler_is_reported_and_leaves_nothing(monkeypatch, tmp_path):
    source = tmp_path / "kernels.c"
    source.write_text("this is no C")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernels, "_SOURCE", source)
    with pytest.raises(kernels.KernelError, match="the C compiler failed on kernels.c"):
        kernels._build()
    assert not list(tmp_path.rglob("*.so"))


def test_an_installed_library_counts_if_it_was_built_of_this_source(monkeypatch, tmp_path):
    source = tmp_path / "kernels.c"
    monkeypatch.setattr(kernels, "_SOURCE", source)
    monkeypatch.setattr(kernels, "_why_not_loaded", lambda path: "")
    source.write_text("int one;")
    assert kernels._installed() is None
    installed = tmp_path / f"_kernels-{hashlib.sha256(b'int one;').hexdigest()[:16]}.so"
    installed.touch()
    os.utime(installed, (0, 0))  # an installer may write the source after the library
    assert kernels._installed() == installed
    source.write_text("int two;")
    assert kernels._installed() is None


@pytest.mark.slow
def test_the_widest_source_is_right_where_the_compiler_lowers_it(monkeypatch, tmp_path):
    if kernels.num_lanes() < 8:
        pytest.skip("AVX2 is missing")
    text = kernels._SOURCE.read_text()
    for pattern, replacement in (
        (r"avx512f,avx512vl,avx512dq,", ""),
        (r"#define NAMES_AVX512 1", "#define NAMES_AVX512 0"),
        (r'__builtin_cpu_supports\("avx512\w+"\)', "1"),
        (r'__asm__\("" : "\+v"\(v\)\)', "(void)(v)"),
    ):
        text, count = re.subn(pattern, replacement, text)
        assert count
    (tmp_path / "kernels.c").write_text(text)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernels, "_SOURCE", tmp_path / "kernels.c")
    loaded = kernels._load.__wrapped__()
    monkeypatch.setattr(kernels, "_load", lambda: loaded)
    assert kernels.num_lanes() == 16
    for shape in SHAPES:
        for lanes in (48, 64):
            test_products_equal_masked_dense(shape, 0.6, False, lanes)
            test_products_equal_masked_dense(shape, 0.6, True, lanes)
    test_masked_weights_are_never_read(64)
    for options in CONVOLUTIONS:
        test_windows_equal_conv2d(options, (9, 11), 64)
