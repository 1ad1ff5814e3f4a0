"""torch's own cases for nn.RNN, nn.GRU and nn.LSTM, `torch.testing._internal.common_modules`, with our layers.

torch's entries give the constructor's arguments and the inputs. The checks are those of torch's test_modules, so far as
they apply to the CPU: each case is one check of one layer in one dtype and mode, over all inputs of its entry.
"""

import io
from functools import partial
from itertools import product
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.utils import _pytree as pytree

from steadygrad.layers import GRU, LSTM, RNN, from_torch, to_torch
from tests.rounding import rounding

OURS = {"RNN": RNN, "GRU": partial(GRU, reset="after"), "LSTM": LSTM, "LSTM, projected": LSTM}
TIME, SIZE = 3, 3
"""largest sequence length and size in torch's cases"""


@pytest.fixture(scope="module")
def entries():
    """torch's entries by the name of the module. Their import locks the flags of torch.backends, which is undone."""
    before = torch.backends.__allow_nonbracketed_mutation_flag
    from torch.testing._internal.common_modules import module_db

    torch.backends.__allow_nonbracketed_mutation_flag = before
    return {entry.name.removeprefix("nn."): entry for entry in module_db}


def cases(case, device="cpu", requires_grad=False):
    """Arguments of the constructor and of the call, one pair of (args, kwargs) each, for all inputs of a case."""
    given = case.entry.module_inputs_func(
        case.entry, device=device, dtype=case.dtype, requires_grad=requires_grad, training=case.training
    )
    for one in given:
        constructor, call = one.constructor_input, one.forward_input
        if case.projected == bool(constructor.kwargs.get("proj_size")):
            options = {key: value for key, value in constructor.kwargs.items() if key != "proj_size" or value}
            yield SimpleNamespace(build=(constructor.args, options), call=call.args, reference=one.reference_fn)


def build(case, one, **more):
    args, options = one.build
    return case.make(*args, **options, **more)


def ready(case, one):
    return build(case, one).to(case.dtype).train(case.training)


def bound(case):
    """Rounding of two levels over the steps, each with products of inputs and states; values stay below 10."""
    return rounding(case.dtype, 2 * SIZE, operations=2 * TIME, scale=10)


def same(case, got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=bound(case))


def with_gradients(layer, inputs, weights):
    """Outputs of a call, and gradients of their sum with these weights in the inputs and the parameters."""
    outputs = pytree.tree_leaves(layer(*inputs))
    leaves = [*pytree.tree_leaves(inputs), *layer.parameters()]
    return outputs, torch.autograd.grad(outputs, leaves, weights, allow_unused=True)


def tensors_of(layer):
    return [*layer.named_parameters(), *layer.named_buffers()]


def check_forward(case):
    """The unbatched call is the batch of one, and torch's module with the same weights agrees, loaded and unloaded."""
    for one in cases(case):
        layer = ready(case, one)
        output = layer(*one.call)
        same(case, output, one.reference(layer, *one.call))
        same(case, to_torch(layer)(*one.call), output)
        args, options = one.build
        theirs = case.entry.module_cls(*args, **options).to(case.dtype).train(case.training)
        same(case, from_torch(theirs)(*one.call), theirs(*one.call))
        for convert in (layer.float, layer.double):
            convert()
            assert len({p.dtype for p in layer.parameters()}) == 1


def check_factory_arguments(case):
    """device= and dtype= hold for every parameter and buffer."""
    for one in cases(case):
        for device in ("cpu", "meta"):
            for name, tensor in tensors_of(build(case, one, device=device, dtype=case.dtype)):
                assert (tensor.device.type, tensor.dtype) == (device, case.dtype), name


def check_repr(case):
    """The text of a layer names its class and its sizes."""
    for one in cases(case):
        layer = ready(case, one)
        text = f"{type(layer).__name__}({layer.input_size}, {layer.hidden_size}"
        assert repr(layer).startswith(text)
        assert str(layer) == repr(layer)


def check_save_and_load(case):
    """A whole layer and its state dict come back from a file as they were."""
    for one in cases(case):
        layer = ready(case, one)
        whole, state = io.BytesIO(), io.BytesIO()
        torch.save(layer, whole)
        torch.save(layer.state_dict(), state)
        whole.seek(0)
        copy = torch.load(whole, weights_only=False)
        expected = layer(*one.call)
        torch.testing.assert_close(copy(*one.call), expected, rtol=0, atol=0)
        state.seek(0)
        found = torch.load(state, weights_only=True)
        assert list(found) == list(layer.state_dict())
        other = ready(case, one)
        other.load_state_dict(found)
        torch.testing.assert_close(other(*one.call), expected, rtol=0, atol=0)


def spread(tensor):
    """The same numbers with gaps between them in memory."""
    wide = tensor.detach().repeat_interleave(2, dim=-1)[..., ::2]
    assert not wide.is_contiguous()
    return wide.requires_grad_(tensor.requires_grad)


def check_noncontiguous_tensors(case):
    """Inputs, states and gradients of outputs with gaps give the same outputs and gradients."""
    for one in cases(case, requires_grad=True):
        layer = ready(case, one)
        weights = [torch.randn_like(output) for output in pytree.tree_leaves(layer(*one.call))]
        expected = with_gradients(layer, one.call, weights)
        for inputs, given in product((one.call, pytree.tree_map(spread, one.call)), (weights, [*map(spread, weights)])):
            same(case, with_gradients(layer, inputs, given), expected)


def check_memory_format(case):
    """A conversion to a memory format changes nothing, and outputs are contiguous."""
    for one in cases(case, requires_grad=True):
        layer = ready(case, one)
        expected = layer(*one.call)
        weights = [torch.rand_like(output) for output in pytree.tree_leaves(expected)]
        _, gradients = with_gradients(layer, one.call, weights)
        for memory_format in (torch.preserve_format, torch.contiguous_format):
            found, again = with_gradients(layer.to(memory_format=memory_format), one.call, weights)
            torch.testing.assert_close(found, pytree.tree_leaves(expected), rtol=0, atol=0)
            torch.testing.assert_close(again, gradients, rtol=0, atol=0)
            assert all(output.is_contiguous() for output in found)


def flat_call(layer, form, names, *leaves):
    """Outputs of a layer, one after the other, from the tensors of its inputs and then its parameters."""
    inputs, values = leaves[: form.num_leaves], leaves[form.num_leaves :]
    call = pytree.tree_unflatten(inputs, form)
    return tuple(pytree.tree_leaves(torch.func.functional_call(layer, dict(zip(names, values, strict=True)), call)))


def gradient_check(case, check, leaf_sets):
    """Check the derivatives for each of ``leaf_sets``: whether the inputs and the parameters require a gradient."""
    for one in cases(case, requires_grad=True):
        layer = ready(case, one)
        inputs, form = pytree.tree_flatten(one.call)
        names, values = zip(*layer.named_parameters(), strict=True)
        run = partial(flat_call, layer, form, names)
        leaves = [*inputs, *(value.detach().requires_grad_() for value in values)]
        for chosen in leaf_sets:
            some = [leaf.detach().requires_grad_(chosen[index >= len(inputs)]) for index, leaf in enumerate(leaves)]
            assert check(run, some, fast_mode=True, check_batched_grad=True)


def check_gradients(case):
    """First derivatives match finite differences, also in batches."""
    gradient_check(case, torch.autograd.gradcheck, [(True, True), (True, False), (False, True)])


def check_second_gradients(case):
    """Second derivatives match finite differences, also in batches."""
    gradient_check(case, torch.autograd.gradgradcheck, [(True, True)])  # it takes seconds


def check_train_and_eval(case):
    """torch says that these modules differ between the modes. So do ours with dropout, and only with it."""
    assert case.entry.train_and_eval_differ
    differ = []
    for one, dropout in product(cases(case), (0.0, 0.5)):
        layer = build(case, one, dropout=dropout).to(case.dtype)
        training, evaluation = layer(*one.call)[0], layer.eval()(*one.call)[0]
        assert torch.equal(evaluation, layer(*one.call)[0])
        differ.append((dropout, not torch.equal(training, evaluation)))
    assert (0.0, True) not in differ
    assert (0.5, True) in differ  # not each time: all units that relu gives may be zero


def check_default_device(case):
    """Under torch.device("meta") parameters are made on it, with the shapes and strides of the others."""
    for one in cases(case):
        with torch.device("meta"):
            empty = build(case, one)
        for (name, meta), (_, real) in zip(tensors_of(empty), tensors_of(build(case, one)), strict=True):
            assert meta.is_meta, name
            assert (meta.shape, meta.stride(), meta.dtype) == (real.shape, real.stride(), real.dtype), name


def check_errors(case):
    """What torch rejects raises an error of the type that torch documents. The texts are our own."""
    given = case.entry.module_error_inputs_func(
        case.entry, device="cpu", dtype=case.dtype, requires_grad=False, training=case.training
    )
    for one in given:
        (args, options), call = unpacked(one.module_error_input.constructor_input), one.module_error_input.forward_input
        if call is None:
            with pytest.raises(one.error_type):
                case.make(*args, **options)
        else:
            layer = case.make(*args, **options)
            with pytest.raises(one.error_type):
                layer(*call.args, **call.kwargs)


def unpacked(given):
    return given.args, given.kwargs


def check_to(case):
    """`to` keeps the parameters of a layer, with and without gradients, swapped in place or not."""
    for one, swap, with_grad in product(cases(case), (True, False), (True, False)):
        with mock.patch.object(torch.__future__, "_swap_module_params_on_conversion", swap):
            layer = ready(case, one)
            if with_grad:
                sum(part.sum() for part in pytree.tree_leaves(layer(*one.call))).backward()
            before = list(layer.parameters())
            for dtype in (torch.float64, torch.float16, torch.float32, case.dtype):
                layer.to(dtype=dtype)
                assert all(a is b for a, b in zip(layer.parameters(), before, strict=True))
                assert {p.dtype for p in layer.parameters()} == {dtype}
                assert {p.grad.dtype for p in layer.parameters() if p.grad is not None} == (
                    {dtype} if with_grad else set()
                )
            layer(*one.call)


def check_meta_and_back(case):
    """A layer goes to the meta device and comes back from it, empty, and then works."""
    for one, swap in product(cases(case), (True, False)):
        layer = ready(case, one)
        shapes = [p.shape for p in layer.parameters()]
        layer.to("meta")
        assert {p.device.type for p in layer.parameters()} == {"meta"}
        with torch.no_grad():  # a graph would hold the parameters, and torch could not swap them
            outputs = pytree.tree_leaves(layer(*pytree.tree_map(lambda part: part.to("meta"), one.call)))
        with mock.patch.object(torch.__future__, "_swap_module_params_on_conversion", swap):
            layer.to_empty(device="cpu")
        assert [p.shape for p in layer.parameters()] == shapes
        layer.reset_parameters()
        assert [part.shape for part in pytree.tree_leaves(layer(*one.call))] == [part.shape for part in outputs]


def check_repeated_calls(case):
    """Calls with and without gradients, in both modes, do not change each other."""
    for one in cases(case):
        layer = ready(case, one)
        expected = layer(*one.call)
        with torch.no_grad():
            same(case, layer.eval()(*one.call), expected)
        same(case, layer.train()(*one.call), expected)
        same(case, layer(*one.call), expected)


BOTH, SINGLE, DOUBLE = (torch.float32, torch.float64), (torch.float32,), (torch.float64,)
CHECKS = {
    check_forward: BOTH,
    check_factory_arguments: BOTH,
    check_repr: BOTH,
    check_save_and_load: BOTH,
    check_noncontiguous_tensors: BOTH,
    check_memory_format: BOTH,
    check_gradients: DOUBLE,
    check_second_gradients: DOUBLE,
    check_train_and_eval: BOTH,
    check_default_device: BOTH,
    check_errors: BOTH,
    check_to: SINGLE,
    check_meta_and_back: SINGLE,
    check_repeated_calls: BOTH,
}
CASES = [
    pytest.param(check, name, dtype, training, id=f"{check.__name__[6:]}-{name}-{str(dtype)[6:]}-{mode}")
    for (check, dtypes), name in product(CHECKS.items(), OURS)
    for dtype, (mode, training) in product(dtypes, {"train": True, "eval": False}.items())
]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")  # of torch's LSTM
@pytest.mark.parametrize(("check", "name", "dtype", "training"), CASES)
def test_case_of_torch(check, name, dtype, training, entries):
    kind, _, projected = name.partition(", ")
    case = SimpleNamespace(
        make=OURS[name], entry=entries[kind], dtype=dtype, training=training, projected=bool(projected)
    )
    check(case)


def test_every_entry_has_inputs(entries):
    """torch could rename its arguments; then `cases` would find none and the checks could not fail."""
    for name in OURS:
        kind, _, projected = name.partition(", ")
        case = SimpleNamespace(
            entry=entries[kind], make=OURS[name], dtype=torch.float32, training=True, projected=bool(projected)
        )
        assert len(list(cases(case))) >= 16
        assert entries[kind].module_error_inputs_func is not None
