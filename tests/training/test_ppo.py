"""PPO: episodes that are functions of their seeds, advantages and losses against sums written out."""

import dataclasses
import math

import pytest
import torch

from steadygrad.layers import GRU
from steadygrad.models import PolicyModel
from steadygrad.tasks import MiniGrid
from steadygrad.training.ppo import (
    Episodes,
    advantages,
    mean_reward,
    play,
    ppo_loss,
    ppo_metrics,
    ppo_targets,
    ppo_terms,
    sampled,
)
from tests.rounding import rounding

pytest.importorskip("minigrid", reason="needs the extra minigrid")

SHORT = MiniGrid(environment="Empty-5x5", limit=12)
NAN = math.nan


def agent(seed=0):
    torch.manual_seed(seed)
    model = PolicyModel(lambda inputs: GRU(inputs, 8), SHORT.view, SHORT.kinds, SHORT.others, SHORT.actions)
    torch.nn.init.normal_(model.actor[-1].weight)  # one that prefers some actions
    return model


def equal_episodes(first, second):
    return all(torch.equal(a.nan_to_num(-9), b.nan_to_num(-9)) for a, b in zip(first, second, strict=True))


# playing


def test_episode_depends_only_on_its_seed():
    first, again = play(SHORT, agent(), [5, 6, 7]), play(SHORT, agent(), [5, 6, 7])
    assert equal_episodes(first, again)
    torch.manual_seed(9)
    before = torch.get_rng_state()
    other = play(SHORT, model := agent(), [8, 6, 9])
    torch.manual_seed(9)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(other.actions[1].nan_to_num(-9), first.actions[1].nan_to_num(-9))  # whoever plays beside
    assert not torch.equal(other.actions[0].nan_to_num(-9), first.actions[0].nan_to_num(-9))
    assert model.training


def test_an_episode_that_is_over_gives_its_place_to_the_next():
    task, model = dataclasses.replace(SHORT, limit=40), agent()
    torch.nn.init.normal_(model.actor[-1].weight, std=0.1)
    expected, shares = play(task, model, range(12)), []
    played = play(task, model, range(12), at_once=5, progress=shares.append)
    assert len({int(n) for n in (~expected.rewards.isnan()).sum(1)}) > 1
    assert torch.equal(played.actions.nan_to_num(-9), expected.actions.nan_to_num(-9))
    assert torch.equal(played.inputs.nan_to_num(-9), expected.inputs.nan_to_num(-9))
    bound = rounding(torch.float32, 8 * 3, 40)  # other sizes of the batch may add in another order
    torch.testing.assert_close(played.values, expected.values, rtol=0, atol=bound, equal_nan=True)
    assert shares == sorted(shares)
    assert shares[-1] <= 1


def test_play_does_not_change_global_rng_state():
    model = agent()
    before = torch.get_rng_state()
    play(SHORT, model, [1, 2])
    assert torch.equal(torch.get_rng_state(), before)


def test_played_values_and_log_probs_match_whole_forward_pass():
    task = dataclasses.replace(SHORT, limit=40)
    model = agent()
    torch.nn.init.normal_(model.actor[-1].weight, std=0.1)  # some get there
    played = play(task, model, list(range(12)))
    lengths = (~played.rewards.isnan()).sum(1)
    assert len(set(lengths.tolist())) > 1
    with torch.no_grad():
        outputs = model.eval()(played.inputs)
    real = ~played.actions.isnan()
    log_probs = outputs[..., :-1].log_softmax(-1)[real]
    torch.testing.assert_close(outputs[..., -1][real], played.values[real])
    torch.testing.assert_close(log_probs.gather(1, played.actions[real].long()[:, None])[:, 0], played.log_probs[real])
    ended = played.rewards.nan_to_num(0).sum(1)
    expected = [1 - 0.9 * length / 40 for length in lengths.tolist()]
    for reward, length, value in zip(ended.tolist(), lengths.tolist(), expected, strict=True):
        assert reward == pytest.approx(value) or (reward, length) == (0, 40)
    assert played.frames == int(lengths.sum())
    assert mean_reward(played.rewards) == pytest.approx(ended.mean().item())


def test_greedy_play_takes_argmax_actions():
    model, played = agent(), play(SHORT, agent(), [1, 2], greedy=True)
    with torch.no_grad():
        likeliest = model.eval()(played.inputs)[..., :-1].argmax(-1)
    real = ~played.actions.isnan()
    assert torch.equal(likeliest[real], played.actions[real].long())


def test_sampled_actions_match_probabilities():
    p = torch.tensor([0.1, 0.0, 0.6, 0.3])
    luck = (torch.arange(1000) + 0.5) / 1000
    assert sampled(p.log().expand(1000, 4), luck).bincount(minlength=4).tolist() == [100, 0, 600, 300]
    assert sampled(p.log().expand(2, 4), torch.tensor([0.0, 1.0])).tolist() == [0, 3]


def test_play_reports_progress():
    heard = []
    play(SHORT, agent(), [1, 2], progress=heard.append)
    assert heard == [(t + 1) / 12 for t in range(len(heard))]
    assert heard


# learning


def test_advantages_match_gae_double_sum():
    rewards = torch.tensor([[0.0, 0.5, 0.0, 1.0], [0.3, 0.7, NAN, NAN]], dtype=torch.float64)
    values = torch.tensor([[0.1, -0.2, 0.4, 0.8], [0.9, 0.5, NAN, NAN]], dtype=torch.float64)
    gamma, trace = 0.9, 0.7
    found = advantages(rewards, values, gamma, trace)
    for row, length in ((0, 4), (1, 2)):
        r, V = rewards[row].tolist(), [*values[row, :length].tolist(), 0.0]
        for t in range(length):
            total = 0.0
            for k in range(length - t):
                total += (gamma * trace) ** k * (r[t + k] + gamma * V[t + k + 1] - V[t + k])
            assert found[row, t].item() == pytest.approx(total, abs=1e-12)
    assert found[1, 2:].isnan().all()


def test_advantages_with_trace_one_are_returns_minus_values():
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.2, 0.4, 0.6]])
    torch.testing.assert_close(
        advantages(rewards, values, 0.5, 1.0) + values, torch.tensor([[0.25, 0.5, 1.0]])
    )  # Σ γᵏ r


def test_ppo_targets_normalise_advantages_but_not_returns():
    played = play(SHORT, agent(), [1, 2, 3])
    targets = ppo_targets(SHORT, played)
    real = ~targets[..., 0].isnan()
    assert torch.equal(~targets.isnan(), real[..., None].expand_as(targets))
    actions, log_probs, gain, returns, rewards = targets[real].unbind(-1)
    assert gain.mean().item() == pytest.approx(0, abs=1e-5)
    assert gain.std(correction=0).item() == pytest.approx(1, rel=1e-3)
    raw = advantages(played.rewards, played.values, SHORT.discount, SHORT.trace)
    torch.testing.assert_close(returns, (raw + played.values)[real])
    for own, kept in ((played.actions, actions), (played.log_probs, log_probs), (played.rewards, rewards)):
        assert torch.equal(own[real], kept)


def example():
    """Two episodes of three and two steps; outputs (2, 3, 8)."""
    outputs = torch.randn(2, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor(
        [
            [[0, -2.0, 0.7, 0.3, 0.0], [6, -1.0, -1.2, 0.5, 0.0], [3, -2.5, 0.4, 1.0, 0.8]],
            [[2, -1.5, 1.5, 0.2, 0.0], [5, -0.2, -0.3, 0.1, 0.0], [NAN] * 5],
        ],
        dtype=torch.float64,
    )
    return outputs, targets


def test_ppo_loss_matches_formula():
    task = MiniGrid(clip_ratio=0.3, entropy=0.05, value_weight=0.25)
    outputs, targets = example()
    total, steps = 0.0, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    for i, t in steps:
        action, before, gain, returns, _ = targets[i, t].tolist()
        *logits, value = outputs[i, t].tolist()
        normaliser = math.log(sum(map(math.exp, logits)))
        p = [math.exp(logit - normaliser) for logit in logits]
        ratio = p[int(action)] / math.exp(before)
        surrogate = min(ratio * gain, max(0.7, min(1.3, ratio)) * gain)
        entropy = -sum(q * math.log(q) for q in p)
        total += -surrogate + 0.25 * (value - returns) ** 2 - 0.05 * entropy
    assert ppo_loss(task, outputs, targets).item() == pytest.approx(total / 5, rel=1e-12)


@pytest.mark.parametrize(
    ("gain", "ratio", "clipped"), [(1, 1.3, True), (1, 0.7, False), (-1, 1.3, False), (-1, 0.7, True)]
)
def test_clipped_ratio_has_no_gradient(gain, ratio, clipped):
    """Only a policy that has moved to its own advantage is held."""
    task = MiniGrid(entropy=0.0, value_weight=0.0)
    outputs = torch.zeros(1, 1, 8, requires_grad=True)
    before = math.log(1 / 7) - math.log(ratio)
    ppo_loss(task, outputs, torch.tensor([[[2, before, gain, 0.0, 0.0]]])).backward()
    assert outputs.grad.any().item() != clipped


def test_padding_does_not_change_loss_or_gradient():
    task, (outputs, targets) = MiniGrid(), example()
    outputs.requires_grad_()
    loss = ppo_loss(task, outputs, targets)
    loss.backward()
    assert not outputs.grad[1, 2].any()
    assert outputs.grad.any(-1).sum() == 5
    wider = torch.cat([targets, torch.full((2, 4, 5), NAN)], dim=1)
    assert ppo_loss(task, torch.cat([outputs, torch.randn(2, 4, 8)], dim=1), wider) == loss
    assert torch.autograd.gradcheck(lambda outputs: ppo_loss(task, outputs, targets), outputs.detach().requires_grad_())


def test_ppo_metrics_report_mean_reward():
    outputs, targets = example()
    found = MiniGrid().conclude({"loss": 3.0, **ppo_metrics(MiniGrid(), outputs, targets)})
    assert all(type(value) is float for value in found.values())
    assert (found["reward"], found["loss"]) == (pytest.approx(0.4), pytest.approx(0.6))
    assert found["divergence"] >= 0


def test_divergence_is_zero_right_after_playing():
    """The policy that learns first is the one that played."""
    model, played = agent(), play(SHORT, agent(), [1, 2, 3, 4])
    targets = ppo_targets(SHORT, played)
    policy, _, _, divergence = ppo_terms(SHORT, model(played.inputs), targets)
    assert divergence.item() == pytest.approx(0, abs=1e-9)
    assert policy.item() == pytest.approx(0, abs=1e-5)  # minus the mean advantage


def test_episodes_count_their_frames():
    rewards = torch.tensor([[0.0, NAN, NAN], [0.0, 0.0, 1.0]])
    assert Episodes(*[rewards] * 5).frames == 4


def test_with_more_joins_episodes_of_different_lengths():
    short, long = (play(SHORT, agent(), seeds) for seeds in ([1, 2], [3]))
    short = Episodes(*(part[:, :5] for part in short))
    for first, second in ((short, long), (long, short)):
        both = first.with_more(second)
        assert both.frames == first.frames + second.frames
        for part, one, other in zip(both, first, second, strict=True):
            assert part.shape[:2] == (3, 12)
            assert torch.equal(part[: len(one), : one.shape[1]], one)
            assert torch.equal(part[len(one) :, : other.shape[1]], other)
        assert both.inputs[both.rewards.isnan()].isnan().all()
