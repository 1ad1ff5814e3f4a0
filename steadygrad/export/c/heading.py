"""The comment at the beginning of an exported C file."""

import inspect

from torch import nn

import steadygrad
from steadygrad.export.program import layers_of, streamed

TEXT = """\
{what}: one time step of one sequence, in C99 without other dependencies than libm.

{parts}

Written by steadygrad {version}{about}.
{count:,} parameters. {weights:,} bytes of constants, {state:,} bytes of {prefix}_state.

Compile:    cc -std=c99 -O3 -c FILE.c               add -march=native for the processor at hand; link with -lm
Program:    cc -std=c99 -O3 -D{PREFIX}_MAIN FILE.c -lm -o {prefix}
            reads {PREFIX}_INPUTS numbers a time step and prints {PREFIX}_OUTPUTS

    {prefix}_state state;             of the caller, static or allocated; one for each sequence
    {prefix}_init(&state);            before the first step
    {prefix}_step(&state, x, y);      reads {x}, writes {PREFIX}_OUTPUTS numbers at y;
    {space}                           x, y and the state must not overlap
    {prefix}_reset(&state);           back to the initial state, before the next sequence

The functions allocate nothing and change nothing but the struct and y. To declare them elsewhere:

    #define {PREFIX}_DECLARATIONS
    #include "FILE.c"
"""


def heading(module: nn.Module, prefix: str, about: str, weights: int, state: int, has_tokens: bool) -> str:
    """Return the comment for a module: what it is, its equations, its size, and how to compile and call it.

    ``weights`` and ``state`` are numbers of bytes.
    """
    layers = layers_of(streamed(module).layer)
    text = TEXT.format(
        what=type(module).__name__,
        parts="\n".join(described(part) for part in dict.fromkeys([module, *layers])),
        version=steadygrad.__version__,
        about=f", {about}" if about else "",
        count=sum(part.numel() for part in module.parameters()),
        weights=weights,
        state=state,
        prefix=prefix,
        PREFIX=prefix.upper(),
        x=f"a token of 0 … {prefix.upper()}_VOCABULARY − 1 at x"
        if has_tokens
        else f"{prefix.upper()}_INPUTS numbers at x",
        space=" " * len(prefix),
    )
    safe = text.replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")
    return "\n".join(["/*", *(f" * {line}".rstrip() for line in safe.rstrip().splitlines()), " */"])


def described(module: nn.Module) -> str:
    """Return the class, the sizes and the equation of a layer or model, in two lines."""
    equation = (inspect.getdoc(type(module)) or "").partition("\n")[0]
    return f"{type(module).__name__}({module.extra_repr()})\n    {equation}"
