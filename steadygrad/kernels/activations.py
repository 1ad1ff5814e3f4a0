"""The activations that kernels know: values, and gradients from the value alone, so that only states are kept."""

from torch import Tensor

ACTIVATIONS = ("modrelu", "tanh", "relu", "identity")  # in the order of the C enum


def modrelu(z: Tensor, b: Tensor) -> Tensor:
    """sign(z) · max(|z| + b, 0): a ReLU of the modulus (Arjovsky, Shah & Bengio, 2016)."""
    return z.sign() * (z.abs() + b).relu()


def activate(name: str, z: Tensor, bias: Tensor | None) -> Tensor:
    """φ(z + bias); modReLU takes the bias inside."""
    if name == "modrelu":
        return modrelu(z, z.new_zeros(()) if bias is None else bias)
    z = z if bias is None else z + bias
    return z.tanh() if name == "tanh" else z.relu() if name == "relu" else z


def deactivate(name: str, y: Tensor, gradient: Tensor) -> Tensor:
    """The gradient at z from that at y = φ(z)."""
    if name == "modrelu":
        return gradient.masked_fill(y == 0, 0)
    if name == "tanh":
        return gradient * (1 - y * y)
    return gradient.masked_fill(y <= 0, 0) if name == "relu" else gradient


def bias_gradient(name: str, y: Tensor, deltas: Tensor) -> Tensor:
    """Sum over rows of what the bias gets from the gradients at z: modReLU's acts on the modulus."""
    return (deltas * y.sign() if name == "modrelu" else deltas).sum(0)
