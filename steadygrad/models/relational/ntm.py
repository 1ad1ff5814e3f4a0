"""The neural Turing machine: an LSTM with a memory that it addresses by content and position (Graves et al., 2014)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steadygrad.models.relational import initialisation
from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel
from steadygrad.problem import Problem

SHIFTS = (-1, 0, 1)


class NTM(RelationalModel):
    """y = C h_T,  h_t = LSTM([z_t, r_{t−1}], h_{t−1}),  r_t = v_t M_{t−1},  M_t = M_{t−1} ∘ (1 − w_t e_t) + w_t a_t.

    A recurrent baseline with a memory M of ``slots`` × ``width``. z_t are the normalised features of object t, y the
    logits. v and w are the attention weights of the read head and the write head over the slots. e in (0, 1) erases, a
    in (−1, 1) is added. Each step reads before it writes; the first step does not read (r_0 = 0). There is one step
    more than there are objects, with z_T = 0, so that the last state depends on r_{T−1}. Sizes are those of Webb et al.
    (2021). Fewer than 3 slots raise ValueError.

    Computation and initialisation follow Webb's program (taylorwwebb/emergent_symbols, NTM.py). M_{−1} is learned. It
    and all weights are Xavier normal (gain 5/3 before a tanh), except that strength and sharpness are Kaiming normal.
    Biases are 0.
    """

    revision = 2  # revision 1 wrote before it read

    def __init__(
        self, problem: Problem, *, hidden_size: int = 512, slots: int = 10, width: int = 256, **shared: Any
    ) -> None:
        super().__init__(problem, **shared)
        self.check_counts(hidden_size=hidden_size, slots=slots, width=width)
        if slots < len(SHIFTS):
            raise ValueError(f"NTM expects slots to be at least {len(SHIFTS)}, the number of shifts; got {slots}")
        self.memory = nn.Parameter(torch.empty(slots, width))
        self.lstm = nn.LSTMCell(FEATURES + width, hidden_size)
        self.writer, self.reader = Head(hidden_size, width), Head(hidden_size, width)
        self.erase = nn.Linear(hidden_size, width)
        self.add = nn.Linear(hidden_size, width)
        self.readout = nn.Linear(hidden_size, problem.answers)
        nn.init.xavier_normal_(self.memory)
        initialisation.lstm_cell(self.lstm)
        initialisation.xavier(self.erase)
        initialisation.xavier(self.add, initialisation.TANH_GAIN)
        initialisation.xavier(self.readout)

    def answer(self, z: Tensor) -> Tensor:
        memory = self.memory.expand(len(z), -1, -1)
        r = z.new_zeros(len(z), memory.shape[2])
        h = c = z.new_zeros(len(z), self.lstm.hidden_size)
        write: Tensor | None = None
        read: Tensor | None = None
        for t, z_t in enumerate(z.unbind(dim=1)):
            h, c = self.lstm(torch.cat([z_t, r], dim=1), (h, c))
            if t > 0:
                read = self.reader(h, memory, read)
                r = (read.unsqueeze(1) @ memory).squeeze(1)
            write = self.writer(h, memory, write)
            retained = 1 - write.unsqueeze(2) * self.erase(h).sigmoid().unsqueeze(1)
            memory = memory * retained + write.unsqueeze(2) * self.add(h).tanh().unsqueeze(1)
        h, _ = self.lstm(torch.cat([torch.zeros_like(z[:, 0]), r], dim=1), (h, c))
        return self.readout(h)


class Head(nn.Module):
    """w ∝ (s ∗ (g c + (1 − g) w_{t−1}))^γ,  c = softmax(β cos(k, M)); ∗ is circular.

    Attention weights of one head over the slots.
    (h (batch, hidden), M (batch, slots, width), w_{t−1} (batch, slots)) → w (batch, slots). From h come the key k, its
    strength β > 0, the gate g in (0, 1), the probabilities s of the shifts −1, 0 and 1, and the sharpness γ ≥ 1. In the
    first call, w_{t−1} is None and g = 1.
    """

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.key = nn.Linear(hidden_size, width)
        self.strength = nn.Linear(hidden_size, 1)
        self.gate = nn.Linear(hidden_size, 1)
        self.shift = nn.Linear(hidden_size, len(SHIFTS))
        self.sharpness = nn.Linear(hidden_size, 1)
        initialisation.xavier(self.key, initialisation.TANH_GAIN)
        initialisation.kaiming(self.strength)
        initialisation.xavier(self.gate)
        initialisation.xavier(self.shift)
        initialisation.kaiming(self.sharpness)

    def forward(self, h: Tensor, memory: Tensor, previous: Tensor | None) -> Tensor:
        """Return the attention weights w (batch, slots) from the state h, the memory and the previous weights.

        The weights of a row sum to 1. h is (batch, hidden), ``memory`` (batch, slots, width) and ``previous`` (batch,
        slots), or None in the first call.
        """
        cosine = F.cosine_similarity(self.key(h).tanh().unsqueeze(1), memory, dim=2)
        weights = (F.softplus(self.strength(h)) * cosine).softmax(dim=1)
        if previous is not None:
            weights = previous + self.gate(h).sigmoid() * (weights - previous)
        shifted = torch.stack([weights.roll(by, dims=1) for by in SHIFTS], dim=2)
        mixed = (shifted @ self.shift(h).softmax(dim=1).unsqueeze(2)).squeeze(2)
        sharpened = mixed ** (1 + F.softplus(self.sharpness(h)))
        return sharpened / sharpened.sum(dim=1, keepdim=True)
