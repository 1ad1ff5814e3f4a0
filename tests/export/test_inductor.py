"""Exported programs compiled by AOTInductor."""

import shutil

import pytest
import torch
from torch.export import Dim, export

from steadygrad.export import aot_package
from steadygrad.export.inductor import complex_addcmul, complex_sub
from steadygrad.layers import LAYERS, Stack
from steadygrad.layers.recurrent import as_tuple
from tests.rounding import assert_same, rounding

I, N = 3, 6


def flat(found):
    output, states = found
    return [output, *(part for state in states for part in as_tuple(state))]


@torch.no_grad()
@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore")  # of torch, about its own deprecated functions and complex operators
def test_package_runs_for_other_lengths_and_batches(tmp_path):
    """An operator of steadygrad whose W needs complex operators, and a loop by `scan`."""
    layer = Stack([LAYERS["urnn"](I, N), LAYERS["lem"](2 * N, N)]).double().eval()
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    program = export(layer, (torch.randn(5, 2, I, dtype=torch.float64),), dynamic_shapes=shapes)
    before = str(program)
    aot_package(program, tmp_path / "layer.pt2")
    assert str(program) == before
    run = torch._inductor.aoti_load_package(str(tmp_path / "layer.pt2"))
    for time, batch in ((1, 1), (50, 3)):
        x = torch.randn(time, batch, I, dtype=torch.float64)
        # W is the result of another formula, whose condition number is below 100 for these layers
        assert_same(flat(run(x)), flat(layer(x)), rounding(torch.float64, 2 * N, time, 100))


def test_complex_operators_without_scalars():
    a, b, c = torch.randn(3, N, dtype=torch.complex128)
    bound = rounding(torch.float64, 1, 3, 10)
    for v in (1, 0.5):
        assert_same([complex_sub(a, b, alpha=v)], [torch.sub(a, b, alpha=v)], bound)
        assert_same([complex_sub(a.real, b, alpha=v)], [torch.sub(a.real, b, alpha=v)], bound)
        assert_same([complex_addcmul(a, b, c, value=v)], [torch.addcmul(a, b, c, value=v)], bound)
    assert complex_sub(a.real, b.real) is NotImplemented
    assert complex_addcmul(a.real, b.real, c.real) is NotImplemented
