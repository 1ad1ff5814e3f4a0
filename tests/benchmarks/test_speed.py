"""The benchmark's arithmetic, with a clock that only moves when told, and one quick run of everything."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import report, speed
from benchmarks.claims import LIMIT, MATRIX_CLAIMS, MEMORY_CLAIMS, STEP_CLAIMS, Claim, judged
from benchmarks.contenders import CANDIDATES, SIZES, Size, Update, training_step
from benchmarks.limit import LIMITS, WALK_ABI, Products, flops
from benchmarks.matrices import BUILD
from benchmarks.peers import MissingError, optional
from benchmarks.timing import MOST_STEPS, TURN, Contender, Spread, Timings, interleave, steps_in_turn
from steadygrad.kernels import native
from steadygrad.matrices import MATRICES

ROOT = Path(__file__).parents[2]
SMALL = Size(3, 5, 8, 2)


class Clock:
    """Seconds that pass only where a test says so, and who spent them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def contender(self, name, *durations, prepare=0.0, every=1):
        """Runs as long as ``durations`` say, one after the other and from the start again."""
        turns = iter(())

        def run():
            nonlocal turns
            self.log.append(name)
            try:
                self.now += next(turns)
            except StopIteration:
                turns = iter(durations)
                self.now += next(turns)

        def spend():
            self.now += prepare

        return Contender(name, run, spend, every)


@pytest.fixture
def clock():
    return Clock()


def test_ratio_is_computed_per_round_and_ignores_slow_rounds(clock):
    """The machine slows down threefold in the second of three rounds; the ratio does not notice."""
    a, b = clock.contender("a", 2.0, 6.0, 2.0), clock.contender("b", 1.0, 3.0, 1.0)
    timings = interleave([a, b], 0, least=3, warmup=0, clock=clock)
    assert timings.ratio("a", "b") == Spread(2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3)
    assert timings.spread("a").median == 2.0
    assert timings.spread("a").most == 6.0
    assert timings.fastest(["a", "b"]) == "b"


def test_preparation_is_not_timed(clock):
    timings = interleave([clock.contender("a", 1.0, prepare=100.0)], 0, least=2, warmup=1, clock=clock)
    assert timings.spread("a").most == 1.0


def test_order_rotates_and_every_option_skips_rounds(clock):
    fast = [clock.contender(name, 1.0) for name in "abc"]
    timings = interleave([*fast, clock.contender("s", 9.0, every=2)], 0, least=4, warmup=0, clock=clock)
    assert "".join(clock.log) == "abcs" + "bca" + "csab" + "abc"
    assert timings.spread("s").rounds == 2
    assert timings.ratio("s", "a") == Spread(9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 2)


def test_contenders_that_skip_rounds_still_warm_up(clock):
    interleave([clock.contender("a", 1.0), clock.contender("s", 9.0, every=4)], 0, least=1, warmup=2, clock=clock)
    assert sorted(clock.log[:4]) == ["a", "a", "s", "s"]


def test_number_of_rounds_follows_time_budget(clock):
    done: list[int] = []
    timings = interleave([clock.contender("a", 1.0)], 10, least=3, warmup=2, clock=clock, after_round=done.append)
    assert timings.spread("a").rounds == 10
    assert done == list(range(1, 11))
    assert clock.now == 12.0


def test_fast_contenders_get_several_steps_a_turn(clock):
    """A turn counts by the median of its steps: here 2, 3 and 3 hundredths of a second."""
    brief = clock.contender("brief", 0.03, 0.02, 0.03, 0.03)
    long = clock.contender("long", 1.0)
    timings = interleave([brief, long], 0, least=1, warmup=1, clock=clock)
    assert timings.steps == {"brief": 3, "long": 1}
    assert timings.spread("brief").median == pytest.approx(0.03)
    assert steps_in_turn(TURN, 2 * TURN) == steps_in_turn(0, 0.001) == 1
    assert steps_in_turn(TURN, 0) == steps_in_turn(TURN, TURN / 1000) == MOST_STEPS


def test_garbage_collection_is_disabled_while_timing(clock):
    seen: list[bool] = []
    interleave([Contender("a", lambda: seen.append(gc.isenabled()))], 0, least=2, warmup=1)
    assert seen
    assert not any(seen)
    assert gc.isenabled()


def test_two_contenders_of_one_name_are_refused(clock):
    with pytest.raises(ValueError, match="different names; got a, a"):
        interleave([clock.contender("a", 1.0)] * 2, 0, clock=clock)


def test_spread_has_median_quantiles_and_extremes():
    spread = Spread.of([5.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0])
    assert (spread.median, spread.low, spread.high, spread.least, spread.most, spread.rounds) == (6, 2, 10, 1, 11, 11)
    assert Spread.of([1.0, 2.0]).low == pytest.approx(1.1)
    with pytest.raises(ValueError, match="at least one"):
        Timings({"a": {0: 1.0}, "b": {1: 1.0}}).ratio("a", "b")


def test_claim_verdict_compares_ratio_with_bound():
    floor, ceiling = Claim("f", "a", "b", (2.0, 3.0)), Claim("c", "a", "b", 1.3, at_most=True)
    assert judged(floor, 2.5, floor.bound(0))["holds"]
    assert judged(floor, 2.5, floor.bound(1))["holds"] is False
    assert judged(ceiling, 1.2, ceiling.bound(4))["holds"]
    assert report.with_verdict(judged(ceiling, 1.4, 1.3)) == "1.40 ≤ 1.3 above"
    assert report.with_verdict(judged(floor, Spread.of([2.0]), 2.0)) == "2.00 (2.00–2.00) ≥ 2 ok"
    assert judged(Claim("n", "a", "b"), 1.0, None)["holds"] is None


def test_claims_name_contenders_and_have_a_bound_for_each_size():
    known = {*CANDIDATES, LIMIT}
    for claim in (*STEP_CLAIMS, *MEMORY_CLAIMS):
        assert {claim.above, claim.below} <= known
        assert not isinstance(claim.bounds, tuple) or len(claim.bounds) == len(SIZES)
    assert all(claim.below in MATRICES for claim in MATRIX_CLAIMS)
    assert BUILD.keys() >= MATRICES.keys()


@pytest.mark.parametrize("name", CANDIDATES)
def test_training_step_changes_parameters_and_fills_gradients(name):
    """The output has the shape that all share, every parameter gets a gradient, and no two steps see equal values."""
    try:
        step = training_step(name, SMALL)
    except MissingError as reason:
        pytest.skip(str(reason))
    before = [p.detach().clone() for p in step.layer.parameters()]
    step.prepare()
    assert all(not torch.equal(p, old) for p, old in zip(step.layer.parameters(), before, strict=True))
    step.run()
    assert step.layer(step.x)[0].shape == (SMALL.time, SMALL.batch, SMALL.hidden)
    assert all(p.grad is not None for p in step.layer.parameters())


def test_two_updates_cancel():
    p = torch.nn.Parameter(torch.zeros(3))
    update = Update([p], torch.Generator().manual_seed(0))
    start = p.detach().clone()
    update()
    assert not torch.equal(p, start)
    update()
    torch.testing.assert_close(p.detach(), start)


@pytest.fixture
def products():
    torch.manual_seed(0)
    return Products(Size(5, 4, 7, 3))


def run_limit(name, products):
    """What the loop of this name leaves: states, deltas, and the gradients of W and U."""
    try:
        LIMITS[name](products)()
    except MissingError as reason:
        pytest.skip(str(reason))
    return [tensor.clone() for tensor in (products.states, products.deltas, products.dW, products.dU)]


def test_bare_matmul_loops_match_reference_products(products):
    states, deltas, dW, dU = run_limit("limit: torch.mm a step", products)
    expected = products.initial
    for state in states.split(5):
        expected = expected @ products.W.mT
        torch.testing.assert_close(state, expected)
    torch.testing.assert_close(dW, deltas.mT @ states)
    torch.testing.assert_close(dU, products.x.mT @ deltas)
    for found, expected in zip(run_limit("limit: sgemm by slices", products), [states, deltas, dW, dU], strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["limit: C chains, torch.mm", "limit: C chains, own products"])
def test_c_chains_match_reference_products(name, products):
    _, back, *_ = run_limit("limit: torch.mm a step", products)
    states, deltas, dW, dU = run_limit(name, products)
    before = torch.cat([products.initial, states[:-5]])
    torch.testing.assert_close(states, products.x @ products.U.mT + before @ products.W.mT)
    torch.testing.assert_close(deltas, back)
    torch.testing.assert_close(dW, deltas.mT @ states)
    torch.testing.assert_close(dU, products.x.mT @ deltas)


def test_c_walk_matches_autograd_of_linear_network(products):
    run_limit("limit: C walk", products)
    U, W = (t.clone().requires_grad_() for t in (products.U, products.W))
    h, states = products.initial, []
    for x in products.x.split(5):
        h = x @ U.mT + h @ W.mT
        states.append(h)
    torch.cat(states).backward(products.G)
    torch.testing.assert_close(products.dW, W.grad)
    torch.testing.assert_close(products.dU_walk, U.grad)


def test_limit_benchmark_uses_current_c_abi():
    """When this fails, `c_walk` in benchmarks/limit.py wants the arguments of the new elman_backward."""
    assert native.ABI == WALK_ABI


def test_flops_count_the_products():
    B, T, N, I = size = Size(2, 3, 4, 5)
    recurrent, inputs = 2 * B * N * N, 2 * B * N * I
    assert flops(size) == T * (3 * recurrent + 2 * inputs)


def test_missing_optional_package_is_named_in_error():
    with pytest.raises(MissingError, match="no_such_package is not installed"):
        optional("no_such_package")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["--sizes", "0,9"], "expects numbers 0 … 4"),
        (["--sizes", "x"], "expects numbers 0 … 4"),
        (["--seconds", "0"], "expects a number above 0"),
        (["--turn", "-1"], "expects a number of at least 0"),
        (["--threads", "two"], "invalid int value: 'two'"),
        (["--only", "speed"], "invalid choice"),
        (["--json", "no/such/folder/file.json"], "expects a file in an existing folder"),
        (["--load", "no_such_file.json"], "cannot read no_such_file.json"),
    ],
)
def test_invalid_arguments_exit_with_one_line_message(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as stop:
        speed.main(arguments)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Run the whole program once, at its smallest.

    It uses one thread, because other tests may run beside it. A turn is one step, because the test needs every number
    and not a precise one.
    """
    file = tmp_path_factory.mktemp("speed") / "result.json"
    command = [sys.executable, "benchmarks/speed.py", "--quick", "--threads", "1", "--turn", "0", "--json", str(file)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run, file


def test_quick_run_measures_everything(quick):
    _, file = quick
    result = json.loads(file.read_text("utf-8"))
    assert result["machine"]["threads"] == 1
    assert result["machine"]["kernels"]
    assert result["versions"]["torch"] == torch.__version__
    (steps,), (matrices,), (memory,) = result["steps"], result["matrices"], result["memory"]

    expected = {*CANDIDATES, *LIMITS, LIMIT} - steps["missing"].keys()
    assert steps["size"] == SIZES[0]._asdict()
    assert steps["milliseconds"].keys() >= expected
    assert f"limit: {steps['limit']}" in LIMITS
    assert steps["flop_bound_milliseconds"] > 0
    assert {ratio["label"] for ratio in steps["ratios"]} == {
        claim.label for claim in STEP_CLAIMS if {claim.above, claim.below} <= expected
    }
    assert matrices["milliseconds"].keys() >= MATRICES.keys()
    for spread in (*steps["milliseconds"].values(), *matrices["milliseconds"].values(), *steps["ratios"]):
        assert 0 < spread["least"] <= spread["low"] <= spread["median"] <= spread["high"] <= spread["most"]
        assert spread["rounds"] >= 2
    assert all(megabytes > 0 for megabytes in memory["megabytes"].values())


def test_quick_run_prints_tables_and_progress(quick):
    run, file = quick
    for title in (
        "Training step (ms)",
        "Training step, ratios",
        "The limit",
        "A matrix, ratios",
        "Peak memory, ratios",
    ):
        assert f"**{title}**" in run.stdout
    assert "≥ 4.5 " in run.stdout
    assert "training steps at 10, 220, 128, 10 ..." in run.stderr
    assert list(file.parent.iterdir()) == [file]


def test_load_option_prints_readme_table_from_saved_json(quick, capsys):
    _, file = quick
    speed.main(["--load", str(file), "--readme"])
    table = capsys.readouterr().out
    assert table.startswith("| batch, time, hidden, input | 10, 220, 128, 10 |")
    assert "| nn.RNN / expRNN | " in table
    assert "| torch.matrix_exp / exponential | " in table
    assert "**" not in table
    speed.main(["--load", str(file), "--markdown"])
    assert capsys.readouterr().out == quick[0].stdout


def test_rich_output_shows_every_table_title(quick, capsys):
    pytest.importorskip("rich")
    tables = list(report.full(json.loads(quick[1].read_text("utf-8"))))
    report.show_rich(tables)
    shown = capsys.readouterr().out
    assert all(table.title in shown for table in tables)
