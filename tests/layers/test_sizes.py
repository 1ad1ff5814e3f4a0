"""Absurd sizes are refused at once, or fail when torch allocates the first tensor."""

import pytest
import torch

from steadygrad.layers import LAYERS
from steadygrad.layers.cell import MOST_LAYERS


@pytest.mark.parametrize("name", LAYERS)
def test_huge_number_of_layers_is_refused(name):
    for number in (MOST_LAYERS + 1, 10**12):
        with pytest.raises(ValueError, match=f" expects num_layers to be at most 10,000; got {number}$"):
            LAYERS[name](2, 3, number)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("sizes", [(2, 10**12), (10**12, 2)], ids=["hidden_size", "input_size"])
def test_huge_size_fails_at_first_allocation(name, sizes):
    with torch.device("cpu"), pytest.raises((RuntimeError, MemoryError, OverflowError), match=r"memory|overflow"):
        LAYERS[name](*sizes)
