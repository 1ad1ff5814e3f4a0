"""MNM, metalearned neural memory: an LSTM whose memory is a network that it trains (Munkhdalai et al., 2019)."""

from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel
from steadygrad.problem import Problem


class MNM(RelationalModel):
    """y = C (W [h_T, v_T]),  h_t = LSTM([z_t, v_{t−1}], h_{t−1}),  v_t = f_t(k'_t),  f(k) = M_L tanh(… tanh(M_1 k)).

    A recurrent baseline whose memory f is a network of L = ``memory_layers`` matrices M. z_t are the normalised
    features of object t, y the logits. From h_t come a rate b in (0, 1), a key k and a value u to write, and a key k'
    to read with. One local step, M_l −= 2/d (o_l − e_l) (b o_{l−1})ᵀ for all layers at once, brings f(k) closer to u.
    Here o_l is the output of layer l for the key k (o_0 = k), e_l = E_l u + c_l is its target, and d is
    ``memory_size``. There is one step more than there are objects, with z_T = 0. `penalty` adds the meta loss 1/T Σ_t
    mean((f_t(k_t) − u_t)²) of the last forward pass: the error of the written values.

    Computation and initialisation follow Webb's program (taylorwwebb/emergent_symbols, MNM.py), which uses torch's
    default throughout. Every problem begins with the same M, which is drawn once and never trained. Webb's program does
    not save M; here it is a buffer. Webb's ``feat_proj`` and ``layer_norm`` have no influence and are not registered.
    """

    revision = 2  # revision 1 had different updates and no meta loss

    memory: Tensor

    def __init__(
        self, problem: Problem, *, hidden_size: int = 128, memory_size: int = 128, memory_layers: int = 3, **shared: Any
    ) -> None:
        super().__init__(problem, **shared)
        self.check_counts(hidden_size=hidden_size, memory_size=memory_size, memory_layers=memory_layers)
        self.lstm = nn.LSTMCell(FEATURES + memory_size, hidden_size)
        bound = memory_size**-0.5
        self.register_buffer("memory", torch.empty(memory_layers, memory_size, memory_size).uniform_(-bound, bound))
        self.access = nn.Linear(hidden_size, 4 * memory_size)
        self.rate = nn.Linear(memory_size, 1)
        self.expected = nn.Linear(memory_size, memory_layers * memory_size)
        self.merge = nn.Linear(hidden_size + memory_size, hidden_size)
        self.readout = nn.Linear(hidden_size, problem.answers)
        self.meta_loss: Tensor | float = 0.0

    def answer(self, z: Tensor) -> Tensor:
        """Return the logits (batch, answers) from z (batch, objects, 128), the features that `encode` returns.

        The attribute ``meta_loss`` is set to the meta loss of this pass, a scalar tensor.
        """
        memory = [M.expand(len(z), -1, -1) for M in self.memory]
        value = z.new_zeros(len(z), self.memory.shape[-1])
        h = c = z.new_zeros(len(z), self.lstm.hidden_size)
        errors = []
        for z_t in [*z.unbind(dim=1), torch.zeros_like(z[:, 0])]:
            h, c = self.lstm(torch.cat([z_t, value], dim=1), (h, c))
            rate, write_key, target, read_key = self.access(h).tanh().chunk(4, dim=1)
            memory = self.write(memory, write_key, target, self.rate(rate).sigmoid())
            errors.append((recall(memory, write_key)[-1] - target).square().mean())
            value = recall(memory, read_key)[-1]
        self.meta_loss = torch.stack(errors).sum() / z.shape[1]  # T + 1 terms divided by T, as in Webb's program
        return self.readout(self.merge(torch.cat([h, value], dim=1)))

    def write(self, memory: list[Tensor], key: Tensor, target: Tensor, rate: Tensor) -> list[Tensor]:
        """Return the layers of the memory network f after one local step of each towards f(key) = target.

        ``memory`` and the result are lists of matrices (batch, memory_size, memory_size), one for each layer;
        ``memory`` is not changed. ``key`` and ``target`` are (batch, memory_size), ``rate`` is (batch, 1).
        """
        outputs = [key, *recall(memory, key)]
        expected = self.expected(target).chunk(len(memory), dim=1)
        step = 2 / self.memory.shape[-1] * rate
        return [
            M - (output - layer_target).unsqueeze(2) * (step * input).unsqueeze(1)
            for M, layer_target, output, input in zip(memory, expected, outputs[1:], outputs[:-1], strict=True)
        ]

    def penalty(self) -> Tensor | float:
        """Return what training adds to the task's loss: the L1 term and the meta loss of the last forward pass."""
        return super().penalty() + self.meta_loss

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copying and pickling, without the meta loss and its graph."""
        return {**self.__dict__, "meta_loss": 0.0}


def recall(memory: list[Tensor], key: Tensor) -> list[Tensor]:
    """Return a list of the output (batch, memory_size) of each layer of the memory network for a key.

    The last output is the value. ``memory`` is a list of matrices (batch, memory_size, memory_size), one for each
    layer, ``key`` is (batch, memory_size).
    """
    outputs = []
    for layer, M in enumerate(memory, 1):
        key = (M @ key.unsqueeze(2)).squeeze(2)
        if layer < len(memory):
            key = key.tanh()
        outputs.append(key)
    return outputs
