"""The C kernels without Python and torch: on this machine, and for aarch64 under qemu."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from steadygrad.kernels import native
from tests.backends import needs_c

FOLDER = Path(__file__).parent
KERNELS = Path(native.__file__).parent / "c" / "steadygrad.c"
CROSS, QEMU = "aarch64-linux-gnu-gcc", ("qemu-aarch64", "qemu-aarch64-static")
SYSTEM = "/usr/aarch64-linux-gnu"  # Debian's folder of the C library for aarch64
KERNEL_FLAGS = ["-O1", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared"]


def compile_harness(compiler, folder):
    program = folder / "harness"
    command = [compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", FOLDER / "harness.c", "-o", program]
    subprocess.run([*command, "-lm", "-ldl"], check=True)
    return program


def run_harness(*command):
    return subprocess.run([*map(str, command)], capture_output=True, text=True)


def wrong_numbers(folder):
    """Return a copy of the file with one result changed."""
    lines = (FOLDER / "numbers.txt").read_text("utf-8").splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("r ") and line.split()[2] == "2")
    *words, last = lines[place].split()
    lines[place] = " ".join([*words, str(float(last) + 1e-3)])
    file = folder / "wrong.txt"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return file


@needs_c
@pytest.mark.skipif(os.name == "nt" or not shutil.which("cc"), reason="no C compiler")
def test_kernels_give_frozen_numbers_without_torch(tmp_path):
    program = compile_harness("cc", tmp_path)
    ended = run_harness(program, native.LIBRARY, FOLDER / "numbers.txt")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "instruction set 0, double: 32 calls" in ended.stdout
    ended = run_harness(program, native.LIBRARY, wrong_numbers(tmp_path))
    assert ended.returncode == 1
    assert "call 1, elman_forward: error 0.00" in ended.stdout


@pytest.mark.skipif(platform.system() != "Linux", reason="qemu runs Linux programs on Linux only")
@pytest.mark.skipif(not shutil.which(CROSS), reason=f"no {CROSS}")
@pytest.mark.skipif(not any(map(shutil.which, QEMU)), reason="no qemu-aarch64")
def test_kernels_give_frozen_numbers_on_aarch64(tmp_path):
    qemu = next(filter(None, map(shutil.which, QEMU)))
    library = tmp_path / "kernels.so"
    subprocess.run([CROSS, *KERNEL_FLAGS, KERNELS, "-o", library, "-lm", "-lpthread", "-ldl"], check=True)
    program = compile_harness(CROSS, tmp_path)
    ended = run_harness(qemu, "-L", SYSTEM, program, library, FOLDER / "numbers.txt")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("32 calls") == 2  # double and float, and no other instruction set than the baseline


@needs_c
def test_frozen_numbers_are_those_of_today():
    """When this fails because a struct has changed: python -m tests.harness.freeze."""
    freeze = pytest.importorskip("tests.harness.freeze")
    frozen, today = ((FOLDER / "numbers.txt").read_text("utf-8"), freeze.text())
    for old, new in zip(frozen.splitlines(), today.splitlines(), strict=True):
        old_words, new_words = old.split(), new.split()
        assert [len(old_words), *old_words[:1]] == [len(new_words), *new_words[:1]]
        if len(old_words) > 1:
            old_numbers, new_numbers = ([float(word) for word in words[1:]] for words in (old_words, new_words))
            assert new_numbers == pytest.approx(old_numbers, rel=1e-10, abs=1e-10, nan_ok=True)
