"""Networks start as the authors' programs do: the laws of initial values, and the bias that some of them add."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from steadygrad import layers
from steadygrad.layers.cell import Lookup
from steadygrad.matrices import build, init
from steadygrad.models import SequenceModel

ORACLES = Path(__file__).parents[1] / "oracles"
SEEDS = 20


def load(name: str) -> dict[str, np.ndarray]:
    with np.load(ORACLES / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


PROGRAM_STATISTICS = load("start_rnn") | load("start_ncgru")
"""network and tensor → mean, standard deviation, least, largest, kurtosis, entries"""


def assert_same_distribution(make, parts, key: str, readout: int | None = None) -> None:
    """Compare the parts of many networks with the statistics of the authors' ones.

    A mean is off by std/√n, a standard deviation by std √((κ − 1)/(4n)), each with a probability of 1e-6 for five
    times as much. Values of a law with bounds, whose kurtosis is far below a normal one's 3, lie within theirs.
    """
    values: dict[str, list[torch.Tensor]] = {name: [] for name in parts}
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        network = make()
        if readout is not None:
            network = SequenceModel(network, PROGRAM_OUTPUTS[key.split("|")[0].split(" ")[0]], readout=readout)
        for name, part in parts.items():
            values[name].append(part(network).detach().flatten())
    for name, found in values.items():
        ours = torch.cat(found).double()
        mean, std, least, largest, kurtosis, entries = PROGRAM_STATISTICS[f"{key}|{name}"]
        if std == 0:
            assert (ours - mean).abs().max() < 1e-6, name
            continue
        share = math.sqrt(1 / len(ours) + 1 / entries)
        assert abs(float(ours.mean()) - mean) < 5 * std * share, name
        assert abs(float(ours.std()) - std) < 5 * std * share * math.sqrt((kurtosis - 1) / 4), name
        if kurtosis < 2.5:
            # of n values the largest is short of its bound by about 1/n of the range: both are
            slack = 1 + 20 / min(len(ours), entries)
            assert largest / slack < float(ours.max()) < largest * slack, name
            assert least * slack < float(ours.min()) < least / slack, name


PROGRAM_OUTPUTS = {"denoise": 10, "parenthesis": 18, "paper": 9, "MemoryNets": 9}


def cell(network):
    return (network.layer if isinstance(network, SequenceModel) else network).cells[0]


ELMAN = {
    "nonlinearity.b": lambda n: cell(n).bias,
    "U.weight": lambda n: cell(n).weight_ih,
    "V.weight": lambda n: cell(n).weight_hh,
}
READOUT = {"readout.weight": lambda n: n.readout.weight, "readout.bias": lambda n: n.readout.bias}


@pytest.mark.parametrize(
    ("key", "features", "options", "readout"),
    [
        ("copy one-hot I=10|N=128|henaff_init", 10, {"init": "henaff", "input_init": "xavier"}, "nnrnn"),
        ("copy one-hot I=10|N=128|cayley_init", 10, {"init": "exp-cayley", "input_init": "xavier"}, "nnrnn"),
        (
            "copy one-hot I=10|N=128|random_orthogonal_init",
            10,
            {"init": "random-orthogonal", "input_init": "xavier"},
            "nnrnn",
        ),
        ("psMNIST I=1|N=128|cayley_init", 1, {"init": "exp-cayley", "input_init": "kaiming"}, None),
        ("PTB I=200|N=128|cayley_init", 200, {"init": "exp-cayley", "input_init": "kaiming"}, None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_orthogonal_rnn_initialisation_matches_nnrnn_program(key, features, options, readout):
    """The program of the paper, May 2019: a bias with V, none with U."""
    parts = ELMAN | {"V.bias": lambda n: cell(n).bias_ih, "diag V": lambda n: cell(n).weight_hh.diagonal()}
    assert_same_distribution(
        lambda: layers.OrthogonalRNN(features, 128, activation="modrelu", added_bias="units", **options),
        parts | READOUT if readout else parts,
        f"paper bde8de8|{key}",
        readout,
    )


@pytest.mark.parametrize(
    ("features", "key", "law"), [(10, "copy one-hot I=10", "xavier"), (200, "PTB I=200", "kaiming")]
)
def test_rnn_initialisation_matches_later_nnrnn_program(features, key, law):
    options = {"activation": "modrelu", "recurrent": {"name": "free", "init": "glorot"}, "added_bias": "inputs"}
    assert_same_distribution(
        lambda: layers.RNN(features, 128, input_init=law, **options),
        ELMAN | {"U.bias": lambda n: cell(n).bias_ih},
        f"head 294d4ff|{key}|N=128|xavier_normal_ (Glorot RNN)",
    )


@pytest.mark.parametrize(
    ("task", "key", "law"),
    [("copy", "copy one-hot I=10", "xavier"), ("pixels", "psMNIST I=1", "kaiming"), ("text", "PTB I=200", "kaiming")],
)
@pytest.mark.parametrize(("make", "name"), [(layers.NNRNN, "nnRNN (ARORNN2)"), (layers.ExpRNN, "expRNN")])
def test_nnrnn_and_exprnn_initialisation_matches_nnrnn_program(make, name, task, key, law):
    features = int(key.rpartition("=")[2])
    key = f"paper bde8de8|{key}|N=128|{name}"
    (tensor,) = (
        k.rpartition("|")[2]
        for k in PROGRAM_STATISTICS
        if k.startswith(f"{key}|") and k.endswith(("U.weight", "input_kernel.weight"))
    )
    assert_same_distribution(lambda: make(features, 128, input_init=law), {tensor: lambda n: cell(n).weight_ih}, key)


@pytest.mark.parametrize(("task", "law"), [("copy I=10", "xavier"), ("denoise I=11", "kaiming")])
def test_orthogonal_rnn_initialisation_matches_memorynets(task, law):
    features = int(task.rpartition("=")[2])
    options = {"init": "henaff", "input_init": law, "added_bias": "inputs", "activation": "modrelu"}
    assert_same_distribution(
        lambda: layers.OrthogonalRNN(features, 128, **options),
        ELMAN | {"U.bias": lambda n: cell(n).bias_ih} | (READOUT if law == "xavier" else {}),
        f"MemoryNets|{task}|N=128|henaff {law}",
        "nnrnn",
    )


def test_relrnn_initialisation_matches_memorynets():
    parts = {
        "v": lambda n: cell(n).alignment.weight_score,
        "U.weight": lambda n: cell(n).cell.weight_ih,
        "U.bias": lambda n: cell(n).cell.bias,
        "V.weight": lambda n: cell(n).cell.weight_hh,
        "Ua.weight": lambda n: cell(n).alignment.weight_query,
        "Va.weight": lambda n: cell(n).alignment.weight_key,
    }
    assert_same_distribution(lambda: layers.RelRNN(10, 128), parts, "MemoryNets|copy I=10|N=128|RelMemRNN")
    assert_same_distribution(lambda: layers.MemRNN(10, 128), parts, "MemoryNets|copy I=10|N=128|RelMemRNN")


def joint_gate_weights(inner):
    """The weights of each gate on [h; x] together, by the names of MemoryNets."""
    units = inner.output_size
    W, b = inner.weight_ih.split(units), inner.bias_ih.split(units)
    names = dict(zip(("Wi", "Wf", "Wg", "Wo"), range(4), strict=True))
    return {
        f"{name}.{kind}": (
            torch.cat([list(inner.matrices().values())[k].flatten(), W[k].flatten()]) if kind == "weight" else b[k]
        )
        for name, k in names.items()
        for kind in ("weight", "bias")
    }


@pytest.mark.parametrize(
    ("make", "name"), [(layers.LSTM, "LSTM"), (layers.RelLSTM, "RelLSTM"), (layers.MemLSTM, "RelLSTM")]
)
def test_lstm_initialisation_matches_memorynets(make, name):
    def part(of):
        return lambda n: joint_gate_weights(cell(n) if name == "LSTM" else cell(n).cell)[of]

    parts = {f"W{gate}.{kind}": part(f"W{gate}.{kind}") for gate in "ifgo" for kind in ("weight", "bias")}
    assert_same_distribution(lambda: make(10, 128, start="memorynets"), parts, f"MemoryNets|copy I=10|N=128|{name}")


PROGRAM_SIZES = [("denoise", 10, 118, 90, 120, 200), ("parenthesis", 7, 56, 42, 60, None)]
every_program = pytest.mark.parametrize(
    ("task", "features", "nc", "lstm", "goru", "sco"), PROGRAM_SIZES, ids=lambda v: v if isinstance(v, str) else ""
)


def readout_parts(task):
    names = ("V_weights", "V_bias") if task == "denoise" else ("Wo", "bo")
    return dict(zip(names, READOUT.values(), strict=True))


@every_program
def test_ncgru_starts_as_released(task, features, nc, lstm, goru, sco):
    N = nc
    one = {
        "NCGRUCell/gate_kernel (input rows)": lambda n: cell(n).weight_ih[: 2 * N],
        "NCGRUCell/gate_kernel (state rows)": lambda n: torch.cat(
            [cell(n).matrices()["reset"], cell(n).matrices()["update"]]
        ),
        "NCGRUCell/gate_bias": lambda n: cell(n).bias_ih,
        "NCGRUCell/weight_WC": lambda n: cell(n).matrices()["candidate"],
        "NCGRUCell/weight_UC": lambda n: cell(n).weight_ih[2 * N :],
        "NCGRUCell/bias_C": lambda n: cell(n).bias_modrelu,
    }
    two = {
        "NCGRUCell/WC_gate_kernel_one": lambda n: cell(n).matrices()["reset"],
        "NCGRUCell/WC_gate_kernel_two": lambda n: cell(n).matrices()["update"],
        "NCGRUCell/UC_gate_kernel_one": lambda n: cell(n).weight_ih[:N],
        "NCGRUCell/UC_gate_kernel_two": lambda n: cell(n).weight_ih[N : 2 * N],
        "NCGRUCell/gate_bias_one": lambda n: cell(n).bias_ih[:N],
        "NCGRUCell/gate_bias_two": lambda n: cell(n).bias_ih[N:],
        "NCGRUCell/weight_UC": lambda n: cell(n).weight_ih[2 * N :],
        "NCGRUCell/bias_C": lambda n: cell(n).bias_modrelu,
    }
    for orthogonal, parts, name in (("c", one, "U_c"), ("rc", two, "U_r,U_c")):
        options = {"orthogonal": orthogonal, "start": task, "reflections": 50 if task == "denoise" else 40}
        parts = parts | readout_parts(task)
        assert_same_distribution(
            lambda o=options: layers.NCGRU(features, N, **o), parts, f"{task}|NCGRU {name} N={N}", task
        )


@every_program
def test_lstm_and_gru_initialisation_matches_tensorflow(task, features, nc, lstm, goru, sco):
    def kernel(n):
        return torch.cat([cell(n).weight_ih.flatten(), *(matrix.flatten() for matrix in cell(n).matrices().values())])

    def bias(n):  # BasicLSTMCell adds its 1 where the bias is used
        return cell(n).bias_ih - torch.tensor([0.0, 1.0, 0.0, 0.0]).repeat_interleave(lstm)

    parts = {"basic_lstm_cell/kernel": kernel, "basic_lstm_cell/bias": bias, **readout_parts(task)}
    assert_same_distribution(
        lambda: layers.LSTM(features, lstm, start="tensorflow"), parts, f"{task}|LSTM N={lstm}", task
    )
    signs = torch.tensor([1.0, -1.0]).repeat_interleave(100)  # their u keeps the state, ours lets the candidate in
    parts = {
        "gru_cell/gates/kernel (input rows)": lambda n: cell(n).weight_ih[:200],
        "gru_cell/gates/kernel (state rows)": lambda n: torch.cat(
            [cell(n).matrices()["reset"], cell(n).matrices()["update"]]
        ),
        "gru_cell/gates/bias": lambda n: cell(n).bias_ih[:200] * signs,
        "gru_cell/candidate/kernel": lambda n: torch.cat(
            [cell(n).weight_ih[200:].flatten(), cell(n).matrices()["candidate"].flatten()]
        ),
        "gru_cell/candidate/bias": lambda n: cell(n).bias_ih[200:],
        **readout_parts(task),
    }
    assert_same_distribution(lambda: layers.GRU(features, 100, start="tensorflow"), parts, f"{task}|GRU N=100", task)


@every_program
def test_goru_starts_as_released(task, features, nc, lstm, goru, sco):
    N = goru

    def angles(first):
        def part(n):
            map, (theta,) = cell(n).weight_hh.candidate.map, cell(n).weight_hh.candidate.packed()
            layers_ = [theta[a:b] for a, b in zip(map.bounds, map.bounds[1:], strict=False)]
            return torch.cat(layers_[first::2])

        return part

    parts = {
        "theta_A": angles(0),
        "theta_B": angles(1),
        "goru_cell/U": lambda n: cell(n).weight_ih,
        "goru_cell/W_r": lambda n: cell(n).matrices()["reset"],
        "goru_cell/W_g": lambda n: cell(n).matrices()["update"],
        "goru_cell/bias_r": lambda n: cell(n).bias_ih[:N],
        "goru_cell/bias_g": lambda n: cell(n).bias_ih[N:],
        "goru_cell/bias_c": lambda n: cell(n).bias_modrelu - 0.001,
        **readout_parts(task),
    }
    assert_same_distribution(lambda: layers.GORU(features, N), parts, f"{task}|GORU N={N}", task)


@pytest.mark.parametrize(
    ("name", "activation", "bias"),
    [
        ("rnn_paper_modrelu", "modrelu", "V.bias"),
        ("rnn_head_modrelu", "modrelu", "U.bias"),
        ("rnn_memorynets_modrelu", "modrelu", "U.bias"),
        ("rnn_memorynets_tanh", "tanh", "U.bias"),
    ],
)
@pytest.mark.parametrize("backend", ["auto", "python", "reference"])
def test_added_bias_matches_authors_cells(name, activation, bias, backend, monkeypatch):
    """States and every gradient of the authors' cells, whose bias stands before modReLU."""
    monkeypatch.setenv("STEADYGRAD_KERNELS", backend)
    data = {key: torch.from_numpy(np.asarray(value)) for key, value in load(name).items()}
    added = "units" if activation == "modrelu" else None
    layer = layers.RNN(5, 16, activation=activation, added_bias=added, dtype=torch.float64)
    inner = layer.cells[0]
    ours = {"U.weight": inner.weight_ih, "V.weight": inner.weight_hh, bias: inner.bias_ih}
    ours |= {"nonlinearity.b": inner.bias_modrelu} if added else {}
    with torch.no_grad():
        for key, parameter in ours.items():
            parameter.copy_(data[key])
    output, _ = layer(data["x"])
    torch.testing.assert_close(output, data["h"], rtol=1e-9, atol=1e-12)
    (output * data["G"]).sum().backward()
    for key, parameter in ours.items():
        torch.testing.assert_close(parameter.grad, data[f"grad_{key}"], rtol=1e-9, atol=1e-12, msg=key)


def test_added_bias_works_with_table_and_attention():
    """A bias in U Eᵀ is the same as one beside the input; a memory changes nothing about it."""
    layer = layers.RNN(12, 6, activation="modrelu", added_bias="inputs", dtype=torch.float64)
    table, tokens = torch.randn(5, 12, dtype=torch.float64), torch.randint(5, (40, 2))
    torch.testing.assert_close(
        layer(Lookup(torch.eye(5, dtype=torch.float64)[tokens], table))[0], layer(table[tokens])[0]
    )
    options = {"activation": "modrelu", "added_bias": "inputs", "dtype": torch.float64}
    attending = layers.RelRNN(3, 6, short=2, relevant=1, **options)
    x = torch.randn(9, 2, 3, dtype=torch.float64, requires_grad=True)
    inner = attending.cells[0].cell
    fast = torch.autograd.grad(attending(x)[0].sum(), (x, inner.bias_ih))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEADYGRAD_KERNELS", "reference")
        slow = torch.autograd.grad(attending(x)[0].sum(), (x, inner.bias_ih))
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b)
        assert a.any()


def test_random_orthogonal_is_a_rotation_with_a_positive_diagonal():
    for size in (1, 2, 7):
        Q = init.random_orthogonal(size)
        assert (Q.diagonal() > 0).all()
        assert torch.linalg.det(Q) > 0
    assert build({"name": "exponential", "init": "random-orthogonal"}, 6)().diagonal().min() > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.RNN(3, 4, added_bias="units", bias_init="units"), "RNN with tanh has one bias, .* got both"),
        (lambda: layers.RNN(3, 4, input_init="he"), "input_init to be one of xavier, kaiming, small; got 'he'"),
        (lambda: layers.RNN(3, 4, bias_init="one"), "bias_init to be one of inputs, units, zeros; got 'one'"),
        (lambda: layers.LSTM(3, 4, start="tf"), "start to be one of torch, tensorflow, memorynets; got 'tf'"),
        (lambda: layers.GRU(3, 4, start="denoise"), "GRU expects start to be one of torch, tensorflow; got 'denoise'"),
        (lambda: layers.NCGRU(3, 4, start="x"), "NCGRU expects start to be one of torch, .*, parenthesis; got 'x'"),
        (lambda: SequenceModel(layers.RNN(3, 4), 2, readout="zero"), "readout to be one of xavier, .*; got 'zero'"),
    ],
)
def test_unknown_initialiser_names_raise_value_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()
