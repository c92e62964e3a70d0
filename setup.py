"""What pyproject.toml cannot say: how the kernels are compiled, and what a wheel of them is called.

The kernels use nothing of Python's C interface and are loaded by ctypes, so a wheel with them fits
every Python of its platform. Their file carries the hash of the source that it was compiled from.
"""

import hashlib
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCE = "sparse_lib/execution/kernels.c"
NAME = "sparse_lib.execution._kernels"


class BuildKernels(build_ext):
    """Names the library by its source, as ``sparse_lib.execution.kernels`` looks for it."""

    def get_ext_filename(self, fullname: str) -> str:
        folder = Path(*fullname.split(".")[:-1])
        source = (Path(__file__).parent / SOURCE).read_bytes()
        return str(folder / f"_kernels-{hashlib.sha256(source).hexdigest()[:16]}.so")


class WheelOfAnyPython(bdist_wheel):
    """Tags the wheel by its platform alone."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


# OpenMP is compiled for and not linked to: it is found in torch's runtime when the library loads.
# Apple's compiler has no -fopenmp; there CFLAGS may say how to compile for it.
flags = [] if sys.platform == "darwin" else ["-fopenmp"]
kernels = Extension(NAME, [SOURCE], optional=True, extra_compile_args=["-O3", "-std=gnu11", *flags])

setup(
    ext_modules=[kernels],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": WheelOfAnyPython},
)
