"""The limit: the matrix products that a training step of a plain RNN cannot avoid, computed by the fastest loop found.

There are T products (batch × N)(N × N) forward, T backward, one for the input and one for each weight gradient. There
is no bias, no activation and no autograd, and all buffers are allocated beforehand.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from benchmarks.contenders import Size
from benchmarks.peers import MissingError
from steadygrad.kernels import ACTIVATIONS, Steps, matmul, native

Loop = Callable[[], None]

IDENTITY = ACTIVATIONS.index("identity")

WALK_ABI = 12
"""Version of the C interface for which `c_walk` is written."""

PROBE = 1024
"""Size of a square product that measures the peak rate of the machine."""


def flops(size: Size) -> int:
    """Return the number of multiplications and additions of these products."""
    B, T, N, I = size
    return 2 * T * B * N * (3 * N + 2 * I)


class Products:
    """Operands and results. W is orthogonal, so that values do not decay to denormal numbers, which are slow."""

    def __init__(self, size: Size) -> None:
        self.size = size
        B, T, N, I = size
        self.x, self.U = torch.randn(T * B, I), torch.randn(N, I)
        self.W = torch.nn.init.orthogonal_(torch.empty(N, N))
        self.G = torch.randn(T * B, N)
        self.initial, self.carried = torch.randn(B, N), torch.zeros(B, N)
        # on large pages, as in the kernels
        self.projected, self.states, self.deltas = (native.empty(self.x, T * B, N).zero_() for _ in range(3))
        self.dW, self.dU, self.dU_walk = torch.zeros(N, N), torch.zeros(I, N), torch.zeros(N, I)

    def project(self) -> None:
        torch.mm(self.x, self.U.mT, out=self.projected)

    def weight_gradients(self, mm: Callable[..., Tensor] = torch.mm) -> None:
        mm(self.deltas.mT, self.states, out=self.dW)
        mm(self.x.mT, self.deltas, out=self.dU)

    def chain(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return all recurrent products (left, right, result) in order."""
        states, deltas = self.states.split(self.size.batch), self.deltas.split(self.size.batch)[::-1]
        forward = zip((self.initial, *states), [self.W.mT] * len(states), states, strict=False)
        backward = zip((self.initial, *deltas), [self.W] * len(deltas), deltas, strict=False)
        return [*forward, *backward]


def mm_loop(products: Products) -> Loop:
    """Return a loop with one `torch.mm` per step, which uses all threads."""
    chain = products.chain()

    def run() -> None:
        products.project()
        for left, right, result in chain:
            torch.mm(left, right, out=result)
        products.weight_gradients()

    return run


def sgemm_slices(products: Products) -> Loop:
    """Return a loop with one SGEMM of torch's BLAS per step and thread. Each thread takes a slice of the batch."""
    blas = ctypes.CDLL(torch._C.__file__)  # it links libtorch_cpu and finds its symbols
    try:
        sgemm, set_threads = blas.sgemm_, blas.MKL_Set_Num_Threads_Local
    except AttributeError as error:
        raise MissingError("this torch does not export MKL's sgemm") from error
    parts = min(torch.get_num_threads(), products.size.batch)
    calls = [sgemm_calls(products, *bounds) for bounds in slices(products.size.batch, parts)]
    pool = ThreadPoolExecutor(max(1, parts - 1))

    def walk(arguments: list[tuple[object, ...]]) -> None:
        set_threads(1)
        for call in arguments:
            sgemm(*call)
        set_threads(0)  # restore the global setting

    def run() -> None:
        products.project()
        others = [pool.submit(walk, arguments) for arguments in calls[1:]]
        walk(calls[0])
        for other in others:
            other.result()
        products.weight_gradients()

    return run


def slices(batch: int, parts: int) -> list[tuple[int, int]]:
    bounds = [batch * part // parts for part in range(parts + 1)]
    return list(pairwise(bounds))


def sgemm_calls(products: Products, begin: int, end: int) -> list[tuple[object, ...]]:
    """Return arguments for rows begin … end of each product. In Fortran order this is resultᵀ = rightᵀ leftᵀ."""
    N, pointer = products.size.hidden, ctypes.byref
    n, columns = ctypes.c_int(N), ctypes.c_int(end - begin)
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    plain, transposed = ctypes.c_char(b"N"), ctypes.c_char(b"T")

    def address(rows: Tensor) -> ctypes.c_void_p:
        return ctypes.c_void_p(rows[begin:].data_ptr())

    def arguments(left: Tensor, right: Tensor, result: Tensor) -> tuple[object, ...]:
        how = plain if right.is_contiguous() else transposed
        scalars = pointer(how), pointer(plain), pointer(n), pointer(columns), pointer(n), pointer(one)
        W = ctypes.c_void_p(right.data_ptr())
        return (*scalars, W, pointer(n), address(left), pointer(n), pointer(zero), address(result), pointer(n))

    return [arguments(*product) for product in products.chain()]


def c_chains(products: Products, mm: Callable[..., Tensor] = torch.mm) -> Loop:
    """Return a loop of the linear forward kernel, run with W and with Wᵀ. ``mm`` computes the weight gradients."""
    need_library()
    B, T, N, I = products.size
    p, steps, parts = products, Steps.padded(T, B), min(torch.get_num_threads(), B)
    back, transposed = replace(steps, reverse=True), p.W.mT.contiguous()
    no_inputs = p.x[:, :0], p.U[:, :0]

    def run() -> None:
        native.call("elman_forward", steps, N, I, IDENTITY, p.x, p.U, None, p.W, p.initial, p.states, parts)
        native.call("elman_forward", back, N, 0, IDENTITY, *no_inputs, None, transposed, p.initial, p.deltas, parts)
        p.weight_gradients(mm)

    return run


def c_walk(products: Products) -> Loop:
    """Return a loop that runs the forward and the backward kernel, which also computes the weight gradients."""
    need_library()
    if native.ABI != WALK_ABI:
        raise MissingError(f"it calls version {WALK_ABI} of the C interface, and this is version {native.ABI}")
    B, T, N, I = products.size
    p, steps, parts = products, Steps.padded(T, B), min(torch.get_num_threads(), B)

    def run() -> None:
        native.call("elman_forward", steps, N, I, IDENTITY, p.x, p.U, None, p.W, p.initial, p.states, parts)
        p.carried.zero_()
        given = p.G, p.x, p.states, None, p.W, p.initial
        native.call("elman_backward", steps, N, I, IDENTITY, *given, None, p.dW, p.dU_walk, None, p.carried, parts)

    return run


def need_library() -> None:
    if isinstance(reason := native.library(), str):
        raise MissingError(f"no C kernel: {reason}")


LIMITS: dict[str, Callable[[Products], Loop]] = {
    "limit: torch.mm a step": mm_loop,
    "limit: sgemm by slices": sgemm_slices,
    "limit: C chains, torch.mm": c_chains,
    "limit: C chains, own products": partial(c_chains, mm=matmul),
    "limit: C walk": c_walk,
}


def probe() -> Loop:
    a, b, result = torch.randn(PROBE, PROBE), torch.randn(PROBE, PROBE), torch.zeros(PROBE, PROBE)

    def run() -> None:
        torch.mm(a, b, out=result)

    return run


def rate(seconds: float) -> float:
    """Return the floating-point operations per second of a probe that took ``seconds``."""
    return 2 * PROBE**3 / seconds
