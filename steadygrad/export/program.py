"""A layer or model as a program of torch.export, a function of inputs and state, dynamic in time and batch."""

import warnings
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from steadygrad.kernels import portable
from steadygrad.layers import RecurrentLayer, Stack
from steadygrad.layers.baked import baked
from steadygrad.layers.recurrent import as_tuple
from steadygrad.models.model import Model, Streamed

CHECKS = ("_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size")
"""operators of a program that check sizes and have no result"""


class Names(NamedTuple):
    """Names of the tensors that a program takes and returns, in order."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Exported(NamedTuple):
    """A program of torch.export, the names of its tensors, and those of the first two dimensions of its first input."""

    program: ExportedProgram
    names: Names
    axes: tuple[str, str]


class Streaming(nn.Module):
    """Module whose inputs and outputs are separate tensors: (x, *state) → (y, *final state)."""

    def __init__(self, module: nn.Module, streamed: Streamed) -> None:
        super().__init__()
        self.module, self.run = module, streamed.run

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the tuple of the outputs for x and the tensors of the final state. Without ``state`` it is the own."""
        output, final = self.run(x, state or None)
        return output, *as_tuple(final)


def streamed(module: nn.Module) -> Streamed:
    """Return a `Streamed` of a layer, `Stack` or model: a function of inputs and state, and an example of its inputs.

    Raise ValueError for any other module.
    """
    if isinstance(module, Model):
        return module.streamed()
    if not isinstance(module, RecurrentLayer | Stack):
        raise ValueError(f"export expects a layer, a Stack or a model of steadygrad; got {type(module).__name__}")
    first = getattr(module, "batch_first", False)
    sizes = (2, 7) if first else (7, 2)
    example = next(module.parameters()).new_zeros(*sizes, module.input_size)
    run: Any = module.forward
    return Streamed(run, module, example, ("batch", "time") if first else ("time", "batch"))


def layers_of(layer: RecurrentLayer | Stack) -> list[RecurrentLayer]:
    """Return the list of the recurrent layers of a `Stack`, or of the layer alone.

    Raise ValueError if the memory of one of them grows with time, so that its state has no fixed shape.
    """
    found = [part for part in layer.modules() if isinstance(part, RecurrentLayer)]
    for part in found:
        if any(None in shape for shape, _ in part.state_parts):
            raise ValueError(f"{type(part).__name__} cannot be exported: its memory of past states grows with time")
    return found


def names_of(layer: RecurrentLayer | Stack, state: bool) -> Names:
    """Return the `Names` of a program: x, h_0, … and y, h_n, …

    The names of states of several layers begin with "0.", "1.", …
    """
    layers = layers_of(layer)
    own = [
        f"{level}.{name}" if len(layers) > 1 else name
        for level, part in enumerate(layers)
        for name in cast(Any, part.cells[0]).state_names
    ]
    return Names(("x", *(f"{name}_0" for name in own if state)), ("y", *(f"{name}_n" for name in own)))


def exported_program(module: nn.Module, *, state: bool = True, kept: tuple[str, ...] = ()) -> Exported:
    """Return a baked copy of a layer, `Stack` or model as a program of torch.export, with the names of its tensors.

    The program maps (x, *state) to (y, *final state), and is dynamic in time and batch. x and y have the form that the
    module takes and returns. The program runs on the CPU in float32. It consists of torch's own operators, with one
    `scan` for each loop over time, so it can be saved and loaded without steadygrad. Loops with an activation in
    ``kept`` are operators of steadygrad instead. Without ``state`` the program takes x alone and starts from the
    module's initial state.

    Raise ValueError for another module, and for one whose graph depends on the data, such as `MemRNN`.
    """
    layers_of(streamed(module).layer)
    module = baked(module).float().cpu()
    run = streamed(module)
    example = run.example
    start: tuple[Tensor, ...] = ()
    if state:
        like = next(part for part in module.parameters() if part.is_floating_point())
        batch = example.shape[run.axes.index("batch")]
        start = tuple(part for layer in layers_of(run.layer) for part in layer.default_states(batch, like))
    of_state = tuple({1: Dim.AUTO} for _ in start)
    shapes: Any = ({0: Dim.AUTO, 1: Dim.AUTO}, *([of_state] if start else []))
    return Exported(traced(run, module, (example, *start), shapes, kept), names_of(run.layer, state), run.axes)


def traced(
    run: Streamed, module: nn.Module, arguments: tuple[Tensor, ...], shapes: Any = None, kept: tuple[str, ...] = ()
) -> ExportedProgram:
    """Return a baked module, whose function is ``run``, as a program of torch.export in torch's core operators.

    ``arguments`` are examples of x and of the state. ``shapes`` are their dynamic dimensions; by default all sizes are
    fixed. Loops with an activation in ``kept`` are operators of steadygrad.
    """
    with portable(*kept), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch warns of its own deprecated functions
        given = tuple(part.contiguous() for part in arguments)
        program = torch.export.export(Streaming(module, run), given, dynamic_shapes=shapes, strict=False)
        return program.run_decompositions()


def example(node: Any) -> Any:
    """Return the fake tensor or symbol of a node of a traced graph; a number as it is."""
    return node.meta["val"] if isinstance(node, fx.Node) else node
