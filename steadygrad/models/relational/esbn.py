"""ESBN, the emergent symbol binding network: a controller that sees keys, never objects (Webb et al., 2021)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steadygrad.models.relational import initialisation
from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel
from steadygrad.models.relational.similarity import similarity, views
from steadygrad.problem import Problem


class ESBN(RelationalModel):
    """h_t = LSTM(r_{t−1}, h_{t−1}),  r_t = σ(g · h_t) Σ_{k<t} a_tk [relu(K h_k), σ(α s_tk + β)],  a_t = softmax(s_t).

    s_tk = z_t · z_k are similarities of the objects' normalised features z. The controller writes a key relu(K h_t) for
    each object. It reads the keys of earlier objects that are similar to the present one, and a confidence σ(α s_tk +
    β). It takes one step more than there are objects; its last state h gives the logits. ``asymmetric`` compares z¹_t =
    norm(W₁ e_t + b₁) with z²_k = norm(W₂ e_k + b₂), e the encoder's output. ``sensory`` adds z_{t−1} (if asymmetric,
    z¹_{t−1}) to the input r_{t−1} of the controller. ``normalisation`` "segmented" is that of Webb's scripts for RMTS,
    "context" that of Kerg et al. (2022).

    Computation and initialisation follow Webb's program (taylorwwebb/emergent_symbols, ESBN.py) and its variants in
    giancarlok/relationaltasks (ESBN_cat.py, ESBN_asym1.py, whose w2 is W₁ here and w1 W₂). The LSTM, g and the readout
    are Xavier normal, K is Kaiming normal, α = 1 and β = 0. The linear layers after the encoder (``asymmetric`` or
    ``l1``) have torch's default weights. All biases are 0.
    """

    revision = 2  # revision 1 had torch's initialisation

    def __init__(
        self,
        problem: Problem,
        *,
        hidden_size: int = 512,
        key_size: int = 256,
        asymmetric: bool = False,
        sensory: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(problem, asymmetric, **shared)
        self.check_counts(hidden_size=hidden_size, key_size=key_size)
        self.sensory = sensory
        self.lstm = nn.LSTMCell(key_size + 1 + sensory * FEATURES, hidden_size)
        self.key = nn.Linear(hidden_size, key_size)
        self.gate = nn.Linear(hidden_size, 1)
        self.confidence_gain = nn.Parameter(torch.ones(1))
        self.confidence_bias = nn.Parameter(torch.zeros(1))
        self.readout = nn.Linear(hidden_size, problem.answers)
        initialisation.lstm_cell(self.lstm)
        initialisation.kaiming(self.key)
        initialisation.xavier(self.gate)
        initialisation.xavier(self.readout)
        if self.selection is not None:
            for layer in self.selection.modules():
                if isinstance(layer, nn.Linear):
                    nn.init.zeros_(layer.bias)

    def answer(self, z: Tensor) -> Tensor:
        scores = similarity(z)
        attention = attention_to_past(scores)
        seen = F.pad(views(z)[0], (0, 0, 1, 0))  # z_{t−1} at step t, and zeros at step 0
        retrieved = z.new_zeros(len(z), self.lstm.input_size - self.sensory * FEATURES)
        h = c = z.new_zeros(len(z), self.lstm.hidden_size)
        keys: list[Tensor] = []
        for t in range(z.shape[1] + 1):
            h, c = self.lstm(torch.cat([retrieved, seen[:, t]], dim=1) if self.sensory else retrieved, (h, c))
            if 0 < t < z.shape[1]:
                retrieved = self.gate(h).sigmoid() * self.retrieve(attention[t], scores[:, t, :t], keys)
            keys.append(self.key(h).relu())
        return self.readout(h)

    def relate(self, z: Tensor) -> Tensor:
        """Return a_tk, the attention of step t to the key of object k, (batch, objects, objects), from the features z.

        Row t sums to 1 over k < t and is 0 for k ≥ t, so row 0 is 0.
        """
        attention = attention_to_past(similarity(z))
        return torch.stack([F.pad(row, (0, len(attention) - row.shape[1])) for row in attention], dim=1)

    def retrieve(self, attention: Tensor, scores: Tensor, keys: list[Tensor]) -> Tensor:
        """Return the mean of keys and confidences of earlier objects, weighted by attention: (batch, key_size + 1).

        ``attention`` and the similarities ``scores`` are (batch, t); ``keys`` is a list of t tensors (batch, key_size).
        """
        confidence = (self.confidence_gain * scores + self.confidence_bias).sigmoid()
        bound = torch.cat([torch.stack(keys, dim=1), confidence.unsqueeze(2)], dim=2)
        return (attention.unsqueeze(1) @ bound).squeeze(1)


def attention_to_past(scores: Tensor) -> list[Tensor]:
    """Return a list of the attention a_t = softmax(s_t) to the objects k < t, a tensor (batch, t) for each t.

    ``scores`` are the similarities s_tk (batch, objects, objects). The first tensor is empty, (batch, 0).
    """
    return [scores[:, t, :t].softmax(dim=1) for t in range(scores.shape[1])]
