"""Marks for tests that run with the C kernels."""

import pytest

from steadygrad.kernels import native

needs_c = pytest.mark.skipif(isinstance(native.library(), str), reason=f"no C kernel: {native.library()}")
every_backend = pytest.mark.parametrize("backend", [pytest.param("c", marks=needs_c), "python", "reference"])
