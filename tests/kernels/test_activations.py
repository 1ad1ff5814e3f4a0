"""Activations are known by name, and no other name is taken for one."""

import pytest
import torch

from steadygrad.kernels.activations import activate, activation_backward, bias_gradient

y = torch.randn(2, 4)


@pytest.mark.parametrize(
    "call",
    [
        lambda name: activate(name, y, None),
        lambda name: activation_backward(name, y, y),
        lambda name: bias_gradient(name, y, y),
    ],
    ids=["activate", "activation_backward", "bias_gradient"],
)
def test_unknown_activation_raises_value_error(call, request):
    for name in ("sigmoid", "Tanh", ""):
        with pytest.raises(ValueError, match=f"expects an activation out of modrelu, tanh, .*; got {name!r}$"):
            call(name)
