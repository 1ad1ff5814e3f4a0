"""Memory runs out, a signal arrives, the process forks: an error or the same numbers, never a crash or a hang."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from steadygrad.kernels import exponential_backward, exponential_forward, matmul, native
from steadygrad.kernels.backend import VARIABLE
from steadygrad.layers import GORU, GRU, LSTM, RNN, ExpRNN, MemLSTM, RelRNN, ScuRNN
from tests.backends import needs_c

pytestmark = needs_c


def run_layer(make, **options):
    torch.manual_seed(0)
    layer, x = make(3, 40, **options), torch.randn(30, 8, 3, requires_grad=True)

    def run():
        for leaf in (x, *layer.parameters()):
            leaf.grad = None
        output, _ = layer(x)
        output.pow(2).sum().backward()
        return [output.detach(), x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]

    return run


def run_products():
    A, B = torch.ones(150, 100), torch.ones(100, 120)
    S, table = torch.linspace(-0.1, 0.1, 10_000).view(100, 100), torch.linspace(0, 1, 16).view(4, 4)
    S = S - S.mT

    def run():
        X, *saved = exponential_forward(S, S @ S, table)
        return [matmul(A, B), X, exponential_backward(torch.ones_like(X), S, *saved, table)]

    return run


def run_streams():
    layers, x = [make(3, 40) for make in (RNN, GRU, LSTM, RelRNN)], torch.randn(1, 3)

    def run():
        streams = [layer.stream() for layer in layers]
        return [stream(x) for stream in streams]

    return run


CASES = {
    "elman": lambda: run_layer(RNN),
    "complex": lambda: run_layer(ScuRNN),
    "gru": lambda: run_layer(GRU),
    "gru, reset after": lambda: run_layer(GORU),
    "lstm": lambda: run_layer(LSTM),
    "exponential": lambda: run_layer(ExpRNN),
    "attention": lambda: run_layer(RelRNN),
    "attention, lstm": lambda: run_layer(MemLSTM),
    "products": run_products,
    "streams": run_streams,
}


def runs(run):
    """Whether memory suffices."""
    try:
        run()
    except MemoryError:
        return False
    return True


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_each_request_for_memory_fails_in_turn(name, threads, monkeypatch):
    """A MemoryError each time; no block stays in use, and the next call gives the same numbers."""
    monkeypatch.setenv(VARIABLE, "c")
    torch.set_num_threads(threads)
    library, run = native.library(), CASES[name]()
    expected, before = run(), library.steadygrad_borrowed()
    failed = 0
    while True:
        library.steadygrad_fail_request(failed + 1)
        enough = runs(run)
        if library.steadygrad_fail_request(0):  # there are no more requests
            break
        assert not enough
        failed += 1
        assert library.steadygrad_borrowed() == before
        if failed % 5 == 0:
            assert all(map(torch.equal, run(), expected))
    assert enough
    assert all(map(torch.equal, run(), expected))
    assert library.steadygrad_borrowed() == before
    assert failed >= 4
    print(f"{name}: {failed} requests failed in turn")


SIGNAL_SCRIPT = """
import os, signal, sys, threading, time, torch
from steadygrad.kernels import Steps, native
from steadygrad.layers import LAYERS

name, phase, raising, threads, time_steps = sys.argv[1], sys.argv[2], sys.argv[3] == "raise", *map(int, sys.argv[4:])
torch.set_num_threads(threads)
layer, x = LAYERS[name](1, 4), torch.ones(time_steps, 4, 1)
steps = Steps.padded(time_steps, 4)
steps.offsets_tensor  # takes time in Python, which Ctrl-C interrupts anyway
walked = layer(x) if phase == "backward" else None
sent, handled = [], []

def handler(number, frame):
    handled.append(time.perf_counter())
    if raising:
        raise KeyboardInterrupt

def send():
    time.sleep(0.2)
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)

original = native.run
def watched(kernel, *rest):  # sends the signal once the walk has begun
    if kernel.endswith(phase) and not sent:
        signal.signal(signal.SIGINT, handler)
        threading.Thread(target=send).start()
        begun.append(time.perf_counter())
        try:
            return original(kernel, *rest)
        finally:
            ended.append(time.perf_counter())
    return original(kernel, *rest)

begun, ended = [], []
native.run = watched
outcome = "finished"
try:
    if walked is None:
        layer(x)
    else:
        walked[0].backward(torch.ones_like(walked[0]))
except KeyboardInterrupt:
    outcome = "interrupted"
print(outcome, ended[0] - begun[0], handled[0] - sent[0], native.library().steadygrad_borrowed())
"""


def signalled(name, phase, raising, threads, time_steps=2_000_000):
    """Outcome of a walk that gets SIGINT after 0.2 s: what happened, its duration, the delay, blocks in use."""
    arguments = [name, phase, "raise" if raising else "return", str(threads), str(time_steps)]
    command = [sys.executable, "-c", SIGNAL_SCRIPT, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {VARIABLE: "c"})
    assert ended.returncode == 0, ended.stderr
    outcome, *numbers = ended.stdout.split()
    return outcome, *map(float, numbers)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")
@pytest.mark.parametrize(("name", "phase", "threads"), [("lstm", "forward", 2), ("gru", "backward", 1)])
def test_ctrl_c_ends_a_long_walk_within_half_a_second(name, phase, threads):
    outcome, _, delay, borrowed = signalled(name, phase, True, threads)
    assert (outcome, borrowed) == ("interrupted", 0)
    assert delay < 0.5


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")
def test_handler_that_returns_does_not_end_the_walk():
    outcome, duration, delay, borrowed = signalled("lstm", "forward", False, 1)
    assert (outcome, borrowed) == ("finished", 0)
    assert delay < 0.5
    assert delay + 0.2 < duration  # the handler ran during the walk, not after it


FORK_SCRIPT = """
import os, sys, torch
from tests.campaigns import fork
sys.exit(fork.children(2, 24, seed=0) != [])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_layers_work_in_forked_children_after_use_with_two_threads():
    """24 children, each with the forward and backward pass of a layer, among them the ones that hung: rellstm, urnn."""
    subprocess.run([sys.executable, "-c", FORK_SCRIPT], check=True, timeout=300)
