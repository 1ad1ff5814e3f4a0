"""Reading classes of this package from their source code, without importing them. Nothing here needs torch.

Importing torch takes seconds, and a name or a default can be read in milliseconds.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT.name


class Option(NamedTuple):
    """An option of a layer, a model, a task or of training: default and description, both as text."""

    default: str | None
    """the text of the default value, as `str` gives it; None if the option is required"""
    description: str = ""
    """the string below the option in the source; empty if there is none"""


class Module:
    """A module of the package as source code: its syntax tree, its imports and its classes.

    ``name`` is the module's name without that of the package, such as ``layers.gru``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        path = ROOT.joinpath(*name.split("."))
        self.file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        self.tree = ast.parse(self.file.read_text("utf-8"))
        self.body = self.tree.body

    @property
    def doc(self) -> str:
        """Docstring of the module; an empty string if there is none."""
        return ast.get_docstring(self.tree) or ""

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Names that the module imports from this package, in order: {local name: (module, name there)}."""
        return {
            alias.asname or alias.name: (node.module.removeprefix(f"{PACKAGE}."), alias.name)
            for node in self.body
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{PACKAGE}.")
            for alias in node.names
        }

    @cached_property
    def values(self) -> dict[str, ast.expr]:
        """Expressions that the module assigns to its global names, a dict by name."""
        found: dict[str, ast.expr] = {}
        for node in self.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                found[node.target.id] = node.value
        return found

    @cached_property
    def classes(self) -> dict[str, "Class"]:
        """Classes that the module defines, a dict by name."""
        return {node.name: Class(self, node) for node in self.body if isinstance(node, ast.ClassDef)}

    def find(self, name: str) -> "Class | None":
        """Return the class that ``name`` means in this module; None if it is no class of this package."""
        if name in self.imports:
            where, there = self.imports[name]
            return module(where).find(there)
        return self.classes.get(name)

    def value(self, node: ast.expr) -> object:
        """Return the value of a constant expression, in which names of constants may occur."""
        if isinstance(node, ast.Name):
            if node.id in self.imports:
                where, there = self.imports[node.id]
                return module(where).value(ast.Name(there))
            return self.value(self.values[node.id])
        return ast.literal_eval(node)


@cache
def module(name: str) -> Module:
    """Return the module of this name (without that of the package) as source code, such as ``layers.gru``."""
    return Module(name)


@dataclass(frozen=True)
class Class:
    """A class as source code: the module that defines it, and its part of the syntax tree."""

    module: Module
    node: ast.ClassDef

    @property
    def name(self) -> str:
        """Name of the class."""
        return self.node.name

    @property
    def entered(self) -> str | None:
        """Name in a registry that the class line gives, as in ``class CoRNN(RecurrentLayer, name="cornn")``."""
        names = (word.value for word in self.node.keywords if word.arg == "name")
        return next((str(ast.literal_eval(value)) for value in names), None)

    @property
    def doc(self) -> str:
        """Docstring of the class without indentation; an empty string if there is none."""
        return ast.get_docstring(self.node) or ""

    @property
    def first_line(self) -> str:
        """First line of the docstring."""
        return self.doc.partition("\n")[0].replace("``", "")

    @property
    def lineage(self) -> list["Class"]:
        """The class, its base class in this package, the base class of that, and so on, as a list.

        Of several base classes the first counts.
        """
        bases = (self.module.find(base.id) for base in self.node.bases if isinstance(base, ast.Name))
        base = next(filter(None, bases), None)
        return [self, *(base.lineage if base else [])]

    def fields(self) -> dict[str, Option]:
        """Return the fields of a dataclass as options, a dict by name, those of its base classes first."""
        found: dict[str, Option] = {}
        for cls in reversed(self.lineage):
            for name, value, description in cls.assigned():
                found[name] = cls.option(value, description)
        return found

    def assigned(self) -> Iterator[tuple[str, ast.expr | None, str]]:
        """Return an iterator over (name, default, description) of the fields that the class itself has."""
        for node, below in zip(self.node.body, [*self.node.body[1:], None], strict=True):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            if "ClassVar" in ast.unparse(node.annotation):
                continue
            text = below.value if isinstance(below, ast.Expr) else None
            described = isinstance(text, ast.Constant) and isinstance(text.value, str)
            yield node.target.id, node.value, " ".join(ast.literal_eval(text).split()) if described and text else ""

    def options(self, keyword_only: bool = False) -> dict[str, Option]:
        """Return the parameters of the constructor as options, a dict by name; with ``keyword_only`` no others.

        ``**common: Unpack[Common]`` means the fields of Common, with the defaults that the base class has for them.
        ``**shared: Any`` means all keyword-only parameters of the base class.
        """
        owner = next((cls for cls in self.lineage if cls.constructor), None)
        if owner is None or owner.constructor is None:
            return {}
        given = owner.constructor.args
        found: dict[str, ast.expr | None] = {}
        if not keyword_only:
            plain = [argument.arg for argument in (*given.posonlyargs, *given.args)][1:]  # without self
            defaults = [*[None] * (len(plain) - len(given.defaults)), *given.defaults]
            found |= dict(zip(plain, defaults, strict=True))
        found |= {argument.arg: value for argument, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)}
        options = {name: owner.option(value) for name, value in found.items()}
        return options | {name: value for name, value in owner.behind_stars().items() if name not in options}

    def option(self, default: ast.expr | None, description: str = "") -> Option:
        """Return an option whose default is an expression in this class's module; None means that it is required."""
        return Option(None if default is None else str(self.module.value(default)), description)

    @cached_property
    def constructor(self) -> ast.FunctionDef | None:
        """The class's own constructor; None if it inherits that of its base class."""
        functions = (node for node in self.node.body if isinstance(node, ast.FunctionDef))
        return next((node for node in functions if node.name == "__init__"), None)

    def behind_stars(self) -> dict[str, Option]:
        """Return the options behind ``**`` in the class's own constructor, a dict by name; see `options`."""
        rest = self.constructor.args.kwarg if self.constructor else None
        if rest is None or len(self.lineage) == 1:
            return {}
        match rest.annotation:
            case ast.Subscript(value=ast.Name(id="Unpack"), slice=ast.Name(id=name)):
                common = self.module.find(name)
                names = {key: text for key, _, text in common.assigned()} if common else {}
                known = next(options for cls in self.lineage[1:] if names.keys() <= (options := cls.options()).keys())
                return {key: known[key]._replace(description=text) for key, text in names.items()}
        return self.lineage[1].options(keyword_only=True)
