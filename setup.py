"""The C kernel, the one thing that pyproject.toml cannot describe.

It is plain C that `ctypes` loads, with no Python API inside, so one wheel serves every version of Python. It is
optional: where it cannot be compiled the package installs without it and runs the slower Python path.

`make wheels` sets STEADYGRAD_WHEEL to the platform tag of the wheel to build. Then the C kernel is compiled for that
platform by the clang of the package ziglang, which has the C libraries of all platforms, and an error ends the build.
"""

import os
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path
from subprocess import CalledProcessError

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNELS = "steadygrad/kernels/c"
FLAGS = ["-O2", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math"]
WHEEL = os.environ.get("STEADYGRAD_WHEEL", "")
TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
}
"""clang's target by platform tag: the platforms that PyPI has wheels of torch for"""
WINDOWS = WHEEL.startswith("win") if WHEEL else sys.platform == "win32"


class BuildOptional(build_ext):
    """Whatever a missing or broken compiler raises, the install goes on."""

    def run(self) -> None:
        self.editable = bool(self.inplace)  # build_ext forgets it while it builds
        try:
            super().run()
        except Exception as error:  # for instance a platform that knows no compiler
            for extension in self.extensions:
                self.do_without(extension, error)

    def get_ext_filename(self, fullname: str) -> str:
        """Return a file name without the tag of a Python version, as in native.py."""
        return str(Path(*fullname.split("."))) + (".dll" if WINDOWS else ".so")

    def build_extension(self, ext: Extension) -> None:
        try:
            if WHEEL:
                self.build_for_wheel(ext)
            else:
                super().build_extension(ext)
        except Exception as error:
            self.do_without(ext, error)

    def build_for_wheel(self, ext: Extension) -> None:
        file = Path(self.get_ext_fullpath(ext.name))
        built = Path(self.build_temp, file.name)  # there, because on Windows the linker writes an import library too
        for folder in (built.parent, file.parent):
            folder.mkdir(parents=True, exist_ok=True)
        compiler = [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[WHEEL]]
        libraries = [] if WINDOWS else ["-lm", "-lpthread"]
        command = [*compiler, *FLAGS, "-g0", "-s", "-fPIC", "-shared", *ext.sources, "-o", str(built), *libraries]
        subprocess.run(command, check=True)
        shutil.copy(built, file)

    def do_without(self, ext: Extension, error: Exception) -> None:
        if WHEEL:
            raise error
        file = self.get_ext_filename(self.get_ext_fullname(ext.name))
        for folder in [self.build_lib, "."] if self.editable else [self.build_lib]:
            Path(folder, file).unlink(missing_ok=True)  # a library must not outlive its sources
        cause = error.__context__ or error
        reason = f"{cause.cmd[0]} failed, see above" if isinstance(cause, CalledProcessError) else cause
        print(f"steadygrad: the C kernel was not built, so layers run slower ({reason})", flush=True)


class EveryPython(bdist_wheel):
    """A wheel for every version of Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


native = Extension(
    "steadygrad.kernels._native",
    sources=[f"{KERNELS}/steadygrad.c"],
    depends=[*sorted(glob(f"{KERNELS}/*.h")), "setup.py"],
    extra_compile_args=FLAGS,
    libraries=["m", "pthread", *(["dl"] if sys.platform == "linux" else [])],
    optional=True,
)

setup(
    ext_modules=[native],
    cmdclass={"build_ext": BuildOptional, "bdist_wheel": EveryPython},
    options={"build": {"build_base": f"build/{WHEEL}"}, "bdist_wheel": {"plat_name": WHEEL}} if WHEEL else {},
)
