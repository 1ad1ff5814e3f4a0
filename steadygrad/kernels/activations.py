"""Activations of the kernels. Gradients are computed from the outputs, so only the states need to be stored."""

import torch
from torch import Tensor

ACTIVATIONS = ("modrelu", "tanh", "relu", "identity")
COMPLEX_MODRELU = "complex-modrelu"
"""modReLU of complex units: the first half of a row holds the real parts, the second half the imaginary parts"""
SMOOTHED_COMPLEX_MODRELU = "smoothed-complex-modrelu"
"""complex modReLU with two small constants, as the uRNN programs compute it; autograd computes its gradient"""
COMPLEX = (COMPLEX_MODRELU, SMOOTHED_COMPLEX_MODRELU)
SMOOTHING = 1e-5
C_ENUM = (*ACTIVATIONS, COMPLEX_MODRELU)
"""activations in the order of ``enum activation`` in c/steadygrad.c"""


def modrelu(z: Tensor, b: Tensor) -> Tensor:
    """Return sign(z) · max(|z| + b, 0) of each real entry: a ReLU of the modulus (Arjovsky, Shah & Bengio, 2016).

    z is (…, n). The bias b (n) broadcasts.
    """
    return z.sign() * (z.abs() + b).relu()


def complex_modrelu(z: Tensor, b: Tensor) -> Tensor:
    """Return z/|z| · max(|z| + b, 0) of n complex units, and 0 where z = 0.

    z is a real tensor (…, 2n): all real parts, then all imaginary parts. So is the result. b is (n).
    """
    re, im = z.chunk(2, dim=-1)
    squares = re * re + im * im
    size = squares.where(squares != 0, 1).sqrt()  # at z = 0 the gradient of √ would be NaN
    scale = ((size + b).relu() / size).where(squares != 0, 0)
    return z * twice(scale)


def smoothed_complex_modrelu(z: Tensor, b: Tensor) -> Tensor:
    """Return z/(m + ε) · max(m + b, 0),  m = √(|z|² + ε),  ε = 1e-5, of n complex units.

    z is a real tensor (…, 2n): all real parts, then all imaginary parts. So is the result. b is (n).
    """
    re, im = z.chunk(2, dim=-1)
    size = (re * re + im * im + SMOOTHING).sqrt()
    return z * twice((size + b).relu() / (size + SMOOTHING))


OF_MODULUS = {
    "modrelu": modrelu,
    COMPLEX_MODRELU: complex_modrelu,
    SMOOTHED_COMPLEX_MODRELU: smoothed_complex_modrelu,
}


def unknown(who: str, name: str, known: tuple[str, ...]) -> ValueError:
    """Return the error for an activation ``name`` that is not among the ``known`` names."""
    return ValueError(f"{who} expects an activation out of {', '.join(known)}; got {name!r}")


def activate(name: str, z: Tensor, bias: Tensor | None) -> Tensor:
    """Return φ(z + bias) for the activation φ of this name, or modReLU(z; bias), which adds the bias to the modulus.

    The names are those in `ACTIVATIONS` and `COMPLEX`; raise ValueError for any other. No bias (None) counts as 0.
    """
    if name in OF_MODULUS:
        return OF_MODULUS[name](z, z.new_zeros(()) if bias is None else bias)
    if name not in ACTIVATIONS:
        raise unknown("activate", name, (*ACTIVATIONS, *COMPLEX))
    z = z if bias is None else z + bias
    return z.tanh() if name == "tanh" else z.relu() if name == "relu" else z


def activation_backward(name: str, y: Tensor, gradient: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the gradient of z from the output y = activate(name, z, bias) and the ``gradient`` of y.

    Only complex modReLU uses the bias here. Raise ValueError for a name that is not in `C_ENUM`: the smoothed complex
    modReLU is not supported.
    """
    if name not in C_ENUM:
        raise unknown("activation_backward", name, C_ENUM)
    if name == COMPLEX_MODRELU:
        u = direction(y)
        along = inner(u, gradient)
        size = inner(u, y)
        before = size - (0 if bias is None else bias)  # |z| > 0; rounding errors may give 0 or less
        before = torch.maximum(before, torch.finfo(y.dtype).eps * size)
        scale = (size / before).where(size != 0, 0)
        return twice(scale) * (gradient - twice(along) * u) + twice(along) * u  # orthogonal to u: times |y|/|z|
    if name == "modrelu":
        return gradient.masked_fill(y == 0, 0)
    if name == "tanh":
        return gradient * (1 - y * y)
    return gradient.masked_fill(y <= 0, 0) if name == "relu" else gradient


def bias_gradient(name: str, y: Tensor, deltas: Tensor) -> Tensor:
    """Return the gradient (hidden) of an activation's bias, summed over rows, from the gradients ``deltas`` of z.

    y, the outputs of the activation, and ``deltas`` are (rows, hidden). The bias of modReLU is added to the modulus, so
    its gradient has the sign or direction of y as a factor. For complex modReLU the result is (hidden/2). Raise
    ValueError for a name that is not in `C_ENUM`.
    """
    if name not in C_ENUM:
        raise unknown("bias_gradient", name, C_ENUM)
    if name == COMPLEX_MODRELU:
        return inner(direction(y), deltas).sum(0)
    return (deltas * y.sign() if name == "modrelu" else deltas).sum(0)


def twice(values: Tensor) -> Tensor:
    """Return (…, n) values concatenated with themselves, (…, 2n): one copy for real and one for imaginary parts."""
    return torch.cat([values, values], dim=-1)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Return Re a Re b + Im a Im b of each complex unit, (…, n), for a and b stored as (Re, Im), (…, 2n)."""
    re, im = (a * b).chunk(2, dim=-1)
    return re + im


def direction(y: Tensor) -> Tensor:
    """Return y/|y| of each complex unit, or 0 where y = 0; y and the result are (…, 2n), stored as (Re, Im)."""
    size = inner(y, y).sqrt()
    return y / twice(size.where(size != 0, 1))
