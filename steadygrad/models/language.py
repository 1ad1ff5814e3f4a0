"""Language model: an embedding, a stack of recurrent layers and a readout predict the next token."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from steadygrad.check import check_integers, is_number
from steadygrad.kernels import traced
from steadygrad.layers import RecurrentLayer
from steadygrad.layers.caching import Evaluated, own_layers, shared
from steadygrad.layers.cell import Lookup
from steadygrad.layers.recurrent import State
from steadygrad.layers.stack import Stack
from steadygrad.layers.stream import Stages, Streamable
from steadygrad.models.model import Model, Streamed
from steadygrad.models.sequence import Inside, linear_readout
from steadygrad.models.stream import TokenStream

Make = Callable[[int, Any], RecurrentLayer]


class LanguageModel(Streamable, Model):
    """p(x_{t+1} | x_1 … x_t) = softmax(C h_t + c),  h = L_k(… L_1(E x)).

    tokens (batch, time) → logits (batch, time, vocabulary). E is the embedding, L_1 … L_k are recurrent layers.
    ``make`` is called with the input size and the hidden size of each layer, so it can be a layer class:
    `LanguageModel(NCGRU, 50, sizes=[430, 1000, 430])`.

    ``sizes``           hidden size of each layer; without it, one layer, for which ``make`` gets None as hidden size
    ``tied``            C is E; the last layer must have an output size equal to ``embedding_size``, else ValueError
    ``word_dropout``    dropout of words: share of the vocabulary whose embedding is zero in an update
    ``input_dropout``, ``layer_dropout``, ``output_dropout``   dropout of features before, between and after the
                        layers, with the same mask at all steps of a window (Gal and Ghahramani, 2016)
    ``weight_dropout``  dropout of entries of the recurrent matrices (Merity et al., 2018), which are then no longer
                        orthogonal
    ``readout``         initialisation of C and c: a name in `steadygrad.models.sequence.READOUTS`
    """

    def __init__(
        self,
        make: Make,
        vocabulary: int,
        *,
        embedding_size: int = 200,
        sizes: Sequence[int] | None = None,
        tied: bool = False,
        word_dropout: float = 0.0,
        input_dropout: float = 0.0,
        layer_dropout: float = 0.0,
        output_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        readout: str = "xavier",
    ) -> None:
        super().__init__()
        shares = {
            "word_dropout": word_dropout,
            "input_dropout": input_dropout,
            "layer_dropout": layer_dropout,
            "output_dropout": output_dropout,
            "weight_dropout": weight_dropout,
        }
        for name, share in shares.items():
            if not is_number(share, 0, 1) or share == 1:
                raise ValueError(f"LanguageModel expects {name} of at least 0 and below 1; got {share!r}")
        check_integers("LanguageModel", vocabulary=vocabulary, embedding_size=embedding_size)
        if sizes is not None and (not isinstance(sizes, list | tuple) or not sizes):
            raise ValueError(f"LanguageModel expects sizes to be a list of units, one a layer; got {sizes!r}")
        self.word_dropout, self.input_dropout = word_dropout, input_dropout
        self.layer_dropout, self.output_dropout = layer_dropout, output_dropout
        self.embedding = nn.Embedding(vocabulary, embedding_size)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        layers: list[RecurrentLayer] = []
        for units in sizes or [None]:
            layers.append(make(layers[-1].output_size if layers else embedding_size, units))
        self.layers = Stack(layers)
        for layer in layers:
            layer.drop_weights(weight_dropout)
        self.readout = linear_readout("LanguageModel", layers[-1].output_size, vocabulary, readout)
        if tied:
            if layers[-1].output_size != embedding_size:
                raise ValueError(
                    f"LanguageModel with tied weights expects {embedding_size} features of the last layer, as the "
                    f"embedding has; got {layers[-1].output_size}"
                )
            self.readout.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (batch, time, vocabulary) of the next token from tokens (batch, time), integers.

        The layers start from their initial state.
        """
        return self.walk(tokens)[0]

    def walk(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return the pair of the logits (batch, time, vocabulary) for tokens (batch, time) and the final state.

        The layers start from ``state``, or from their initial state if it is None. A state holds the states of all
        layers, as in `Stack`. Memories of past states are emptied in the final state.
        """
        logits, state = self.walk_on(tokens, state)
        return logits, self.layers.without_memory(state)

    def walk_on(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return the pair of logits and final state as `walk` does, but keep the memories of past states.

        Use this method if the next call continues the same window.
        """
        between = partial(self.drop, share=self.layer_dropout)
        hidden, state = self.layers(self.embedded(tokens.t()), state, between)
        return self.read(self.drop(hidden, self.output_dropout)), state

    def read(self, hidden: Tensor) -> Tensor:
        """Return the logits (batch, time, vocabulary) from the last layer's outputs (time, batch, features)."""
        return self.readout(hidden).transpose(0, 1)

    def streamed(self) -> Streamed:
        """Return a `Streamed` for export. Its ``run`` is `walk_on`, which keeps the memories of past states."""
        example = torch.zeros(2, 7, dtype=torch.int64, device=self.embedding.weight.device)
        return Streamed(self.walk_on, self.layers, example, ("batch", "time"))

    def stages(self) -> Stages:
        """Return the `Stages` of a stream: the layers, the readout and the embedding."""
        return Stages(list(self.layers.layers()), self.readout, self.table().detach())

    def stream(self, batch: int = 1) -> TokenStream:
        """Return a `TokenStream` of ``batch`` sequences, which runs one token a call: ``logits = stream(token)``.

        It has a copy of the present weights.
        """
        return TokenStream(self, batch)

    def inside(self, tokens: Tensor) -> Inside:
        """Return an `Inside` of the recurrent layers, their inputs for tokens (batch, time) and the method `read`.

        The layers are a `Stack`, or the layer itself if there is only one. The inputs are (batch, time,
        embedding_size), without dropout.
        """
        layer = self.layers[0] if len(self.layers) == 1 else self.layers
        return Inside(layer, self.embedding(tokens), self.read)

    def embedded(self, tokens: Tensor) -> Tensor | Lookup:
        """Return the embeddings of tokens (time, batch), after dropout, as input of the first layer.

        The result is (time, batch, embedding_size). It is a `Lookup` instead if the vocabulary exceeds neither
        ``embedding_size`` nor the number of tokens, and no ``input_dropout`` is active. Raise ValueError for tokens
        that are not int64 or int32, or outside the vocabulary.
        """
        table = self.table()
        if tokens.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"LanguageModel expects tokens of type int64 or int32; got {tokens.dtype}")
        if traced():  # no value is known
            return self.drop(F.embedding(tokens, table), self.input_dropout)
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(table):
            raise ValueError(
                f"LanguageModel expects tokens from 0 to {len(table) - 1}, as its vocabulary is {len(table)}; "
                f"got {int(tokens.min())} to {int(tokens.max())}"
            )
        dropped = self.training and self.input_dropout > 0
        if dropped or len(table) > min(table.shape[1], tokens.numel()):
            return self.drop(F.embedding(tokens, table), self.input_dropout)
        unit = torch.eye(len(table), dtype=table.dtype, device=table.device)
        return Lookup(F.embedding(tokens, unit), table)

    def table(self) -> Tensor:
        """Return the embedding matrix E (vocabulary, embedding_size).

        In training with ``word_dropout``, the rows of the dropped words are zero, and the others are scaled up, as
        dropout does.
        """
        table = self.embedding.weight
        if self.training and self.word_dropout:
            table = F.dropout(table.new_ones(len(table), 1), self.word_dropout) * table
        return table

    def drop(self, x: Tensor, share: float) -> Tensor:
        """Return x (time, batch, features) after dropout of features with probability ``share``.

        The mask is the same at all time steps, and the other features are scaled up. In evaluation mode x is returned
        unchanged.
        """
        if not self.training or not share:
            return x
        return x * F.dropout(x.new_ones(1, *x.shape[1:]), share)

    def generate(
        self,
        tokens: Tensor,
        temperature: float = 1.0,
        generator: Generator | None = None,
        *,
        window: int | None = None,
    ) -> "Tokens":
        """Return an endless iterator over sampled tokens, integers, that continue ``tokens`` (time,).

        A token is sampled from softmax(logits / temperature); with temperature 0 it is the most likely one.
        ``generator`` is the source of random numbers. The model runs in evaluation mode. Raise ValueError for no
        tokens, a negative temperature or a window below 1, and while sampling for logits that are not finite.

        ``window``  number of tokens after which a memory of past states is emptied, as in training. Without it, the
                    memory is kept, and every token may take more time than the one before.
        """
        return Tokens(self, tokens, temperature, generator, window)

    def penalty(self) -> Tensor | float:
        """Return the sum of the layers' regularisation terms, which training adds to the loss."""
        return self.layers.penalty()


class Tokens:
    """Endless iterator over tokens, integers, sampled from a language model. See `LanguageModel.generate`."""

    def __init__(
        self,
        model: LanguageModel,
        tokens: Tensor,
        temperature: float,
        generator: Generator | None,
        window: int | None,
    ) -> None:
        if tokens.dim() != 1 or not len(tokens):
            raise ValueError(f"generate expects at least one token to go on from; got shape {tuple(tokens.shape)}")
        if not temperature >= 0:
            raise ValueError(f"generate expects a temperature of at least 0; got {temperature!r}")
        if window is not None and window < 1:
            raise ValueError(f"generate expects a window of at least 1 token; got {window!r}")
        self.model, self.temperature, self.generator = model, temperature, generator
        self.window = sys.maxsize if window is None else window
        self.layers, self.evaluated = own_layers(model), dict[Any, Evaluated | None]()
        self.next: Tensor = tokens.unsqueeze(0)
        self.state: State | None = None
        self.place = 0
        """Position in the window."""

    def __iter__(self) -> "Tokens":
        return self

    @torch.no_grad()
    def __next__(self) -> int:
        if was_training := self.model.training:
            self.model.eval()
        try:
            with shared(self.layers, self.evaluated):
                last = self.read(self.next)
        finally:
            if was_training:
                self.model.train()
        if not last.isfinite().all():
            raise ValueError("generate expects finite logits; got NaN or infinity, as after training that diverged")
        if self.temperature == 0:
            chosen = last.argmax()
        else:
            scaled = (last - last.max()).double() / self.temperature  # at most 0, so that no temperature overflows
            chosen = torch.multinomial(scaled.softmax(0), 1, generator=self.generator)[0]
        self.next = chosen.view(1, 1)
        return int(chosen)

    def read(self, tokens: Tensor) -> Tensor:
        """Run the model over new ``tokens`` (1, time). Return the logits (vocabulary,) of the token that follows them.

        The model continues from the state after the previous call, and stores its new state for the next call. Memories
        of past states are emptied after every ``window`` tokens (the ``window`` of `LanguageModel.generate`).
        """
        room = self.window - self.place
        for here in (tokens[:, :room], *tokens[:, room:].split(self.window, dim=1)):
            if here.shape[1]:
                self.place = (self.place + here.shape[1]) % self.window
                walk = self.model.walk_on if self.place else self.model.walk
                logits, self.state = walk(here, self.state)
        return logits[0, -1]
