"""Properties of all relational networks. A network that is added to MODELS is tested here without new code."""

import inspect
import math

import numpy as np
import pytest
import safetensors.torch
import torch

from steadygrad.layers import LSTM, NNRNN
from steadygrad.models import MODELS
from steadygrad.models.relational import FEATURES, ContextNormalisation, CoRelNet, Encoder, Recurrent
from steadygrad.models.relational.encoder import encode_each_once
from steadygrad.models.relational.model import perceptron
from steadygrad.problem import Problem

OBJECTS, SIZE, CHANNELS, ANSWERS = 4, 8, 2, 3
SEGMENTS = ((0, 4),)
PROBLEM = Problem(OBJECTS, SIZE, CHANNELS, ANSWERS, SEGMENTS)
SMALL = {  # small sizes for the options that a network has
    "hidden_size": 6,
    "key_size": 5,
    "heads": 2,
    "width": 8,
    "query_size": 3,
    "position_size": 2,
    "signature_size": 4,
    "relations": 3,
    "layers": 2,
    "pair_size": 7,
    "feedforward_size": 5,
    "decoder_size": 7,
    "slots": 5,
    "memory_size": 4,
    "memory_layers": 2,
}
every_model = pytest.mark.parametrize("name", MODELS)


def options_of(name):
    return {key: p for key, p in inspect.signature(MODELS[name]).parameters.items() if p.kind is p.KEYWORD_ONLY}


FORMS = [
    (name, options)
    for name in MODELS
    for options in ({}, *({key: not p.default} for key, p in options_of(name).items() if type(p.default) is bool))
]
every_form = pytest.mark.parametrize(
    ("name", "options"), FORMS, ids=["-".join([name, *options]) for name, options in FORMS]
)


def build(name, **options):
    """Build a small network in float64. Options that are fields of `Problem` change the problem."""
    small = {key: value for key, value in SMALL.items() if key in options_of(name)}
    problem = PROBLEM._replace(**{key: options.pop(key) for key in Problem._fields if key in options})
    return MODELS[name](problem, **(small | options)).double()


@pytest.fixture
def images():
    """Return two problems whose first two images are equal."""
    return torch.rand(2, OBJECTS, CHANNELS, SIZE, SIZE, dtype=torch.float64)[:, [0, 0, 1, 2]]


@every_model
def test_constructors_take_a_problem_and_options_of_plain_types(name):
    parameters = inspect.signature(MODELS[name]).parameters
    assert list(parameters) == ["problem", *options_of(name)]
    for option in options_of(name).values():
        assert option.annotation in (int, float, bool, str)
        assert type(option.default) is option.annotation
    assert list(options_of(name))[-3:] == ["encoder", "normalisation", "l1"]


@every_model
@pytest.mark.parametrize("option", ["colour", "asymmetric"])
def test_unknown_options_are_refused(name, option):
    if option not in options_of(name):
        with pytest.raises(TypeError, match=f"{option}'"):
            build(name, **{option: True})


@every_model
def test_output_has_one_row_of_logits_per_problem(name):
    model = build(name, image_size=12)
    assert model(torch.rand(5, OBJECTS, CHANNELS, 12, 12, dtype=torch.float64)).shape == (5, ANSWERS)


@every_model
def test_batch_members_are_independent(name, images):
    model = build(name).eval()
    torch.testing.assert_close(model(images[:1]), model(images)[:1])
    other = torch.cat([images[:1], images[1:].flip(1)])
    torch.testing.assert_close(model(other)[0], model(images)[0])
    assert not torch.allclose(model(other)[1], model(images)[1])  # every network uses the order of the objects


@every_form
def test_gradients_match_finite_differences(name, options, images):
    model = build(name, **options).eval()
    names, values = zip(*model.named_parameters(), strict=True)
    with torch.no_grad():
        for key, value in zip(names, values, strict=True):
            if key.endswith("bias"):
                value.add_(
                    0.1 * torch.randn_like(value)
                )  # ReLU has no derivative at 0, and some biases are initially 0

    def run(x, *values):
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (images.requires_grad_(), *values), fast_mode=True)


@every_form
def test_every_parameter_has_a_gradient(name, options, images):
    model = build(name, **options)
    if options.get("asymmetric"):
        with torch.no_grad():
            model.normalisation.gain.mul_(0.1)  # otherwise the softmax saturates and its gradient is 0
    for _ in range(8):  # CoRelNet-mix selects a random rule; the other rule has no gradient
        (model(images).square().sum() + model.penalty()).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.any(), key


@every_model
def test_a_random_encoder_keeps_its_initial_weights(name, images):
    model = build(name, encoder="random")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(images).square().sum().backward()
    assert all(parameter.grad is None for parameter in model.encoder.parameters())
    optimizer.step()
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert moved
    assert not any(key.startswith("encoder.") for key in moved)


@every_model
def test_normalisation_and_l1_options_change_encoding_and_penalty(name, images):
    plain = build(name, normalisation="none")
    torch.testing.assert_close(plain.encode(images), plain.encoder(images.flatten(0, 1)).view(2, OBJECTS, FEATURES))
    assert plain.penalty() == 0
    assert not any("selection" in key for key in plain.state_dict())
    sparse = build(name, normalisation="none", l1=3.0)
    W, b = sparse.selection.weight, sparse.selection.bias
    assert W.shape == (FEATURES, FEATURES)
    torch.testing.assert_close(
        sparse.encode(images), sparse.encoder(images.flatten(0, 1)).view(2, -1, FEATURES) @ W.mT + b
    )
    assert sparse.penalty().item() == pytest.approx(3.0 * (W.abs().sum() + b.abs().sum()).item())
    normalised = build(name).encode(images)
    torch.testing.assert_close(normalised.mean(dim=1), torch.zeros(2, FEATURES, dtype=torch.float64), atol=1e-6, rtol=0)
    for begin, end in SEGMENTS:
        part = build(name, normalisation="segmented").encode(images)[:, begin:end]
        torch.testing.assert_close(part.mean(dim=1), torch.zeros(2, FEATURES, dtype=torch.float64), atol=1e-6, rtol=0)


@every_model
def test_weights_are_saved_and_loaded(name, images):
    """safetensors refuses tensors that share memory."""
    model, other = build(name).eval(), build(name).eval()
    assert not torch.allclose(model(images), other(images))
    other.load_state_dict(safetensors.torch.load(safetensors.torch.save(model.state_dict())))
    torch.testing.assert_close(model(images), other(images), atol=0, rtol=0)


@every_model
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": "trained"}, "expects encoder to be one of learned, random; got 'trained'"),
        ({"normalisation": "layer"}, "expects normalisation to be one of context, segmented, none; got 'layer'"),
        ({"l1": -1.0}, "expects a finite l1 of at least 0; got -1.0"),
        ({"l1": float("inf")}, "expects a finite l1 of at least 0; got inf"),
        ({"l1": "1"}, "expects a finite l1 of at least 0; got '1'"),
        ({"objects": 0}, "expects objects to be an integer of at least 1; got 0"),
        ({"image_size": 7}, "Encoder expects images of at least 8 × 8 pixels; got 7"),
        ({"segments": ((0, 2),)}, r"expects segments that contain each of 4 objects once, in order; got \(\(0, 2\),\)"),
        (
            {"segments": ((0, 3), (3, 4)), "normalisation": "segmented"},
            r"expects segments of at least two objects; got \(3, 4\)",
        ),
    ],
)
def test_invalid_sizes_and_shared_options_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, **options)


@every_model
def test_sizes_must_be_positive_integers(name):
    for key in options_of(name).keys() & SMALL.keys():
        with pytest.raises(ValueError, match=f"expects {key} to be an integer of at least 1; got 0"):
            build(name, **{key: 0})


@every_model
def test_wrong_image_dtype_raises_value_error_and_empty_batch_works(name):
    model = build(name)
    images = torch.zeros(2, *model.shape, dtype=torch.float64)
    for other in (torch.uint8, torch.float32):
        with pytest.raises(ValueError, match=f"expects images of torch.float64, the dtype of its weights; got {other}"):
            model(images.to(other))
    assert model(images[:0]).shape == (0, model.answers)


@every_model
def test_images_of_the_wrong_shape_are_refused(name):
    message = r"expects images \(batch, \*\(4, 2, 8, 8\)\); got \(2, 5, 2, 8, 8\)"
    with pytest.raises(ValueError, match=f"{MODELS[name].__name__} {message}"):
        build(name)(torch.zeros(2, 5, CHANNELS, SIZE, SIZE, dtype=torch.float64))


def test_segments_of_one_object_are_accepted_without_normalisation(images):
    assert build("corelnet", segments=((0, 3), (3, 4)), normalisation="none")(images).shape == (2, ANSWERS)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("corelnet-mix", {"temperature": 0.0}, "CoRelNetMix expects a finite temperature above 0; got 0.0"),
        ("ntm", {"slots": 2}, "NTM expects slots to be at least 3, the number of shifts; got 2"),
        ("transformer", {"heads": 5}, "AttentionLayer expects inner_size to be a multiple of heads, 5; got 128"),
        ("transformer", {"positions": "none"}, "expects positions to be one of sinusoidal, learned; got 'none'"),
    ],
)
def test_options_of_single_networks_are_checked(name, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, **options)


# Relations between objects.

MODELS_WITH_RELATIONS = {"corelnet", "corelnet-t", "corelnet-diff", "corelnet-mix", "esbn"}


@every_form
def test_relations_are_a_matrix_over_pairs_of_objects(name, options, images):
    model = build(name, **options).eval()
    R = model.relate(model.encode(images))
    assert (R is not None) == (name in MODELS_WITH_RELATIONS)
    if R is not None:
        assert R.shape == (2, OBJECTS, OBJECTS)
        other = images[:1].expand(2, -1, -1, -1, -1)
        torch.testing.assert_close(model.relate(model.encode(other))[1], R[0])


@pytest.mark.parametrize("name", sorted(MODELS_WITH_RELATIONS - {"esbn"}))
def test_the_answer_depends_only_on_the_relations(name, images, monkeypatch):
    model = build(name).eval()
    z = model.encode(images)
    R, answer = model.relate(z), model.answer(z)
    monkeypatch.setattr(model, "relate", lambda z: R)
    torch.testing.assert_close(model.answer(torch.randn_like(z)), answer, atol=0, rtol=0)
    monkeypatch.setattr(model, "relate", lambda z: R.flip(0))
    torch.testing.assert_close(model.answer(z), answer.flip(0))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", ["corelnet", "corelnet-t"])
def test_rows_are_softmax_over_earlier_objects_or_over_all(name, full, images):
    model = build(name, full=full).eval()
    z = model.encode(images)
    scores = (z @ z.mT).detach().numpy()
    for member in range(2):
        for i, row in enumerate(model.relate(z)[member].tolist()):
            seen = OBJECTS if full else i + 1
            shares = np.exp(scores[member, i, :seen] - scores[member, i, :seen].max())
            assert row == pytest.approx([*(shares / shares.sum()), *[0] * (OBJECTS - seen)])


def test_differences_are_antisymmetric(images):
    model = build("corelnet-diff")
    D = model.relate(model.encode(images))
    torch.testing.assert_close(D, -D.mT)
    assert D[:, 0, 2].all()
    assert not D[:, 0, 1].any()  # the same image


def test_esbn_relates_an_object_to_earlier_objects(images, monkeypatch):
    model = build("esbn", asymmetric=True)
    z = model.encode(images)
    R, asked, compared = model.relate(z), z[:, :, 0], z[:, :, 1]
    assert not R.triu().any()
    torch.testing.assert_close(
        R.sum(dim=2), torch.ones(2, OBJECTS, dtype=torch.float64).index_fill(1, torch.tensor(0), 0)
    )
    torch.testing.assert_close(R[:, 3, :3], (asked[:, 3:] @ compared[:, :3].mT).squeeze(1).softmax(dim=1))
    used, retrieve = [], model.retrieve
    monkeypatch.setattr(model, "retrieve", lambda *given: used.append(given[0]) or retrieve(*given))
    model.answer(z)
    for t, weights in enumerate(used, 1):
        torch.testing.assert_close(weights, R[:, t, :t], atol=0, rtol=0)
    assert len(used) == OBJECTS - 1


# Encoder and normalisation.


@pytest.mark.parametrize("l1", [0.0, 1.0])
def test_equal_images_have_bitwise_equal_features(l1):
    """Use float32 and two threads, where equal rows of a matrix product may be rounded differently."""
    torch.set_num_threads(2)
    for objects in range(2, 9):
        model = CoRelNet(Problem(2 * objects, 32, 3, ANSWERS, ((0, 2 * objects),)), l1=l1)
        glyph, others = torch.rand(1, 3, 32, 32).expand(objects, -1, -1, -1), torch.rand(objects, 3, 32, 32)
        z = model.encode(torch.stack([glyph, others], dim=1).flatten(0, 1).unsqueeze(0))[0, ::2]
        assert torch.equal(z, z[:1].expand_as(z))


@pytest.mark.parametrize("size", [8, 12, 33, 36])
def test_the_encoder_depends_on_every_pixel(size):
    images = torch.rand(1, 1, size, size, requires_grad=True)
    Encoder(size, 1)(images).sum().backward()
    assert images.grad.all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("grey", [False, True])
def test_equal_images_are_encoded_once(dtype, grey):
    glyphs = torch.rand(4, 2, 8, 8).to(dtype)
    glyphs[3] = torch.nextafter(glyphs[2], torch.tensor(2.0, dtype=dtype))  # differs in the last bits
    images = glyphs[[2, 0, 2, 1, 3, 0, 0]]
    if grey:
        images = images[:, :1].expand(-1, 3, -1, -1)  # channels share memory
    encoded = []
    features = encode_each_once(lambda x: encoded.append(x) or x.flatten(1), images)
    assert len(encoded[0]) == 4
    assert torch.equal(features, images.flatten(1))


def test_encoding_once_gives_the_gradients_of_encoding_every_image():
    encoder = Encoder(8, 2).double()
    images = torch.rand(3, 2, 8, 8, dtype=torch.float64)[[2, 0, 2, 1, 0, 0]]
    weights = torch.randn(6, FEATURES, dtype=torch.float64)
    alone = torch.cat([encoder(image.unsqueeze(0)) for image in images])
    once = encode_each_once(encoder, images)
    torch.testing.assert_close(once, alone)
    ours, theirs = (torch.autograd.grad((out * weights).sum(), list(encoder.parameters())) for out in (once, alone))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_of_torch_func_agree_with_autograd(images):
    model = build("corelnet")
    model(images).sum().backward()
    weights = {key: value.detach() for key, value in model.named_parameters()}
    gradient = torch.func.grad(lambda weights, x: torch.func.functional_call(model, weights, (x[None],)).sum())
    for key, found in torch.func.vmap(gradient, in_dims=(None, 0))(weights, images).items():
        torch.testing.assert_close(found.sum(dim=0), model.get_parameter(key).grad)


def test_every_copy_of_an_image_has_its_own_gradient():
    encoder = Encoder(8, 2).double()
    images = torch.rand(1, 2, 8, 8, dtype=torch.float64).expand(3, -1, -1, -1).clone().requires_grad_()
    encode_each_once(encoder, images)[1].sum().backward()
    assert images.grad[1].any()
    assert not images.grad[[0, 2]].any()


def test_the_encoder_has_kaiming_normal_initialisation():
    encoder = Encoder(32, 3)
    for weight, fan_in in ((encoder.convolutions[2].weight, 32 * 16), (encoder.hidden.weight, 512)):
        assert weight.std().item() == pytest.approx(math.sqrt(2 / fan_in), rel=0.03)
        assert weight.abs().max() > 3 * weight.std()  # a uniform distribution would end at 1.7 standard deviations
    assert not any(value.any() for key, value in encoder.named_parameters() if key.endswith("bias"))


def test_context_normalisation_agrees_with_numpy():
    norm = ContextNormalisation(((0, 2), (2, 5)), 6).double()
    torch.nn.init.normal_(norm.gain)
    torch.nn.init.normal_(norm.shift)
    z = torch.randn(3, 5, 6, dtype=torch.float64)
    expected = np.empty((3, 5, 6))
    for member in range(3):
        for begin, end in ((0, 2), (2, 5)):
            part = z[member, begin:end].numpy()
            deviation = np.sqrt(part.var(axis=0, ddof=1) + 1e-8)
            expected[member, begin:end] = (part - part.mean(axis=0)) / deviation
    expected = expected * norm.gain.detach().numpy() + norm.shift.detach().numpy()
    torch.testing.assert_close(norm(z), torch.from_numpy(expected))


def test_context_normalisation_of_two_objects_known_values():
    z = torch.tensor([[[1.0, 5.0], [1.0, 2.0]]], dtype=torch.float64)
    half = math.sqrt(0.5)
    expected = torch.tensor([[[0.0, half], [0.0, -half]]], dtype=torch.float64)
    torch.testing.assert_close(ContextNormalisation(((0, 2),), 2).double()(z), expected)


def test_recurrent_takes_any_layer(images):
    model = Recurrent(NNRNN(FEATURES, 6, spectrum_pull=0.3), PROBLEM, l1=2.0).double()
    with torch.no_grad():
        for parameter in model.sequence.layer.parameters():
            parameter.add_(0.1)
    assert model(images).shape == (2, ANSWERS)
    own = model.sequence.layer.penalty()
    assert own > 0
    torch.testing.assert_close(model.penalty(), own + 2.0 * sum(p.abs().sum() for p in model.selection.parameters()))
    with pytest.raises(ValueError, match="Recurrent expects a layer with input_size 128; got 5"):
        Recurrent(LSTM(5, 6), PROBLEM)


# Thesis, table C.3: objects, answers, parameters of CoRelNet, hidden size and parameters of CoRelNet-nhid, parameters
# of ESBN.
TABLE = {
    "same different": (2, 2, 200418, 285313, 1910760, 1910757),
    "RMTS": (6, 2, 205026, 71328, 1910754, 1910757),
    "dist3": (9, 4, 211684, 34258, 1911784, 1911783),
    "identity rules": (9, 4, 211684, 34258, 1911784, 1911783),
    "RMTS 3": (9, 2, 211170, 35664, 1910754, 1910757),
    "identity rules 4": (13, 6, 223974, 17489, 1912808, 1912809),
    # The thesis prints 1910760, the count of same/different. Six objects need 24 weights per hidden unit, and no number
    # of units gives 1910760. RMTS also has six objects and two answers; 71328 units give its printed count, 1910754.
    "same diff. 6": (6, 2, 205026, 71328, 1910754, 1910757),
}


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_parameter_counts_agree_with_the_thesis(row):
    objects, answers, corelnet, hidden_size, nhid, esbn = row

    def count(name, **options):
        with torch.device("meta"):
            model = MODELS[name](Problem(objects, 32, 3, answers, ((0, objects),)), **options)
        return sum(parameter.numel() for parameter in model.parameters())

    assert count("corelnet") == corelnet
    assert count("corelnet", hidden_size=hidden_size) == nhid
    assert count("esbn") == esbn
    assert count("corelnet", full=True) == corelnet + 256 * objects * (objects - 1) // 2


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([], "at least two sizes, each an argument; got $"),
        ([8], "at least two sizes, each an argument; got 8$"),
        ([[3, 4]], r"at least two sizes, each an argument; got \[3, 4\]$"),
        ([[3, 4], 5], r"size 0 to be an integer of at least 1; got \[3, 4\]$"),
        ([3, 0], "size 1 to be an integer of at least 1; got 0$"),
    ],
)
def test_perceptron_without_layers_raises_value_error(sizes, words):
    with pytest.raises(ValueError, match=f"^perceptron expects {words}"):
        perceptron(*sizes)


@pytest.mark.parametrize("name", ["transformer", "corelnet-t"])
def test_huge_number_of_layers_is_refused(name):
    with pytest.raises(ValueError, match=r" expects layers to be at most 1,000; got 1000000000000$"):
        MODELS[name](PROBLEM, layers=10**12)
