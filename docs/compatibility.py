"""Write docs/compatibility.md: which layer works with which part of PyTorch, compared with eager values.

python docs/compatibility.py                                       run every cell of the table, about 40 minutes
python docs/compatibility.py --jobs 2                              run two cells at a time
python docs/compatibility.py --columns vmap jvp --layers gru lem   run these cells only; the others stay as they are
python docs/compatibility.py --failed                              run only the cells that failed or were never run

A column is a function that takes a `Case` and raises if its layer fails: add one with the decorator `column`. Every
cell runs in a process of its own on one thread, in double precision. Its limit is in seconds of processor time, so
other programs on the machine cause no failures.
"""

import argparse
import io
import multiprocessing
import queue
import re
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
from torch import Tensor, distributed, nn
from torch.export import Dim, export
from torch.func import functional_call, vmap
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.checkpoint import checkpoint

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from steadygrad.layers import LAYERS

PAGE = Path(__file__).parent / "compatibility.md"
PASS = "✓"
TOLERANCE = 1e-8
"""largest difference, divided by the largest value: rounding of different formulas for W, over a few steps"""
COLUMNS: dict[str, Callable[["Case"], None]] = {}
FORK = threading.Lock()
HEAD = """# Compatibility

`python docs/compatibility.py` writes this page, here with torch {version} on the CPU. A cell passes if values
agree with those of eager calls, and gradients too where the column has any. Layers have 3 inputs and 6 units.
A cell with – has not been run.

{legend}

| layer | {columns} |
|---|{rule}|
{rows}
"""


class Case:
    """A layer of one kind, in training mode and double precision, and inputs for it."""

    def __init__(self, name: str) -> None:
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(0)
        self.name, self.layer = name, LAYERS[name](3, 6)

    def input(self, time: int = 5, batch: int = 2) -> Tensor:
        """Return a random input (time, batch, 3) that requires a gradient, the same at every call."""
        return torch.randn(time, batch, 3, generator=torch.Generator().manual_seed(time)).requires_grad_()

    def run(self, layer: Callable[..., Any], *inputs: Any) -> list[Tensor]:
        """Return the output and the final state of a call, as a list of tensors. Random numbers start from one seed."""
        torch.manual_seed(1)
        output, state = layer(*inputs)
        output = output.data if isinstance(output, PackedSequence) else output
        return [output, *(state if isinstance(state, tuple) else (state,))]

    def train(self, layer: Callable[..., Any], *inputs: Any) -> list[Tensor]:
        """Return what `run` returns, followed by the gradients of the input and of all parameters, zeros for none."""
        tensors = [getattr(inputs[0], "data", inputs[0]) if isinstance(inputs[0], PackedSequence) else inputs[0]]
        tensors += [p for p in self.layer.parameters() if p.requires_grad]
        values = self.run(layer, *inputs)
        loss = values[0].square().sum() + sum(v.sum() for v in values[1:] if v.is_floating_point())
        gradients = torch.autograd.grad(loss, tensors, materialize_grads=True)
        return [*(v.detach() for v in values), *gradients]

    def same(self, got: list[Tensor], expected: list[Tensor]) -> None:
        """Raise AssertionError unless both lists have equal tensors, up to rounding."""
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            scale = max(1.0, float(other.abs().max())) if other.numel() else 1.0
            torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE * scale)


def column(name: str, what: str) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Return a decorator that enters a function as the column ``name``; ``what`` is its line in the legend."""

    def enter(check: Callable[[Case], None]) -> Callable[[Case], None]:
        COLUMNS[name] = check
        check.__doc__ = what
        return check

    return enter


@column("compile", "`torch.compile(layer)` with Inductor: outputs and gradients")
def _(case: Case) -> None:
    torch._inductor.config.fallback_random = True  # the random numbers of eager
    case.same(case.train(torch.compile(case.layer), case.input()), case.train(case.layer, case.input()))


@column("fullgraph", '`torch.compile(…, fullgraph=True, backend="aot_eager")`')
def _(case: Case) -> None:
    compiled = torch.compile(case.layer, fullgraph=True, backend="aot_eager")
    case.same(case.train(compiled, case.input()), case.train(case.layer, case.input()))


@column("dynamic", "`dynamic=True` with `fullgraph`: three shapes, compiled once")
def _(case: Case) -> None:
    compiled = torch.compile(case.layer, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in ((5, 2), (9, 3), (7, 4)):
            case.same(case.train(compiled, case.input(*size)), case.train(case.layer, case.input(*size)))


@column("packed", "a PackedSequence of unequal lengths through `fullgraph`")
def _(case: Case) -> None:
    compiled = torch.compile(case.layer, fullgraph=True, backend="aot_eager")
    x = case.input(6, 3)
    results = []
    for layer in (compiled, case.layer):
        packed = pack_sequence([x[:3, 0], x[:, 1], x[:4, 2]], enforce_sorted=False)
        results.append(case.train(layer, packed))
    case.same(*results)


def exported(case: Case, strict: bool, dynamic: bool, sizes: list[tuple[int, int]]) -> None:
    """Export the layer and compare the program with it, for inputs of all ``sizes`` (time, batch)."""
    case.layer.eval()
    before = {name: value.clone() for name, value in case.layer.state_dict().items()}
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},) if dynamic else None
    program = export(case.layer, (case.input().detach(),), dynamic_shapes=shapes, strict=strict).module()
    after = case.layer.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items()), "the export changed the layer"
    for size in sizes:
        with torch.no_grad():
            case.same(case.run(program, case.input(*size)), case.run(case.layer, case.input(*size)))


SIZES = [(5, 2), (1, 1), (1, 3), (50, 3), (9, 1)]


@column("export", "`torch.export.export(layer, (x,))`")
def _(case: Case) -> None:
    exported(case, strict=False, dynamic=False, sizes=[(5, 2)])


@column("export T, B", "with dynamic time and batch; run for T = 1, 5, 9, 50 and B = 1, 2, 3")
def _(case: Case) -> None:
    exported(case, strict=False, dynamic=True, sizes=SIZES)


@column("strict", "the same with `strict=True`")
def _(case: Case) -> None:
    exported(case, strict=True, dynamic=True, sizes=SIZES)


@column(
    "AOTI", "the exported program compiled by AOTInductor (`steadygrad.export.aot_package`), run for the same T and B"
)
def _(case: Case) -> None:
    from steadygrad.export import aot_package

    case.layer.eval()
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        program = export(case.layer, (case.input().detach(),), dynamic_shapes=shapes)
        aot_package(program, f"{folder}/layer.pt2")
        loaded = torch._inductor.aoti_load_package(f"{folder}/layer.pt2")
        for size in SIZES:
            case.same(case.run(loaded, case.input(*size).detach()), case.run(case.layer, case.input(*size)))


@column("vmap", "`torch.func.vmap` over inputs")
def _(case: Case) -> None:
    case.layer.eval()
    inputs = torch.stack([case.input(4, batch).detach()[:, :2] for batch in (2, 3, 4)])
    case.same([vmap(lambda x: case.layer(x)[0])(inputs)], [torch.stack([case.layer(x)[0] for x in inputs])])


def pure(case: Case) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """Return the layer's output as a function of the input and the parameters, and these tensors."""
    case.layer.eval()
    named = {name: p for name, p in case.layer.named_parameters() if p.requires_grad}

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        return functional_call(case.layer, dict(zip(named, parameters, strict=True)), (x,))[0]

    return call, (case.input(), *named.values())


def randoms(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return a random tensor like each tensor."""
    return tuple(map(torch.randn_like, tensors))


@column("jvp", "`torch.func.jvp` in input and parameters, against the backward pass")
def _(case: Case) -> None:
    call, tensors = pure(case)
    tangents = randoms(tensors)
    output, tangent = torch.func.jvp(call, tuple(t.detach() for t in tensors), tangents)
    upstream = torch.randn_like(output)
    gradients = torch.autograd.grad(case.layer(tensors[0])[0], tensors, upstream, materialize_grads=True)
    both = sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True))
    case.same([output, (upstream * tangent).sum()], [case.layer(tensors[0])[0], both])


@column("batched", "`is_grads_batched=True` and `jacobian(vectorize=True)`")
def _(case: Case) -> None:
    _, tensors = pure(case)
    output = case.layer(tensors[0])[0]
    upstream = torch.randn(3, *output.shape)
    options = {"retain_graph": True, "allow_unused": True}
    batch = torch.autograd.grad(output, tensors, upstream, is_grads_batched=True, **options)
    for i, one in enumerate(upstream):
        alone = torch.autograd.grad(output, tensors, one, **options)
        assert [g is None for g in batch] == [g is None for g in alone]
        case.same([g[i] for g in batch if g is not None], [g for g in alone if g is not None])
    jacobian, x = torch.autograd.functional.jacobian, case.input(3)
    case.same(*([jacobian(lambda x: case.layer(x)[0], x, vectorize=way)] for way in (True, False)))


@column("second", "second derivatives by `create_graph=True`, against jvp of the gradient")
def _(case: Case) -> None:
    call, tensors = pure(case)
    tangents = randoms(tensors)
    gradients = torch.autograd.grad(
        case.layer(tensors[0])[0].square().sum(), tensors, create_graph=True, materialize_grads=True
    )
    along = sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True))
    second = torch.autograd.grad(along, tensors, materialize_grads=True)
    of_loss = torch.func.grad(lambda *all: call(*all).square().sum(), tuple(range(len(tensors))))
    _, expected = torch.func.jvp(of_loss, tuple(t.detach() for t in tensors), tangents)
    case.same(list(second), list(expected))


@column("checkpoint", "`torch.utils.checkpoint` without reentry")
def _(case: Case) -> None:
    def call(*inputs: Any) -> Any:
        return checkpoint(case.layer, *inputs, use_reentrant=False)

    case.same(case.train(call, case.input()), case.train(case.layer, case.input()))


@column("ONNX", "ONNX model traced with 7 steps, in onnxruntime: 50 steps, batch 3, single precision, within 1e-4")
def _(case: Case) -> None:
    from steadygrad.export.verify import onnx_difference

    torch.set_default_dtype(torch.float32)
    difference = onnx_difference(case.layer.float(), steps=50)
    assert difference <= 1e-4, f"the largest difference is {difference:.1e} of the largest output"


@column("bf16", "`layer.bfloat16()`: outputs and gradients within the rounding of weights and inputs to bfloat16")
def _(case: Case) -> None:
    half = deepcopy(case.layer).bfloat16()
    case.layer.load_state_dict(half.state_dict())
    x = case.input().detach().bfloat16()
    bound = 2 * len(x) * case.layer.hidden_size * torch.finfo(torch.bfloat16).eps
    runs = []
    for layer, given in ((half, x.requires_grad_()), (case.layer, x.detach().double().requires_grad_())):
        output, _ = layer(given)
        output.sum().backward()
        runs.append([output.detach().double(), given.grad.double()])
    value, gradient = (float((got - expected).norm() / expected.norm()) for got, expected in zip(*runs, strict=True))
    assert max(value, gradient / 2) < bound, f"the relative error is {value:.2g}, that of the gradient {gradient:.2g}"


def of_one_of_two(case: Case, wrap: Callable[[nn.Module], nn.Module], rank: int, address: str, results: Any) -> None:
    """Put the gradients of all parameters into ``results``, as one of two processes with half of the batch each."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    wrapped = wrap(case.layer)
    torch.manual_seed(1)
    wrapped(case.input(5, 4)[:, rank::2].detach())[0].square().mean().backward()
    found = [p.grad for p in case.layer.parameters() if p.requires_grad]
    whole = [g if g is None else getattr(g, "full_tensor", lambda g=g: g)().numpy() for g in found]
    if rank == 0:
        results.put(whole)
    distributed.barrier()


def in_two_processes(case: Case, wrap: Callable[[nn.Module], nn.Module]) -> None:
    """Compare the gradients of a layer in two processes with those of one process on the whole batch."""
    alone = deepcopy(case.layer)
    torch.manual_seed(1)
    alone(case.input(5, 4))[0].square().mean().backward()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        address = (Path(folder) / "rendezvous").as_uri()
        pair = [context.Process(target=of_one_of_two, args=(case, wrap, rank, address, results)) for rank in (0, 1)]
        for process in pair:
            process.start()
        found = None
        try:
            while found is None:
                assert all(process.exitcode in (None, 0) for process in pair), "a process failed; the log has its error"
                with suppress(queue.Empty):
                    found = results.get(timeout=1)
        finally:
            for process in pair:
                process.kill()
                process.join()
    known = [p.grad for p in alone.parameters() if p.requires_grad]
    assert [g is None for g in found] == [g is None for g in known]
    case.same([torch.from_numpy(g) for g in found if g is not None], [g for g in known if g is not None])


@column("DDP", "`DistributedDataParallel` in two processes: gradients of one process on the whole batch")
def _(case: Case) -> None:
    in_two_processes(case, nn.parallel.DistributedDataParallel)


@column("FSDP2", "`fully_shard` in two processes: gradients of one process on the whole batch")
def _(case: Case) -> None:
    from torch.distributed.fsdp import fully_shard

    in_two_processes(case, fully_shard)


def attempt(name: str, title: str, seconds: int, pipe: Any) -> None:
    """Run one cell and send its text: `PASS`, or the reason why it fails in one line."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            COLUMNS[title](Case(name))
        pipe.send(PASS)
    except BaseException as error:
        traceback.print_exc()
        pipe.send(reason(error))


def reason(error: BaseException) -> str:
    """Return an exception as one line for the table: that of the library where torch's only wraps it."""
    text = f"{error}"
    own = re.search(r"\w+ cannot be exported[^\n\"')]*|call to the function `untraced`|function `untraced`", text)
    if own:
        said = own.group()
        return "leaves the graph: the shapes of its memory depend on the data" if "untraced" in said else said
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[0].split('. ')[0]}"[:160].replace("|", "/")


def cell(name: str, title: str, seconds: int) -> str:
    """Return the text of one cell, from a process of its own that may use so many seconds of processor time."""
    context = multiprocessing.get_context("fork")  # saves an import of torch for every cell
    with FORK:  # another process must not inherit ``there``: it would hide that this one has ended
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=attempt, args=(name, title, seconds, there))
        process.start()
        there.close()
    waits = 20 * seconds  # a process that waits for ever uses no processor time
    try:
        return here.recv() if here.poll(waits) else f"no answer within {waits} s"
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGXCPU:
            return f"takes more than {seconds} s of processor time"
        return f"the process ends with code {process.exitcode}"
    finally:
        process.kill()
        process.join()


def stored(page: str) -> dict[tuple[str, str], str]:
    """Return the cells of a page that was written before, by layer and column."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    notes = dict(re.findall(r"^(\d+)\. (.+)$", page, re.MULTILINE))
    if not lines:
        return {}
    _, *titles = lines[0]
    found = {(row[0], title): text for row in lines[1:] for title, text in zip(titles, row[1:], strict=False)}
    return {key: notes.get(text, text) for key, text in found.items()}


def rendered(cells: dict[tuple[str, str], str]) -> str:
    """Return the page: a legend, the table, and the reasons of the cells that fail, numbered."""
    reasons = list(dict.fromkeys(text for text in cells.values() if text not in (PASS, "–")))
    rows = []
    for name in LAYERS:
        texts = [cells.get((name, title), "–") for title in COLUMNS]
        shown = (text if text in (PASS, "–") else str(reasons.index(text) + 1) for text in texts)
        rows.append(f"| {name} | {' | '.join(shown)} |")
    legend = "\n".join(f"- **{title}**: {check.__doc__}" for title, check in COLUMNS.items())
    head = {"version": torch.__version__.split("+")[0], "legend": legend, "columns": " | ".join(COLUMNS)}
    page = HEAD.format(**head, rule="---|" * (len(COLUMNS) - 1) + "---", rows="\n".join(rows))
    return page + "".join(f"\n{number}. {text}" for number, text in enumerate(reasons, 1)) + ("\n" if reasons else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=list(LAYERS))
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument("--failed", action="store_true", help="run only the cells that failed or were never run")
    parser.add_argument("--jobs", type=int, default=1, help="number of cells that run at the same time")
    parser.add_argument("--seconds", type=int, default=240, help="limit of one cell, in seconds of processor time")
    parser.add_argument("--page", type=Path, default=PAGE, help="the file to read and to write")
    given = parser.parse_args()
    start = time.monotonic()
    cells = stored(given.page.read_text("utf-8")) if given.page.exists() else {}
    asked = [(name, title) for title in given.columns for name in given.layers]
    if given.failed:
        asked = [key for key in asked if cells.get(key) != PASS]
    with ThreadPoolExecutor(given.jobs) as pool:
        for key, text in zip(asked, pool.map(lambda key: cell(*key, given.seconds), asked), strict=True):
            cells[key] = text
            print(f"{key[1]:12} {key[0]:14} {text}", flush=True)
            given.page.write_text(rendered(cells), "utf-8")
    failed = sum(cells[key] != PASS for key in asked)
    print(f"{len(asked)} cells in {time.monotonic() - start:.0f} s, {failed} failed")


if __name__ == "__main__":
    main()
