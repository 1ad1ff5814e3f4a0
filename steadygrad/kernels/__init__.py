"""Fast whole-sequence loops, each beside its reference."""

from steadygrad.kernels.activations import ACTIVATIONS, modrelu
from steadygrad.kernels.backend import describe
from steadygrad.kernels.elman import elman_unroll, elman_unroll_reference
from steadygrad.kernels.gru import gru_unroll, gru_unroll_reference
from steadygrad.kernels.lstm import lstm_unroll, lstm_unroll_reference
from steadygrad.kernels.products import matmul
from steadygrad.kernels.steps import Steps

__all__ = [
    "ACTIVATIONS",
    "Steps",
    "describe",
    "elman_unroll",
    "elman_unroll_reference",
    "gru_unroll",
    "gru_unroll_reference",
    "lstm_unroll",
    "lstm_unroll_reference",
    "matmul",
    "modrelu",
]
