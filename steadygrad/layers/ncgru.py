"""NC-GRU: a GRU whose matrices stay orthogonal by Neumann-Cayley updates (Mucllari, Zadorozhnyy et al., 2022)."""

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from steadygrad.check import check_choice
from steadygrad.layers.gru import GRU, STARTS, GRUCell
from steadygrad.layers.recurrent import Common
from steadygrad.layers.start import Initialiser, he_normal, he_uniform, normal, uniform

ORTHOGONAL = {"c": ("candidate",), "rc": ("reset", "candidate"), "ruc": ("reset", "update", "candidate")}


def start_as(cell: GRUCell, joint: bool, gates: Initialiser, update: Initialiser, biases: Initialiser) -> None:
    """Initialise an NC-GRU cell in place as the released programs do, except W_c, which is not changed.

    ``gates``, ``update`` and ``biases`` are functions that fill a tensor. ``gates`` initialises W_r and W_u, and
    ``biases`` initialises b. With ``joint`` the program has one kernel for x and h, so ``gates`` initialises the free
    matrices in U as well; otherwise ``update`` initialises them. modReLU's bias starts uniform in ±0.1.
    """
    gates(cell.weight_ih[: 2 * cell.output_size])
    for matrix in cell.free_gates().values():
        (gates if joint else update)(matrix)
    if cell.bias_ih is not None:
        biases(cell.bias_ih)
    if cell.bias_modrelu is not None:
        uniform(0.1)(cell.bias_modrelu)


def start_as_denoise(cell: GRUCell) -> None:
    """Initialise an NC-GRU cell in place as the released program for denoise: W_c He normal, the gates He uniform.

    If U_r is free, the gates have one kernel for x and h, so fan_in counts both, and b = 0. If U_r is orthogonal, W and
    U have one kernel each, and b ~ N(0, 1). Orthogonal matrices are not changed. b is without modReLU's bias, which
    starts uniform in ±0.1.
    """
    features, units = cell.weight_ih.shape[1], cell.output_size
    joint = "reset" in cell.free_gates()
    gates = he_uniform(features + units if joint else features)
    start_as(cell, joint, gates, he_uniform(units), nn.init.zeros_ if joint else normal(1.0))
    he_normal(features)(cell.weight_ih[2 * units :])


def start_as_parenthesis(cell: GRUCell) -> None:
    """Initialise an NC-GRU cell in place as the released program for parenthesis: W_c He uniform, b = 0.

    If U_r is free, W_r, W_u and the free matrices in U are He uniform with fan_in = inputs + hidden, because the
    program has one kernel for x and h. If U_r is orthogonal, they are He normal, W with fan_in = inputs and U with
    fan_in = hidden. Orthogonal matrices are not changed. b is without modReLU's bias, which starts uniform in ±0.1.
    """
    features, units = cell.weight_ih.shape[1], cell.output_size
    joint = "reset" in cell.free_gates()
    gates = he_uniform(features + units) if joint else he_normal(features)
    start_as(cell, joint, gates, he_normal(units), nn.init.zeros_)
    he_uniform(features)(cell.weight_ih[2 * units :])


class ReleasedPairCell(GRUCell):
    """Cell of `NCGRU` with ``released_lr`` and ``orthogonal="rc"``. It repeats a defect of the released program.

    U_c is trained by the gradient of U_r, and the inverse of U_r is updated from that of U_c.
    """

    def stacked(self) -> Tensor:
        """Return U_r, U_u and U_c, stacked, with gradients as in the released program: U_c gets that of U_r.

        The values are those of the matrices. The call updates the inverses that U_r and U_c store.
        """
        self._share_inverse()
        U_r, U_u, U_c = self.weight_hh.evaluated()
        constant = U_c.detach()
        return torch.cat([U_r + (U_c - constant), U_u, constant])  # values unchanged; U_c gets the gradient of U_r

    def matrices(self) -> dict[str, Tensor]:
        """Return a dict of the recurrent matrices (hidden, hidden): {"reset": …, "update": …, "candidate": …}.

        The call updates the inverses that the orthogonal matrices store.
        """
        self._share_inverse()
        return super().matrices()

    def _share_inverse(self) -> None:
        """Update the inverse of U_c, and let the next update of the inverse of U_r start from it."""
        U_r, U_c = self.weight_hh["reset"], self.weight_hh["candidate"]
        if not hasattr(U_c.map, "inverse"):  # of a baked layer
            return
        with torch.no_grad():
            U_c.value()
        U_r.map.borrowed = U_c.map.inverse


class NCGRU(GRU, name="ncgru"):
    """h_t = (1 − u)∘h_{t−1} + u∘c,  c = modReLU(W_c x_t + U_c (r∘h_{t−1}); b_c),  U_c = (I + A)⁻¹ (I − A) D.

    The gates r and u are those of `GRU`. A is skew-symmetric, and D is diagonal with ``reflections`` entries of −1 (by
    default half), the others 1, so U_c is orthogonal. ``orthogonal`` selects the orthogonal matrices: ``"c"`` is U_c,
    ``"rc"`` is U_r and U_c, ``"ruc"`` is all three (ablation 5.2 of the paper). After each update of A the inverse is
    updated by a Neumann series of ``order`` 1, 2 or 3; every ``reset_every`` updates it is computed exactly. It is also
    computed exactly when an update of A is too large (``exact_above``) or the matrix is too far from orthogonal
    (``max_drift``), see `NeumannCayley`. ``exact_above=inf, max_drift=inf`` is Algorithm 1 as printed.

    ``released_lr`` reproduces the update of the authors' released program instead (`ReleasedNeumannCayley`). The series
    then uses the raw gradient times this learning rate, while the optimizer updates A. Pass the learning rate of A, and
    ``reset_every=49``. With ``orthogonal="rc"`` the option repeats a defect of that program: A of U_c is trained by the
    gradient of U_r instead of its own, and the series of U_r starts from the inverse of U_c, so U_r is far from
    orthogonal between two exact inverses. With ``orthogonal="ruc"`` the option raises ValueError.

    ``start`` names the program whose initialisation of W, U, b and modReLU's bias is used: ``"denoise"`` (default) or
    ``"parenthesis"``, two released programs (He initialisation, with larger values than torch's), or a name that `GRU`
    accepts.
    """

    starts = STARTS | {"denoise": start_as_denoise, "parenthesis": start_as_parenthesis}
    revision = 2  # revision 1 started as torch.nn.GRU does, and modReLU's bias at 0

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
        exact_above: float = 0.1,
        max_drift: float = 4e-6,
        released_lr: float | None = None,
        activation: str = "modrelu",
        start: str = "denoise",
        **common: Unpack[Common],
    ) -> None:
        check_choice("NCGRU", "orthogonal", orthogonal, ORTHOGONAL)
        if released_lr is not None and orthogonal == "ruc":
            raise ValueError("NCGRU expects orthogonal to be c or rc with released_lr, as the program has; got 'ruc'")
        neumann: dict[str, Any] = {
            "name": "neumann",
            "reflections": hidden_size // 2 if reflections is None else reflections,  # paper: from 43 of 80 to 80 of 96
            "order": order,
            "reset_every": reset_every,
            "exact_above": exact_above,
            "max_drift": max_drift,
            "released_lr": released_lr,
        }
        if released_lr is not None and orthogonal == "rc":
            self.cell = ReleasedPairCell
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation=activation,
            recurrent=dict.fromkeys(ORTHOGONAL[orthogonal], neumann),
            start=start,
            **common,
        )
