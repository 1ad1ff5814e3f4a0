"""A PackedSequence whose parts do not fit together is refused by every layer, before anything is read."""

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from steadygrad.layers import LAYERS

every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
I, N = 4, 6


def packed(rows, sizes, sorted_indices=None, unsorted_indices=None):
    """A PackedSequence without the constructor's own checks."""
    sizes = torch.tensor(sizes) if isinstance(sizes, list) else sizes
    return PackedSequence.__new__(PackedSequence, torch.ones(rows, I), torch.tensor([1]))._replace(
        batch_sizes=sizes, sorted_indices=sorted_indices, unsorted_indices=unsorted_indices
    )


SIZES = {
    "negative": (3, [4, -1]),
    "far too large": (3, [20_000_000]),
    "sum too small": (3, [2]),
    "sum too large": (3, [2, 2]),
    "sum overflows": (3, [2**62, 2**62]),
    "rising": (3, [1, 2]),
    "zero at the end": (3, [3, 0]),
    "all zero": (0, [0, 0]),
    "empty": (3, torch.zeros(0, dtype=torch.int64)),
    "floats": (3, [2.0, 1.0]),
    "booleans": (2, [True, True]),
    "matrix": (3, [[2, 1]]),
    "scalar": (3, torch.tensor(3)),
    "without values": (3, torch.ones(3, dtype=torch.int64, device="meta")),
}


@every_layer
@pytest.mark.parametrize(("rows", "sizes"), SIZES.values(), ids=SIZES)
def test_inconsistent_batch_sizes_raise_value_error(make, rows, sizes):
    with pytest.raises(ValueError, match=r"a packed batch expects .*batch_sizes .*; got"):
        make(I, N)(packed(rows, sizes))


ORDERS = {
    "too short": [0],
    "too long": [0, 1, 2],
    "twice the same": [0, 0],
    "out of range": [0, 2],
    "negative": [-1, 0],
    "floats": [0.0, 1.0],
    "matrix": [[0, 1]],
}


@every_layer
@pytest.mark.parametrize("name", ["sorted_indices", "unsorted_indices"])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_indices_that_are_no_permutation_raise_value_error(make, name, order):
    with pytest.raises(ValueError, match=f"{make.__name__} expects {name} to be a permutation of the 2 sequences"):
        make(I, N)(packed(3, [2, 1], **{name: torch.tensor(order)}))
    with pytest.raises(ValueError, match=f"expects {name} to be a permutation"):
        make(I, N)(packed(3, [2, 1], **{name: torch.tensor([0, 1], device="meta")}))


@every_layer
def test_input_of_wrong_kind_raises_type_or_value_error(make):
    layer = make(I, N)
    for wrong in (None, [1.0], "x", 3):
        with pytest.raises(TypeError, match=f"{make.__name__} expects a tensor, a PackedSequence or a Lookup; got"):
            layer(wrong)
    x = torch.ones(3, 2, I)
    with pytest.raises(ValueError, match=r"expects input of layout torch.strided; got torch.sparse_coo"):
        layer(x.to_sparse())
    with pytest.raises(ValueError, match=r"expects input of layout torch.strided; got a nested tensor"):
        layer(torch.nested.nested_tensor([x[:, 0], x[:2, 1]], layout=torch.jagged))
    with pytest.raises(ValueError, match=r"expects input on cpu, as its parameters are; got meta"):
        layer(x.to("meta"))
    _, state = layer(x)
    parts = state if isinstance(state, tuple) else (state,)
    with pytest.raises(ValueError, match=r"expects a hidden state on cpu, as its input is; got meta"):
        layer(x, tuple(part.to("meta") for part in parts))
    with pytest.raises(ValueError, match=r"expects a hidden state of layout torch.strided; got torch.sparse_coo"):
        layer(x, (parts[0].to_sparse(), *parts[1:]))


def test_permutation_may_have_32_bits():
    layer = LAYERS["lstm"](I, N)
    batch = pack_sequence([torch.randn(2, I), torch.randn(3, I)], enforce_sorted=False)
    short = batch._replace(sorted_indices=batch.sorted_indices.int(), unsorted_indices=batch.unsorted_indices.int())
    _, state = layer(batch)
    for one, other in zip(layer(batch, state)[1], layer(short, state)[1], strict=True):
        assert torch.equal(one, other)
