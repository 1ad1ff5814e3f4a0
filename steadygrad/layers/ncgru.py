"""NC-GRU: a GRU whose matrices stay orthogonal by Neumann-Cayley steps (Mucllari, Zadorozhnyy et al., 2022)."""

from typing import Unpack

from torch import nn

from steadygrad.layers.gru import GRU, STARTS, GRUCell, free_matrices
from steadygrad.layers.recurrent import Common
from steadygrad.layers.start import Initialiser, he_normal, he_uniform, normal, uniform

ORTHOGONAL = {"c": ("candidate",), "rc": ("reset", "candidate"), "ruc": ("reset", "update", "candidate")}


def start_as(cell: GRUCell, joint: bool, gates: Initialiser, update: Initialiser, biases: Initialiser) -> None:
    """Start the gates as the released programs do.

    One kernel for x and h (``joint``) starts by one law; otherwise W_r, W_u by ``gates`` and U_u by ``update``.
    """
    units = cell.output_size
    rows, free = cell.W[: 2 * units], [matrix.free[0] for matrix in free_matrices(cell.U)]
    gates(rows)
    for matrix in free:
        (gates if joint else update)(matrix)
    if cell.b is not None:
        biases(cell.b)
    if cell.modulus is not None:
        uniform(0.1)(cell.modulus)


def start_as_denoise(cell: GRUCell) -> None:
    """W_c He normal. U_r free: the gates' one kernel He uniform, b = 0. U_r orthogonal: He uniform each, b ~ N(0,1)."""
    features, units = cell.W.shape[1], cell.output_size
    joint = bool(free_matrices([cell.U[0]]))
    gates = he_uniform(features + units if joint else features)
    start_as(cell, joint, gates, he_uniform(units), nn.init.zeros_ if joint else normal(1.0))
    he_normal(features)(cell.W[2 * units :])


def start_as_parenthesis(cell: GRUCell) -> None:
    """W_c He uniform, b = 0. U_r free: the gates' one kernel He uniform; U_r orthogonal: each He normal."""
    features, units = cell.W.shape[1], cell.output_size
    joint = bool(free_matrices([cell.U[0]]))
    gates = he_uniform(features + units) if joint else he_normal(features)
    start_as(cell, joint, gates, he_normal(units), nn.init.zeros_)
    he_uniform(features)(cell.W[2 * units :])


class NCGRU(GRU):
    """h_t = (1 − u)∘h_{t−1} + u∘c,  c = modReLU(W_c x_t + U_c (r∘h_{t−1}); b),  U_c = (I + A)⁻¹ (I − A) D.

    ``orthogonal`` says which matrices are: ``"c"`` U_c alone, ``"rc"`` U_r too, ``"ruc"`` all three (ablation 5.2 of
    the paper). The inverse follows A by a Neumann series of ``order`` 1, 2 or 3, exactly every ``reset_every`` updates.
    ``start`` is the released program as which W, U, b and modReLU's bias start: denoise or parenthesis (He's laws,
    larger than torch's), or one of those of `GRU`.
    """

    starts = STARTS | {"denoise": start_as_denoise, "parenthesis": start_as_parenthesis}
    revision = 2  # 1 started as torch.nn.GRU, modReLU's bias at 0

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        orthogonal: str = "c",
        reflections: int | None = None,
        order: int = 2,
        reset_every: int = 50,
        activation: str = "modrelu",
        start: str = "denoise",
        **common: Unpack[Common],
    ) -> None:
        if orthogonal not in ORTHOGONAL:
            raise ValueError(f"NCGRU expects orthogonal to be one of {', '.join(ORTHOGONAL)}; got {orthogonal!r}")
        neumann = {
            "name": "neumann",
            "reflections": hidden_size // 2 if reflections is None else reflections,  # the paper: 43 of 80 to 80 of 96
            "order": order,
            "reset_every": reset_every,
        }
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation=activation,
            recurrent=dict.fromkeys(ORTHOGONAL[orthogonal], neumann),
            start=start,
            **common,
        )
