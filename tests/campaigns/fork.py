"""Children forked after layers were used with two threads: they must neither hang nor get other numbers."""

import os
import random
import signal
import time

import torch
from torch import Tensor

from steadygrad.layers import LAYERS
from tests.campaigns.campaign import Campaign

TIMEOUT = 60.0  # seconds that a child may take on a busy machine; it needs a fraction of one
FIRST = ["rellstm", "urnn", "scurnn", "nnrnn", "lstm", "gru", "exprnn", "memrnn"]


def use(name: str, seed: int) -> bytes:
    """Return outputs and gradients of a layer as bytes, from a batch that is large enough for two threads."""
    torch.manual_seed(seed)
    layer, x = LAYERS[name](8, 48), torch.randn(40, 24, 8, requires_grad=True)
    output, _ = layer(x)
    output.sum().backward()
    assert x.grad is not None
    gradients = [p.grad for p in layer.parameters() if p.grad is not None]
    return b"".join(part.detach().numpy().tobytes() for part in (output, x.grad, *gradients))


def child_outcome(name: str, seed: int, expected: bytes) -> str:
    """Fork a child that uses a layer. Return "" if it got the expected numbers, else what went wrong."""
    child = os.fork()
    if not child:
        code = 3
        try:
            code = 0 if use(name, seed) == expected else 1
        finally:
            os._exit(code)
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return {0: "", 1: "other numbers", 3: "an exception"}.get(code, f"exit code {code}")
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"no end after {TIMEOUT:.0f} s"


def one_thread(name: str, seed: int) -> bytes:
    """Return the numbers of `use` with one thread, which a child has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return use(name, seed)
    finally:
        torch.set_num_threads(before)


def warm_up(name: str) -> Tensor:
    """Use torch's threads and the kernels', so that a child inherits pools without threads."""
    use(name, 0)
    return torch.ones(400, 400) @ torch.ones(400, 400)


def children(threads: int, number: int, seed: int) -> list[str]:
    """Fork children after use with this number of threads, and return what went wrong."""
    torch.set_num_threads(threads)
    found = []
    for index in range(number):
        name = FIRST[index % len(FIRST)]
        expected = one_thread(name, seed + index)
        warm_up(name)
        if outcome := child_outcome(name, seed + index, expected):
            found.append(f"{name}: {outcome}")
    return found


def run(campaign: Campaign) -> None:
    """Fork after use with two threads: one child a try, with a random layer."""
    if not hasattr(os, "fork"):
        return
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for rng in campaign.tries():
            try_child(campaign, rng)
    finally:
        torch.set_num_threads(before)


def try_child(campaign: Campaign, rng: random.Random) -> None:
    """Fork one child and record how it ended."""
    name, seed = rng.choice(sorted(LAYERS)), rng.randrange(10**6)
    expected = one_thread(name, seed)
    warm_up(rng.choice(FIRST))
    if outcome := child_outcome(name, seed, expected):
        campaign.fail(f"a forked child with {name}: {outcome}")
    campaign.count("forked children")
