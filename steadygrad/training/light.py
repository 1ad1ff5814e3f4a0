"""Optimizers of torch.optim that do not import torch's compiler.

torch.optim wraps its methods so that torch.compile leaves them out of graphs. The wrappers import torch._dynamo, which
takes longer than the import of torch itself, also in programs that compile nothing. The classes here have the methods
without the wrappers. They compute the same, but torch.compile should not be applied to them.
"""

from inspect import unwrap
from typing import Any

import torch
from torch.optim import Optimizer


class Light(Optimizer):
    """Base class of optimizers whose methods are those of torch.optim without the import of torch._dynamo."""

    add_param_group: Any = unwrap(Optimizer.add_param_group)
    zero_grad: Any = unwrap(Optimizer.zero_grad)
    state_dict: Any = unwrap(Optimizer.state_dict)
    load_state_dict: Any = unwrap(Optimizer.load_state_dict)


class Adam(Light, torch.optim.Adam):
    """`torch.optim.Adam` without the import of torch._dynamo."""

    step: Any = torch.no_grad()(unwrap(torch.optim.Adam.step))


class Adagrad(Light, torch.optim.Adagrad):
    """`torch.optim.Adagrad` without the import of torch._dynamo."""

    step: Any = torch.no_grad()(unwrap(torch.optim.Adagrad.step))


class RMSprop(Light, torch.optim.RMSprop):
    """`torch.optim.RMSprop` without the import of torch._dynamo."""

    step: Any = torch.no_grad()(unwrap(torch.optim.RMSprop.step))


class SGD(Light, torch.optim.SGD):
    """`torch.optim.SGD` without the import of torch._dynamo."""

    step: Any = torch.no_grad()(unwrap(torch.optim.SGD.step))
