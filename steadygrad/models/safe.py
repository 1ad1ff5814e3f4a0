"""The classes of which pickled layers and models consist, for `torch.load` with ``weights_only=True``."""

from collections.abc import Iterator

from torch import nn

from steadygrad.layers.cell import Part
from steadygrad.layers.parameters import Arguments

PACKAGES = ("steadygrad.matrices.", "steadygrad.layers.", "steadygrad.models.")

TORCH = (
    nn.Conv2d,
    nn.Embedding,
    nn.Flatten,
    nn.LSTMCell,
    nn.LayerNorm,
    nn.Linear,
    nn.MaxPool2d,
    nn.ModuleDict,
    nn.ModuleList,
    nn.ParameterList,
    nn.ReLU,
    nn.Sequential,
    nn.Tanh,
)
"""modules of torch that models of this package contain"""


def safe_classes() -> list[type]:
    """Return the classes of which pickled layers, stacks and models of this package consist.

    ``torch.load(path, weights_only=True)`` builds objects of torch's own classes only, unless others are declared safe:
    ``torch.serialization.add_safe_globals(steadygrad.safe_classes())``. A pickled file may then call these classes
    with any arguments and set any attributes of their objects, but nothing else. Their constructors compute and
    allocate memory. They neither run code from the file nor read, write or send data.

    The list holds modules of matrices, layers and models, tuples of theirs, and modules of torch such as nn.Linear. A
    class of a program, such as a `StepCell` of its own, must be declared by the program.
    """
    own: set[type[object]] = {cls for cls in descendants(nn.Module) if f"{cls.__module__}.".startswith(PACKAGES)}
    return [*sorted(own, key=lambda cls: (cls.__module__, cls.__qualname__)), Arguments, Part, *TORCH]


def descendants(cls: type[object]) -> Iterator[type[object]]:
    """Return an iterator over all subclasses of a class, direct and indirect ones; some may come more than once."""
    for one in cls.__subclasses__():
        yield one
        yield from descendants(one)
