"""Marks for tests that run with the C kernels."""

import pytest

from steadygrad.kernels import native

needs_c = pytest.mark.skipif(isinstance(native.library(), str), reason=f"no C kernel: {native.library()}")
every_backend = pytest.mark.parametrize("backend", [pytest.param("c", marks=needs_c), "python", "reference"])

ATTENTIVE = ("memrnn", "memlstm", "relrnn", "rellstm")
"""layers that are traced through the C kernel of attention; without it torch.compile leaves them out of its graphs"""


def traced_layers(names):
    """Names of layers as parameters of tests that trace a layer: those of `ATTENTIVE` are skipped without C."""
    return [pytest.param(name, marks=needs_c) if name in ATTENTIVE else name for name in names]
