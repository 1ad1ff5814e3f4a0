"""Calls inside `cached` have the values and gradients of calls without it, for every layer, and never stale ones."""

import copy
import pickle
import threading
from contextlib import nullcontext

import pytest
import torch
from torch.utils.checkpoint import CheckpointError, checkpoint

from steadygrad.layers import LAYERS, LSTM, NCGRU, NNRNN, RNN, ExpRNN, HDetachLSTM, Stack
from steadygrad.layers.caching import ACTIVE
from steadygrad.layers.cell import Cell
from steadygrad.layers.lstm import LSTMCell
from steadygrad.layers.rnn import ElmanCell
from steadygrad.models import LanguageModel, SequenceModel
from tests.rounding import assert_same, rounding

I, N, TIME, BATCH = 3, 6, 5, 4
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
DOUBLE = torch.float64
BOUND = rounding(DOUBLE, TIME * BATCH * N, operations=2 * TIME, scale=10)
"""sums over all rows, through as many steps forward and backward; no value of these small layers exceeds 10"""


def build(make, **options):
    torch.manual_seed(3)
    return make(I, N, dtype=DOUBLE, **options)


def inputs():
    torch.manual_seed(4)
    return torch.randn(TIME, BATCH, I, dtype=DOUBLE)


def steps(layer, x, state=None):
    outputs = []
    for row in x.split(1):
        output, state = layer(row, state)
        outputs.append(output)
    return torch.cat(outputs), state


def gradients(layer, loss, **options):
    found = torch.autograd.grad(loss, list(layer.parameters()), allow_unused=True, **options)
    return [torch.zeros(()) if g is None else g for g in found]


def loss_of(output):
    return (output * torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)).sum()


@pytest.fixture
def evaluations(monkeypatch):
    """A list that grows by an entry whenever matrices of an Elman or LSTM cell are evaluated."""
    seen = []
    for kind in (ElmanCell, LSTMCell):
        monkeypatch.setattr(kind, "weights", lambda cell, own=kind.weights: seen.append(cell) or own(cell))
    return seen


@every_layer
@pytest.mark.parametrize("levels", [1, 2])
def test_steps_equal_walk_in_values_and_gradients(make, levels):
    layer, x = build(make, num_layers=levels), inputs().requires_grad_()
    if isinstance(layer, HDetachLSTM):
        layer.eval()  # in training it drops gradients at random
    whole = layer(x)[0]
    expected = [whole, *gradients(layer, loss_of(whole), retain_graph=True), *torch.autograd.grad(loss_of(whole), x)]
    with layer.cached():
        stepped = steps(layer, x)[0]
        got = [stepped, *gradients(layer, loss_of(stepped), retain_graph=True)]
        got += torch.autograd.grad(loss_of(stepped), x)
    assert_same(got, expected, BOUND)


def test_matrices_are_evaluated_once(evaluations):
    layer, x = build(NNRNN, num_layers=2), inputs()
    with layer.cached():
        steps(layer, x)
        with torch.no_grad():
            steps(layer, x)
        layer(x, checkpoint=2)
    assert len(evaluations) == 2
    layer(x)
    assert len(evaluations) == 4
    assert not ACTIVE.layers


def test_changed_parameters_are_noticed(evaluations):
    layer, x = build(ExpRNN), inputs()
    changes = [
        lambda: layer.weight_hh_l0.skew.mul_(2),
        lambda: layer.load_state_dict(build(ExpRNN).state_dict()),
        lambda: setattr(layer.weight_hh_l0, "skew", torch.nn.Parameter(layer.weight_hh_l0.skew * 3)),
        lambda: setattr(layer.weight_hh_l0.skew, "data", layer.weight_hh_l0.skew.data / 3),
        lambda: layer.weight_ih_l0.add_(1),
    ]
    with layer.cached():
        layer(x)
        for number, change in enumerate(changes, 2):
            with torch.no_grad():
                change()
            got = layer(x)[0]
            assert len(evaluations) == number
            assert torch.equal(got, copy.deepcopy(layer)(x)[0])
            del evaluations[number:]  # that of the copy


def test_edit_through_data_needs_refresh():
    layer, x = build(ExpRNN), inputs()
    with layer.cached():
        before = layer(x)[0]
        layer.weight_hh_l0.skew.data.mul_(2)
        assert torch.equal(layer(x)[0], before)
        layer.refresh()
        assert torch.equal(layer(x)[0], copy.deepcopy(layer)(x)[0])


@pytest.mark.parametrize("make", [RNN, NNRNN, LSTM, NCGRU])
def test_freed_graph_is_built_again(make):
    layer, x = build(make).eval(), inputs()  # in training NC-GRU's inverse would follow its own evaluations
    expected = gradients(layer, loss_of(layer(x)[0]))
    with layer.cached():
        for _ in range(3):
            assert_same(gradients(layer, loss_of(steps(layer, x)[0])), expected, BOUND)


def test_retained_graph_is_used_again(evaluations):
    layer, x = build(NNRNN), inputs()
    with layer.cached():
        first = steps(layer, x)[0]
        once = gradients(layer, loss_of(first), retain_graph=True)
        both = gradients(layer, loss_of(first) + loss_of(steps(layer, x)[0]))
    assert len(evaluations) == 1
    assert_same(both, [2 * g for g in once], BOUND)


def test_backward_after_the_context_and_through_a_part_of_the_graph():
    layer, x = build(NNRNN), inputs().requires_grad_()
    expected = gradients(layer, loss_of(layer(x)[0]))
    with layer.cached():
        output = steps(layer, x)[0]
    torch.autograd.grad(loss_of(output), x, retain_graph=True)  # does not reach the parameters
    assert_same(gradients(layer, loss_of(output)), expected, BOUND)


def test_parameter_changed_between_calls_of_one_graph_raises():
    layer, x = build(NNRNN), inputs()
    with layer.cached():
        output, state = layer(x)
        with torch.no_grad():
            layer.weight_hh_l0.angle.add_(1)
        output = layer(x, state)[0]
        with pytest.raises(RuntimeError, match=r"cached\(\) expects parameters to stay.*changed in place"):
            output.sum().backward()


def test_training_windows_inside_one_context():
    one, other, x = build(NNRNN), build(NNRNN), inputs()
    for layer, context in ((one, one.cached()), (other, nullcontext())):
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
        state = None
        with context:
            for _ in range(3):
                output, state = steps(layer, x, None if state is None else state.detach())
                optimizer.zero_grad()
                loss_of(output).backward()
                optimizer.step()
    assert_same(list(one.parameters()), list(other.parameters()), 3 * BOUND)


def test_second_derivatives_and_batched_gradients():
    layer, x = build(ExpRNN), inputs()
    flat = list(layer.parameters())

    def second(run):
        first = torch.autograd.grad(loss_of(run(layer, x)[0]), flat, create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), flat)]

    def batched(run):
        y = run(layer, x)[0]
        cotangents = torch.linspace(-1, 1, 2 * y.numel(), dtype=DOUBLE).view(2, *y.shape)
        return list(torch.autograd.grad(y, flat, cotangents, is_grads_batched=True))

    for kind in (second, batched):
        expected = kind(steps)
        with layer.cached():
            assert_same(kind(steps), expected, 10 * BOUND)  # products of two gradients


def test_gradient_mode_of_first_call_does_not_bind():
    layer, x = build(NNRNN).eval(), inputs()
    expected = gradients(layer, loss_of(layer(x)[0]))
    with layer.cached():
        with torch.inference_mode():
            values = layer(x)[0].clone()
        output = layer(x)[0]
        assert torch.equal(output, values)
        assert_same(gradients(layer, loss_of(output)), expected, BOUND)


def test_weight_dropout_is_drawn_once():
    layer, x = build(NNRNN), inputs()
    layer.drop_weights(0.5)
    with layer.cached():
        with torch.no_grad():
            first = layer(x)[0]
        assert torch.equal(layer(x)[0], first)
        layer.eval()
        assert torch.equal(layer(x)[0], copy.deepcopy(layer)(x)[0])
    layer.train()
    assert not torch.equal(layer(x)[0], first)


def test_contexts_nest_and_end_with_exceptions(evaluations):
    layer, x = build(NNRNN), inputs()
    with layer.cached():
        layer(x)
        with pytest.raises(ValueError, match="3 features"), layer.cached():
            layer(torch.cat([x, x], dim=-1))
        layer(x)
        assert len(evaluations) == 1
    assert not ACTIVE.layers


def test_context_holds_for_its_thread(evaluations):
    layer, x = build(NNRNN), inputs()
    with layer.cached():
        layer(x)
        thread = threading.Thread(target=lambda: (layer(x), layer(x)))
        thread.start()
        thread.join()
        layer(x)
    assert len(evaluations) == 3


@pytest.mark.parametrize("reentrant", [True, False])
def test_torch_checkpoint_inside(reentrant):
    layer, x = build(NNRNN), inputs()
    expected = gradients(layer, loss_of(layer(x)[0]))
    with layer.cached():
        state, outputs = torch.zeros(1, BATCH, N, dtype=DOUBLE, requires_grad=True), []
        for row in x.split(1):
            output, state = checkpoint(layer, row, state, use_reentrant=reentrant)
            outputs.append(output)
        loss_of(torch.cat(outputs)).backward()
    got = [p.grad for p in layer.parameters()]
    assert_same(got, expected, BOUND)


def test_torch_checkpoint_without_reentry_and_backward_after_the_context_raises():
    """The recomputation would evaluate the matrices, which the first computation did not."""
    layer, x = build(NNRNN), inputs()
    with layer.cached():
        output = checkpoint(layer, x, use_reentrant=False)[0]
    with pytest.raises(CheckpointError):
        output.sum().backward()


@pytest.mark.parametrize("options", [{"bidirectional": True}, {"num_layers": 2}], ids=["both ways", "deep"])
def test_checkpoint_and_directions_inside(options):
    layer, x = build(NNRNN, **options), inputs()
    expected = gradients(layer, loss_of(layer(x)[0]))
    with layer.cached():
        assert_same(gradients(layer, loss_of(layer(x, checkpoint=2)[0])), expected, BOUND)


def test_copy_and_pickle_inside_do_not_take_the_cache_along():
    layer, x = build(NNRNN), inputs()
    with layer.cached():
        expected = layer(x)[0]
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(other(x)[0], expected)
            assert other not in ACTIVE.layers


def test_func_transform_inside():
    layer, x = build(ExpRNN), inputs()
    values = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(values):
        return loss_of(torch.func.functional_call(layer, values, (x,))[0])

    expected = torch.func.grad(loss)(values)
    doubled = {name: 2 * value for name, value in values.items()}
    other = loss(doubled)
    with layer.cached():
        layer(x)
        got = torch.func.grad(loss)(values)
        assert torch.equal(loss(doubled), other)
        assert torch.equal(loss_of(layer(x)[0]), loss(values))
    assert_same([got[name] for name in values], [expected[name] for name in values], BOUND)


def test_stack_and_models(evaluations):
    stack = Stack([build(NNRNN), LSTM(N, 4, dtype=DOUBLE)])
    with stack.cached():
        steps(stack, inputs())
    assert len(evaluations) == 2
    model = SequenceModel(build(NNRNN).float(), 2)
    with model.cached():
        state = None
        for row in inputs().float().split(1):
            _, state = model.walk(row.transpose(0, 1), state)
    assert len(evaluations) == 3


def test_generation_evaluates_once_and_follows_changes(evaluations):
    torch.manual_seed(0)
    model = LanguageModel(lambda size, units: RNN(size, 8), 5, embedding_size=4)
    tokens = model.generate(torch.tensor([0, 1]), 0.0)
    for _ in range(4):
        next(tokens)
    assert len(evaluations) == 1
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    assert next(tokens) in range(5)
    assert len(evaluations) == 2


@every_layer
def test_every_cell_has_weights_for_all_steps(make):
    """So that a cell without them is noticed: a `Cell` returns a tuple that begins with U, a `StepCell` None."""
    for cell in build(make).cells:
        assert isinstance(cell, Cell)
        weights = cell.weights()
        assert weights is None or (isinstance(weights, tuple) and isinstance(weights[0], torch.Tensor))
