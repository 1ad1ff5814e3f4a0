"""Two processes train as one: DDP, FSDP2 and Lightning Fabric give the gradients of one process on the whole batch.

All cases run in one pair of processes, because starting them takes seconds.
"""

import contextlib
import multiprocessing
import traceback
import warnings

import pytest
import torch
from torch import distributed, nn
from torch.testing import assert_close

from steadygrad.layers import LAYERS
from tests.rounding import rounding

I, N, TIME, BATCH = 3, 6, 5, 4
OPTIONS = {"rnn-orth": {"pull": 0.1}}
SHARDED = ["rnn-orth", "exprnn", "nnrnn", "ncgru", "lstm", "urnn", "eurnn", "enrnn", "cornn", "rellstm"]
BOUND = rounding(torch.float64, 2 * N + I, 2 * TIME, 100.0)
START = 90  # seconds for two processes to import torch on a busy machine


def make(name):
    torch.manual_seed(0)
    return LAYERS[name](I, N, dtype=torch.float64, **OPTIONS.get(name, {}))


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(TIME, BATCH, I, dtype=torch.float64, generator=generator)


def loss(layer, penalty, x):
    return layer(x)[0].square().mean() + penalty()


def expected(name):
    """Return the gradients and matrices in one process."""
    layer = make(name)
    loss(layer, layer.penalty, batch()).backward()
    return [p.grad for p in layer.parameters()], layer.matrices()


def with_ddp(name, x):
    layer = make(name)
    wrapped = nn.parallel.DistributedDataParallel(layer)
    loss(wrapped, layer.penalty, x).backward()
    return [p.grad for p in layer.parameters()], layer.matrices()


def with_fsdp(name, x):
    from torch.distributed.fsdp import fully_shard

    layer = make(name)
    fully_shard(layer)
    loss(layer, layer.penalty, x).backward()
    layer.eval()  # no stale matrix may come from the cache
    with torch.no_grad():
        layer.matrices()
    return [p.grad.full_tensor() for p in layer.parameters()], layer.matrices()


def with_fabric(name, x):
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments import LightningEnvironment

    class Existing(LightningEnvironment):
        """The process group of this test."""

        creates_processes_externally = True

        def global_rank(self):
            return distributed.get_rank()

        local_rank = global_rank

        def world_size(self):
            return distributed.get_world_size()

    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=2, plugins=[Existing()])
    fabric.launch()
    layer = make(name)
    wrapped, _ = fabric.setup(layer, torch.optim.SGD(layer.parameters()))
    fabric.backward(loss(wrapped, layer.penalty, x))
    return [p.grad for p in layer.parameters()], layer.matrices()


WRAPPERS = {"ddp": with_ddp, "fsdp": with_fsdp, "fabric": with_fabric}
CASES = [*(("ddp", name) for name in ("exprnn", "lstm", "ncgru")), *(("fsdp", name) for name in SHARDED)]
FABRIC = ("fabric", "nnrnn")


def run(rank, address, cases, results):
    """Run all cases in one of two processes. Rank 0 puts the error of each, or None, into ``results``."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    x = batch()[:, rank::2].clone()
    for wrapper, name in cases:
        error = None
        try:
            gradients, matrices = WRAPPERS[wrapper](name, x)
            known, whole = expected(name)
            assert all(type(W) in (torch.Tensor, nn.Parameter) for W in matrices.values())
            assert_close(list(matrices.values()), list(whole.values()), rtol=0, atol=BOUND)
            assert_close(gradients, known, rtol=0, atol=BOUND)
        except Exception:
            error = traceback.format_exc()
        if rank == 0:
            results.put(((wrapper, name), error))
    with contextlib.suppress(Exception):
        distributed.destroy_process_group()


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """Return the error of each case, or None, as a dict."""
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("torch was built without gloo")
    with contextlib.suppress(ImportError):
        import lightning_fabric  # noqa: F401

        CASES.append(FABRIC)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    address = (tmp_path_factory.mktemp("rendezvous") / "file").as_uri()
    pair = [context.Process(target=run, args=(rank, address, CASES, results)) for rank in (0, 1)]
    for process in pair:
        process.start()
    try:
        return dict(results.get(timeout=START) for _ in CASES)
    finally:
        for process in pair:
            process.join(5)
            process.kill()


@pytest.mark.parametrize(("wrapper", "name"), CASES, ids=["-".join(case) for case in CASES])
def test_gradients_and_matrices_are_those_of_one_process(wrapper, name, errors):
    assert errors[wrapper, name] is None, errors[wrapper, name]


def test_fabric(errors):
    pytest.importorskip("lightning_fabric", reason="lightning-fabric is not installed")
    assert errors[FABRIC] is None, errors[FABRIC]
