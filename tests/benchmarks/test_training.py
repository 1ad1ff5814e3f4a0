"""The parts of an update are measured, and together they are no more than the whole."""

from benchmarks.timing import interleave
from benchmarks.training import HEADER, ROWS, contenders, shares
from steadygrad.experiments import select
from steadygrad.training import RunDirectory, Trainer


def test_every_benchmarked_recipe_exists():
    assert all(select(name) for name in ROWS)


def test_table_row_has_one_value_per_column(monkeypatch):
    monkeypatch.setattr("benchmarks.training.interleave", lambda who, seconds: interleave(who, seconds=0, turn=0))
    assert len(shares("ncgru-2022/parenthesis/scornn-100", 0.0)) == len(HEADER)


def test_timed_contenders_leave_parameters_unchanged(tmp_path):
    settings = select("ncgru-2022/parenthesis/scornn-100")[0].settings("smoke")
    trainer = Trainer(settings, RunDirectory(tmp_path), (), "cpu")
    before = trainer.weights()
    for contender in contenders(trainer):
        contender.prepare()
        contender.run()
    after = trainer.model.state_dict()
    assert all((after[key] - value).abs().max() < 1e-6 for key, value in before.items())
    assert trainer.step == 1
