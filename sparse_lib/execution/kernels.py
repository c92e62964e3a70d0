"""The compiled kernels of `kernels.c`: installed or built on first use, called through ctypes.

Nothing here knows of autograd or modules; `sparse_lib.execution.products` and `layers` do.
"""

import contextlib
import copy
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from ctypes import c_char_p, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparse_lib.masks.counts import num_true

_SOURCE = Path(__file__).with_name("kernels.c")
_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared")
_L1_BYTES = 32 * 1024
_MAX_LANES = 16
_LINE = 64  # bytes, the unit of the kernels' offsets


class KernelError(RuntimeError):
    """The kernels cannot be built or run on this machine."""


class _CStructure(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("rows", "columns", "tile", "lanes", "by_column")] + [
        (name, c_void_p) for name in ("start", "offset", "position")
    ]


class _CDense(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("half", c_int64), ("packed", c_int64)]


class View(ctypes.Structure):
    """Where the features of each token lie; see `rows_view` and `image_view`."""

    _fields_ = [("data", c_void_p)] + [
        (name, c_int64)
        for name in (
            "half kind tokens features stride channels height width out_height out_width kernel_h "
            "kernel_w stride_h stride_w pad_h pad_w dilation_h dilation_w"
        ).split()
    ]


def _cache_dir() -> Path:
    """A folder only this user writes to, since what lies in it gets executed."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "sparse_lib"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    can_write = folder.is_dir() and os.access(folder, os.W_OK)
    return folder if can_write else Path(tempfile.mkdtemp(prefix="sparse_lib-"))


def build_id() -> str:
    """A hash of the kernels' source, compiler flags and architecture: 16 hexadecimal digits."""
    digest = hashlib.sha256(_SOURCE.read_bytes() + " ".join(_FLAGS).encode())
    digest.update(os.uname().machine.encode())
    return digest.hexdigest()[:16]


def _build() -> Path:
    """Compiles the kernels unless this source was compiled before; returns the library's path."""
    target = _cache_dir() / f"kernels-{build_id()}.so"
    if target.exists() and not _why_not_loaded(target):
        return target
    named = os.environ.get("CC", "cc")
    compilers = [path for name in (named, "gcc", "clang") if (path := shutil.which(name))]
    if not compilers:
        raise KernelError("no C compiler was found (tried $CC, cc, gcc, clang)")
    message = ""
    for compiler in dict.fromkeys(compilers):
        for openmp in (True, False):
            handle, path = tempfile.mkstemp(suffix=".so", dir=target.parent)
            os.close(handle)
            why = _compile(compiler, Path(path), openmp) or _why_not_loaded(Path(path))
            if not why:
                os.replace(path, target)
                return target
            os.unlink(path)
            message = message or why.splitlines()[0]
    raise KernelError(f"the C compiler failed on {_SOURCE.name}: {message}")


def _compile(compiler: str, path: Path, openmp: bool) -> str:
    """Compile and link; returns the compiler's complaint, or nothing.

    With torch's OpenMP at hand the library is linked to no runtime: two in one process compete for
    the cores, and may deadlock after a fork.
    """
    flag = ["-fopenmp"] * openmp
    part = path.with_suffix(".o")
    link_flag = [] if openmp_of_torch() else flag
    commands = (
        [compiler, *_FLAGS[:-1], *flag, "-c", "-o", str(part), str(_SOURCE)],
        [compiler, *_FLAGS, *link_flag, "-o", str(path), str(part)],
    )
    try:
        for command in commands:
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode:
                return result.stderr.strip() or "no message"
    finally:
        part.unlink(missing_ok=True)
    return ""


def openmp_of_torch() -> Path | None:
    """The OpenMP runtime that came with torch and is loaded with it; None if it has none."""
    root = Path(torch.__file__).parent
    folders = (root / "lib", root.parent / "torch.libs", root / ".dylibs")
    names = ("libgomp*.so*", "libiomp5*", "libomp*.so*", "libomp*.dylib")
    found = (path for folder in folders for name in names for path in sorted(folder.glob(name)))
    return next(found, None)


def _open(path: Path) -> ctypes.CDLL:
    """Load a library of kernels, which finds OpenMP in torch's own runtime."""
    if (runtime := openmp_of_torch()) is not None:
        ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))


def _why_not_loaded(path: Path) -> str:
    """Why a file cannot be loaded as a library, or nothing; it may have been cut short."""
    try:
        _open(path)
    except OSError as error:
        return str(error)
    return ""


def _installed() -> Path | None:
    """The library that ``setup.py`` built of this very source, if there is one that loads."""
    source = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    path = _SOURCE.with_name(f"_kernels-{source}.so")
    return path if path.exists() and not _why_not_loaded(path) else None


@functools.cache
def _load() -> ctypes.CDLL | KernelError:
    try:
        library = _open(_installed() or _build())
    except KernelError as error:
        return error
    except OSError as error:
        return KernelError(f"the kernels cannot be built or loaded: {error}")
    library.fingerprint.argtypes = [c_void_p, c_int64]
    library.fingerprint.restype = ctypes.c_uint64
    library.processor.argtypes = [c_char_p]
    structure, dense, view = map(ctypes.POINTER, (_CStructure, _CDense, View))
    library.build.argtypes, library.build.restype = [structure, c_void_p], None
    bias = c_void_p, c_int
    library.multiply.argtypes = [structure, dense, view, view, *bias]
    library.gradients.argtypes = [structure, structure, dense, view, view, view, dense, *bias]
    return library


def library() -> ctypes.CDLL:
    """The loaded kernels; KernelError if they can be neither found nor built."""
    if isinstance(loaded := _load(), KernelError):
        raise loaded
    return loaded


def unavailable() -> str | None:
    """Why the kernels cannot run on this machine, or None if they can."""
    return str(loaded) if isinstance(loaded := _load(), KernelError) else None


def processor() -> tuple[str, int]:
    """The processor's vendor and family as it names itself; empty and 0 where it does not."""
    vendor = ctypes.create_string_buffer(13)
    family = library().processor(vendor)
    return vendor.value.decode("ascii", "replace"), family


def num_lanes() -> int:
    """Floats per vector of the kernels in use: 16 (AVX-512), 8 (AVX2) or 4 (portable)."""
    return library().choose_lanes(_MAX_LANES)


@functools.cache
def takes_half(limit: int = _MAX_LANES) -> bool:
    """Whether views may be bfloat16: AMD's Zen 4 and Zen 5."""
    return unavailable() is None and bool(library().takes_half(limit))


def fingerprint(mask: Tensor) -> int:
    """A 64-bit hash of a contiguous bool mask, cheap enough to take at every step."""
    return library().fingerprint(mask.data_ptr(), mask.numel())


def default_tile(columns: int, sparsity: float, *, lanes: int = _MAX_LANES) -> int:
    """Columns per tile, shared out evenly: what fits in the L1 cache, and more from 55% on.

    Wider tiles miss the cache more often but are visited by fewer rows that are nearly empty; the
    measured optimum grows with the square root of the entries' distance.
    """
    in_cache = _L1_BYTES // (4 * library().choose_panel(lanes))
    most = int(in_cache * min(max(0.45 / max(1 - sparsity, 1e-9), 1), 64) ** 0.5)
    num_tiles = max(1, -(-columns // most))
    return max(1, -(-columns // num_tiles))


class Structure:
    """The non-zeros of a mask as the kernels read them; immutable, hence safe to share.

    Args:
        mask: Contiguous bool `[rows, columns]`, or `[columns, rows]` if `transposed`, on the CPU,
            with fewer than 2^31 elements; ValueError otherwise.
        transposed: Whether `mask` is stored with its columns first.
        tile: Columns per tile, at most 4 MB of panel rows, whose offsets have 16 bits; by default
            what suits the L1 cache and the sparsity.
        lanes: Upper limit of the vector width in floats, for tests; 32, 48 and 64 ask for 16 with
            the panels of Intel, of Zen 4 and of Zen 5.
    """

    def __init__(
        self,
        mask: Tensor,
        *,
        transposed: bool = False,
        tile: int | None = None,
        lanes: int = _MAX_LANES,
    ):
        if mask.dtype != torch.bool or mask.dim() != 2 or not mask.is_contiguous():
            raise ValueError(f"mask must be a contiguous bool matrix, got {mask.dtype}")
        if mask.device.type != "cpu" or mask.numel() >= 2**31:
            raise ValueError("mask must lie on the CPU and have fewer than 2^31 elements")
        self.rows, self.columns = mask.shape[::-1] if transposed else mask.shape
        self.lanes, self.transposed = lanes, transposed
        self.num_nonzero = num_true(mask)
        self.sparsity = 1 - self.num_nonzero / max(mask.numel(), 1)
        widest = 2**16 * _LINE // (4 * library().choose_panel(lanes))
        self.tile = min(tile or default_tile(self.columns, self.sparsity, lanes=lanes), widest)
        num_starts = -(-self.columns // self.tile) * self.rows + 1
        self._start = torch.empty(num_starts, dtype=torch.int32, device="cpu")
        self._offset = torch.empty(self.num_nonzero + 7, dtype=torch.int16, device="cpu")
        self._position = torch.empty(self.num_nonzero, dtype=torch.int32, device="cpu")
        pointers = (self._start.data_ptr(), self._offset.data_ptr(), self._position.data_ptr())
        sizes = (self.rows, self.columns, self.tile, self.lanes, self.transposed)
        self._as_c = _CStructure(*sizes, *pointers)
        if transposed:
            mask = mask.T.contiguous()
        library().build(self._as_c, mask.data_ptr())
        self.is_packed = False

    @property
    def num_bytes(self) -> int:
        """Memory that the structure takes."""
        return sum(part.nbytes for part in (self._start, self._offset, self._position))

    def packed(self, ranks: Tensor) -> "Structure":
        """The structure for weights of which only the unmasked ones are kept.

        ``ranks``, int32, one per weight as the mask is stored, is the place of an unmasked weight
        there.
        """
        twin = copy.copy(self)
        twin._position = ranks.index_select(0, self._position)
        twin._as_c = _CStructure.from_buffer_copy(self._as_c)
        twin._as_c.position = twin._position.data_ptr()
        twin.is_packed = True
        return twin

    def multiply(
        self, weight: Tensor, source: View, target: View, bias: Tensor | None = None
    ) -> None:
        """Writes `target = source @ W.T + bias`, W being the masked `weight` of this structure.

        Args:
            weight: Contiguous, float32 or bfloat16, laid out as the mask was; if packed,
                `[num_nonzero]`.
            source: `columns` features per token.
            target: `rows` features per token, in the type of `source`.
            bias: `[rows]`, float32.

        Raises:
            ValueError: A view does not have the features of this structure, or one is bfloat16 and
                the other not, or `takes_half()` is false.
        """
        _check_views(self, weight, source, target)
        _run(library().multiply, self._as_c, _as_c(weight, self), source, target, bias)


def _as_c(weight: Tensor, structure: Structure) -> _CDense:
    return _CDense(weight.data_ptr(), weight.dtype is torch.bfloat16, structure.is_packed)


def _run(function: Any, *arguments: Any) -> None:
    """Call a function of the library, whose last argument but the threads is a bias."""
    *others, bias = arguments
    address = None if bias is None else bias.data_ptr()
    if function(*others, address, torch.get_num_threads()):
        raise MemoryError("no memory for the panels of a sparse layer")


def _check_views(structure: Structure, weight: Tensor, source: View, target: View) -> None:
    """Raise ValueError where sizes do not match; the kernels get addresses and check none."""
    rows, columns = structure.rows, structure.columns
    num_weights = structure.num_nonzero if structure.is_packed else rows * columns
    wanted = (columns, rows, num_weights, source.tokens)
    got = (source.features, target.features, weight.numel(), target.tokens)
    if got != wanted:
        raise ValueError(
            "source features, target features, weights and tokens must be "
            f"{', '.join(map(str, wanted))}, got {', '.join(map(str, got))}"
        )
    if source.half != target.half or (source.half and not takes_half(structure.lanes)):
        raise ValueError("views must be float32, or both bfloat16 where `takes_half()` is true")


def gradients(
    forward: Structure,
    backward: Structure,
    weight: Tensor,
    source: View,
    target_gradient: View,
    source_gradient: View | None,
    bias_gradient: Tensor | None = None,
) -> Tensor:
    """The gradients of a product in one pass; arguments and errors as of `Structure.multiply`.

    ``source_gradient`` and ``bias_gradient`` (float32) are written, if given; windows that overlap
    add up, so zero the former then.

    Returns:
        The weight's gradient, of the weight's shape and type; of a dense one zero where masked.
    """
    _check_views(forward, weight, source, target_gradient)
    if source_gradient is not None:
        _check_views(backward, weight, target_gradient, source_gradient)
    gradient = torch.empty_like(weight, memory_format=torch.contiguous_format)
    views = source, target_gradient, source_gradient
    structures, dense = (forward._as_c, backward._as_c), _as_c(weight, forward)
    _run(library().gradients, *structures, dense, *views, _as_c(gradient, forward), bias_gradient)
    return gradient


def rows_view(matrix: Tensor) -> View:
    """Tokens are rows `[..., features]` of float32 or bfloat16, contiguous or a strided matrix."""
    shape = matrix.shape
    features = shape[-1]
    stride = matrix.stride(0) if len(shape) == 2 else features
    half = matrix.dtype is torch.bfloat16
    return View(matrix.data_ptr(), half, 0, matrix.numel() // features, features, stride)


def image_view(
    images: Tensor,
    out_size: tuple[int, int],
    kernel: tuple[int, int] = (1, 1),
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> View:
    """Tokens are the window positions of contiguous float32 `[image, channel, height, width]`."""
    batch, channels, height, width = images.shape
    return View(
        images.data_ptr(), 0, 1,
        batch * out_size[0] * out_size[1], channels * kernel[0] * kernel[1],
        0, channels, height, width, *out_size, *kernel, *stride, *padding, *dilation,
    )  # fmt: skip
