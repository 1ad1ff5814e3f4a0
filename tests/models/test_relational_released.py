"""Relational networks agree with their authors' released programs in outputs, initialisation and parameter counts."""

import copy
import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch

from steadygrad.models import MODELS
from steadygrad.problem import Problem

ORACLES = Path(__file__).parents[1] / "oracles" / "relational"
TOLERANCE = 1e-9
ROUNDING = 1e-15  # absolute, for gradients that are 0: a bias of all keys does not change a softmax

# Names in the released programs → names here. One tensor there may be several tensors here, concatenated along the
# first dimension. One tensor here may be the sum of two there: our LSTM has one bias for b_ih + b_hh.
COMMON = {
    **{f"encoder.conv{i + 1}.": [f"encoder.convolutions.{2 * i}."] for i in range(3)},
    "encoder.fc1.": ["encoder.hidden."],
    "encoder.fc2.": ["encoder.out."],
    "gamma": ["normalisation.gain"],
    "beta": ["normalisation.shift"],
}
COMMON |= {f"shape_{name}": ours for name, ours in COMMON.items() if name.startswith("encoder.")}
CORELNET = {"final.": ["decoder."], "w.": ["selection."], "w1.": ["selection.asked."], "w2.": ["selection.compared."]}
CORELNET_T = CORELNET | {
    "positional_vec": ["positions"],
    "query_vector": ["query"],
    "transformer.query_net.": ["attention.query."],
    "transformer.key_net.": ["attention.key."],
    "transformer.value_net.": ["attention.value."],
    "transformer.final.": ["attention.merge."],
    "transformer.res.0.": ["attention.feedforward.0."],
    "transformer.res.3.": ["attention.feedforward.2."],
    "transformer.norm1.": ["attention.attention_norm."],
    "transformer.norm2.": ["attention.feedforward_norm."],
}
LSTM_CELL = {f"lstm.{kind}_l0": [f"lstm.{kind}"] for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
ESBN = LSTM_CELL | {
    "key_w_out.": ["key."],
    "g_out.": ["gate."],
    "y_out.": ["readout."],
    "confidence_": ["confidence_"],
    "w.": ["selection."],
    "w1.": ["selection.compared."],  # keys, which are stored in memory
    "w2.": ["selection.asked."],
}
DECODER = {"out_hidden.": ["decoder.0."], "y_out.": ["decoder.2."]}
OF_TORCH = "transformer_encoder.layers.0."
TRANSFORMER = DECODER | {
    "encoder_norm.": ["norm."],
    **{
        f"{OF_TORCH}self_attn.in_proj_{kind}": [f"layers.0.{part}.{kind}" for part in ("query", "key", "value")]
        for kind in ("weight", "bias")
    },
    f"{OF_TORCH}self_attn.out_proj.": ["layers.0.merge."],
    f"{OF_TORCH}linear1.": ["layers.0.feedforward.0."],
    f"{OF_TORCH}linear2.": ["layers.0.feedforward.2."],
    f"{OF_TORCH}norm1.": ["layers.0.attention_norm."],
    f"{OF_TORCH}norm2.": ["layers.0.feedforward_norm."],
}
SYMMETRIC = DECODER | {
    "encoder_norm.": ["norm."],
    "transformer_encoder.symmetric_query_key_net.": ["layers.0.query."],
    "transformer_encoder.value_net.": ["layers.0.value."],
    "transformer_encoder.final.": ["layers.0.merge."],
    "transformer_encoder.res.0.": ["layers.0.feedforward.0."],
    "transformer_encoder.res.3.": ["layers.0.feedforward.2."],
    "transformer_encoder.norm1.": ["layers.0.attention_norm."],
    "transformer_encoder.norm2.": ["layers.0.feedforward_norm."],
}
PREDINET = DECODER | {
    "W_k.": ["key."],
    "W_q1.": ["first_query."],
    "W_q2.": ["second_query."],
    "W_s.": ["relations."],
}
RN = {"g_theta_hidden.": ["g.0."], "g_theta_out.": ["g.2."], "f_phi_hidden.": ["f.0."], "y_out.": ["f.2."]}
LAYER = "sequence.layer."
LSTM = {
    "lstm.weight_ih_l0": [f"{LAYER}weight_ih_l0"],
    "lstm.weight_hh_l0": [f"{LAYER}weight_hh_l0"],
    "lstm.bias_ih_l0": [f"{LAYER}bias_ih_l0"],
    "lstm.bias_hh_l0": [f"{LAYER}bias_ih_l0"],
    "y_out.": ["sequence.readout."],
}
NTM = LSTM_CELL | {
    "memory_init": ["memory"],
    "erase_out.": ["erase."],
    "add_out.": ["add."],
    "y_out.": ["readout."],
    **{
        f"{kind}_{theirs}_out.": [f"{head}.{ours}."]
        for kind, head in (("read", "reader"), ("write", "writer"))
        for theirs, ours in {
            "key": "key",
            "key_strength": "strength",
            "interp_gate": "gate",
            "shift_w": "shift",
            "sharpen": "sharpness",
        }.items()
    },
}
MNM = {
    "mnm.lstm_l1.": ["lstm."],
    "mnm.heads_l2.": ["access."],
    "mnm.f_l.": ["rate."],
    "mnm.memfunc.targets_net.": ["expected."],
    "mnm.read_out.": ["merge."],
    "y_out.": ["readout."],
}
SMALL = {"hidden_size": 24, "key_size": 12}
CASES = {  # file of reference values: file of weights, network, options, names
    "corelnet_t_same_diff": ("", "corelnet-t", {}, CORELNET_T),
    "corelnet_t_rmts": ("", "corelnet-t", {}, CORELNET_T),
    "corelnet_t_cat_rmts": ("", "corelnet-t", {"sensory": True}, CORELNET_T),
    "corelnet_asym_rmts": ("", "corelnet", {"asymmetric": True}, CORELNET),
    "corelnet_l1_rmts": ("", "corelnet", {"l1": 0.5}, CORELNET),
    "esbn_cat_rmts_small": ("", "esbn", {"sensory": True} | SMALL, ESBN),
    "esbn_asym_rmts_small": ("", "esbn", {"asymmetric": True} | SMALL, ESBN),
    "tsf_sym_rmts": ("", "transformer", {"symmetric": True}, SYMMETRIC),
    "webb_transformer_same_diff": ("webb_transformer_weights", "transformer", {}, TRANSFORMER),
    "webb_transformer_rmts": ("webb_transformer_weights", "transformer", {}, TRANSFORMER),
    "webb_predinet_same_diff": ("", "predinet", {}, PREDINET),
    "webb_predinet_rmts": ("", "predinet", {}, PREDINET),
    "webb_rn_same_diff": ("webb_rn_weights", "rn", {}, RN),
    "webb_rn_rmts": ("webb_rn_weights", "rn", {}, RN),
    "webb_lstm_same_diff": ("webb_lstm_weights", "lstm", {}, LSTM),
    "webb_lstm_rmts": ("webb_lstm_weights", "lstm", {}, LSTM),
    "webb_ntm_same_diff": ("webb_ntm_weights", "ntm", {}, NTM),
    "webb_ntm_rmts": ("webb_ntm_weights", "ntm", {}, NTM),
    "webb_mnm_same_diff": ("webb_mnm_weights", "mnm", {}, MNM),
    "webb_mnm_rmts": ("webb_mnm_weights", "mnm", {}, MNM),
}
ENCODER = ("encoder.conv", "encoder.fc")


def load(name):
    with np.load(ORACLES / f"{name}.npz", allow_pickle=False) as stored:
        return dict(stored)


def ours(name, names):
    """Return our names of a tensor of a released program."""
    (prefix,) = (prefix for prefix in COMMON | names if name.startswith(prefix))
    return [found + name.removeprefix(prefix) for found in (COMMON | names)[prefix]]


def weights_of(stored, prefix=""):
    """Return the stored tensors by name. Some are stored as integers times a power of two."""
    found = {key[2:]: value for key, value in stored.items() if key.startswith("w_")}
    for key, value in stored.items():
        if key.startswith("wm_"):
            found[key[3:]] = value * 2.0 ** -float(stored[f"wk_{key[3:]}"])
    return {prefix + key: torch.from_numpy(value) for key, value in found.items()}


def model_with_stored_weights(case):
    """Return the network of a case with the stored weights, the reference values and the images."""
    file, network, options, names = CASES[case]
    o = load(case)
    x = torch.from_numpy(o["x_u8"]) / torch.tensor(255.0, dtype=torch.float64)
    count = x.shape[1]
    model = MODELS[network](Problem(count, 32, 3, o["logits"].shape[1], ((0, count),)), **options).double()
    weights = weights_of(load("encoder3"), "encoder.") | weights_of(load(file) if file else o)
    fixed = [weights.pop(f"mnm.memfunc.l{layer}") for layer in (1, 2, 3)] if network == "mnm" else []
    state, seen = dict(model.named_parameters()), set()
    with torch.no_grad():
        if fixed:
            model.memory.copy_(torch.stack(fixed))
        for parameter in state.values():
            parameter.zero_()
        for name, value in weights.items():
            parts = [state[key] for key in ours(name, names)]
            for part, stored in zip(parts, value.split([len(part) for part in parts]), strict=True):
                part.add_(stored)
            seen |= set(ours(name, names))
    assert seen == state.keys()
    return model, o, x


def assert_close_to_oracle(found, o, name):
    """Compare with a stored tensor. Of a large tensor only some entries, the sum and the norm are stored."""
    found = found.detach().numpy()
    if name in o:
        assert np.abs(found - o[name]).max() <= TOLERANCE * np.abs(o[name]).max() + ROUNDING, name
        return
    (places, values), (total, norm) = o[f"part_{name}"], o[f"whole_{name}"]
    scale = max(norm / math.sqrt(found.size), np.abs(values).max())
    assert np.abs(found.flatten()[places.astype(int)] - values).max() <= TOLERANCE * scale + ROUNDING, name
    many = math.sqrt(found.size)
    assert abs(np.linalg.norm(found) - norm) <= TOLERANCE * norm + many * ROUNDING, name
    assert abs(found.sum() - total) <= many * (TOLERANCE * norm + many * ROUNDING), name


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_agree_with_the_released_programs(case):
    """Compare logits, intermediate values, the penalty and the gradients of all weights."""
    model, o, x = model_with_stored_weights(case)
    names = CASES[case][3]
    z = model.encode(x)
    z.retain_grad()
    logits = model.answer(z)
    penalty = model.penalty()
    assert_close_to_oracle(logits, o, "logits")
    ((logits * torch.from_numpy(o["G"])).sum() + penalty).backward()
    if z.dim() == 3:
        assert_close_to_oracle(z, o, "z")
        assert_close_to_oracle(z.grad, o, "grad_z")
    else:
        first, second = (0, 1) if ours("w1.", names) == ["selection.asked."] else (1, 0)
        for name, view in (("z1", first), ("z2", second)):
            assert_close_to_oracle(z[:, :, view], o, name)
            assert_close_to_oracle(z.grad[:, :, view], o, f"grad_{name}")
    if "R" in o:
        R = model.relate(z)
        assert_close_to_oracle(R if o["R"].ndim == 3 else R[:, *np.tril_indices(R.shape[1])], o, "R")
    if "l1_penalty" in o:
        assert_close_to_oracle(penalty / o["l1_weight"].item(), o, "l1_penalty")
    if "const_loss" in o:
        assert_close_to_oracle(penalty, o, "const_loss")

    state = dict(model.named_parameters())
    gradients = {key.split("grad_", 1)[1] for key in o if key.startswith(("grad_", "part_grad_"))} - {"z", "z1", "z2"}
    for name in gradients:
        assert_close_to_oracle(torch.cat([state[key].grad for key in ours(name, names)]), o, f"grad_{name}")
    have = {key for name in gradients for key in ours(name, names)}
    silent = {key for key in state.keys() - have if not key.startswith("encoder.")}
    assert all(not state[key].grad.any() if state[key].grad is not None else True for key in silent)
    assert not silent or case == "webb_ntm_same_diff"  # with two objects, no head has previous weights


@pytest.mark.parametrize("case", ["corelnet_t_same_diff", "corelnet_t_rmts", "corelnet_t_cat_rmts"])
def test_corelnet_t_has_the_tokens_of_the_released_program(case):
    model, o, x = model_with_stored_weights(case)
    found = []
    model.attention.register_forward_hook(lambda module, args, output: found.extend([args[1], output]))
    model(x)
    assert_close_to_oracle(found[0], o, "tokens")
    assert_close_to_oracle(found[1], o, "query_out")


@pytest.mark.parametrize(("case", "behind"), [("webb_transformer_rmts", True), ("tsf_sym_rmts", False)])
def test_the_transformer_normalises_its_output(case, behind):
    """The stored values are the output of the last normalisation, or its input."""
    model, o, x = model_with_stored_weights(case)
    found = []
    model.norm.register_forward_hook(lambda module, args, output: found.append(output if behind else args[0]))
    model(x)
    assert_close_to_oracle(found[0], o, "transformer_out")


@pytest.mark.parametrize("case", ["webb_mnm_same_diff", "webb_mnm_rmts"])
def test_the_meta_loss_of_mnm_is_that_of_the_last_forward_pass(case):
    model, o, x = model_with_stored_weights(case)
    assert model.penalty() == 0
    model(x.flip(1))
    other = model.penalty().item()
    model(x)
    assert model.penalty().item() == pytest.approx(o["const_loss_steps"].sum() / x.shape[1], rel=TOLERANCE)
    assert abs(model.penalty().item() - other) > 1e-3 * other
    assert copy.deepcopy(model).penalty() == 0  # a copy has made no forward pass
    assert not any("meta" in key for key in model.state_dict())


# Initialisation.

SEEDS = 5
THEIR_SEEDS = 20
SIGMAS = 5
STARTS = {  # program: network, options, names
    "CoRelNet": ("corelnet", {}, CORELNET),
    "CoRelNet_cat": ("corelnet", {"sensory": True}, CORELNET),
    "CoRelNet_asym1": ("corelnet", {"asymmetric": True}, CORELNET),
    "CoRelNetw_l1": ("corelnet", {"l1": 1.0}, CORELNET),
    "CoRelNet_qtsf": ("corelnet-t", {}, CORELNET_T),
    "CoRelNet_qtsf_cat": ("corelnet-t", {"sensory": True}, CORELNET_T),
    "CoRelNet_qtsf_asym": ("corelnet-t", {"asymmetric": True}, CORELNET_T),
    "ESBN": ("esbn", {}, ESBN),
    "ESBN_cat": ("esbn", {"sensory": True}, ESBN),
    "ESBN_asym1": ("esbn", {"asymmetric": True}, ESBN),
    "ESBNw_l1": ("esbn", {"l1": 1.0}, ESBN),
    "Transformer": ("transformer", {}, TRANSFORMER),
    "tsf_sym": ("transformer", {"symmetric": True}, SYMMETRIC),
    "PrediNet": ("predinet", {}, PREDINET),
    "RN": ("rn", {}, RN),
    "LSTM": ("lstm", {}, LSTM),
    "NTM": ("ntm", {}, NTM),
    "MNM": ("mnm", {}, MNM),
}
UNUSED_PARAMETERS = {  # parameters of the programs that have no influence on the answer
    "CoRelNet_qtsf": ("positional", "query_matrix.", "key_matrix.", "value_matrix."),
    "CoRelNet_qtsf_cat": ("positional", "query_matrix.", "key_matrix.", "value_matrix."),
    "CoRelNet_qtsf_asym": ("positional", "query_matrix.", "key_matrix.", "value_matrix."),
    "Transformer": ("encoder_layers.",),
    "MNM": ("mnm.memfunc.feat_proj.", "mnm.layer_norm."),
}
LAWS = {"uniform": (9 / 5, 27 / 7, 9.0), "normal": (3.0, 15.0, 105.0)}  # moments 4, 6, 8 of a standardised number


def stored_table(name):
    stored = load(name)
    return dict(zip(stored["names"].tolist(), stored["values"], strict=True))


def gates_of(name, values):
    """Return the rows of the LSTM gates that the name ends with: i and f, g, or o."""
    gates = {"[i,f]": slice(0, 2), "[g]": slice(2, 3), "[o]": slice(3, 4)}
    for suffix, rows in gates.items():
        if name.endswith(suffix):
            return torch.cat(values.chunk(4)[rows])
    return values


def is_dead(program, name):
    return any(
        name == dead or (dead[-1] == "." and name.startswith(dead)) for dead in UNUSED_PARAMETERS.get(program, ())
    )


def initial_states(network, options, objects):
    """Return the parameters and buffers of a network for several seeds."""
    states = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        states.append(MODELS[network](Problem(objects, 32, 3, 2, ((0, objects),)), **options).state_dict())
    return states


def programs_and_tasks():
    """Return the programs and tasks with stored statistics. Most programs have one initialisation for all tasks."""
    return sorted({tuple(key.split("|")[:2]) for key in stored_table("start_relational")} - {("tsf", "same_diff")})


@pytest.mark.parametrize(("program", "task"), programs_and_tasks())
def test_initialisation_agrees_with_the_released_programs(program, task):
    """Compare mean, standard deviation, extremes and kurtosis of every tensor, within five standard errors."""
    network, options, names = STARTS[program]
    table = {key.split("|")[2]: row for key, row in stored_table("start_relational").items()
             if key.startswith(f"{program}|{task}|")}  # fmt: skip
    states, seen = initial_states(network, options, TASK_SIZES[task][0]), set()
    for name, (mean, std, low, high, kurtosis, entries) in table.items():
        if is_dead(program, name):
            continue
        if name.startswith("mnm.memfunc.l"):
            values = torch.stack([state["memory"][int(name[13]) - 1] for state in states])
        else:
            keys = ours(name.split("[")[0], names)
            seen |= set(keys)
            values = torch.stack([gates_of(name, torch.cat([state[key] for key in keys])) for state in states])
        assert values[0].numel() == entries, name
        x = values.double().flatten().numpy()
        if std == 0:
            assert (x == mean).all(), name
            continue
        law = "uniform" if kurtosis < 2.4 or entries == 1 else "normal"
        assert_distribution_matches(name, x, law, mean, std, (low, high), kurtosis, THEIR_SEEDS * int(entries))
    if task == "same_diff":
        assert seen | {"memory"} == states[0].keys() | {"memory"}


def assert_distribution_matches(name, x, law, mean, std, extremes, kurtosis, their_count):
    fourth, sixth, eighth = LAWS[law]
    spread = SIGMAS * math.sqrt(1 / x.size + 1 / their_count)
    assert abs(x.mean() - mean) <= spread * std, name
    assert abs(x.std() / std - 1) <= spread * math.sqrt((fourth - 1) / 4), name
    if x.size >= 1000 and their_count >= 1000:  # the sample kurtosis of fewer numbers is far from normal
        centred = (x - x.mean()) / x.std()
        variance = eighth + 4 * fourth**3 - fourth**2 - 4 * fourth * sixth  # of the sample kurtosis, times the count
        assert abs((centred**4).mean() - kurtosis) <= spread * math.sqrt(variance), name
    for found, stored in ((x.max(), extremes[1]), (-x.min(), -extremes[0])):
        if law == "uniform":  # the gap to the bound is exponential, 2 bound / count on average
            width = 2 * math.sqrt(3) * std
            assert abs(found - stored) <= 14 * width * max(1 / x.size, 1 / their_count), name
        else:  # bounds that are exceeded with probability 1e-6
            least, most = NormalDist().inv_cdf(1e-6 ** (1 / x.size)), NormalDist().inv_cdf(1 - 1e-6 / x.size)
            assert least * std * (1 - spread) <= found <= most * std * (1 + spread), name


# Parameter counts.

TASK_SIZES = {  # objects and answers, image size
    "same_diff": (2, 2, 32),
    "RMTS": (6, 2, 32),
    "dist3": (9, 4, 32),
    "identity_rules": (9, 4, 32),
    "same_diff6_hard": (6, 2, 32),
    "RMTS3_hard": (9, 2, 32),
    "identity_rules4_": (13, 6, 32),
    "dist10": (30, 11, 32),
    "relational": (9, 2, 12),
    "relational_4": (9, 4, 12),
}


@pytest.mark.parametrize("program", STARTS)
def test_parameter_counts_agree_with_the_released_programs(program):
    """Parameters without influence do not count, except the gates of NTM, which only same_diff does not use."""
    network, options, _ = STARTS[program]
    found = {key.split("|")[1]: row for key, row in stored_table("counts_relational").items()
             if key.startswith(f"{program}|")}  # fmt: skip
    assert len(found) >= 8
    for task, (whole, live) in found.items():
        objects, answers, size = TASK_SIZES[task]
        with torch.device("meta"):
            model = MODELS[network](Problem(objects, size, 3, answers, ((0, objects),)), **options)
        one_bias = 4 * 512 if program == "LSTM" else 0
        expected = whole if (program, task) == ("NTM", "same_diff") else live
        assert sum(parameter.numel() for parameter in model.parameters()) == expected - one_bias, task
