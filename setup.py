"""The C kernel, the one thing that pyproject.toml cannot describe.

It is plain C that `ctypes` loads, with no Python API inside. It is optional: where it cannot be compiled
the package installs without it and runs the slower Python path.
"""

import sys
from glob import glob
from pathlib import Path
from subprocess import CalledProcessError

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = "steadygrad/kernels/c"


class BuildOptional(build_ext):
    """Whatever a missing or broken compiler raises, the install goes on."""

    def run(self) -> None:
        self.editable = bool(self.inplace)  # build_ext forgets it while it builds
        try:
            super().run()
        except Exception as error:  # for instance a platform that knows no compiler
            for extension in self.extensions:
                self.do_without(extension, error)

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:
            self.do_without(ext, error)

    def do_without(self, ext: Extension, error: Exception) -> None:
        file = self.get_ext_filename(self.get_ext_fullname(ext.name))
        for folder in [self.build_lib, "."] if self.editable else [self.build_lib]:
            Path(folder, file).unlink(missing_ok=True)  # a library must not outlive its sources
        cause = error.__context__ or error
        reason = f"{cause.cmd[0]} failed, see above" if isinstance(cause, CalledProcessError) else cause
        print(f"steadygrad: the C kernel was not built, so layers run slower ({reason})", flush=True)


native = Extension(
    "steadygrad.kernels._native",
    sources=[f"{KERNELS}/steadygrad.c"],
    depends=[*sorted(glob(f"{KERNELS}/*.h")), "setup.py"],
    extra_compile_args=["-O2", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math"],
    libraries=["m", "pthread", *(["dl"] if sys.platform == "linux" else [])],
    optional=True,
)

setup(ext_modules=[native], cmdclass={"build_ext": BuildOptional})
