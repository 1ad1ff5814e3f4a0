"""Recurrent agent: a policy and a value function on top of a recurrent layer."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from steadygrad.check import check_integers
from steadygrad.layers import RecurrentLayer
from steadygrad.layers.recurrent import State
from steadygrad.models.model import Model
from steadygrad.models.sequence import Inside

SQUARES = (16, 32, 64)
"""Channels of the three convolutions."""


class PolicyModel(Model):
    """π(· | x_1 … x_t) = softmax(actor(h_t)),  V_t = critic(h_t),  h from the layer over [conv(E x_t), others of x_t].

    x (batch, time, features) → (batch, time, actions + 1): logits of the actions, then the expected return V. All
    features of x are NaN after the end of a sequence, and none before; the outputs are 0 there.

    An observation x_t is a view of ``view`` × ``view`` squares (at least 7 × 7, else ValueError), then ``others``
    further features. A square has len(``kinds``) features; the i-th is an integer from 0 to kinds[i] − 1. Their
    embeddings E are summed.

    ``make`` is called with the input size of the layer and returns it; a bidirectional or batch_first layer raises
    ValueError. ``embedding_size`` is the size of the embedding of a square, ``head_size`` the hidden size of actor and
    critic. Other sizes and the convolutions are those of rl-starter-files.
    """

    def __init__(
        self,
        make: Callable[[int], RecurrentLayer],
        view: int,
        kinds: Sequence[int],
        others: int,
        actions: int,
        *,
        embedding_size: int = 16,
        head_size: int = 64,
    ) -> None:
        super().__init__()
        check_integers("PolicyModel", embedding_size=embedding_size, head_size=head_size)
        if (side := (view - 1) // 2 - 2) < 1:
            raise ValueError(f"PolicyModel expects a view of at least 7 squares; got {view!r}")
        self.view, self.features = view, view**2 * len(kinds) + others
        self.starts: Tensor
        self.register_buffer("starts", torch.tensor([0, *kinds]).cumsum(0)[:-1], persistent=False)
        self.embedding = nn.Embedding(sum(kinds), embedding_size)
        first, second, third = SQUARES
        self.see = nn.Sequential(
            nn.Conv2d(embedding_size, first, 2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 2),
            nn.ReLU(),
            nn.Conv2d(second, third, 2),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.layer = make(third * side**2 + others)
        if self.layer.batch_first or self.layer.bidirectional:
            raise ValueError(
                "PolicyModel expects a unidirectional layer that takes time first; got "
                f"bidirectional={self.layer.bidirectional} and batch_first={self.layer.batch_first}"
            )
        self.actor, self.critic = (head(self.layer.output_size, head_size, count) for count in (actions, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the actions and, last, the expected return: (batch, time, actions + 1).

        x is (batch, time, features), NaN after the end of a sequence. The layer starts from its initial state.
        """
        return self.walk(x)[0]

    def walk(self, x: Tensor, state: State | None = None, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Return the pair of the outputs (batch, time, actions + 1) and the layer's state at the end of each sequence.

        The outputs are the logits of the actions and, last, the expected return; after the end of a sequence they are
        0. x is (batch, time, features), NaN after the end of a sequence. The layer starts from ``state``, by default
        from its initial state. ``reset`` is a Boolean mask (batch, time) or None. Before each step where it is True,
        the layer goes back to its initial state. Raise ValueError if the number of features is wrong, or if
        `sequence_lengths` raises it.
        """
        if x.shape[-1] != self.features:
            raise ValueError(f"PolicyModel expects {self.features} features per step; got x of shape {tuple(x.shape)}")
        lengths = sequence_lengths(x)
        if bool((lengths == x.shape[1]).all()):
            inputs = self.encode(x.flatten(0, 1)).unflatten(0, x.shape[:2]).transpose(0, 1)
            hidden, state = self.layer(inputs, state, reset=None if reset is None else reset.T)
            return self.read(hidden).transpose(0, 1), state
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        if reset is not None:
            reset = pack_padded_sequence(reset, lengths.cpu(), batch_first=True, enforce_sorted=False).data
        hidden, state = self.layer(packed._replace(data=self.encode(packed.data)), state, reset=reset)
        outputs = hidden._replace(data=self.read(hidden.data))
        return pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])[0], state

    def encode(self, x: Tensor) -> Tensor:
        """Return the inputs of the recurrent layer (steps, inputs) from observations x (steps, features).

        They are the features of the convolutions, then the ``others`` of x.
        """
        squares, kinds = self.view**2, len(self.starts)
        seen = x[:, : squares * kinds].long().view(-1, kinds) + self.starts
        embedded = F.embedding_bag(seen, self.embedding.weight, mode="sum")
        image = embedded.view(len(x), self.view, self.view, -1).permute(0, 3, 1, 2)
        return torch.cat([self.see(image), x[:, squares * kinds :]], dim=-1)

    def read(self, hidden: Tensor) -> Tensor:
        """Return the logits of the actions and, last, the expected return from the output of the recurrent layer.

        The output of the layer is (…, features), the result (…, actions + 1).
        """
        return torch.cat([self.actor(hidden), self.critic(hidden)], dim=-1)

    def inside(self, x: Tensor) -> Inside:
        """Return an `Inside` of the recurrent layer, its inputs for x (batch, time, features) and the readout.

        x must have no NaN. The readout maps the layer's outputs (time, batch, features) to (batch, time, actions + 1).
        """
        inputs = self.encode(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return Inside(self.layer, inputs, lambda hidden: self.read(hidden).transpose(0, 1))

    def rows(self, state: State, which: Tensor) -> State:
        """Return the recurrent state of the sequences ``which`` of a batch: a tensor or a tuple, as ``state``.

        ``which`` is a tensor of indices or a Boolean mask (batch,).
        """
        return tuple(part[:, which] for part in state) if isinstance(state, tuple) else state[:, which]

    def penalty(self) -> Tensor | float:
        """Return the regularisation term of the recurrent layer, which training adds to the loss."""
        return self.layer.penalty()


def sequence_lengths(x: Tensor) -> Tensor:
    """Return the number of steps (batch,) of each sequence of x (batch, time, features), NaN after its end.

    Raise ValueError unless all features are NaN after the end of a sequence, and none before, and every sequence has at
    least one step.
    """
    missing = x.isnan()
    after = missing.all(-1)
    lengths = x.shape[1] - after.sum(1)
    end = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
    wrong = ((missing != end[..., None]).any(-1) | (lengths == 0)[:, None]).nonzero()
    if len(wrong):
        sequence, step = wrong[0].tolist()
        count = int(missing[sequence, step].sum())
        raise ValueError(
            "PolicyModel expects at least one step, then NaN in all features after the end of a sequence and in none "
            f"before; got {count} NaN of {x.shape[-1]} features at step {step} of sequence {sequence}"
        )
    return lengths


def head(features: int, units: int, count: int) -> nn.Sequential:
    """Return an nn.Sequential: a perceptron from ``features`` inputs over ``units`` tanh units to ``count`` outputs.

    The outputs are near 0 at first.
    """
    last = nn.Linear(units, count)
    nn.init.orthogonal_(last.weight, gain=0.01)  # initially, actions are equally likely and V is 0, nearly
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(features, units), nn.Tanh(), last)
