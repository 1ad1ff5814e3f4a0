"""Input weights scaled so that the outputs of a new layer have a chosen size."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from steadygrad.check import is_number
from steadygrad.layers.naming import suffix
from steadygrad.layers.recurrent import RecurrentLayer

TOLERANCE = 1e-3
"""largest relative difference between the scale that is asked for and the one that is accepted"""
FARTHEST = 1e12
"""largest gain that is tried, and the reciprocal of the smallest one"""


@torch.no_grad()
def calibrate(layer: RecurrentLayer, x: Tensor | PackedSequence | None = None, scale: float = 1.0) -> list[float]:
    """Multiply the input weights of a layer so that its outputs on x have the root mean square ``scale``.

    Return the factors: one for each level (``num_layers``), from the first to the last. The outputs of every level
    get this scale. A factor multiplies ``weight_ih`` of the level, in both directions; biases and recurrent matrices
    stay as they are. It is found by bisection, up to a relative difference of 0.001. The layer is in evaluation mode
    meanwhile, so without dropout.

    x is an input of the layer. By default it is standard normal: 16 sequences of 100 steps, the same at every call.

    Raise ValueError, with the weights unchanged, if a level does not reach the scale with any factor. The message says
    how far it gets: activations such as tanh saturate, and biases alone give an output.
    """
    if not is_number(scale, 0) or scale == 0:
        raise ValueError(f"calibrate expects a scale above 0; got {scale!r}")
    if x is None:
        x = default_input(layer)
    levels = [input_weights(layer, level) for level in range(layer.num_layers)]
    before = [[weight.clone() for weight in weights] for weights in levels]
    gains: list[float] = []
    try:
        with evaluating(layer):
            for level, (weights, start) in enumerate(zip(levels, before, strict=True)):
                measured = partial(size_at, lower_levels(layer, level + 1), x, weights, start)
                gains.append(gain_for(measured, scale, f"{type(layer).__name__}, level {level},"))
    except BaseException:
        for weights, start in zip(levels, before, strict=True):
            for weight, old in zip(weights, start, strict=True):
                weight.copy_(old)
        raise
    return gains


def default_input(layer: RecurrentLayer) -> Tensor:
    """Return the input on which `calibrate` measures by default, standard normal, in the form that the layer takes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 16, layer.input_size, generator=generator, dtype=torch.float64)
    return (x.transpose(0, 1) if layer.batch_first else x).to(input_weights(layer, 0)[0])


def input_weights(layer: RecurrentLayer, level: int) -> list[nn.Parameter]:
    """Return the input weights of a level, one for each direction. Raise ValueError if one is not a parameter."""
    names = [f"weight_ih{suffix(layer, level * layer.directions + k)}" for k in range(layer.directions)]
    found = [layer._parameters.get(name) for name in names]
    if missing := [name for name, weight in zip(names, found, strict=True) if weight is None]:
        raise ValueError(f"calibrate expects {type(layer).__name__} to have the parameter {missing[0]}; it has none")
    return [weight for weight in found if weight is not None]


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Context manager: put a module into evaluation mode, and each of its parts back into its mode at the end."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def lower_levels(layer: RecurrentLayer, count: int) -> RecurrentLayer:
    """Return a layer of the first ``count`` levels, which shares its parameters with ``layer``."""
    part, cells = copy.copy(layer), count * layer.directions
    part.__dict__["_modules"] = dict(layer._modules)
    part.num_layers, part.cells = count, nn.ModuleList(layer.cells[:cells])
    if layer.initial_state is not None:
        part.initial_state = nn.ParameterList(nn.Parameter(start[:cells]) for start in layer.initial_state)
    return part


def size_at(
    layer: RecurrentLayer,
    x: Tensor | PackedSequence,
    weights: Sequence[Tensor],
    start: Sequence[Tensor],
    gain: float,
) -> float:
    """Set ``weights`` to ``gain`` times ``start`` in place, and return the root mean square of the outputs for x."""
    for weight, old in zip(weights, start, strict=True):
        weight.copy_(gain * old)
    return root_mean_square(layer(x)[0])


def root_mean_square(output: Tensor | PackedSequence) -> float:
    """Return the root mean square of the outputs of a layer. It may be NaN or infinite."""
    rows = output.data if isinstance(output, PackedSequence) else output
    return float(rows.detach().double().square().mean().sqrt())


def gain_for(measured: Callable[[float], float], scale: float, who: str) -> float:
    """Return the gain for which ``measured(gain)`` is ``scale``, found by bisection from 1 on.

    Raise ValueError, in the name of ``who``, if no gain between 1e-12 and 1e12 is found. A value that is not finite
    counts as too large.
    """
    low = high = 1.0
    value = measured(1.0)
    seen = [value]
    grows = value < scale
    while (value < scale) == grows and abs(value / scale - 1) > TOLERANCE:
        if grows:
            low, high = high, 4 * high
        else:
            low, high = low / 4, low
        if not 1 / FARTHEST < low < high < FARTHEST:
            which, farthest = ("largest", max(seen)) if grows else ("smallest", min(seen))
            raise ValueError(
                f"calibrate expects a scale that {who} can reach; got {scale:g}, but the {which} one is {farthest:.3g}"
            )
        value = measured(high if grows else low)
        seen.append(value if math.isfinite(value) else math.inf)
    gain = high if grows else low
    while not abs(value / scale - 1) <= TOLERANCE:
        gain = math.sqrt(low * high)
        value = measured(gain)
        low, high = (gain, high) if value < scale else (low, gain)
        if high / low < 1 + 1e-12:
            raise ValueError(
                f"calibrate expects a scale that {who} can reach; got {scale:g}, but its outputs jump from "
                f"{measured(low):.3g} to {measured(high):.3g}"
            )
    return gain
