"""Figures of networks: the files that are promised, the numbers in them, and nothing else."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from steadygrad.diagnostics import observe, portrait
from steadygrad.files import finite
from steadygrad.layers import LAYERS, LSTM, NNRNN, MemRNN, RelRNN
from steadygrad.report import comparison_figures, figures, paper, portrait_figures
from steadygrad.report.runs import Run, thinned

MAGIC = {"svg": b"<?xml", "png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-"}


@pytest.fixture(autouse=True)
def no_figure_stays_open(same_start):
    torch.set_num_threads(1)
    plt.close("all")
    yield
    left = plt.get_fignums()
    plt.close("all")
    assert left == []


@pytest.fixture
def fast_savefig(monkeypatch):
    """Figures that are made but not drawn, which takes most of the time."""
    monkeypatch.setattr(Figure, "savefig", lambda self, target, **options: target.write(b"drawn"))


def make_run(name, path=None, seed=0, layer=None, task="copy"):
    """A run that nobody has made, of a network that there is."""
    torch.manual_seed(seed)
    layer, x = layer or LAYERS[name](3, 4), torch.randn(8, 3)
    observations = [finite({"step": step, **observe(layer, x)}) for step in (0, 10)]
    return run_from_parts(path or f"runs/{name}-{seed}", name, task, observations, finite(portrait(layer, x)))


def minimal_run(path, seed=0, **parts):
    """With as little as a figure needs."""
    return run_from_parts(path, "rnn", "copy", [], {"step": 0, "output_gradients": [1.0, 0.5], **parts}, seed)


def run_from_parts(path, layer, task, observations, portrait, seed=0):
    also = {"neumann_norm": 0.1} if layer == "ncgru" else {}
    rows = [{"step": step, "split": "valid", "loss": 1 / step, "mse": 0.5, **also} for step in (10, 20)]
    result = {
        "layer": {"name": layer, "hidden_size": 4},
        "task": {"name": task},
        "train": {},
        "seed": seed,
        "score": "mse",
        "guessing_loss": 0.2,
    }
    return Run(Path(path), result, thinned(rows, {"loss", "mse", "neumann_norm"}), observations, portrait)


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


# files


def test_draw_all_writes_every_applicable_figure(tmp_path, fast_savefig):
    two_levels = make_run("nnrnn", "runs/two", seed=7, layer=NNRNN(3, 4, num_layers=2), task="adding")
    found = [*map(make_run, ("nnrnn", "ncgru", "lstm", "relrnn")), two_levels]
    written = portrait_figures.draw_all(found, tmp_path / "new" / "figures")
    always = ["reach", "gradients", "eigenvalues", "drift"]
    kinds = {
        "nnrnn-copy": [*always, "schur"],
        "ncgru-copy": [*always, "gates"],
        "lstm-copy": always,
        "relrnn-copy": ["attention", "gradients", "eigenvalues", "drift"],
        "nnrnn-adding": [*always, "schur-weight_hh_l0", "schur-weight_hh_l1"],
    }
    expected = [f"{name}-{kind}.svg" for name, ones in kinds.items() for kind in ones]
    expected += ["copy-curves.svg", "adding-curves.svg"]
    assert files(tmp_path) == sorted(["new", "new/figures", *(f"new/figures/{name}" for name in expected)])
    assert sorted(path.name for path in written) == sorted(expected)


def test_svg_figures_are_deterministic(tmp_path):
    run, twice = make_run("nnrnn"), ("reach", "schur", "drift")
    portrait_figures.draw_all([run], tmp_path / "one")
    portrait_figures.draw_run(run, "nnrnn", tmp_path / "two" / "nnrnn", "svg", twice)
    expected = [f"nnrnn-{kind}.svg" for kind in ("reach", "gradients", "eigenvalues", "schur", "drift")]
    assert files(tmp_path / "one") == sorted(["copy-curves.svg", *expected])
    assert files(tmp_path / "two") == sorted(f"nnrnn-{kind}.svg" for kind in twice)
    for path in (tmp_path / "two").iterdir():
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes()
    for path in (tmp_path / "one").iterdir():
        text = path.read_text("utf-8")
        assert text.startswith("<?xml")
        assert text.rstrip().endswith("</svg>")
        assert not re.search(r'(href|src)="(?!#|data:)', text)
        assert path.name.split("-")[0] in text  # its title: text stays text


@pytest.mark.parametrize("format", ["png", "pdf"])
def test_png_and_pdf_figures_are_valid_and_deterministic(tmp_path, format):
    written = portrait_figures.draw_all([minimal_run("runs/a")], tmp_path / "one", format)
    assert [path.name for path in written] == [f"copy-curves.{format}", f"rnn-gradients.{format}"]
    assert files(tmp_path / "one") == [path.name for path in written]
    for path in written:
        assert path.read_bytes().startswith(MAGIC[format])
        assert path.stat().st_size > 3000
    (again,) = portrait_figures.draw_run(minimal_run("runs/a"), "rnn", tmp_path / "two" / "rnn", format)
    assert again.read_bytes() == written[1].read_bytes()


def test_first_of_several_seeds_is_drawn(tmp_path, fast_savefig, monkeypatch):
    found = [minimal_run(f"runs/{seed}", seed, output_gradients=[1.0, 0.5 + seed]) for seed in (0, 1)]
    drawn, gradients = [], portrait_figures.gradients
    monkeypatch.setattr(
        portrait_figures, "gradients", lambda one, name: drawn.append((one, name)) or gradients(one, name)
    )
    written = portrait_figures.draw_all(found, tmp_path / "both")
    assert [path.name for path in written] == ["copy-curves.svg", "rnn-gradients.svg"]
    assert drawn == [(found[0].portrait, "rnn")]


def test_runs_without_portraits_get_only_curves(tmp_path, fast_savefig):
    run = minimal_run("runs/a")
    blind = Run(run.path, run.result, run.curves, [{"step": 0, "failed": "why"}], {"step": 0, "failed": "why"})
    assert [path.name for path in portrait_figures.draw_all([blind], tmp_path)] == ["copy-curves.svg"]
    nothing = Run(run.path, run.result)
    assert [path.name for path in portrait_figures.draw_all([nothing], tmp_path)] == ["copy-curves.svg"]


def test_draw_writes_only_requested_and_available_kinds(tmp_path, fast_savefig):
    run = make_run("nnrnn")
    written = portrait_figures.draw_run(run, "Mine", tmp_path / "row", "png", ("schur", "gates"))
    assert [path.name for path in written] == ["row-schur.png"]  # it has no gates
    assert files(tmp_path) == ["row-schur.png"]


# names

ODD_NAMES = ["a b", "../../up", "/etc/x", "<script>", "a\"&'b", "a:b*c?", "con\u2028nect", "$a$ $b$", "é.1+2", "%s{}"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_file_names_are_sanitized(tmp_path, fast_savefig, name):
    folder = tmp_path / "figures"
    written = portrait_figures.draw_all([minimal_run(f"runs/{name}/seed-0")], folder)
    assert len(written) == 2
    assert {path.parent for path in written} == {folder}
    assert files(tmp_path) == sorted(["figures", *(f"figures/{path.name}" for path in written)])
    for path in written:
        assert re.fullmatch(r"[\w.+][\w.+-]*\.svg", path.name)


@pytest.mark.parametrize("name", ["???", "<>"])
def test_unusable_run_name_still_writes_into_folder(tmp_path, fast_savefig, name):
    written = portrait_figures.draw_all([minimal_run(f"runs/{name}/seed-0")], tmp_path / "figures")
    assert {path.parent for path in written} == {tmp_path / "figures"}
    assert [path.name for path in tmp_path.iterdir()] == ["figures"]


def test_runs_whose_names_differ_have_different_files(tmp_path, fast_savefig):
    found = [minimal_run(f"runs/{row}/seed-0") for row in ("a b", "a-b")]
    written = portrait_figures.draw_all(found, tmp_path)
    assert len(set(written)) == len(written) == len(files(tmp_path)) == 3


def test_runs_named_by_folder_get_flat_file_names(tmp_path, fast_savefig):
    written = portrait_figures.draw_all(
        [minimal_run("runs/a"), minimal_run("runs/b/c")], tmp_path
    )  # nothing else tells them apart
    names = ["a-gradients.svg", "b-c-gradients.svg", "copy-curves.svg"]
    assert files(tmp_path) == sorted(path.name for path in written) == names


def test_dollar_signs_in_names_are_not_typeset(tmp_path):
    r"""Matplotlib typesets what stands between two $, and refuses \frac without its arguments."""
    name = r"lr $\frac$"
    for path in portrait_figures.draw_all([minimal_run(f"runs/{name}/seed-0")], tmp_path):
        assert name in path.read_text("utf-8")


# what fails


def test_unknown_format_raises_before_writing(tmp_path):
    with pytest.raises(ValueError, match=r"ends in \.png, \.svg, \.pdf; got copy-curves\.gif"):
        portrait_figures.draw_all([minimal_run("runs/a")], tmp_path / "figures", "gif")
    assert files(tmp_path) == []


def test_failed_savefig_keeps_old_figure(tmp_path, monkeypatch):
    (path,) = portrait_figures.draw_run(minimal_run("runs/a"), "a", tmp_path / "a", "svg")
    before = path.read_bytes()

    def fail(self, target, **options):
        target.write(b"<?xml half")
        raise OSError("the disk is full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="the disk is full"):
        portrait_figures.draw_run(minimal_run("runs/a"), "a", tmp_path / "a", "svg")
    assert files(tmp_path) == ["a-gradients.svg"]
    assert path.read_bytes() == before


def test_drawing_restores_rcparams(tmp_path, fast_savefig):
    before = dict(plt.rcParams)
    portrait_figures.draw_all([minimal_run("runs/a")], tmp_path)
    assert dict(plt.rcParams) == before


@pytest.mark.parametrize(
    "parts",
    [
        {"output_gradients": [0.0, None], "loss_gradients": [None, 0.0]},
        {"every": 1, "input_maps": {"state": [[None], [None, None]]}},
        {"every": 3, "input_maps": {"h": [[-40.0], [None, 38.0]], "c": [[0.0], [1.0, 0.0]]}},
    ],
)
def test_zero_missing_and_extreme_values_are_drawn_without_warnings(tmp_path, parts):
    """Warnings are errors here: nothing to draw is not worth one."""
    kind = "reach" if "every" in parts else "gradients"
    assert len(portrait_figures.draw_run(minimal_run("runs/a", **parts), "a", tmp_path / "a", "svg", (kind,))) == 1


# the numbers in them


def close_figure(figure):
    plt.close(figure)
    return figure


def test_reach_figure_is_causal_with_one_colour_scale():
    run = make_run("lstm", layer=LSTM(3, 4))
    figure = close_figure(portrait_figures.reach(run.portrait, "lstm"))
    maps = run.portrait["input_maps"]
    drawn = [axis for axis in figure.axes if axis.images]
    assert [axis.get_title() for axis in drawn] == ["lstm, h", "lstm, c"]
    assert len({(axis.images[0].norm.vmin, axis.images[0].norm.vmax) for axis in drawn}) == 1
    for axis, rows in zip(drawn, maps.values(), strict=True):
        image = axis.images[0].get_array().filled(math.nan)
        assert image.shape == (8, 8)
        for i, row in enumerate(rows):
            np.testing.assert_allclose(np.log10(image[i, : i + 1]), row)
            assert np.isnan(image[i, i + 1 :]).all()
        assert axis.images[0].get_extent() == [0, 8, 8, 0]  # the first step is above


@pytest.mark.parametrize("name", ["enrnn", *({"urnn"} & LAYERS.keys())])
def test_eigenvalue_figure_contains_conjugates(name):
    layer = LAYERS[name](3, 5).eval()
    (axis,) = close_figure(portrait_figures.eigenvalues(make_run(name, layer=layer).portrait, name)).axes
    points = axis.collections[0].get_offsets().data
    (W,) = (W.detach().numpy() for W in layer.matrices().values())
    assert len(points) == len(W)  # a real eigenvalue is drawn once
    distances = abs(np.linalg.eigvals(W)[:, None] - (points[:, 0] + 1j * points[:, 1]))
    assert distances.min(axis=1).max() < 1e-4
    assert distances.min(axis=0).max() < 1e-4  # and no other


@pytest.mark.parametrize(("size", "in_block"), [(4, True), (5, False)])
def test_schur_figure_matches_matrix(size, in_block):
    layer = NNRNN(3, size, in_block=in_block)
    matrix = layer.weight_hh_l0
    matrix.modulus.data.uniform_(0.2, 0.9)
    matrix.transient.data.normal_(std=0.2)
    run = make_run("nnrnn", layer=layer)
    ((_, found),) = run.portrait["schur"].items()
    left, middle, right, *_ = close_figure(portrait_figures.schur(found, "nnrnn")).axes
    with torch.no_grad():
        P, W = matrix.map.basis(matrix.packed()[0]), matrix()
        core = (P.mT @ W @ P).abs().numpy()
    np.testing.assert_allclose(left.images[0].get_array(), core, atol=2e-3)
    assert list(middle.lines[0].get_ydata()) == found["mean_by_subdiagonal"]
    assert sum(patch.get_height() for patch in right.patches) == size // 2


def attention_portrait(layer, time=20):
    layer.weight_score_l0.data *= 20  # so that it chooses
    return finite(portrait(layer, torch.randn(time, 3)))


def marked(axis):
    """Columns that are marked above the map, by what the legend says."""
    return {
        marks.get_label(): [round(float(x) - 0.5) for x, y in marks.get_offsets().data if y > 1]
        for marks in axis.collections
    }


def test_attention_figure_marks_kept_states():
    drawn = attention_portrait(RelRNN(3, 4, short=3, relevant=3))
    (found,) = drawn["attention"]
    axis, *_ = close_figure(portrait_figures.attention(drawn, "relrnn")).axes
    image = axis.images[0].get_array().filled(math.nan)
    for t, row in enumerate(found["map"]):
        values = [math.nan if value is None else value for value in row]
        np.testing.assert_allclose(np.log10(image[t, : t + 1]), values)
        assert np.isnan(image[t, t + 1 :]).all()
    assert (axis.images[0].norm.vmin, axis.images[0].norm.vmax) == (1e-3, 1)
    left = sorted({state for state, _, last in found["kept"] if last < 19 and state not in found["kept_at_end"]})
    assert left
    assert marked(axis) == {"kept at the end": found["kept_at_end"], "kept for a while": left}


def test_attention_figure_has_one_map_per_level():
    drawn = attention_portrait(RelRNN(3, 4, num_layers=2))
    one, other, _ = close_figure(portrait_figures.attention(drawn, "relrnn")).axes
    assert [axis.get_title() for axis in (one, other)] == ["relrnn, level 0", "relrnn, level 1"]
    axis, _ = close_figure(portrait_figures.attention(attention_portrait(MemRNN(3, 4)), "memrnn")).axes
    assert axis.get_title() == "memrnn"
    assert marked(axis) == {}
    assert axis.get_legend() is None


def test_attention_marks_of_long_sequence_are_at_their_steps():
    drawn = attention_portrait(RelRNN(3, 4, short=3, relevant=3), time=260)
    assert drawn["every"] == 3
    axis, _ = close_figure(portrait_figures.attention(drawn, "relrnn")).axes
    assert axis.images[0].get_extent() == [0, 261, 261, 0]  # in steps, the last of 87 rows not quite full
    assert marked(axis)["kept at the end"] == drawn["attention"][0]["kept_at_end"]


# several networks in one picture


@pytest.fixture
def shown(monkeypatch):
    """The axis of what would have been saved."""
    axes = []
    monkeypatch.setattr(
        comparison_figures, "save", lambda figure, path: axes.append(close_figure(figure).axes[0]) or path
    )
    return axes


def test_gradient_comparison_counts_steps_back_from_end(shown):
    comparison_figures.gradients_along_time(
        {"rnn": [1e-4, 1e-2, 1.0], "$lstm$": [None, 0.0, 0.5, 2.0]}, "x.svg", "denoise"
    )
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in shown[0].lines}
    assert lines["rnn"] == ([3, 2, 1], [1e-4, 1e-2, 1.0])
    back, values = lines[r"\$lstm\$"]
    assert back == [4, 3, 2, 1]
    assert np.isnan(values[:2]).all()
    assert values[2:] == [0.5, 2.0]
    assert shown[0].get_yscale() == "log"
    assert len({line.get_color() for line in shown[0].lines}) == 2


def test_growth_figure_omits_missing_measurements(shown):
    comparison_figures.growth_with_length(
        [200, 1000, 5000], {"rnn": [1.0, 5.0, 25.0], "memrnn": [2.0, 50.0, None]}, "x.svg", "megabytes"
    )
    rnn, memrnn = shown[0].lines
    assert (list(rnn.get_xdata()), list(rnn.get_ydata())) == ([200, 1000, 5000], [1.0, 5.0, 25.0])
    assert list(memrnn.get_ydata())[:2] == [2.0, 50.0]
    assert math.isnan(memrnn.get_ydata()[2])
    assert (shown[0].get_xscale(), shown[0].get_yscale(), shown[0].get_ylabel()) == ("log", "log", "megabytes")
    assert list(shown[0].get_xticks()) == [200, 1000, 5000]
    comparison_figures.growth_with_length([100, 400, 500], {"rnn": [1.0, 2.0, 3.0]}, "x.svg", "megabytes")
    assert [text.get_text() for text in shown[1].get_xticklabels()] == ["100", "400", ""]  # 500 would touch it


@pytest.mark.parametrize("format", ["svg", "png"])
def test_comparison_figures_are_written_as_files(tmp_path, format):
    norms = comparison_figures.gradients_along_time({"a": [1.0, None], "b": [0.0, 0.0]}, tmp_path / f"one.{format}")
    sizes = comparison_figures.growth_with_length(
        [1, 2], {"a": [1.0, 2.0], "b": [None, None]}, tmp_path / f"two.{format}", "MB", "$T$"
    )
    assert all(path.read_bytes().startswith(MAGIC[format]) for path in (norms, sizes))


def test_loss_gradients_are_compared_by_first_seed(tmp_path, fast_savefig, monkeypatch):
    found = [
        minimal_run(f"runs/{row}/seed-{seed}", seed, loss_gradients=[1.0, float(seed)])
        for row in ("a", "b")
        for seed in (0, 1)
    ]
    assert comparison_figures.loss_gradients(found) == {"a": [1.0, 0.0], "b": [1.0, 0.0]}
    several = [minimal_run(f"runs/{row}/seed-0", 0, loss_gradients=[1.0], batch_gradients=[0.5]) for row in ("b", "c")]
    assert comparison_figures.loss_gradients(several) == {"b": [0.5], "c": [0.5]}
    assert comparison_figures.loss_gradients([found[0], *several]) == {
        "a": [1.0, 0.0],
        "b": [1.0],
        "c": [1.0],
    }  # of one kind
    written = [path.name for path in portrait_figures.draw_all([*found, minimal_run("runs/c/seed-0")], tmp_path)]
    assert written[:2] == ["copy-curves.svg", "copy-gradients.svg"]
    alone = [path.name for path in portrait_figures.draw_all(found[:2], tmp_path)]
    assert "copy-gradients.svg" not in alone  # nothing to compare with


def make_outcomes(task="rmts", network="corelnet", chance=0.5, **by_count):
    return [
        comparison_figures.HeldOutResult(task, network, int(count.strip("m")), accuracy, chance)
        for count, accuracies in by_count.items()
        for accuracy in accuracies
    ]


@pytest.fixture
def saved_axes_by_title(monkeypatch):
    """All axes of what would have been saved, by title."""
    found = {}
    monkeypatch.setattr(
        comparison_figures,
        "save",
        lambda figure, path: found.update({a.get_title(): a for a in close_figure(figure).axes}) or path,
    )
    return found


def test_held_out_figure_shows_median_and_range(saved_axes_by_title):
    found = [
        *make_outcomes(m95=[0.5, 0.9, 0.6], m0=[1.0, 0.98]),
        *make_outcomes(network="$esbn$", m50=[0.75]),
        *make_outcomes(task="identity-rules", network="ntm", chance=0.25, m85=[0.25]),
    ]
    comparison_figures.held_out_accuracy(found, "x.svg", "all")
    assert saved_axes_by_title.keys() == {"rmts", "identity-rules"}
    lines = {line.get_label(): line for line in saved_axes_by_title["rmts"].lines}
    assert (list(lines["corelnet"].get_xdata()), list(lines["corelnet"].get_ydata())) == ([0, 95], [0.99, 0.6])
    assert (list(lines[r"\$esbn\$"].get_xdata()), list(lines[r"\$esbn\$"].get_ydata())) == ([50], [0.75])
    assert list(lines["guessing"].get_ydata()) == [0.5, 0.5]
    band = saved_axes_by_title["rmts"].collections[0].get_paths()[0].vertices
    assert {tuple(corner) for corner in band.tolist()} == {(0, 0.98), (0, 1.0), (95, 0.5), (95, 0.9)}
    assert list(saved_axes_by_title["rmts"].get_xticks()) == [0, 50, 95]
    other = {line.get_label(): line for line in saved_axes_by_title["identity-rules"].lines}
    assert (list(other["ntm"].get_xdata()), list(other["guessing"].get_ydata())) == ([85], [0.25, 0.25])
    colours = {name: line.get_color() for name, line in (lines | other).items()}
    assert len({colours[name] for name in ("corelnet", r"\$esbn\$", "ntm")}) == 3  # in every panel the same


def test_three_tasks_have_three_panels(saved_axes_by_title):
    comparison_figures.held_out_accuracy([one for task in "abc" for one in make_outcomes(task=task, m0=[1.0])], "x.svg")
    assert saved_axes_by_title.keys() == {"a", "b", "c"}
    assert all(
        axis.get_ylabel() == ("" if name == "b" else "accuracy on unseen shapes")
        for name, axis in saved_axes_by_title.items()
    )


def test_held_out_figure_without_outcomes_raises_value_error():
    with pytest.raises(ValueError, match="held_out_accuracy expects at least one result; got none"):
        comparison_figures.held_out_accuracy([], "x.svg")


def run_with_held_out(held_out, accuracies, seed=0, layer=None, **task):
    """A run on a task with shapes held out."""
    rows = [{"step": step, "split": "valid", "loss": 1.0, "accuracy": a} for step, a in enumerate(accuracies, 1)]
    result = {
        "layer": {"name": "corelnet", **(layer or {})},
        "task": {"name": "rmts", "held_out": held_out, "shapes_seed": seed, **task},
        "train": {},
        "seed": seed,
        "score": "accuracy",
        "guessing_loss": math.log(4),
    }
    return Run(Path(f"runs/{held_out}/{len(accuracies)}/seed-{seed}"), result, thinned(rows, {"accuracy"}))


def test_unseen_returns_last_evaluations_with_distinct_names():
    found = comparison_figures.held_out_results(
        [run_with_held_out(95, [0.9, 0.5], seed) for seed in (0, 1)]
        + [run_with_held_out(50, [1.0]), run_with_held_out(0, [])]
    )
    assert [one[:4] for one in found] == [("rmts", "corelnet", m, a) for m, a in ((95, 0.5), (95, 0.5), (50, 1.0))]
    assert [one.chance for one in found] == pytest.approx([0.25] * 3)
    wide = run_with_held_out(50, [1.0], layer={"hidden_size": 9, "full": True})
    plain = run_with_held_out(50, [1.0], layer={"hidden_size": 6, "full": True}, colour=True)
    names = [(one.task, one.network) for one in comparison_figures.held_out_results([wide, plain, make_run("rnn")])]
    assert names == [("rmts", "corelnet, hidden_size 9"), ("rmts", "corelnet, hidden_size 6")]
    other = run_with_held_out(50, [1.0], colour=False)
    assert [one.task for one in comparison_figures.held_out_results([plain, other])] == [
        "rmts, colour true",
        "rmts, colour false",
    ]


def test_held_out_figure_needs_different_held_out_counts(tmp_path, fast_savefig):
    found = [run_with_held_out(95, [0.5]), run_with_held_out(95, [0.5, 0.6], 1)]
    assert "held-out.svg" not in {path.name for path in portrait_figures.draw_all(found, tmp_path)}
    found.append(run_with_held_out(50, [0.9]))
    assert "held-out.svg" in {path.name for path in portrait_figures.draw_all(found, tmp_path)}


def test_draw_table_writes_requested_figures(tmp_path, fast_savefig):
    found = [minimal_run(f"runs/{row}/seed-0", 0, loss_gradients=[1.0, 0.5]) for row in ("a", "b")]
    problems = [run_with_held_out(95, [0.5])]

    def drawn(runs, *kinds):
        paths = paper.draw_figures(runs, kinds, lambda name: tmp_path / f"t-{name}.png", "t")
        assert all(path.exists() for path in paths)
        return [path.name for path in paths]

    assert drawn(found, "attention") == ["t-gradients.png"]
    assert drawn(found, "gradients") == ["t-gradients.png", "t-a-gradients.png", "t-b-gradients.png"]
    assert drawn(found[:1], "gradients") == ["t-a-gradients.png"]
    assert drawn(found, "schur") == drawn(found) == []
    assert drawn(problems, "held-out") == ["t-held-out.png"]
    assert drawn(found, "held-out") == drawn(problems, "similarity") == []


# a problem and how a network relates its objects


def relation_example(matrix, channels=1):
    """Images of two by two pixels."""
    image = [["0f", "f8"]] * channels
    return {"images": [image] * len(matrix), "answer": 1, "answered": 0, "matrix": matrix}


def test_similarity_figure_shows_matrix_and_object_images():
    found = relation_example([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.001, 0.5, 0.499]])
    axis, _ = close_figure(portrait_figures.similarity(found, "corelnet")).axes
    matrix, *images = axis.images
    np.testing.assert_array_equal(matrix.get_array(), found["matrix"])
    assert (matrix.norm.vmin, matrix.norm.vmax) == (0, 1)
    for image in images:
        np.testing.assert_allclose(image.get_array(), [[[0] * 3, [1] * 3], [[1] * 3, [8 / 15] * 3]])
    places = [((x0 + x1) / 2, (y0 + y1) / 2) for x0, x1, y0, y1 in (image.get_extent() for image in images)]
    left, above = sorted(y for x, y in places if x < 0), sorted(x for x, y in places if y < 0)
    assert left == above == pytest.approx([0.5, 1.5, 2.5])
    texts = {text.get_position(): text.get_text() for text in axis.texts if text.get_text()}
    assert texts == {
        (0.5, 0.5): "1",
        (0.5, 1.5): "0.25",
        (1.5, 1.5): "0.75",
        (1.5, 2.5): "0.5",
        (2.5, 2.5): "0.5",
    }
    assert axis.get_title() == "corelnet\nanswers 0, right is 1"
    assert axis.get_ylim() == (3, -1.05)  # the first row is above, and no image is cut off


def test_similarity_colour_scale_is_symmetric_for_signed_values():
    axis, _ = close_figure(
        portrait_figures.similarity(relation_example([[0.0, -2.0], [2.0, None]], channels=3), "diff")
    ).axes
    assert (axis.images[0].norm.vmin, axis.images[0].norm.vmax) == (-2, 2)
    assert [text.get_text() for text in axis.texts] == ["", "-2", "2", ""]
    many = [[float(i == j) for j in range(13)] for i in range(13)]
    axis, _ = close_figure(portrait_figures.similarity(relation_example(many), "corelnet")).axes
    assert len(axis.texts) == 0
    axis, _ = close_figure(portrait_figures.similarity(relation_example([[0.0, 0.0], [0.0, 0.0]]), "nothing")).axes
    assert axis.images[0].norm.vmax == 1


def test_similarity_figure_is_written_and_deterministic(tmp_path):
    run = minimal_run("runs/a", similarity=relation_example([[1.0, 0.0], [0.5, 0.5]]))
    assert [path.name for path in portrait_figures.draw_run(run, "$a$", tmp_path / "a", "svg", ("similarity",))] == [
        "a-similarity.svg"
    ]
    assert "$a$" in (tmp_path / "a-similarity.svg").read_text("utf-8")
    one, other = (portrait_figures.draw_run(run, "a", tmp_path / name, "png", ("similarity",))[0] for name in "xy")
    assert one.read_bytes() == other.read_bytes()


def test_gate_and_gradient_figures_contain_portrait_values():
    run = make_run("ncgru")
    (axis,) = close_figure(portrait_figures.gates(run.portrait["gates"], "ncgru")).axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axis.lines}
    assert sorted(lines.values()) == sorted(run.portrait["gates"][key] for key in ("true", "bound"))
    (axis,) = close_figure(portrait_figures.gradients(run.portrait | {"loss_gradients": [1.0, 0.0]}, "ncgru")).axes
    assert axis.get_yscale() == "log"
    output, loss = (list(line.get_ydata()) for line in axis.lines)
    assert output == run.portrait["output_gradients"]
    assert loss[0] == 1.0
    assert math.isnan(loss[1])  # nothing, which a logarithm does not have


def test_drift_figure_has_curve_per_matrix_and_neumann_norm():
    run = make_run("ncgru")
    left, right = close_figure(portrait_figures.drift(run, "ncgru")).axes
    assert [line.get_label() for line in left.lines] == ["reset_l0", "update_l0", "candidate_l0"]
    for line in left.lines:
        seen = [row["matrices"][line.get_label()]["orthogonality_error"] for row in run.observations]
        assert (list(line.get_xdata()), list(line.get_ydata())) == ([0, 10], seen)
    assert list(right.lines[0].get_ydata()) == [0.1, 0.1]
    run = make_run("rnn")
    assert len(close_figure(portrait_figures.drift(run, "rnn")).axes) == 1


def test_formats_are_known_and_colours_unique():
    assert {f".{name}" for name in MAGIC} == figures.FORMATS.keys()
    assert len(set(figures.COLOURS)) == len(figures.COLOURS)


def test_maps_of_integer_logarithms_are_drawn(tmp_path, fast_savefig):
    """10**300 is an integer that no array of doubles holds."""
    run = minimal_run("runs/a", every=1, input_maps={"state": [[300], [0, None]]})
    assert "a-reach.svg" in [path.name for path in portrait_figures.draw_run(run, "a", tmp_path / "a", "svg")]
