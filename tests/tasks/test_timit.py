"""Speech to be predicted: two layouts of folders, three splits by speaker, frames, padding, loss."""

import math
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import nn

from steadygrad.tasks import SPLITS, TASKS, TIMIT, speech, timit
from steadygrad.training import Settings, Train, evaluate
from tests.data_sets import real_folder
from tests.fakes import SPEAKERS, STEPS, babble, riff, sphere, write_timit_sample

CORE, OTHERS = timit.CORE_TEST.split(), timit.DEVELOPMENT.split()


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("STEADYGRAD_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def sample(data):
    """Sentences of 0.3 to 0.4 s."""
    write_timit_sample(data, varied=1600)
    return data / "timit_sample"


@pytest.fixture
def full(data):
    """The folders of LDC93S1, with three of its speakers in TRAIN and one too many in TEST."""
    train, test = ["FAAA0", "MBBB0", "MCCC0"], [*CORE, *OTHERS, "MDDD0"]
    for part, speakers in (("TRAIN", train), ("TEST", test)):
        for number, speaker in enumerate(speakers):
            own = data / "timit" / part / f"DR{number % 8 + 1}" / speaker.upper()
            own.mkdir(parents=True)
            for name in ("SA1", "SI3", "SX5"):
                (own / f"{name}.WAV").write_bytes(sphere(babble(1600, seed=len(name) + number)))
                (own / f"{name}.PHN").write_text("0 1600 h#\n", "ascii")
    (data / "timit" / "DOC").mkdir()
    return data / "timit"


# the corpus


def test_task_is_created_without_data(data):
    task = TIMIT()
    assert task == TASKS["timit"]() == TIMIT(corpus="auto")
    assert (task.input_size, task.output_size, task.guessing_loss) == (129, 129, 1.0)
    assert task.training_steps == 3696 * task.steps
    assert TIMIT(corpus="sample").training_steps == 96 * task.steps
    assert Settings({"name": "lstm"}, {"name": "timit"}, Train()).build_task() == task


@pytest.mark.parametrize(
    ("corpus", "words"),
    [
        ("auto", ["a folder timit or timit_sample", "LDC93S1", "nltk.download"]),
        ("full", ["a folder timit in", "LDC93S1"]),
        ("sample", ["a folder timit_sample in", "nltk.download"]),
    ],
)
def test_missing_data_raises_value_error(corpus, words, data, monkeypatch):
    for root in (data, None):
        if root is None:
            monkeypatch.delenv("STEADYGRAD_DATA")
        for ask in (lambda task: task.count("test"), lambda task: task.sample(2, torch.Generator())):
            with pytest.raises(
                ValueError, match=r"^TIMIT expects .* in the one that \$STEADYGRAD_DATA names"
            ) as failed:
                ask(TIMIT(corpus=corpus))
            assert all(word in str(failed.value) for word in words)


def test_resolved_settings_record_corpus(sample):
    task = TIMIT()
    assert task.corpus == "sample"
    assert Settings({"name": "lstm"}, {"name": "timit"}, Train()).resolved()["task"]["corpus"] == "sample"
    (sample.parent / "timit").mkdir()
    assert TIMIT().corpus == "full"
    assert task.count("test") == TIMIT(corpus="sample").count("test") == 4


def test_data_added_after_creation_are_found(data):
    task = TIMIT()
    write_timit_sample(data)
    assert task.count("train") == 24


@pytest.mark.parametrize("value", [{"corpus": "whole"}, {"corpus": None}, {"normalised": 1}])
def test_invalid_options_raise_value_error(value):
    (name,) = value
    with pytest.raises(ValueError, match=f"TIMIT expects {name} to be "):
        TIMIT(**value)


def speakers(task):
    return {split: {recording.speaker for recording in task.part(split).recordings} for split in SPLITS}


def test_sample_corpus_is_split_by_speaker(sample):
    assert speakers(TIMIT()) == {
        "train": set(SPEAKERS[:12]),
        "valid": {"dr7-fabc7", "dr7-mabc7"},
        "test": {"dr8-fabc8", "dr8-mabc8"},
    }
    assert [TIMIT().count(split) for split in SPLITS] == [24, 4, 4]


@pytest.mark.parametrize("lower", [False, True])
def test_full_corpus_split_matches_papers(full, lower):
    """The real one has 462, 50 and 24 speakers with eight sentences each: 3696, 400 and 192, which the papers print."""
    if lower:
        for path in sorted(full.glob("**/*"), key=lambda path: -len(path.parts)):
            path.rename(path.with_name(path.name.lower()))
    found = speakers(TIMIT())
    assert found == {"train": {"faaa0", "mbbb0", "mccc0"}, "valid": set(OTHERS), "test": set(CORE)}
    assert [len(found[split]) * 8 for split in ("valid", "test")] == [400, 192]
    assert all(not found[a] & found[b] for a, b in combinations(SPLITS, 2))
    assert {recording.sentence for split in SPLITS for recording in TIMIT().part(split).recordings} == {"si3", "sx5"}
    assert [TIMIT().count(split) for split in SPLITS] == [6, 100, 48]


def test_core_test_set_has_24_speakers_8_female():
    assert len(set(CORE)) == 24
    assert sum(name.startswith("f") for name in CORE) == 8
    assert len(set(OTHERS)) == 50
    assert not set(CORE) & set(OTHERS)


def test_riff_copies_of_sphere_files_are_ignored(full):
    before = TIMIT().part("train").frames
    for path in full.glob("TRAIN/*/*/*.WAV"):
        path.with_name(f"{path.name}.wav").write_bytes(riff(babble(1600, seed=0)))
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7")  # what some systems leave beside a file
    timit.read.cache_clear()
    assert TIMIT().count("train") == len(before) == 6


def test_sa_sentences_are_excluded(sample):
    for speaker in sample.iterdir():
        (speaker / "sa1.wav").write_bytes(riff(babble(1600, seed=0)))
    assert {recording.sentence for recording in TIMIT().part("train").recordings} == {"si1", "sx2"}


def test_incomplete_corpus_raises_value_error(data, full):
    (full / "TEST" / "DR1" / CORE[0].upper()).rename(full / "TEST" / "DR1" / "MZZZ0")
    with pytest.raises(ValueError, match=rf"TIMIT expects the speaker {CORE[0]} in .*timit/TEST; got 75 others"):
        TIMIT().count("test")
    (full / "TRAIN").rename(full / "TRAINING")
    with pytest.raises(ValueError, match=r"TIMIT expects speakers in .*timit/TRAIN, such as DR1/FVMH0; got none"):
        TIMIT().count("test")
    (data / "timit_sample" / "dr1-fvmh0").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"speakers in .*timit_sample, such as dr1-fvmh0, five at least; got 1"):
        TIMIT(corpus="sample").count("test")


def test_truncated_or_missing_recordings_raise_value_error_with_name(sample):
    path = sample / SPEAKERS[0] / "sx2.wav"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"TIMIT expects \d+ samples in .*dr1-fabc1/sx2.wav; got \d+: it is cut off"):
        TIMIT().sample(2, torch.Generator())
    path.unlink()
    path.with_name("si1.wav").unlink()
    timit.read.cache_clear()
    with pytest.raises(ValueError, match=r"TIMIT expects recordings, \*.wav, in .*dr1-fabc1; got none besides sa1"):
        TIMIT().count("train")


def test_files_are_read_once(sample, monkeypatch):
    read, real = [], speech.read_speech
    monkeypatch.setattr(speech, "read_speech", lambda who, path: read.append(path) or real(who, path))
    for normalised in (True, False):
        task = TIMIT(normalised=normalised)
        for split in SPLITS:
            list(task.epoch(split, 2))
        assert task.guessing_loss > 0
    assert len(read) == len(set(read)) == 32


def test_reading_many_recordings_prints_note(sample, monkeypatch, capsys):
    for many, words in ((32, ""), (31, "TIMIT: reading 32 recordings\n")):
        monkeypatch.setattr(timit, "MANY", many)
        timit.read.cache_clear()
        TIMIT().count("train")
        assert capsys.readouterr() == ("", words)


# frames


def test_targets_are_next_frames(sample):
    task = TIMIT(normalised=False)
    inputs, targets = task.take("valid", torch.tensor([2]))
    signal = speech.read_speech("test", task.part("valid").recordings[2].path)
    frames = speech.log_magnitude(speech.stft(signal)).float()
    assert inputs.dtype == targets.dtype == torch.float32
    assert torch.equal(inputs[0], frames[:-1])
    assert torch.equal(targets[0], frames[1:])
    assert (frames[[0, -1]] == -50).all()


def test_shorter_sentences_are_padded(sample):
    task = TIMIT()
    alone = [task.take("train", torch.tensor([number])) for number in (0, 3)]
    inputs, targets = task.take("train", torch.tensor([0, 3]))
    lengths = [one.shape[1] for one, _ in alone]
    assert lengths[0] == STEPS < lengths[1] == inputs.shape[1]
    for row, length, (own_inputs, own_targets) in zip(range(2), lengths, alone, strict=True):
        assert torch.equal(inputs[row, :length], own_inputs[0])
        assert torch.equal(targets[row, :length], own_targets[0])
        assert not inputs[row, length:].any()
        assert targets[row, length:].isnan().all()
    assert task.weight(targets) == 129 * sum(lengths)


def test_normalised_training_targets_have_zero_mean_unit_square(sample):
    (_, targets) = TIMIT().take("train", torch.arange(24))
    real = targets[~targets.isnan()].view(-1, 129)
    torch.testing.assert_close(real.mean(0), torch.zeros(129), rtol=0, atol=1e-5)
    assert real.square().mean().item() == pytest.approx(1)
    plain = TIMIT(normalised=False).take("train", torch.arange(24))[1]
    torch.testing.assert_close(TIMIT().decibels(targets), plain, equal_nan=True)


# loss


@pytest.fixture
def batch(sample):
    _, targets = TIMIT().take("train", torch.arange(6))
    return torch.randn(targets.shape), targets


def test_loss_is_mean_square_over_unpadded_frames(batch):
    outputs, targets = batch
    squares = [
        (o - t) ** 2
        for o, t in zip(outputs.flatten().tolist(), targets.flatten().tolist(), strict=True)
        if not math.isnan(t)
    ]
    assert len(squares) < targets.numel()
    assert TIMIT().loss(outputs, targets).item() == pytest.approx(sum(squares) / len(squares), rel=1e-5)


def test_padding_has_no_gradient_and_nan_output_gives_nan_loss(batch):
    outputs, targets = batch
    outputs[targets.isnan()] = math.inf
    outputs.requires_grad_()
    TIMIT().loss(outputs, targets).backward()
    assert outputs.grad.isfinite().all()
    assert torch.equal(outputs.grad == 0, targets.isnan())
    broken = outputs.detach().clone()
    broken[0, 0, 0] = math.nan
    assert TIMIT().loss(broken, targets).isnan()


def test_evaluation_is_independent_of_batch_size(sample):
    model = nn.Linear(129, 129)
    one, two, all_ = (evaluate(model, TIMIT(), 0, split="valid", batch=batch) for batch in (1, 3, 4))
    assert one == pytest.approx(all_, rel=1e-5)
    assert two == pytest.approx(all_, rel=1e-5)


class RepeatFrame(nn.Module):
    """Says that the next frame is like this one."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x


def test_mse_is_in_squared_decibels_with_and_without_normalisation(sample):
    plain, normalised = (evaluate(RepeatFrame(), TIMIT(normalised=flag), 0, split="test") for flag in (False, True))
    frames = TIMIT().part("test").frames
    by_hand = torch.cat([(one[1:] - one[:-1]).square() for one in frames]).mean().item()
    assert plain["mse"] == plain["loss"] == pytest.approx(by_hand, rel=1e-5)
    assert normalised["mse"] == pytest.approx(by_hand, rel=1e-5)
    assert normalised["loss"] < normalised["mse"]


@pytest.mark.parametrize("normalised", [True, False])
def test_guessing_loss_is_that_of_mean_frame(sample, normalised):
    """And no other frame does better: there the gradient is zero."""
    task = TIMIT(normalised=normalised)
    _, targets = task.take("train", torch.arange(24))
    targets = targets.double()
    frame = targets[~targets.isnan()].view(-1, 129).mean(0).requires_grad_()
    loss = task.loss(frame.expand(targets.shape), targets)
    loss.backward()
    assert task.guessing_loss == pytest.approx(loss.item(), rel=1e-5)
    assert frame.grad.abs().max() < 1e-9


# the real thing


@pytest.mark.skipif(
    not Path(real_folder() or "", "timit_sample", "dr8-fbcg1").is_dir(), reason="needs timit_sample in $STEADYGRAD_DATA"
)
def test_nltk_sample_has_known_splits_and_finite_frames(monkeypatch):
    monkeypatch.setenv("STEADYGRAD_DATA", str(real_folder()))
    task = TIMIT(corpus="sample")
    assert [task.count(split) for split in SPLITS] == [96, 16, 16]
    assert speakers(task)["valid"] == {"dr7-fblv0", "dr7-madd0"}
    assert speakers(task)["test"] == {"dr8-fbcg1", "dr8-mbcg0"}
    frames = torch.cat([one for split in SPLITS for one in task.part(split).frames])
    assert frames.isfinite().all()
    assert frames.min() >= -50
    assert 10 < frames.max() < 45
    again = evaluate(RepeatFrame(), task, 0, split="test")
    assert again["mse"] < 0.25 * TIMIT(corpus="sample", normalised=False).guessing_loss
