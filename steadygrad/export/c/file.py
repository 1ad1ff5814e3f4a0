"""The C file of an exported layer or model: its text around the code of a time step."""

import re
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from steadygrad.export.c.conversion import converted
from steadygrad.export.c.heading import heading
from steadygrad.export.c.loops import INDENT, needs_memory, unit_code
from steadygrad.export.c.memory import Memory, declared
from steadygrad.export.c.operations import HELPERS, TYPES, helper, literal
from steadygrad.export.c.passes import simplified
from steadygrad.export.c.schedule import Schedule, Unit
from steadygrad.export.c.trace import traced_step
from steadygrad.export.c.values import Source, Store, Value, views

WIDTH = 118
ADD_PRODUCT = """\
/* y += x W for a vector x of `rows` numbers and a matrix W (rows, columns), eight rows at a time. */
static void {name}({type} *restrict y, const {type} *restrict W, const {type} *restrict x, int rows, int columns)
{{
    const int whole = rows - rows % 8;
    for (int k = 0; k < whole; k += 8) {{
        const {type} *const w0 = W + k * columns, *const w1 = w0 + columns, *const w2 = w1 + columns;
        const {type} *const w3 = w2 + columns, *const w4 = w3 + columns, *const w5 = w4 + columns;
        const {type} *const w6 = w5 + columns, *const w7 = w6 + columns;
        const {type} x0 = x[k], x1 = x[k + 1], x2 = x[k + 2], x3 = x[k + 3];
        const {type} x4 = x[k + 4], x5 = x[k + 5], x6 = x[k + 6], x7 = x[k + 7];
        for (int i = 0; i < columns; i++)
            y[i] += ((x0 * w0[i] + x1 * w1[i]) + (x2 * w2[i] + x3 * w3[i])) +
                    ((x4 * w4[i] + x5 * w5[i]) + (x6 * w6[i] + x7 * w7[i]));
    }}
    for (int k = whole; k < rows; k++)
        for (int i = 0; i < columns; i++)
            y[i] += x[k] * W[k * columns + i];
}}"""
MAIN = """\
#ifdef {PREFIX}_MAIN
#include <stdio.h>

/* Reads {PREFIX}_INPUTS numbers a time step from standard input and prints {PREFIX}_OUTPUTS numbers a line. */
int main(void)
{{
    static {prefix}_state state;
    static {input} x[{PREFIX}_INPUTS];
    static {type} y[{PREFIX}_OUTPUTS];
    {prefix}_init(&state);
    for (;;) {{
        for (int i = 0; i < {PREFIX}_INPUTS; i++)
            if (scanf("{read}", &x[i]) != 1)
                return i == 0 && feof(stdin) ? 0 : 1;
        {prefix}_step(&state, x, y);
        for (int i = 0; i < {PREFIX}_OUTPUTS; i++)
            printf("%.{digits}g%c", {number}y[i], i + 1 < {PREFIX}_OUTPUTS ? ' ' : '\\n');
    }}
}}
#endif"""


def c_source(module: nn.Module, prefix: str = "model", *, double: bool = False, about: str = "") -> str:
    """Return a layer, a `Stack` or a model as the text of one C99 file, which computes one time step of one sequence.

    The file has the weights, a struct ``PREFIX_state`` that the caller owns, and the functions ``PREFIX_init``,
    ``PREFIX_reset`` and ``PREFIX_step``. It needs libm only, allocates nothing and has no variables of its own. Numbers
    are float, or with ``double`` double. ``about`` is a line for the comment at the beginning. Equal weights give an
    equal text.

    Raise ValueError for a ``prefix`` that is not a C identifier, and for a module that cannot be exported: one that is
    bidirectional, whose memory grows with time, or that has an operator without a counterpart.
    """
    check_prefix(prefix)
    return File(module, prefix, torch.float64 if double else torch.float32).text(about)


def check_prefix(prefix: object) -> None:
    """Raise ValueError unless a prefix is a C identifier."""
    if not (isinstance(prefix, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", prefix)):
        raise ValueError(
            f"export to C expects a prefix of letters, digits and _ that begins with no digit; got {prefix!r}"
        )


class File:
    """The parts of the C file of a module: input, output and state, the units of a time step, and their memory."""

    def __init__(self, module: nn.Module, prefix: str, dtype: torch.dtype) -> None:
        self.module, self.prefix, self.dtype = module, prefix, dtype
        traced = traced_step(module, dtype)
        self.memory = Memory(prefix)
        state = [self.memory.field(name) for name in traced.names.outputs[1:]]
        step, self.x, self.y, self.state, self.vocabulary = converted(traced, state)
        self.memory.origins = step.names
        units = Schedule(simplified(step.items)).units
        self.memory.plan(lifetimes(units))
        self.body = [line for unit in units for line in unit_code(unit, self.memory)]
        self.starts = [
            self.memory.constant(part, f"initial_{name}") if bool(part.any()) else None
            for name, part in zip(state, traced.initial, strict=True)
        ]

    @property
    def fields(self) -> list[tuple[torch.dtype, str, int]]:
        """Arrays of the struct, the widest numbers first: dtype, name and number of entries."""
        state = [(one.dtype, one.name.removeprefix("state->"), torch.Size(one.shape).numel()) for one in self.state]
        found = [one for one in (*state, *self.memory.fields()) if one[2]]
        return sorted(found, key=lambda one: -one[0].itemsize)

    def text(self, about: str) -> str:
        """Return the whole file."""
        prefix, macro = self.prefix, self.prefix.upper()
        sizes = self.memory.constants.values()
        of_weights = sum(tensor.numel() * tensor.itemsize for _, tensor in sizes)
        parts = [
            heading(self.module, prefix, about, of_weights, self.bytes_of_state(), bool(self.vocabulary)),
            f"#ifndef {macro}_H\n#define {macro}_H",
            "#include <stdbool.h>\n#include <stdint.h>",
            '#ifdef __cplusplus\nextern "C" {\n#endif',
            "\n".join(self.macros()),
            "\n".join(self.struct()),
            f"void {prefix}_init({prefix}_state *state);\nvoid {prefix}_reset({prefix}_state *state);\n"
            f"void {prefix}_step({prefix}_state *state, const {self.input} *x, {TYPES[self.dtype]} *y);",
            "#ifdef __cplusplus\n}\n#endif",
            f"#endif /* {macro}_H */",
            f"#ifndef {macro}_DECLARATIONS",
            "#include <math.h>\n#include <string.h>",
            *(array(name, tensor) for name, tensor in self.memory.constants.values()),
            *self.helpers(),
            *self.functions(),
            MAIN.format(
                prefix=prefix,
                PREFIX=macro,
                input=self.input,
                type=TYPES[self.dtype],
                read="%d" if self.vocabulary else "%f" if self.dtype is torch.float32 else "%lf",
                digits=9 if self.dtype is torch.float32 else 17,
                number="(double)" if self.dtype is torch.float32 else "",
            ),
            f"#endif /* {macro}_DECLARATIONS */",
        ]
        return "\n\n".join(parts) + "\n"

    @property
    def input(self) -> str:
        """Type of the numbers at x in C: that of all numbers, or int for tokens."""
        return "int" if self.vocabulary else TYPES[self.dtype]

    def macros(self) -> Iterator[str]:
        """Return an iterator over the macros of the sizes."""
        macro = self.prefix.upper()
        yield f"#define {macro}_INPUTS {torch.Size(self.x.shape).numel()}"
        yield f"#define {macro}_OUTPUTS {torch.Size(self.y.shape).numel()}"
        if self.vocabulary:
            yield f"#define {macro}_VOCABULARY {self.vocabulary}"

    def struct(self) -> list[str]:
        """Return the lines of the struct: the state, then scratch memory."""
        lines = [INDENT + declared(*one) for one in self.fields]
        return [f"typedef struct {self.prefix}_state {{", *lines, f"}} {self.prefix}_state;"]

    def bytes_of_state(self) -> int:
        """Return the size of the struct in bytes, where numbers are aligned by their size."""
        total = sum(dtype.itemsize * size for dtype, _, size in self.fields)
        widest = max((dtype.itemsize for dtype, _, _ in self.fields), default=1)
        return -(-total // widest) * widest

    def helpers(self) -> Iterator[str]:
        """Return an iterator over the definitions of the helper functions that the code calls."""
        for operation in self.memory.helpers:
            name = f"{self.prefix}_{operation}"
            if operation in HELPERS:
                yield helper(operation, name, self.dtype)
            else:
                yield ADD_PRODUCT.format(name=name, type=TYPES[self.dtype])

    def functions(self) -> Iterator[str]:
        """Return an iterator over the definitions of the three functions of the file."""
        prefix = self.prefix
        yield from (
            f"void {prefix}_init({prefix}_state *state)\n{{\n{INDENT}memset(state, 0, sizeof *state);\n"
            f"{INDENT}{prefix}_reset(state);\n}}",
        )
        lines = [
            f"memset({part.name}, 0, sizeof {part.name});"
            if start is None
            else f"memcpy({part.name}, {start}, sizeof {start});"
            for part, start in zip(self.state, self.starts, strict=True)
            if torch.Size(part.shape).numel()
        ]
        yield block(f"void {prefix}_reset({prefix}_state *state)", lines)
        lines = self.body
        if self.vocabulary:
            lines = [f"const int token = x[0] > 0 && x[0] < {prefix.upper()}_VOCABULARY ? x[0] : 0;", *lines]
        numbers = f"const {self.input} *restrict x, {TYPES[self.dtype]} *restrict y"
        yield block(f"void {prefix}_step({prefix}_state *state, {numbers})", lines)


def block(head: str, lines: Iterable[str]) -> str:
    """Return a function of C from its head and the lines of its body."""
    return "\n".join([head, "{", *(INDENT + line for line in lines), "}"])


def array(name: str, tensor: Tensor) -> str:
    """Return the definition of a constant array. Its numbers are exact, in C99's hexadecimal notation."""
    shape = " × ".join(map(str, tensor.shape)) or "1"
    lines, line = [f"/* {shape} */", f"static const {TYPES[tensor.dtype]} {name}[{tensor.numel()}] = {{"], INDENT
    for number in tensor.flatten().tolist():
        word = f"{literal(number, tensor.dtype, exact=True)},"
        if len(line) + len(word) > WIDTH:
            lines.append(line.rstrip())
            line = INDENT
        line += f"{word} "
    return "\n".join([*lines, line.rstrip(), "};"])


def lifetimes(units: list[Unit]) -> Iterator[tuple[Value, int, int]]:
    """Return an iterator over the values that need scratch memory, each with the first and last unit that uses it."""
    for value in needs_memory(units):
        if isinstance(value, Source):
            continue
        uses = [
            place
            for place, unit in enumerate(units)
            if value in unit
            or any(
                view.value is value
                for item in unit
                for view in (*views(item), *([item.target] if isinstance(item, Store) else []))
            )
        ]
        yield value, uses[0], uses[-1]
