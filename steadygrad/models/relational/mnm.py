"""MNM, metalearned neural memory: an LSTM whose memory is a network that it trains (Munkhdalai et al., 2019)."""

import math

import torch
from torch import Tensor, nn

from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel
from steadygrad.models.relational.normalisation import Segments


class MNM(RelationalModel):
    """y = C [h_T, r_T],  h_t = LSTM([z_t, r_{t−1}], h_{t−1}),  r_t = f(k'),  f(k) = tanh(M_L … tanh(M_1 k)).

    From h_t come a key k and a value v to write, the rate b_l in (0, 1) of each layer, and a key k' to read with. One
    step of the delta rule, M_l += b_l (q_l(v) − m_l) m_{l−1}ᵀ, brings f(k) closer to v before f(k') is read: m_l is
    what layer l makes of k, q_l(v) what it should have made. This is the paper's learned local update; q_l is a linear
    map and tanh, and the last layer should make v itself. M starts from learned weights in every sequence. One head
    and the sizes of Webb et al. (2021), and no loss but the task's, where they add one for what was written badly.
    """

    def __init__(
        self,
        objects: int,
        image_size: int,
        channels: int,
        answers: int,
        segments: Segments,
        *,
        hidden_size: int = 128,
        memory_size: int = 128,
        memory_layers: int = 3,
        encoder: str = "learned",
        normalisation: str = "context",
        l1: float = 0.0,
    ) -> None:
        super().__init__(objects, image_size, channels, answers, segments, encoder, normalisation, l1)
        self.check_counts(hidden_size=hidden_size, memory_size=memory_size, memory_layers=memory_layers)
        self.lstm = nn.LSTMCell(FEATURES + memory_size, hidden_size)
        self.memory = nn.Parameter(torch.randn(memory_layers, memory_size, memory_size) / math.sqrt(memory_size))
        self.access = nn.Linear(hidden_size, 3 * memory_size)
        self.rates = nn.Linear(hidden_size, memory_layers)
        self.expected = nn.ModuleList(nn.Linear(memory_size, memory_size) for _ in range(memory_layers - 1))
        self.readout = nn.Linear(hidden_size + memory_size, answers)

    def answer(self, z: Tensor) -> Tensor:
        memory = [M.expand(len(z), -1, -1) for M in self.memory]
        value = z.new_zeros(len(z), self.memory.shape[-1])
        h = c = z.new_zeros(len(z), self.lstm.hidden_size)
        for z_t in z.unbind(dim=1):
            h, c = self.lstm(torch.cat([z_t, value], dim=1), (h, c))
            write_key, target, read_key = self.access(h).tanh().chunk(3, dim=1)
            memory = self.write(memory, write_key, target, self.rates(h).sigmoid())
            value = recall(memory, read_key)[-1]
        return self.readout(torch.cat([h, value], dim=1))

    def write(self, memory: list[Tensor], key: Tensor, target: Tensor, rates: Tensor) -> list[Tensor]:
        """The memory after one step towards f(key) = target, every layer by itself."""
        made = [key, *recall(memory, key)]
        expected = [*(layer(target).tanh() for layer in self.expected), target]
        return [
            M + rate.view(-1, 1, 1) * (wanted - output).unsqueeze(2) * input.unsqueeze(1)
            for M, rate, wanted, output, input in zip(
                memory, rates.unbind(dim=1), expected, made[1:], made[:-1], strict=True
            )
        ]


def recall(memory: list[Tensor], key: Tensor) -> list[Tensor]:
    """What each layer makes of the key, the last of them the value: (batch, memory_size) each."""
    made = []
    for M in memory:
        key = (M @ key.unsqueeze(2)).squeeze(2).tanh()
        made.append(key)
    return made
