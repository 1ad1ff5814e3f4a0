"""A policy for sb3-contrib: the same numbers as its own loop over steps, and RecurrentPPO learns with it."""

import pytest
import torch
from torch.testing import assert_close

from steadygrad.layers import LAYERS
from tests.rounding import rounding

pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed: pip install 'steadygrad[rl]'")

import gymnasium
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy

from steadygrad.integrations.sb3 import LayerPolicy

N, SEQUENCES, TIME = 6, 3, 5
pytestmark = pytest.mark.filterwarnings("ignore")  # of gymnasium and sb3
BOX, CHOICE = gymnasium.spaces.Box(-1.0, 1.0, (4,)), gymnasium.spaces.Discrete(2)


def policy(layer, **options):
    return LayerPolicy(BOX, CHOICE, lambda _: 1e-3, layer=layer, lstm_hidden_size=N, **options)


@pytest.mark.parametrize("name", ["lstm", "exprnn", "ncgru"])
def test_sequences_with_episode_starts_equal_sb3s_own_loop(name):
    layer = LAYERS[name](4, N)

    def step(x, state):  # sb3's loop expects the state as a pair
        y, final = layer(x, state if name == "lstm" else state[0])
        return y, final if name == "lstm" else (final, torch.zeros_like(final))

    step.input_size = 4
    features = torch.randn(SEQUENCES * TIME, 4)
    starts = (torch.rand(SEQUENCES * TIME) < 0.3).float()
    starts[1] = 1.0
    state = torch.randn(1, SEQUENCES, N), torch.randn(1, SEQUENCES, N)
    expected, ends = RecurrentActorCriticPolicy._process_sequence(features, state, starts, step)
    found, final = LayerPolicy._process_sequence(features, state, starts, layer)
    bound = rounding(torch.float32, N + 4, TIME, 10.0)
    assert_close(found, expected, rtol=0, atol=bound)
    assert_close(final[0], ends[0], rtol=0, atol=bound)
    if name == "lstm":
        assert_close(final[1], ends[1], rtol=0, atol=bound)


@pytest.mark.parametrize("options", [{"layer": "nnrnn"}, {"layer": "lstm", "enable_critic_lstm": False}])
def test_recurrent_ppo_trains_the_layer_and_predicts(options):
    kwargs = {"lstm_hidden_size": N, **options}
    model = RecurrentPPO(LayerPolicy, "CartPole-v1", n_steps=32, batch_size=16, n_epochs=1, policy_kwargs=kwargs)
    before = [parameter.detach().clone() for parameter in model.policy.lstm_actor.parameters()]
    model.learn(64)
    changed = [not torch.equal(a, b) for a, b in zip(before, model.policy.lstm_actor.parameters(), strict=True)]
    assert any(changed)
    observation = model.env.reset()
    action, state = model.predict(observation)
    action, _ = model.predict(observation, state=state)
    assert action.shape == (1,)


def test_a_saved_model_loads(tmp_path):
    kwargs = {"layer": "exprnn", "lstm_hidden_size": N, "lstm_kwargs": {"rebase_every": 100}}
    model = RecurrentPPO(LayerPolicy, "CartPole-v1", n_steps=16, batch_size=16, policy_kwargs=kwargs)
    model.save(tmp_path / "model")
    again = RecurrentPPO.load(tmp_path / "model")
    assert type(again.policy.lstm_actor) is LAYERS["exprnn"]
    for a, b in zip(model.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["rellstm", "urnn"])
def test_layers_that_sb3_cannot_hold_raise_value_error(name):
    with pytest.raises(ValueError, match="LayerPolicy expects a layer that takes time first, with 6 outputs"):
        policy(name)
