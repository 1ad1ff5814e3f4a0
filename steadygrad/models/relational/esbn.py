"""ESBN, the emergent symbol binding network: a controller that sees keys, never objects (Webb et al., 2021)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel
from steadygrad.models.relational.normalisation import Segments
from steadygrad.models.relational.similarity import Similarity


class ESBN(RelationalModel):
    """h_t = LSTM(r_{t−1}, h_{t−1}),  r_t = σ(g · h_t) Σ_{k<t} a_tk [relu(K h_k), σ(α s_tk + β)],  a_t = softmax(s_t).

    s_tk = z_t · z_k. The controller writes a key for each object and is told the keys of objects like the present one,
    and how sure that is. It takes one step more than there are objects, and its last state answers. ``asymmetric``
    compares W₁ z_t with W₂ z_k, ``sensory`` shows z_t to the controller too.
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
        key_size: int = 256,
        asymmetric: bool = False,
        sensory: bool = False,
        encoder: str = "learned",
        normalisation: str = "context",
        l1: float = 0.0,
    ) -> None:
        super().__init__(objects, image_size, channels, answers, segments, encoder, normalisation, l1)
        self.check_counts(hidden_size=hidden_size, key_size=key_size)
        self.sensory = sensory
        self.similarity = Similarity(FEATURES, asymmetric)
        self.lstm = nn.LSTMCell(key_size + 1 + sensory * FEATURES, hidden_size)
        self.key = nn.Linear(hidden_size, key_size)
        self.gate = nn.Linear(hidden_size, 1)
        self.confidence_gain = nn.Parameter(torch.ones(1))
        self.confidence_bias = nn.Parameter(torch.zeros(1))
        self.readout = nn.Linear(hidden_size, answers)

    def answer(self, z: Tensor) -> Tensor:
        similarity = self.similarity(z)
        attention = attention_to_past(similarity)
        shown = torch.cat([z, torch.zeros_like(z[:, :1])], dim=1)  # nothing to see at the step that answers
        retrieved = z.new_zeros(len(z), self.lstm.input_size - self.sensory * FEATURES)
        h = c = z.new_zeros(len(z), self.lstm.hidden_size)
        keys: list[Tensor] = []
        for t in range(z.shape[1] + 1):
            h, c = self.lstm(torch.cat([retrieved, shown[:, t]], dim=1) if self.sensory else retrieved, (h, c))
            if 0 < t < z.shape[1]:
                retrieved = self.gate(h).sigmoid() * self.retrieve(attention[t], similarity[:, t, :t], keys)
            keys.append(self.key(h).relu())
        return self.readout(h)

    def relate(self, z: Tensor) -> Tensor:
        """a_tk: how much of k's key is retrieved at t."""
        attention = attention_to_past(self.similarity(z))
        return torch.stack([F.pad(row, (0, len(attention) - row.shape[1])) for row in attention], dim=1)

    def retrieve(self, attention: Tensor, similarity: Tensor, keys: list[Tensor]) -> Tensor:
        """The key of what is like the present object, and how sure that is: (batch, key_size + 1)."""
        confidence = (self.confidence_gain * similarity + self.confidence_bias).sigmoid()
        bound = torch.cat([torch.stack(keys, dim=1), confidence.unsqueeze(2)], dim=2)
        return (attention.unsqueeze(1) @ bound).squeeze(1)


def attention_to_past(similarity: Tensor) -> list[Tensor]:
    """a_t = softmax(s_t) over k < t, for each t: (batch, t)."""
    return [similarity[:, t, :t].softmax(dim=1) for t in range(similarity.shape[1])]
