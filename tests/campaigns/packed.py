"""PackedSequences whose parts need not fit together: a ValueError, or the result of whole sequences."""

import random
from functools import cache

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from steadygrad.layers import LAYERS, RecurrentLayer
from tests.campaigns.campaign import Campaign

I, N = 3, 4
TOLERANCE = 1e-4  # float32, few steps: packed and single sequences round differently


@cache
def layer_of(name: str, bidirectional: bool) -> RecurrentLayer:
    """Return a small layer; each is made once."""
    torch.manual_seed(0)
    return LAYERS[name](I, N, bidirectional=bidirectional)


def odd_sizes(rng: random.Random, sizes: list[int]) -> Tensor:
    """Return batch sizes: mostly with something wrong."""
    wrong = list(sizes)
    match rng.randrange(12):
        case 0 | 1 | 2:
            pass
        case 3:
            wrong[rng.randrange(len(wrong))] += rng.choice([-1, 1, 7, 2**31, 2**62, -(2**62)])
        case 4:
            wrong.append(rng.choice([0, -1, 1, 20_000_000]))
        case 5:
            rng.shuffle(wrong)
        case 6:
            wrong = wrong[:-1]
        case 7:
            return torch.tensor(wrong, dtype=rng.choice([torch.float32, torch.bool, torch.int16, torch.complex64]))
        case 8:
            return torch.tensor([wrong])
        case 9:
            return torch.tensor(wrong, device="meta")
        case 10:
            wrong = [0] * len(wrong)
        case 11:
            wrong = [rng.randrange(-2, 6) for _ in range(rng.randrange(4))]
    return torch.tensor(wrong, dtype=torch.int64)


def odd_order(rng: random.Random, batch: int) -> Tensor | None:
    """Return a permutation of the batch, None, or something that is neither."""
    order = list(range(batch))
    rng.shuffle(order)
    match rng.randrange(8):
        case 0 | 1 | 2:
            return None
        case 3:
            order[rng.randrange(batch)] = rng.choice([-1, batch, 0, 2**40])
        case 4:
            order = order[:-1] if rng.random() < 0.5 else [*order, batch]
        case 5:
            return torch.tensor(order, dtype=rng.choice([torch.float32, torch.int32, torch.bool]))
        case 6:
            return torch.tensor(order, device="meta")
    return torch.tensor(order, dtype=torch.int64)


def is_permutation(order: Tensor | None, batch: int) -> bool:
    """Return whether the order is None or a permutation that index_select takes."""
    return order is None or (
        order.is_cpu and order.dtype in (torch.int32, torch.int64) and sorted(order.tolist()) == list(range(batch))
    )


def consistent(packed: PackedSequence, batch: int, sizes: list[int]) -> bool:
    """Return whether the PackedSequence is what its lengths say."""
    given = packed.batch_sizes
    fits = given.is_cpu and given.dim() == 1 and not given.dtype.is_floating_point and given.dtype != torch.bool
    fits = fits and not given.dtype.is_complex and given.tolist() == sizes
    return fits and is_permutation(packed.sorted_indices, batch) and is_permutation(packed.unsorted_indices, batch)


def whole_sequences(layer: RecurrentLayer, data: Tensor, sizes: list[int]) -> Tensor:
    """Return the outputs of the layer for one sequence at a time, in the rows of packed data."""
    output = data.new_empty(len(data), layer.output_size)
    offsets = [sum(sizes[:t]) for t in range(len(sizes))]
    for b in range(sizes[0]):
        rows = [offsets[t] + b for t in range(len(sizes)) if sizes[t] > b]
        output[rows] = layer(data[rows])[0]
    return output


def run(campaign: Campaign) -> None:
    """Build one PackedSequence a try, pass it to a layer, and go back if the layer took it."""
    for rng in campaign.tries():
        name, bidirectional = rng.choice(sorted(LAYERS)), rng.random() < 0.2
        layer = layer_of(name, bidirectional)
        lengths = sorted((rng.randrange(1, 5) for _ in range(rng.randrange(1, 5))), reverse=True)
        sizes = [sum(length > t for length in lengths) for t in range(lengths[0])]
        data = torch.randn(sum(sizes), I, generator=torch.Generator().manual_seed(rng.randrange(2**31)))
        data.requires_grad_(rng.random() < 0.7)
        good = PackedSequence(data, torch.tensor(sizes))
        batch = len(lengths)
        orders = {"sorted_indices": odd_order(rng, batch), "unsorted_indices": odd_order(rng, batch)}
        packed = good._replace(batch_sizes=odd_sizes(rng, sizes), **orders)
        what = f"{name}, batch_sizes {packed.batch_sizes}, {orders}"
        fits = consistent(packed, batch, sizes)
        campaign.count("PackedSequences that fit" if fits else "inconsistent PackedSequences")
        with campaign.expecting(what, *(() if fits else (ValueError, TypeError))):
            output, _ = layer(packed)
            if data.requires_grad:
                output.data.sum().backward()
            if not same_as_whole(layer, output, data):
                campaign.fail(f"{what}: taken, but the result is not that of whole sequences")


def same_as_whole(layer: RecurrentLayer, output: PackedSequence, data: Tensor) -> bool:
    """Return whether a layer's packed output is that of its sequences one by one."""
    with torch.no_grad():
        expected = whole_sequences(layer, data, output.batch_sizes.tolist())
    return torch.allclose(output.data, expected, rtol=0, atol=TOLERANCE)
