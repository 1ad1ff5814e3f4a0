"""Writes settings as TOML: numbers, strings, booleans, lists and tables. Python's tomllib only reads TOML."""

import json
import re
from collections.abc import Mapping
from typing import Any

PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


def dumps(tables: Mapping[str, Any]) -> str:
    """Return ``tables`` as TOML: plain values first, then a section for each table."""
    plain = {key: value for key, value in tables.items() if not isinstance(value, Mapping)}
    sections = {key: value for key, value in tables.items() if isinstance(value, Mapping)}
    lines = [f"{quoted(key)} = {inline(value)}" for key, value in plain.items()]
    for name, table in sections.items():
        lines += ["", f"[{quoted(name)}]", *(f"{quoted(key)} = {inline(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def inline(value: Any) -> str:
    """Return a value as TOML on one line."""
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case float():
            return repr(value)  # valid TOML, also for inf and nan
        case str():
            return text(value)
        case Mapping():
            return (
                "{ " + ", ".join(f"{quoted(key)} = {inline(v)}" for key, v in value.items()) + " }" if value else "{}"
            )
        case list() | tuple():
            return "[" + ", ".join(map(inline, value)) + "]"
    raise ValueError(f"TOML expects numbers, words, flags, lists and tables; got {value!r}")


def quoted(key: str) -> str:
    return key if PLAIN_KEY.fullmatch(key) else text(key)


def text(value: str) -> str:
    """Return a TOML string. It is a JSON string, except that TOML requires an escape for U+007F."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
