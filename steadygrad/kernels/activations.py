"""The activations that kernels know: values, and gradients from the value alone, so that only states are kept."""

import torch
from torch import Tensor

ACTIVATIONS = ("modrelu", "tanh", "relu", "identity")
COMPLEX_MODRELU = "complex-modrelu"
"""of rows whose first half are real and whose second half imaginary parts"""
SMOOTHED_COMPLEX_MODRELU = "smoothed-complex-modrelu"
"""the same with two small constants, as the uRNN programs compute it; its gradient is left to autograd"""
COMPLEX = (COMPLEX_MODRELU, SMOOTHED_COMPLEX_MODRELU)
SMOOTHING = 1e-5
C_ENUM = (*ACTIVATIONS, COMPLEX_MODRELU)


def modrelu(z: Tensor, b: Tensor) -> Tensor:
    """sign(z) · max(|z| + b, 0): a ReLU of the modulus (Arjovsky, Shah & Bengio, 2016)."""
    return z.sign() * (z.abs() + b).relu()


def complex_modrelu(z: Tensor, b: Tensor) -> Tensor:
    """z/|z| · max(|z| + b, 0) of complex z, held as (Re z, Im z); b has half as many entries."""
    re, im = z.chunk(2, dim=-1)
    squares = re * re + im * im
    size = squares.where(squares != 0, 1).sqrt()  # where z is 0 a gradient would be NaN
    scale = ((size + b).relu() / size).where(squares != 0, 0)
    return z * twice(scale)


def smoothed_complex_modrelu(z: Tensor, b: Tensor) -> Tensor:
    """z/(m + ε) · max(m + b, 0),  m = √(|z|² + ε),  ε = 1e-5, of complex z, held as (Re z, Im z)."""
    re, im = z.chunk(2, dim=-1)
    size = (re * re + im * im + SMOOTHING).sqrt()
    return z * twice((size + b).relu() / (size + SMOOTHING))


OF_MODULUS = {
    "modrelu": modrelu,
    COMPLEX_MODRELU: complex_modrelu,
    SMOOTHED_COMPLEX_MODRELU: smoothed_complex_modrelu,
}


def activate(name: str, z: Tensor, bias: Tensor | None) -> Tensor:
    """φ(z + bias); modReLU takes the bias inside."""
    if name in OF_MODULUS:
        return OF_MODULUS[name](z, z.new_zeros(()) if bias is None else bias)
    z = z if bias is None else z + bias
    return z.tanh() if name == "tanh" else z.relu() if name == "relu" else z


def deactivate(name: str, y: Tensor, gradient: Tensor, bias: Tensor | None = None) -> Tensor:
    """The gradient at z from that at y = φ(z); complex modReLU alone needs its bias for that."""
    if name == COMPLEX_MODRELU:
        u = direction(y)
        along = inner(u, gradient)
        size = inner(u, y)
        before = size - (0 if bias is None else bias)  # |z|, which may be lost to rounding but is not 0
        before = torch.maximum(before, torch.finfo(y.dtype).eps * size)
        scale = (size / before).where(size != 0, 0)
        return twice(scale) * (gradient - twice(along) * u) + twice(along) * u  # across u it is scaled by |y|/|z|
    if name == "modrelu":
        return gradient.masked_fill(y == 0, 0)
    if name == "tanh":
        return gradient * (1 - y * y)
    return gradient.masked_fill(y <= 0, 0) if name == "relu" else gradient


def bias_gradient(name: str, y: Tensor, deltas: Tensor) -> Tensor:
    """Sum over rows of what the bias gets from the gradients at z: modReLU's acts on the modulus."""
    if name == COMPLEX_MODRELU:
        return inner(direction(y), deltas).sum(0)
    return (deltas * y.sign() if name == "modrelu" else deltas).sum(0)


def twice(values: Tensor) -> Tensor:
    """For the real and for the imaginary parts."""
    return torch.cat([values, values], dim=-1)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Re a Re b + Im a Im b, unit by unit."""
    re, im = (a * b).chunk(2, dim=-1)
    return re + im


def direction(y: Tensor) -> Tensor:
    """y/|y|, 0 where y is."""
    size = inner(y, y).sqrt()
    return y / twice(size.where(size != 0, 1))
