"""NC-GRU: a GRU whose matrices stay orthogonal by Neumann-Cayley steps (Mucllari, Zadorozhnyy et al., 2022)."""

from typing import Unpack

from steadygrad.layers.gru import GRU
from steadygrad.layers.recurrent import Common

ORTHOGONAL = {"c": ("candidate",), "rc": ("reset", "candidate"), "ruc": ("reset", "update", "candidate")}


class NCGRU(GRU):
    """h_t = (1 − u)∘h_{t−1} + u∘c,  c = modReLU(W_c x_t + U_c (r∘h_{t−1}); b),  U_c = (I + A)⁻¹ (I − A) D.

    ``orthogonal`` says which matrices are: ``"c"`` U_c alone, ``"rc"`` U_r too, ``"ruc"`` all three (ablation 5.2 of
    the paper). The inverse follows A by a Neumann series of ``order`` 1, 2 or 3, exactly every ``reset_every`` updates.
    """

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
            **common,
        )
