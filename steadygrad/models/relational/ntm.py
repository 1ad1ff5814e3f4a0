"""The neural Turing machine: an LSTM with a memory that it addresses by content and by place (Graves et al., 2014)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel
from steadygrad.models.relational.normalisation import Segments

SHIFTS = (-1, 0, 1)
BLANK = 1e-6  # memory before anything is written: small, and alike everywhere


class NTM(RelationalModel):
    """y = C [h_T, r_T],  h_t = LSTM([z_t, r_{t−1}], h_{t−1}),  M_t = M_{t−1} ∘ (1 − w e) + w a,  r_t = v_t M_t.

    w and v are where the write head and the read head look, e in (0, 1) what is erased, a what is added. ``slots`` of
    ``width`` numbers: 10 of 256, as in Webb et al. (2021). The read head looks after the write head has written.
    """

    def __init__(
        self,
        objects: int,
        image_size: int,
        channels: int,
        answers: int,
        segments: Segments,
        *,
        hidden_size: int = 512,
        slots: int = 10,
        width: int = 256,
        encoder: str = "learned",
        normalisation: str = "context",
        l1: float = 0.0,
    ) -> None:
        super().__init__(objects, image_size, channels, answers, segments, encoder, normalisation, l1)
        self.check_counts(hidden_size=hidden_size, slots=slots, width=width)
        if slots < len(SHIFTS):
            raise ValueError(f"NTM expects at least {len(SHIFTS)} slots, as its heads move; got {slots}")
        self.slots, self.width = slots, width
        self.lstm = nn.LSTMCell(FEATURES + width, hidden_size)
        self.writer, self.reader = Head(hidden_size, width), Head(hidden_size, width)
        self.erase = nn.Linear(hidden_size, width)
        self.add = nn.Linear(hidden_size, width)
        self.readout = nn.Linear(hidden_size + width, answers)

    def answer(self, z: Tensor) -> Tensor:
        memory = z.new_full((len(z), self.slots, self.width), BLANK)
        write = read = F.one_hot(torch.zeros(len(z), dtype=torch.long, device=z.device), self.slots).to(z)
        r = z.new_zeros(len(z), self.width)
        h = c = z.new_zeros(len(z), self.lstm.hidden_size)
        for z_t in z.unbind(dim=1):
            h, c = self.lstm(torch.cat([z_t, r], dim=1), (h, c))
            write = self.writer(h, memory, write)
            kept = 1 - write.unsqueeze(2) * self.erase(h).sigmoid().unsqueeze(1)
            memory = memory * kept + write.unsqueeze(2) * self.add(h).tanh().unsqueeze(1)
            read = self.reader(h, memory, read)
            r = (read.unsqueeze(1) @ memory).squeeze(1)
        return self.readout(torch.cat([h, r], dim=1))


class Head(nn.Module):
    """w ∝ (s ∗ (g c + (1 − g) w_{t−1}))^γ,  c = softmax(β cos(k, M)); ∗ goes round.

    (h (batch, hidden), M (batch, slots, width), w_{t−1} (batch, slots)) → w (batch, slots). From h come the key k, its
    strength β > 0, the gate g in (0, 1), how likely each shift is (s), and how sharp the outcome, γ ≥ 1.
    """

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.sizes = (width, 1, 1, len(SHIFTS), 1)
        self.address = nn.Linear(hidden_size, sum(self.sizes))

    def forward(self, h: Tensor, memory: Tensor, previous: Tensor) -> Tensor:
        key, strength, gate, shift, sharpness = self.address(h).split(self.sizes, dim=1)
        alike = F.cosine_similarity(key.tanh().unsqueeze(1), memory, dim=2)
        content = (F.softplus(strength) * alike).softmax(dim=1)
        gated = previous + gate.sigmoid() * (content - previous)
        moved = torch.stack([gated.roll(by, dims=1) for by in SHIFTS], dim=2)
        sharp = (moved @ shift.softmax(dim=1).unsqueeze(2)).squeeze(2) ** (1 + F.softplus(sharpness))
        return sharp / sharp.sum(dim=1, keepdim=True)
