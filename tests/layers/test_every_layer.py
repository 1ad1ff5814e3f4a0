"""Promises that every layer keeps. A layer added to LAYERS is tested without a line here."""

import copy
import inspect

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.autograd import forward_ad
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from steadygrad.kernels.backend import VARIABLE
from steadygrad.layers import LAYERS, FullCapacityURNN, StepCell
from steadygrad.layers.attentive import AttentiveCell
from steadygrad.layers.cell import Lookup
from steadygrad.matrices import Matrix

I, N = 3, 6
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
FORMS = {"plain": {}, "deep, both ways": {"num_layers": 2, "bidirectional": True}}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def build(make, **options):
    return make(I, N, dtype=torch.float64, **options)


def parts(state):
    return state if isinstance(state, tuple) else (state,)


def random_state(layer, batch):
    if has_memory(layer):  # which is not made of any numbers: one that a walk has left
        with torch.no_grad():
            return layer(torch.randn(25, batch, I, dtype=torch.float64))[1]
    shapes = [(len(layer.cells), batch, size) for size in layer.state_sizes]
    state = tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return state if len(state) > 1 else state[0]


def has_memory(layer):
    return isinstance(layer.cells[0], AttentiveCell)


def grows(layer):
    """Whether it has a memory whose size follows from the data."""
    return any(None in part.shape for part in layer.state_parts)


def differentiable_parts(layer, state):
    """The parts of a state that have gradients, of a memory its states alone; and the other parts."""
    own = len(layer.state_sizes) + has_memory(layer)
    return parts(state)[:own], parts(state)[own:]


@pytest.fixture
def x():
    return torch.randn(7, 4, I, dtype=torch.float64)


@every_layer
@pytest.mark.parametrize("levels", [1, 2])
def test_split_sequence_matches_whole_sequence(make, levels, x):
    layer = build(make, num_layers=levels)
    start = random_state(layer, 4)
    whole, end = layer(x, start)
    first, state = layer(x[:3], start)
    second, state = layer(x[3:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    for a, b in zip(parts(state), parts(end), strict=True):
        torch.testing.assert_close(a, b)


@every_layer
def test_outputs_are_causal(make, x):
    x.requires_grad_()
    build(make)(x)[0][2].sum().backward()
    assert x.grad[:3].any()
    assert not x.grad[3:].any()


@every_layer
@every_form
def test_batch_members_are_independent(make, form, x):
    layer = build(make, **form)
    output, state = layer(x)
    alone, state_alone = layer(x[:, 1:2])
    torch.testing.assert_close(alone, output[:, 1:2])
    for a, b in zip(parts(state_alone), parts(state), strict=True):
        torch.testing.assert_close(a, b[:, 1:2])


@every_layer
@every_form
def test_gradients_match_finite_differences(make, form):
    """Check the derivative with respect to every parameter, the input and the initial state.

    The plain form compares every entry of the Jacobian. The deep form runs the same cells four times, so it compares
    the Jacobian along random directions (``fast_mode``). Layers with a memory or many parameters always do that.
    """
    layer = build(make, **form).eval()  # in training a matrix may take an update for a reason to move its base
    x, start = torch.randn(3, 2, I, dtype=torch.float64), random_state(layer, 2)
    names, values = zip(*layer.named_parameters(), strict=True)

    def run(x, *rest):
        state, parameters = (*rest[: len(starts)], *counts), rest[len(starts) :]
        h_0 = state if len(state) > 1 else state[0]
        output, end = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x, h_0))
        return output, *differentiable_parts(layer, end)[0]

    starts, counts = differentiable_parts(layer, start)
    leaves = [x.requires_grad_(), *(s.detach().clone().requires_grad_() for s in starts), *values]
    assert torch.autograd.gradcheck(run, leaves, fast_mode=bool(form) or len(values) > 20 or bool(counts))


@every_layer
def test_second_derivatives_pass_gradgradcheck(make):
    """As a gradient penalty needs them."""
    layer = build(make).eval()
    x = torch.randn(3, 2, I, dtype=torch.float64, requires_grad=True)
    names, values = zip(*layer.named_parameters(), strict=True)

    def run(x, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))[0]

    assert torch.autograd.gradgradcheck(run, (x, *values), fast_mode=True)


@every_layer
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch.func's own
def test_torch_func_grad_jvp_and_vmap_match_autograd(make, x):
    layer = build(make).eval()
    parameters = {name: value.detach() for name, value in layer.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,))[0].square().sum()

    found = torch.func.grad(loss)(parameters, x)
    expected = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    for gradient, name in zip(expected, parameters, strict=True):
        torch.testing.assert_close(found[name], gradient)
    _, along = torch.func.jvp(lambda x: layer(x)[0], (x,), (torch.ones_like(x),))
    torch.testing.assert_close(along, (layer(x + 1e-6)[0] - layer(x - 1e-6)[0]) / 2e-6, rtol=1e-4, atol=1e-6)
    if not grows(layer):  # such a memory cannot be mapped over
        each = torch.func.vmap(torch.func.grad(loss), (None, 1))(parameters, x[:, :, None])
        for name, whole in found.items():
            torch.testing.assert_close(each[name].sum(0), whole)


@every_layer
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch.func's own
def test_forward_mode_ad_matches_jvp(make, x):
    layer = build(make).eval()
    with forward_ad.dual_level():
        along = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, torch.ones_like(x)))[0]).tangent
    torch.testing.assert_close(along, torch.func.jvp(lambda x: layer(x)[0], (x,), (torch.ones_like(x),))[1])


@every_layer
def test_layer_created_in_inference_mode_works(make, x):
    with torch.inference_mode():
        layer = build(make).eval()
        first = layer(x)[0]
        torch.testing.assert_close(layer(x)[0], first)
        torch.testing.assert_close(copy.deepcopy(layer)(x)[0], first)


@every_layer
@every_form
def test_default_device_does_not_change_outputs(make, form, x):
    layer = build(make, **form).eval()
    packed = pack_sequence([x[:, 0], x[:5, 1], x[:2, 2]])
    expected = layer(x)[0], layer(packed)[0].data
    with torch.device("meta"):
        torch.testing.assert_close((layer(x)[0], layer(packed)[0].data), expected)


@every_layer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_default_dtype_sets_parameter_and_output_dtype(make, dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        layer = make(I, N)
        output, _ = layer(torch.randn(5, 2, I))
        output.sum().backward()
    finally:
        torch.set_default_dtype(before)
    assert {output.dtype} | {p.dtype for p in layer.parameters()} == {dtype}
    assert output.isfinite().all()


@every_layer
def test_unknown_option_raises_type_error(make):
    with pytest.raises(TypeError, match=rf"{make.__name__} has no option projection; it has input_size, hidden_size.*"):
        make(I, N, projection=2)


@every_layer
@pytest.mark.parametrize("backend", ["auto", "python"])
def test_autocast_leaves_its_precision_alone(make, backend, monkeypatch):
    monkeypatch.setenv(VARIABLE, backend)
    layer, x = make(I, N), torch.randn(5, 2, I)
    with torch.autocast("cpu", torch.bfloat16):
        rough = torch.nn.Linear(I, I)(x)
        assert rough.dtype == torch.bfloat16
        output, state = layer(rough)
        _, state = layer(rough, state)
    assert output.dtype == torch.float32
    torch.testing.assert_close(output, layer(rough.float())[0])
    by_autograd = isinstance(layer, FullCapacityURNN) or isinstance(layer.cells[0], StepCell) or has_memory(layer)
    if not by_autograd:  # autograd's own backward pass follows the autocast around it
        gradients = torch.autograd.grad(output.sum(), list(layer.parameters()), retain_graph=True)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(torch.autograd.grad(output.sum(), list(layer.parameters())), gradients)
    with torch.autocast("cpu", torch.bfloat16):
        start = tuple(s.bfloat16() if s.is_floating_point() else s for s in parts(layer(rough)[1]))
        packed = layer(pack_sequence([rough[:, 0], rough[:2, 1]]), start)
    assert packed[0].data.dtype == torch.float32


@every_layer
@every_form
@pytest.mark.parametrize("backend", ["auto", "python", "reference"])
def test_empty_batch_gives_empty_output_and_zero_gradients(make, form, backend, monkeypatch):
    monkeypatch.setenv(VARIABLE, backend)
    layer = build(make, **form)
    output, state = layer(torch.zeros(7, 0, I, dtype=torch.float64))
    assert output.shape == (7, 0, layer.output_size)
    assert layer(torch.zeros(2, 0, I, dtype=torch.float64), state)[0].shape == (2, 0, layer.output_size)
    output.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in layer.parameters() if p.numel())


@every_layer
def test_meta_device_gives_shapes_or_runtime_error(make):
    layer = make(I, N, device="meta")
    x = torch.empty(7, 4, I, device="meta")
    if make is LAYERS["sab"]:  # the data decide how many states it keeps
        with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
            layer(x)
    else:
        assert layer(x)[0].shape == (7, 4, layer.output_size)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of torch, tracing scan
@pytest.mark.parametrize("name", ["gru", "nnrnn", "ncgru", "relrnn"])
def test_exported_program_is_the_layer(name, x):
    layer = build(LAYERS[name]).eval()
    program = torch.export.export(layer, (torch.zeros_like(x),), strict=False)
    torch.testing.assert_close(program.module()(x), layer(x))


@every_layer
@every_form
@pytest.mark.parametrize("sorted", [True, False])
def test_packed_equals_one_by_one(make, form, sorted):
    layer = build(make, **form)
    lengths = [6, 4, 4, 1] if sorted else [4, 1, 6, 4]
    sequences = [torch.randn(n, I, dtype=torch.float64) for n in lengths]
    start = random_state(layer, 4)
    output, end = layer(pack_sequence(sequences, enforce_sorted=sorted), start)
    assert isinstance(output, PackedSequence)
    padded, got_lengths = torch.nn.utils.rnn.pad_packed_sequence(output)
    assert got_lengths.tolist() == lengths
    for i, sequence in enumerate(sequences):
        own = tuple(s[:, i] for s in parts(start))
        alone, alone_end = layer(sequence, own if len(own) > 1 else own[0])
        torch.testing.assert_close(padded[: lengths[i], i], alone)
        for a, b, part in zip(parts(end), parts(alone_end), layer.state_parts, strict=True):
            if None not in part.shape:  # a memory has as many places as the longest sequence: test_attention.py
                torch.testing.assert_close(a[:, i], b)


@every_layer
@every_form
def test_lookup_matches_embedded_rows(make, form):
    layer = build(make, **form).eval()
    table = torch.randn(5, I, dtype=torch.float64, requires_grad=True)
    leaves = [table, *layer.parameters()]
    for tokens in (torch.randint(5, (6,)), torch.randint(5, (6, 2))):
        found = []
        for input in (Lookup(torch.eye(5, dtype=torch.float64)[tokens], table), table[tokens]):
            output, end = layer(input)
            values = (output, *differentiable_parts(layer, end)[0])
            found.append([*values, *torch.autograd.grad(sum(part.square().sum() for part in values), leaves)])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)


def test_table_of_wrong_shape_raises_value_error():
    with pytest.raises(ValueError, match=r"RNN expects a table of shape \(5, 3\); got \(5, 4\)"):
        LAYERS["rnn"](I, N)(Lookup(torch.eye(5)[:, None], torch.zeros(5, 4)))


@every_layer
@every_form
@pytest.mark.parametrize("batch_first", [False, True])
def test_output_and_state_shapes_match_torch(make, form, batch_first, x):
    """Batched, unbatched, batch first: the shapes of a torch.nn.GRU or LSTM, but for the number of output features."""
    layer = build(make, batch_first=batch_first, **form)
    twin = torch.nn.LSTM if len(layer.state_sizes) == 2 else torch.nn.GRU
    theirs = twin(I, layer.state_sizes[0], batch_first=batch_first, dtype=torch.float64, **form)
    for input in (x, x[:, 0]):
        (ours, our_state), (output, state) = layer(input), theirs(input)
        assert ours.shape == (*output.shape[:-1], layer.output_size)
        ours = [s.shape for s in parts(our_state)]
        if has_memory(layer):  # behind s, which is one state more
            own, leading = len(layer.state_sizes), ours[0][:-1]
            assert set(ours[:own]) == {s.shape for s in parts(state)}
            assert {shape[: len(leading)] for shape in ours} == {leading}
        else:
            assert ours == [s.shape for s in parts(state)]
    assert layer.output_size == layer.cells[0].output_size * layer.directions
    torch.testing.assert_close(
        layer(x[:, 0])[0], layer(x[:, :1].transpose(0, 1) if batch_first else x[:, :1])[0].squeeze()
    )


@every_layer
def test_reverse_direction_matches_flipped_sequence(make, x):
    """The second direction is the first of the reversed sequence, with the weights of its own."""
    both, one = build(make, bidirectional=True), build(make)
    reverse = {name: value for name, value in both.state_dict().items() if "_l0_reverse" in name}
    one.load_state_dict({name.replace("_l0_reverse", "_l0"): value for name, value in reverse.items()})
    output, end = both(x)
    reverse, reverse_end = one(x.flip(0))
    torch.testing.assert_close(output[..., one.output_size :], reverse.flip(0))
    for a, b in zip(parts(end), parts(reverse_end), strict=True):
        torch.testing.assert_close(a[1:], b)


@every_layer
@every_form
def test_safetensors_round_trip(make, form, x, tmp_path):
    layer, other = build(make, **form), build(make, **form)
    assert not torch.equal(layer(x)[0], other(x)[0])
    layer.train()
    save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    other.load_state_dict(load_file(tmp_path / "layer.safetensors"))
    assert torch.equal(layer(x)[0], other(x)[0])


@every_layer
def test_training_resumed_from_state_dict_is_bitwise_equal(make, x, tmp_path):
    def update(layer, optimizer):
        optimizer.zero_grad()
        loss = layer(x)[0].square().mean() + layer.penalty()
        loss.backward()
        optimizer.step()

    layer = build(make)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for _ in range(3):
        update(layer, optimizer)
    other = build(make)
    save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    other.load_state_dict(load_file(tmp_path / "layer.safetensors"))
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.01)
    for step in range(3):
        for goes_on, its_optimizer in ((layer, optimizer), (other, other_optimizer)):
            torch.manual_seed(step)  # for what a layer draws while it is trained
            update(goes_on, its_optimizer)
    for a, b in zip(layer.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


@every_layer
def test_deepcopy_is_independent(make, x):
    layer = build(make)
    before = layer(x)[0]
    twin = copy.deepcopy(layer)
    torch.testing.assert_close(twin(x)[0], before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.1)
    assert not torch.allclose(twin(x)[0], before)
    torch.testing.assert_close(layer(x)[0], before)


@every_layer
@every_form
def test_matrices_are_square_and_named_by_level(make, form, x):
    layer = build(make, **form)
    matrices = layer.matrices()
    assert all(W.shape == (N, N) for W in matrices.values())
    ends = {name.split("_", 1)[1] for name in matrices}
    expected = {"l0"} if not form else {"l0", "l0_reverse", "l1", "l1_reverse"}
    assert ends == expected


@every_layer
def test_dropout_acts_between_levels_while_training(make, x):
    layer = build(make, num_layers=2, dropout=0.5)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    torch.testing.assert_close(layer(x)[0], layer(x)[0])
    with pytest.warns(UserWarning, match="num_layers=1"):
        build(make, dropout=0.5)


@every_layer
def test_cached_matrix_is_invalidated_by_parameter_change(make, x):
    """In eval without gradients the matrix is remembered, but never longer than its parameters last."""
    layer = build(make).eval()
    with torch.no_grad():
        before = layer(x)[0]
        assert torch.equal(layer(x)[0], before)
        for parameter in layer.parameters():
            parameter.data.mul_(0.9)
        after = layer(x)[0]
    assert not torch.allclose(after, before)
    torch.testing.assert_close(layer(x)[0].detach(), after)


@every_layer
def test_device_and_dtype(make):
    layer = make(I, N, device="meta", dtype=torch.float64)
    assert {p.device.type for p in layer.parameters()} == {"meta"}
    assert {p.dtype for p in layer.parameters()} == {torch.float64}
    assert {p.dtype for p in make(I, N).parameters()} == {torch.get_default_dtype()}
    with torch.device("meta"):
        assert {p.device.type for p in make(I, N).parameters()} == {"meta"}


@every_layer
def test_meta_layer_loads_state_dict_after_to_empty(make, x):
    """Built without numbers, given memory, then loaded."""
    layer = build(make).eval()
    empty = build(make, device="meta").to_empty(device="cpu").eval()
    for value in [*empty.parameters(), *empty.buffers()]:
        value.data.fill_(7)
    empty.load_state_dict(layer.state_dict())
    torch.testing.assert_close(empty(x)[0], layer(x)[0])


@every_layer
@pytest.mark.parametrize("hidden", [1, 2, 5])
def test_small_hidden_sizes_give_finite_gradients(make, hidden):
    layer = make(1, hidden)
    layer(torch.randn(3, 2, 1))[0].sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters() if p.numel())


@every_layer
def test_invalid_input_raises_value_error(make, x):
    layer = build(make)
    name = make.__name__
    with pytest.raises(ValueError, match=f"{name} expects 3 features per step; got input of shape \\(2, 7, 5\\)"):
        layer(torch.zeros(2, 7, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match=f"{name} expects input of 2 dimensions .* or 3; got input of shape \\(3,\\)"):
        layer(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(ValueError, match=f"{name} expects input of type torch.float64.*got torch.float32"):
        layer(x.float())
    with pytest.raises(ValueError, match=f"{name} expects at least one time step"):
        layer(x[:0])
    for hidden_size in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match=f"{name} expects hidden_size to be an integer of at least 1; got"):
            make(I, hidden_size)
    with pytest.raises(ValueError, match=f"{name} expects num_layers"):
        make(I, N, 0)
    with pytest.raises(ValueError, match=f"{name} expects dropout between 0 and 1; got 1.5"):
        make(I, N, 2, dropout=1.5)
    with pytest.raises(ValueError, match=f"{name} expects dropout between 0 and 1; got None"):
        make(I, N, 2, dropout=None)
    with pytest.raises(ValueError, match=f"{name} expects a floating-point dtype; got torch.int64"):
        make(I, N, dtype=torch.int64)


@every_layer
def test_invalid_state_raises_value_error(make, x):
    layer = build(make)
    good = parts(random_state(layer, 4))

    def give(*state):
        layer(x, state if len(state) > 1 else state[0])

    size = layer.state_sizes[0]
    with pytest.raises(ValueError, match=rf"expects a hidden state of shape \(1, 4, {size}\); got \(1, 3, {size}\)"):
        give(*(s[:, :3] for s in good))
    with pytest.raises(ValueError, match=rf"expects a hidden state of shape \(1, {size}\); got \(1, 4, {size}\)"):
        layer(x[:, 0], good if len(good) > 1 else good[0])
    with pytest.raises(ValueError, match=r"expects a hidden state of type torch.float64; got torch.float32"):
        give(*(s.float() for s in good))
    with pytest.raises(ValueError, match=r"expects a state of \d tensor"):
        give(*good, good[0])
    with pytest.raises(ValueError, match=rf"expects a hidden state of shape \(1, 4, {size}\); got None"):
        layer(x, [None, *good[1:]])
    state = good if len(good) > 1 else good[0]
    torch.testing.assert_close(layer(x, hx=state), layer(x, state))  # torch's name for it
    with pytest.raises(ValueError, match="expects either h_0 or hx"):
        layer(x, state, hx=state)


@every_layer
@pytest.mark.filterwarnings("ignore:.* was overwritten after it was built")
def test_nan_matrix_parameter_raises_value_error(make, x):
    layer = build(make)
    matrix = next((part for part in layer.modules() if isinstance(part, Matrix)), None)
    if matrix is None:  # a layer of plain parameters
        return
    with torch.no_grad():
        matrix.free[0].view(-1)[0] = float("nan")
    with pytest.raises(ValueError, match=r"expects finite parameters; got 1 NaN or infinite values in"):
        layer(x)


@every_layer
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
    "ignore:.*torch.jit.script_method. is deprecated:DeprecationWarning",
)  # the compiler's own
def test_compiled_layer_is_the_layer(make, x):
    """torch.compile traces the layer with what stands around it."""
    torch._dynamo.reset()
    layer = build(make)
    model = torch.compile(lambda x: layer(2 * x)[0] + 1, backend="eager")
    output = model(x)
    torch.testing.assert_close(output, layer(2 * x)[0] + 1)
    output.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


@every_layer
def test_docstring_starts_with_equation(make):
    assert "=" in make.__doc__.splitlines()[0]


def with_trained_state(make, **options):
    """A layer in evaluation mode whose initial state is trained, with random values in it."""
    layer = build(make, trained_state=True, **options).eval()
    for start in layer.initial_state:
        torch.nn.init.normal_(start)
    return layer


def trained_state_as_argument(layer, batch):
    """The trained initial state as a caller would pass it; a memory and its query start at zero."""
    trained = [start[:, None].expand(-1, batch, -1) for start in layer.initial_state]
    rest = layer.state_parts[len(trained) :]
    zeros = [part.zeros((len(layer.cells), batch), trained[0]) for part in rest]
    return tuple(trained + zeros) if len(layer.state_parts) > 1 else trained[0]


@every_layer
@every_form
def test_trained_state_equals_the_same_state_passed_by_hand(make, form, x):
    layer = with_trained_state(make, **form)
    cell = layer.cells[0]
    own = len(getattr(cell, "cell", cell).state_sizes)  # without what attention adds
    assert [s.shape for s in layer.initial_state] == [(len(layer.cells), layer.state_sizes[0])] * own
    packed = pack_sequence([x[:, 0], x[:5, 1], x[:2, 2], x[:6, 3]], enforce_sorted=False)
    alone = tuple(s[:, 0] for s in parts(trained_state_as_argument(layer, 1)))
    for input, state in (
        (x, trained_state_as_argument(layer, 4)),
        (packed, trained_state_as_argument(layer, 4)),
        (x[:, 0], alone if len(alone) > 1 else alone[0]),
    ):
        results = []
        for given in ((), (state,)):
            output, end = layer(input, *given)
            output = output.data if isinstance(output, PackedSequence) else output
            found = [output, *differentiable_parts(layer, end)[0]]
            loss = sum(part.square().sum() for part in found)
            results.append(found + list(torch.autograd.grad(loss, list(layer.parameters()))))
        torch.testing.assert_close(*results)
        assert all(gradient.any() for gradient in results[0][-len(layer.initial_state) :])


@every_layer
@every_form
def test_trained_state_has_the_gradient_of_finite_differences(make, form):
    layer = with_trained_state(make, **form)
    x = torch.randn(3, 2, I, dtype=torch.float64)
    names = [name for name, _ in layer.named_parameters() if name.startswith("initial_state")]

    def run(*starts):
        output, end = torch.func.functional_call(layer, dict(zip(names, starts, strict=True)), (x,))
        return output, *differentiable_parts(layer, end)[0]

    assert torch.autograd.gradcheck(run, list(layer.initial_state), fast_mode=bool(form))


@every_layer
def test_passed_state_overrides_trained_state(make, x):
    layer, plain = with_trained_state(make), build(make).eval()
    missing = plain.load_state_dict(layer.state_dict(), strict=False)
    assert missing.unexpected_keys == [f"initial_state.{i}" for i in range(len(layer.initial_state))]
    assert not missing.missing_keys
    state = random_state(plain, 4)
    output = layer(x, state)[0]
    assert torch.equal(output, plain(x, state)[0])
    output.sum().backward()
    assert all(start.grad is None or not start.grad.any() for start in layer.initial_state)


@every_layer
def test_trained_state_is_off_by_default_and_starts_neutral(make, x):
    """The default has no new keys, so old checkpoints load; at its start the trained state changes no output."""
    assert not [key for key in build(make).state_dict() if "initial_state" in key]
    layer, plain = build(make, trained_state=True).eval(), build(make).eval()
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("initial_state")})
    if not any(start.any() for start in layer.initial_state):  # a layer may have another start
        assert torch.equal(layer(x)[0], plain(x)[0])


@every_layer
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch.func's own
def test_trained_state_supports_copy_save_func_and_meta(make, x, tmp_path):
    layer = with_trained_state(make)
    output = layer(x)[0]
    twin, other = copy.deepcopy(layer), build(make, trained_state=True).eval()
    save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    other.load_state_dict(load_file(tmp_path / "layer.safetensors"))
    assert torch.equal(twin(x)[0], output)
    assert torch.equal(other(x)[0], output)
    with torch.no_grad():
        twin.initial_state[0].add_(1)
    assert not torch.allclose(twin(x)[0], output)
    assert torch.equal(layer(x)[0], output)
    parameters = {name: value.detach() for name, value in layer.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,))[0].square().sum()

    expected = torch.autograd.grad(output.square().sum(), list(layer.initial_state))
    found = torch.func.grad(loss)(parameters, x)
    for index, gradient in enumerate(expected):
        torch.testing.assert_close(found[f"initial_state.{index}"], gradient)
    if grows(layer):
        return
    each = torch.func.vmap(torch.func.grad(loss), (None, 1))(parameters, x[:, :, None])
    for index, gradient in enumerate(expected):
        torch.testing.assert_close(each[f"initial_state.{index}"].sum(0), gradient)
    meta = make(I, N, trained_state=True, device="meta")
    assert {start.device.type for start in meta.initial_state} == {"meta"}
    assert meta(torch.empty(7, 4, I, device="meta"))[0].shape == (7, 4, meta.output_size)


@every_layer
def test_signature_lists_every_option_with_default(make):
    """By name, with its default: those of torch.nn.GRU too."""
    shown = inspect.signature(make)
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in shown.parameters.values())
    defaults = {"batch_first": False, "dropout": 0.0, "bidirectional": False, "device": None, "dtype": None}
    assert {name: shown.parameters[name].default for name in defaults} == defaults
    given = {name: one.default for name, one in shown.parameters.items() if one.default is not one.empty}
    make(I, N, **given)


def test_a_subclass_has_a_name_of_its_own_or_none():
    class Nameless(LAYERS["rnn"]):
        """A subclass without a name."""

    assert Nameless not in LAYERS.values()
    with pytest.raises(ValueError, match=r"the name 'rnn' belongs to steadygrad\.layers\.rnn\.RNN"):
        type("Mine", (LAYERS["rnn"],), {}, name="rnn")
