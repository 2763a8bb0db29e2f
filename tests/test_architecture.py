"""Holds the house: who may import whom, who may touch the disk, and how large things may grow."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import tokenstore

PACKAGE = Path(tokenstore.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix("."): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
"""Every module by its name inside the package; the front door is the empty name."""

VALUES = ("errors", "ids", "records")
JOURNAL = (*VALUES, "distribution", "config", "codec", "journal")
LOOPS = ("threads", "together", "loop", "budget", "mailbox", "actor", "hosting", "crossing", "home", "removal", "store")
BELOW_STORE = ("protocols", "threads", "mailbox", "hosting", "home", "removal", "slices", "statistics", "capture")
PUBLIC = ("", *VALUES, "protocols", "config", "store", "factory", "capture", "metrics")
FACE = (*PUBLIC, "codec", "inspection", "trajectories", "export", "testing")
OUTSIDE = ("records", "protocols", "errors")
CAPTURING = tuple(
    f"serve.{name}" for name in ("asking", "endpoints", "exchange", "problems", "routes", "settings", "settling")
)
READING = tuple(f"serve.{name}" for name in ("frames", "outcomes", "reading", "redaction"))
"""What the proxy and the middleware share, and what that rests on: nothing of it touches a socket or a framework."""

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "": PUBLIC,
    "__main__": ("cli",),
    "errors": (),
    "extras": (),
    "ids": ("errors",),
    "distribution": (),
    "records": (*VALUES, "distribution"),
    "protocols": VALUES,
    "config": VALUES,
    "codec": VALUES,
    "journal": JOURNAL,
    "journal.disk": ("errors", "journal.descriptors", "journal.kernel"),
    "journal.descriptors": (),
    "journal.kernel": (),
    "journal.layout": VALUES,
    "journal.damage": (),
    "journal.lifecycle": (*VALUES, "journal.damage"),
    "waiting": ("errors",),
    "threads": ("loop", "waiting"),
    "together": ("journal", "loop", "threads"),
    "loop": (),
    "budget": (),
    "mailbox": ("records", "codec", "journal", "loop"),
    "actor": ("errors", "records", "config", "journal", "threads", "mailbox"),
    "hosting": ("errors", "ids", "config", "journal", "threads", "together", "loop", "budget", "mailbox", "actor"),
    "crossing": ("errors", "loop", "hosting", "waiting"),
    "home": ("errors", "hosting", "crossing", "mailbox", "waiting"),
    "removal": ("errors", "records", "journal", "mailbox", "hosting"),
    "slices": (),
    "statistics": ("records", "journal", "hosting"),
    "metrics": ("records", "distribution"),
    "capture": ("errors", "records", "protocols"),
    "store": (*JOURNAL, *BELOW_STORE),
    "inspection": (*PUBLIC, "slices", "journal.disk", "journal.health", "journal.stale"),
    "export": (*PUBLIC, "extras", "codec", "journal.disk", "trajectories"),
    "testing": (*PUBLIC, "codec", "journal.disk"),
    "factory": FACE,
    "trajectories": VALUES,
    "engines": (*OUTSIDE, "codec"),
    "integrations": (*OUTSIDE, "extras", "config", "codec", "store", "metrics", "distribution"),
    "integrations.asgi": (*OUTSIDE, "store", *CAPTURING),
    "serve": (*FACE, "extras", "engines"),
    **dict.fromkeys((*CAPTURING, *READING), (*FACE, "engines", *CAPTURING, *READING)),
    "view": FACE,
    "cluster": (*FACE, "extras", "distribution", "journal.disk", "loop", "slices"),
    "cluster.nemo_gym": (*FACE, "cluster", "integrations.nemo_gym"),
    "cli": (*FACE, "view", "serve", "cluster"),
}
"""What a module may import from the package, by the longest name that is its beginning; itself and below always."""

FOR_TYPES_ONLY: dict[str, tuple[str, ...]] = {"actor": ("hosting",)}
"""What a module may name besides in its annotations, under `if TYPE_CHECKING`: an actor is given its host."""

ONLY_IN: dict[str, tuple[str, ...]] = {
    "aiofiles": ("threads",),
    "cattrs": ("codec",),
    "ujson": ("codec",),
    "json": ("codec",),
    "fcntl": ("journal.disk",),
    "ctypes": ("journal.kernel",),
    "anyio": (*LOOPS, "capture", "inspection", "export", "testing", "cli", "serve", "integrations.asgi", "cluster"),
    "numpy": ("trajectories.packing", "export.npz"),
    "pyarrow": ("export.parquet",),
    "sniffio": ("loop",),
    "tokenizers": ("view.vocabulary",),
    "argcomplete": ("cli.completion",),
    "prometheus_client": ("integrations.prometheus",),
    "opentelemetry": ("integrations.opentelemetry",),
    "httptools": ("serve.wire",),
    "starlette": ("serve.web",),
    "uvicorn": ("serve.on_uvicorn",),
    "hypercorn": ("serve.on_hypercorn",),
    "trio": ("serve.on_hypercorn",),
    "ray": ("cluster.on_ray",),
    "asyncio": (),
    "pytest": (),
}
"""Who alone may import a package; the last ones nobody."""

FREE_OF_OS = {"PathLike", "_exit", "environ", "fspath", "getpid", "getuid", "register_at_fork", "strerror"}
"""Names of `os` that touch no file."""
FACES = ("cli", "engines", "integrations", "serve", "view", "cluster", "testing")
"""These may open files of their own, which are no files of a store."""


@cache
def tree(module: str) -> ast.Module:
    """Parse a module."""
    return ast.parse(MODULES[module].read_text(encoding="utf-8"), str(MODULES[module]))


def within(module: str, area: str) -> bool:
    """Tell whether a module is that area or lies below it; the front door has nothing below it."""
    return module == area or (bool(area) and module.startswith(f"{area}."))


def area_of(module: str) -> str | None:
    """Find the line of the table that a module falls under."""
    return max((area for area in MAY_IMPORT if within(module, area)), key=len, default=None)


def imports(module: str) -> Iterator[str]:
    """Give the full name of everything that a module imports, `from x import y` as `x.y` if that is a module."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports relatively"
            source = node.module or ""
            for alias in node.names:
                inner = f"{source}.{alias.name}".removeprefix("tokenstore.")
                yield f"tokenstore.{inner}" if source.startswith("tokenstore") and inner in MODULES else source


def inner_imports(module: str) -> set[str]:
    """Give the modules of the package that a module imports, by their names inside it."""
    return {
        name.removeprefix("tokenstore").removeprefix(".")
        for name in imports(module)
        if name == "tokenstore" or name.startswith("tokenstore.")
    }


def each_module(check: Callable[[str], None]) -> Callable[[], None]:
    """Make one test of a check of every module, which names all that fail."""

    def test() -> None:
        failures = []
        for module in MODULES:
            try:
                check(module)
            except AssertionError as error:
                failures.append(f"{module}: {error}")
        assert not failures, "\n".join(failures)

    test.__doc__ = check.__doc__
    return test


@each_module
def test_imports_point_one_way(module: str) -> None:
    """A module imports from the package only what the table of DESIGN allows it."""
    area = area_of(module)
    assert area is not None, f"{module} is not in the table"

    allowed = (*MAY_IMPORT[area], *FOR_TYPES_ONLY.get(module, ()), *([area] if area else []))
    forbidden = {name for name in inner_imports(module) if not any(within(name, other) for other in allowed)}

    assert not forbidden


@pytest.mark.parametrize(("module", "others"), FOR_TYPES_ONLY.items())
def test_exceptions_are_for_annotations_only(module: str, others: tuple[str, ...]) -> None:
    """What a module may only name in annotations is not imported when it runs."""
    guarded = {
        node.lineno
        for guard in tree(module).body
        if isinstance(guard, ast.If) and ast.unparse(guard.test) == "TYPE_CHECKING"
        for node in ast.walk(guard)
        if isinstance(node, ast.ImportFrom)
    }
    found = {
        node.lineno
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ImportFrom) and node.module in {f"tokenstore.{other}" for other in others}
    }

    assert found <= guarded


@each_module
def test_third_parties_stay_where_they_belong(module: str) -> None:
    """Each package with a house of its own is imported there and nowhere else."""
    tops = {name.partition(".")[0] for name in imports(module)}

    strays = {name for name in tops & ONLY_IN.keys() if not any(within(module, area) for area in ONLY_IN[name])}

    assert not strays


@each_module
def test_files_are_touched_in_one_place(module: str) -> None:
    """Outside the seam to the disk nothing of `os` is used that touches a file, and the core opens none."""
    if module in ("journal.disk", "journal.descriptors"):
        return
    used = {
        node.attr
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
    }
    assert used <= FREE_OF_OS
    assert not any(isinstance(node, ast.ImportFrom) and node.module == "os" for node in ast.walk(tree(module)))

    if not any(within(module, face) for face in FACES):
        calls = [node.func for node in ast.walk(tree(module)) if isinstance(node, ast.Call)]
        assert not [call for call in calls if isinstance(call, ast.Name) and call.id == "open"]


@each_module
def test_modules_and_functions_stay_small(module: str) -> None:
    """No module has more than 350 lines, no function more than 40 without its docstring."""
    lines = MODULES[module].read_text(encoding="utf-8").count("\n")
    assert lines <= 350

    long = {
        node.name: size
        for node in ast.walk(tree(module))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (size := length(node)) > 40
    }

    assert not long


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function without its docstring."""
    total = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        total -= (first.end_lineno or 0) - first.lineno + 1
    return total


def test_the_front_door_is_short() -> None:
    """The package offers at most 25 names, each of which is there, and holds no logic."""
    names = tokenstore.__all__

    assert len(names) <= 25
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(tokenstore, name)] == []
    allowed = ast.Import | ast.ImportFrom | ast.Assign | ast.Expr
    assert [type(node).__name__ for node in tree("").body if not isinstance(node, allowed)] == []


@each_module
def test_every_module_says_what_it_is_for(module: str) -> None:
    """Each module opens with a docstring."""
    assert ast.get_docstring(tree(module))
