"""What a run shows while it lasts."""

import io

import pytest
from rich.console import Console

from steadygrad.duration import duration
from steadygrad.training import Callback, ShowProgress, TensorBoard, progress, train


def plain_console():
    return Console(file=io.StringIO(), width=200)


def terminal_console():
    return Console(file=io.StringIO(), width=200, force_terminal=True)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (125.4, "2 min 05 s"),
        (3599, "59 min 59 s"),
        (3900, "1 h 05 min"),
    ],
)
def test_duration_formats_seconds(seconds, words):
    assert duration(seconds) == words


def test_plain_output_gets_progress_lines_after_quiet_seconds(tmp_path, tiny, monkeypatch):
    console = plain_console()
    train(tiny(), tmp_path / "quiet", callbacks=[ShowProgress("quick", console)])
    assert console.file.getvalue() == ""
    monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
    train(tiny(), tmp_path / "run", callbacks=[ShowProgress("gru copy", console)])
    spoken = console.file.getvalue().splitlines()
    lines = [line for line in spoken if "  valid " not in line]
    assert len(lines) == 30
    assert [line.split("  valid ")[1][:4] for line in spoken if line not in lines] == ["100%"] * 3
    assert lines[0].startswith("gru copy: 1/30  loss 2.")
    assert "accuracy" not in lines[8]  # not evaluated yet
    assert "  accuracy 0" in lines[-1]
    assert all(" updates/s  " in line and line.endswith(" s left") for line in lines)


def test_note_is_printed_once_run_has_begun(tmp_path, tiny):
    console = plain_console()
    callback = ShowProgress("gru copy", console, note="settings: mine")
    with pytest.raises(ValueError, match="unknown key 'units'"):
        train(tiny({"name": "gru", "units": 3}), tmp_path / "run", callbacks=[callback])
    assert console.file.getvalue() == ""
    train(tiny(steps=1), tmp_path / "run", callbacks=[callback])
    assert console.file.getvalue() == "settings: mine\n"


def test_terminal_shows_live_line_and_removes_it(tmp_path, tiny):
    console = terminal_console()
    callback = ShowProgress("gru copy", console)
    train(tiny(), tmp_path / "run", callbacks=[callback])
    assert "gru copy" in console.file.getvalue()
    assert not callback.live.live.is_started


def test_transfer_progress_is_printed_after_quiet_seconds(monkeypatch):
    console = plain_console()
    callback = ShowProgress("gru copy", console)
    for done in (0, 30, 60):
        callback.tested("delay 9", done, 60)
    assert console.file.getvalue() == ""  # quick ones need no words
    monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
    callback.tested("delay 9", 30, 60)
    line = console.file.getvalue()
    assert line.startswith("gru copy: 30/60  time steps tested  delay 9  ")
    assert line.endswith(" s left\n")


def test_remaining_time_is_zero_beyond_total(monkeypatch):
    monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
    console = plain_console()
    callback = ShowProgress("", console)
    callback.start(0, 8)
    callback.show(12, 8, lambda: "frames")
    assert console.file.getvalue() == "12/8  frames  0 s left\n"


def test_transfer_progress_on_terminal_is_live_and_removed():
    console = terminal_console()
    callback = ShowProgress("gru copy", console)
    callback.tested("delay 9", 0, 60)
    assert callback.live.live.is_started
    callback.close()
    assert "gru copy" in console.file.getvalue()
    assert not callback.live.live.is_started


def test_resume_is_announced(tmp_path, tiny):
    train(tiny(steps=20), tmp_path / "run")
    console = plain_console()
    train(tiny(steps=30), tmp_path / "run", resume=True, callbacks=[ShowProgress("gru copy", console)])
    assert console.file.getvalue() == "gru copy: going on from update 20\n"


def test_live_line_is_removed_when_run_fails(tmp_path, tiny):
    class Fail(Callback):
        def update(self, trainer, loss):
            raise OSError("no disk")

    callback = ShowProgress("gru copy", terminal_console())
    try:
        with pytest.raises(OSError, match="no disk"):
            train(tiny(), tmp_path / "run", callbacks=[callback, Fail()])
        assert not callback.live.live.is_started
    finally:
        callback.live.stop()


def test_tensorboard_writes_events_or_names_missing_package(tmp_path, tiny):
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        with pytest.raises(ValueError, match=r"tensorboard is not installed: pip install steadygrad\[tensorboard\]"):
            TensorBoard()
        return
    train(tiny(), tmp_path / "run", callbacks=[TensorBoard()])
    assert list((tmp_path / "run" / "tensorboard").iterdir())
