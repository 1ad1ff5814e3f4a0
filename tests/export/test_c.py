"""C files compile without warnings and compute what the layers compute."""

import pytest
import torch

from steadygrad.export import c_source
from steadygrad.layers import LAYERS
from tests.export.compiled import Compiled, needs_compiler
from tests.rounding import rounding

I, N, T = 3, 6, 250
GROWING = ("memrnn", "memlstm", "sab")
exportable = pytest.mark.parametrize("name", [name for name in LAYERS if name not in GROWING])


def expected(module, x, double):
    """Outputs (time, features) of a layer for x (time, features)."""
    baked = module.baked()
    baked = baked.double() if double else baked.float()
    return baked(x.to(torch.float64 if double else torch.float32))[0]


def assert_near(got, wanted, steps=T):
    """Each of ``steps`` steps rounds sums over the inputs and units, in another order; none of the networks expands."""
    scale = max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(got, wanted, rtol=0, atol=rounding(wanted.dtype, N + I, steps, scale))


@needs_compiler
@exportable
@pytest.mark.parametrize("double", [False, True], ids=["float", "double"])
@torch.no_grad()
def test_compiled_layer_is_the_baked_layer(name, double, tmp_path):
    layer = LAYERS[name](I, N)
    x = torch.randn(T, I, dtype=torch.float64)
    run = Compiled(tmp_path, c_source(layer, double=double), double=double)
    assert_near(run(run.new(), x), expected(layer, x, double))
