"""A policy for RecurrentPPO of sb3-contrib with a layer of this package in the place of torch.nn.LSTM.

    RecurrentPPO(LayerPolicy, env, policy_kwargs={"layer": "nnrnn", "lstm_hidden_size": 128})

sb3-contrib runs an update step by step if an episode starts inside it. Here the layer resets its state itself.
"""

from collections.abc import Callable
from typing import Any

import torch
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from torch import Tensor

from steadygrad.layers import LAYERS, RecurrentLayer

Build = Callable[..., RecurrentLayer]


class LayerPolicy(RecurrentActorCriticPolicy):
    """Recurrent policy and value function whose recurrent layers are of this package.

    ``layer`` is a name in `LAYERS` or a function (input size, hidden size, num_layers, **options) → layer. The other
    arguments are those of sb3-contrib's RecurrentActorCriticPolicy: ``lstm_hidden_size``, ``n_lstm_layers``,
    ``lstm_kwargs`` (options of the layer), ``enable_critic_lstm``, ``features_extractor_class``, … sb3-contrib stores a
    state (h, c). A layer with h alone has zeros in the place of c; a layer with a memory raises ValueError.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, lr_schedule: Any, *args: Any, layer: str | Build = "lstm",
        lstm_kwargs: dict[str, Any] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(observation_space, action_space, lr_schedule, *args, **options)
        build = LAYERS[layer] if isinstance(layer, str) else layer
        for name in ("lstm_actor", "lstm_critic"):
            if (own := getattr(self, name)) is not None:
                made = build(own.input_size, own.hidden_size, own.num_layers, **(lstm_kwargs or {}))
                setattr(self, name, checked(made, own.hidden_size))
        build_optimizer: Any = self.optimizer_class  # sb3 declares the base class, whose constructor takes no lr
        self.optimizer = build_optimizer(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    @staticmethod
    def _process_sequence(
        features: Tensor, lstm_states: tuple[Tensor, Tensor], episode_starts: Tensor, lstm: Any
    ) -> tuple[Tensor, Any]:  # sb3-contrib declares a tensor where it returns the pair (h, c)
        """Return the outputs (sequences · time, features) and the final state (h, c). sb3-contrib calls this method.

        ``features`` and ``episode_starts`` hold all steps of the first sequence, then of the second, and so on.
        """
        sequences = lstm_states[0].shape[1]
        x = features.reshape(sequences, -1, lstm.input_size).transpose(0, 1)
        reset = episode_starts.reshape(sequences, -1).T.bool()
        h, c = (part.contiguous() for part in lstm_states)
        single = len(lstm.state_sizes) == 1
        output, final = lstm(x, h if single else (h, c), reset=reset if reset.any() else None)
        return output.transpose(0, 1).flatten(0, 1), (final, torch.zeros_like(c)) if single else final


def checked(layer: RecurrentLayer, size: int) -> RecurrentLayer:
    """Return the layer. Raise ValueError unless sb3-contrib can hold its state and its output has ``size`` features."""
    shapes = [part.shape for part in layer.state_parts]
    if shapes not in ([(size,)], [(size,)] * 2) or layer.output_size != size or layer.batch_first:
        raise ValueError(
            f"LayerPolicy expects a layer that takes time first, with {size} outputs and a state of one or two tensors "
            f"of this size; got {layer.output_size} outputs, a state {shapes} and batch_first={layer.batch_first}"
        )
    return layer
