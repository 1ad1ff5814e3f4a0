"""Layers that are compared in training steps: each has a name and a function (input size, hidden size) → layer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from benchmarks import peers
from steadygrad import layers
from steadygrad.kernels import ElmanInputs, Steps, elman_unroll
from steadygrad.matrices import EigenvalueNormalized

Build = Callable[[int, int], nn.Module]
Module = TypeVar("Module", bound=nn.Module)

UPDATE = 1e-4  # size of the parameter change before each step, about that of an optimizer


class Size(NamedTuple):
    batch: int
    time: int
    hidden: int
    inputs: int

    def __str__(self) -> str:
        return ", ".join(map(str, self))


SIZES = (
    Size(10, 220, 128, 10),
    Size(50, 200, 80, 2),
    Size(20, 1000, 192, 10),
    Size(100, 784, 256, 1),
    Size(128, 150, 1024, 50),
)


@dataclass(frozen=True)
class Candidate:
    build: Build
    every: int = 1
    """The layer runs in every n-th round only; slow layers run less often."""


def normalising(module: Module) -> Module:
    """Switch on every eigenvalue normalisation, as training does permanently once ρ > 1. Return the module."""
    for part in module.modules():
        if isinstance(part, EigenvalueNormalized):
            part.normalised.fill_(True)
    return module


class Kernel(nn.Module):
    """The kernel, its gradients and an unconstrained matrix, without the layer: no checks, no final state."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        layer = layers.RNN(inputs, hidden, activation="modrelu")
        self.U, self.W, self.b = layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_modrelu_l0

    def forward(self, x: Tensor) -> tuple[Tensor]:
        time, batch, _ = x.shape
        initial = x.new_zeros(batch, len(self.W))
        steps = Steps.padded(time, batch)
        states = elman_unroll(ElmanInputs(x.flatten(0, 1), self.U, self.W, self.b, initial, "modrelu", steps))
        return (states.view(time, batch, -1),)


PLAIN = "RNN (modReLU)"
KERNEL = "kernel (modReLU)"

COMPLEX: dict[str, Callable[..., nn.Module]] = {
    "URNN": layers.URNN,
    "FullCapacityURNN": layers.FullCapacityURNN,
    "ScuRNN": layers.ScuRNN,
    "EURNN": layers.EURNN,
    "EURNN (fft)": partial(layers.EURNN, style="fft"),
    "NNRNN (complex)": partial(layers.NNRNN, complex=True),
}


def half(layer: Callable[..., nn.Module]) -> Callable[[int, int], nn.Module]:
    """Return a builder with half as many units, because a complex unit gives two features."""
    return lambda inputs, hidden: layer(inputs, hidden // 2)


CANDIDATES: dict[str, Candidate] = {
    "nn.RNN": Candidate(nn.RNN),
    "nn.GRU": Candidate(nn.GRU),
    "nn.LSTM": Candidate(nn.LSTM),
    KERNEL: Candidate(Kernel),
    PLAIN: Candidate(partial(layers.RNN, activation="modrelu")),
    "RNN (tanh)": Candidate(layers.RNN),
    "ExpRNN": Candidate(layers.ExpRNN),
    "ScoRNN": Candidate(layers.ScoRNN),
    "NNRNN": Candidate(layers.NNRNN),
    "ENRNN": Candidate(layers.ENRNN),
    "ENRNN (normalising)": Candidate(lambda inputs, hidden: normalising(layers.ENRNN(inputs, hidden))),
    "GRU": Candidate(layers.GRU),
    "NCGRU": Candidate(layers.NCGRU),
    "LSTM": Candidate(layers.LSTM),
    "ORNN": Candidate(layers.ORNN),
    "SpectralRNN": Candidate(layers.SpectralRNN),
    "GORU": Candidate(layers.GORU),
    "HDetachLSTM": Candidate(layers.HDetachLSTM),
    **{name: Candidate(half(layer), every=2) for name, layer in COMPLEX.items()},
    **{name: Candidate(build, every=2) for name, build in peers.PEERS.items()},
}


BY_LENGTH: dict[str, Candidate] = {
    name: Candidate(layers.LAYERS[name]) for name in ("relrnn", "rellstm", "memrnn", "memlstm", "sab", "rnn", "lstm")
}
"""Layers that are measured on long sequences, by layer name."""


class Update:
    """Changes every parameter slightly before each step, so that no step can reuse cached matrices.

    The sign alternates, so the changes cancel and the last round measures the same matrices as the first.
    """

    def __init__(self, parameters: Iterable[Tensor], generator: torch.Generator) -> None:
        self.parameters = list(parameters)
        self.noise = [UPDATE * torch.randn(p.shape, generator=generator) for p in self.parameters]
        self.sign = 1
        for p in self.parameters:  # leave the initial value, which may be special (block-diagonal, zero)
            p.data += UPDATE * torch.randn(p.shape, generator=generator)

    @torch.no_grad()
    def __call__(self) -> None:
        for p, noise in zip(self.parameters, self.noise, strict=True):
            p.grad = None
            p.add_(noise, alpha=self.sign)
        self.sign = -self.sign


class TrainingStep:
    """Forward and backward pass of a layer. The loss is a fixed projection Σ output ∘ G, so its gradient is G."""

    def __init__(self, layer: nn.Module, size: Size) -> None:
        generator = torch.Generator().manual_seed(1)
        self.layer = layer
        self.x = torch.randn(size.time, size.batch, size.inputs, generator=generator)
        features = getattr(layer, "output_size", size.hidden)  # SAB has twice as many outputs as units
        self.G = torch.randn(size.time, size.batch, features, generator=generator)
        self.prepare = Update(layer.parameters(), generator)

    def run(self) -> None:
        output = self.layer(self.x)[0]
        output.backward(self.G)


def training_step(name: str, size: Size) -> TrainingStep:
    torch.manual_seed(0)
    return TrainingStep((CANDIDATES | BY_LENGTH)[name].build(size.inputs, size.hidden), size)
