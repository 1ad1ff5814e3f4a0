"""C expressions of operations on single numbers."""

import math
from collections.abc import Callable

import torch

from steadygrad.export.c.values import Number

TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.bool: "bool",
}
"""types of C, by dtype"""

LIBRARY = {
    "abs": "fabs",
    "acos": "acos",
    "asin": "asin",
    "atan": "atan",
    "atan2": "atan2",
    "ceil": "ceil",
    "cos": "cos",
    "cosh": "cosh",
    "erf": "erf",
    "exp": "exp",
    "expm1": "expm1",
    "floor": "floor",
    "log": "log",
    "log1p": "log1p",
    "log2": "log2",
    "pow": "pow",
    "sin": "sin",
    "sinh": "sinh",
    "sqrt": "sqrt",
    "tan": "tan",
    "tanh": "tanh",
    "trunc": "trunc",
}
"""functions of libm for floating-point numbers, by operation; those for float end in f"""

HELPERS = {
    "sigmoid": "{type} {name}({type} a)\n{{\n    return {one} / ({one} + exp{f}(-a));\n}}",
    "relu": "{type} {name}({type} a)\n{{\n    return a < {zero} ? {zero} : a;\n}}",
    "sign": "{type} {name}({type} a)\n{{\n    return ({type})(a > {zero}) - ({type})(a < {zero});\n}}",
    "maximum": "{type} {name}({type} a, {type} b)\n{{\n    return a > b || a != a ? a : b;\n}}",
    "minimum": "{type} {name}({type} a, {type} b)\n{{\n    return a < b || a != a ? a : b;\n}}",
}
"""functions of the exported file, by operation"""

SYMBOLS = {
    "add": "({} + {})",
    "bitwise_and": "({} & {})",
    "bitwise_or": "({} | {})",
    "bitwise_xor": "({} ^ {})",
    "copy": "{}",
    "div": "({} / {})",
    "eq": "({} == {})",
    "ge": "({} >= {})",
    "gt": "({} > {})",
    "le": "({} <= {})",
    "logical_and": "({} && {})",
    "logical_not": "(!{})",
    "logical_or": "({} || {})",
    "lt": "({} < {})",
    "mul": "({} * {})",
    "ne": "({} != {})",
    "neg": "(-{})",
    "sub": "({} - {})",
    "where": "({} ? {} : {})",
}
"""expressions of operations with operators of C"""

OF_FLAGS = {"bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "ne", "bitwise_not": "logical_not"}
"""operations of Boolean operands that have another name"""

COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")
"""operations with a Boolean result of operands of a common dtype"""

OPERATIONS = frozenset({*LIBRARY, *HELPERS, *SYMBOLS})


def floats(dtype: torch.dtype) -> str:
    """Return the ending of libm's functions for a floating-point dtype: "f" for float, none for double."""
    return "f" if dtype is torch.float32 else ""


def literal(value: Number, dtype: torch.dtype, exact: bool = False) -> str:
    """Return a number as a literal of C of this dtype. A floating-point one is rounded as torch rounds it.

    It is decimal if it is short, unless it has to be ``exact``: then it is hexadecimal, whatever the compiler does.
    """
    if dtype is torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        return str(int(value))
    number = float(torch.tensor(value, dtype=dtype))
    if exact and math.isfinite(number):
        return hexadecimal(number) + floats(dtype)
    if not math.isfinite(number):
        return "NAN" if math.isnan(number) else ("INFINITY" if number > 0 else "-INFINITY")
    short = len(repr(number)) <= 8  # then it is exact, too: the nearest double, hence the nearest float
    return (repr(number) if short else hexadecimal(number)) + floats(dtype)


def hexadecimal(number: float) -> str:
    """Return a finite number in C99's hexadecimal notation without zeros at the end: 12.0 is 0x1.8p+3."""
    mantissa, _, exponent = number.hex().partition("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}" if number else str(number)


def expression(operation: str, dtype: torch.dtype, operands: list[str], call: Callable[[str], str]) -> str:
    """Return the C expression of an operation on operands of this dtype, which are expressions themselves.

    ``call`` maps the name of a helper to that of the file's function.
    """
    if operation in LIBRARY and dtype.is_floating_point:
        return f"{LIBRARY[operation]}{floats(dtype)}({', '.join(map(bare, operands))})"
    if operation in HELPERS and dtype.is_floating_point:
        return f"{call(operation)}({', '.join(map(bare, operands))})"
    if operation not in SYMBOLS:
        raise ValueError(f"export to C does not support the operation {operation} on numbers of {dtype}")
    return SYMBOLS[operation].format(*operands)


def bare(text: str) -> str:
    """Return an expression without the parentheses around all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[1:-1] if place == len(text) - 1 else text
    return text


def cast(text: str, before: torch.dtype, after: torch.dtype) -> str:
    """Return an expression of one dtype converted to another."""
    if before is after:
        return text
    return f"({text} != 0)" if after is torch.bool else f"({TYPES[after]}){text}"


def helper(operation: str, name: str, dtype: torch.dtype) -> str:
    """Return the definition of a helper under this name."""
    zero, one = literal(0.0, dtype), literal(1.0, dtype)
    body = HELPERS[operation].format(name=name, type=TYPES[dtype], f=floats(dtype), zero=zero, one=one)
    return f"static {body}"
