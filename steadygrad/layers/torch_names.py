"""Attributes of torch.nn.RNN, GRU and LSTM that programs read from a layer, and the text of `repr`."""

from collections.abc import Iterator
from typing import Any, cast

from torch import nn

from steadygrad.layers.cell import Cell
from steadygrad.layers.naming import suffix


class TorchNames(nn.Module):
    """Base class of layers with the attributes that torch.nn.RNN, GRU and LSTM have: ``mode``, ``all_weights``, ….

    ``bias`` is True if the layer has bias vectors.
    """

    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool = True
    batch_first: bool
    dropout: float
    bidirectional: bool
    proj_size = 0
    """size to which the output of an LSTM is projected; 0 without a projection"""
    cells: nn.ModuleList
    registered = ""
    """name of the class in `LAYERS`, or that of the base class; empty without"""
    positional: tuple[str, ...] = ()
    """arguments that the constructor takes by position after ``num_layers``"""

    @property
    def directions(self) -> int:
        """Number of directions: 2 if the layer is bidirectional, else 1."""
        return 2 if self.bidirectional else 1

    @property
    def nonlinearity(self) -> str:
        """Name of the activation, such as "tanh". A layer whose activation cannot be chosen has no such attribute."""
        if "activation" not in (options := self._options()):
            raise AttributeError("nonlinearity")  # nn.Module then raises one that names the class
        return cast(str, options["activation"])

    @property
    def mode(self) -> str:
        """Kind of the layer in capitals: "LSTM", "GRU", "RNN_TANH" or "RNN_RELU" as in torch, or another layer's name.

        The other names are those in `LAYERS`.
        """
        kind = self.registered or type(self).__name__
        return (f"{kind}_{self.nonlinearity}" if "nonlinearity" in self.positional else kind).upper()

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """List with one list of parameters for each level and direction, in the order of their names in the layer.

        A matrix under a constraint is represented by its free tensors.
        """
        found = []
        for index in range(len(self.cells)):
            end, inside = suffix(self, index), f"cells.{index}."
            named = self.named_parameters()
            found.append([p for name, p in named if name.partition(".")[0].endswith(end) or name.startswith(inside)])
        return found

    def check_no_bias(self) -> None:
        """Raise ValueError if a parameter is a bias, as in a cell that does not read ``bias`` of its layer."""
        if kept := [name for name, _ in self.named_parameters() if name.rpartition(".")[2].startswith("bias")]:
            raise ValueError(
                f"{type(self).__name__} has no form without bias, as its cell makes {', '.join(kept)} in any case; got "
                "bias=False"
            )

    def flatten_parameters(self) -> None:
        """Do nothing. The method exists for code that calls it on torch.nn.GRU."""

    def _cells(self) -> Iterator[Cell]:
        """Return an iterator over the cells of all levels and directions."""
        return cast(Iterator[Cell], iter(self.cells))

    def _options(self) -> dict[str, Any]:
        """Return the options of the cells to show in `repr`, a dict by name."""
        return next(self._cells()).options()

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text: those of torch.nn.GRU, then those of the cells."""
        words = [str(self.input_size), str(self.hidden_size)]
        defaults = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0}
        for name, default in (*defaults.items(), ("bidirectional", False)):
            if (value := getattr(self, name)) != default:
                words.append(f"{name}={value}")
        return ", ".join([*words, *(f"{name}={value}" for name, value in self._options().items())])

    def __repr__(self) -> str:
        """Return the layer on one line, as torch.nn.GRU has it. The cells and matrices inside are not listed."""
        return f"{self._get_name()}({self.extra_repr()})"
