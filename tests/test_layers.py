"""Keeps the architecture: who may import whom, where a library may appear, what pure code must not touch.

The tables are the rules; everything below them only reads imports. Names are relative to ``tpfd``; ``*`` stands for any
rest of a name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest
from attrs import frozen

ROOT = Path(__file__).parents[1] / "tpfd"
MAX_LINES = 400

PURE = ("core", "pipeline", "codec")
IMPURE_MODULES = frozenset(
    {"trio", "asyncio", "threading", "multiprocessing", "concurrent", "time", "random", "secrets", "logging", "io"}
    | {"os", "pathlib", "shutil", "tempfile", "glob", "socket", "ssl", "select", "signal", "subprocess", "sqlite3"}
    | {"urllib", "http"}
)
IMPURE_CALLS = frozenset({"open", "print", "input", "now", "utcnow", "today", "uuid1", "uuid4"})

# Packages and top-level modules: what each may import of the others. Nobody is missing; siblings are not in each
# other's rows: engine, awaits, objects; stores, dispatch, transports, workers; the edge: http, cli, client.
BASE = {"errors", "durations"}
TOOLS = {"bell", "blocking", "boundaries", "clock", "items", "metrics", "ops"}
RUN = {"core", "pipeline", "codec", "program", "runtime"}
MAY_IMPORT: dict[str, set[str]] = {
    # pure
    "errors": set(),
    "durations": {"errors"},
    "core": BASE,
    "pipeline": BASE,
    "codec": BASE | {"pipeline"},
    # small tools
    "bell": set(),
    "blocking": BASE,
    "clock": set(),
    "items": set(),
    "metrics": set(),
    "ops": BASE,
    "boundaries": BASE | {"core", "ops"},
    "aws": BASE | TOOLS | {"core"},
    # what pipelines are made ready with, and what every task is given
    "steps": BASE | {"core", "ops"},
    "config": BASE | {"pipeline"},
    "program": BASE | {"core", "pipeline", "codec"},
    "runtime": BASE | TOOLS | {"core", "program", "stores"},
    "payloads": BASE | TOOLS | RUN,
    "due": {"core", "stores"},
    # providers
    "stores": BASE | TOOLS | {"core", "aws"},
    "dispatch": BASE | TOOLS | {"core", "aws"},
    "transports": BASE | TOOLS | RUN | {"payloads", "aws"},
    "workers": BASE | TOOLS | RUN | {"payloads"},
    # tasks
    "engine": BASE | TOOLS | RUN | {"payloads", "steps", "due", "dispatch"},
    "awaits": BASE | TOOLS | RUN | {"payloads"},
    "objects": BASE | TOOLS | {"core", "stores", "aws"},
    # the edge
    "http": BASE | TOOLS | {"core", "codec"},
    "service": BASE | TOOLS | RUN | {"payloads", "awaits", "http", "transports"},
    "client": BASE,
    "daemon": BASE
    | TOOLS
    | RUN
    | {"config", "stores", "dispatch", "transports", "workers", "engine", "awaits", "objects", "http", "service"}
    | {"examples", "aws"},
    "cli": BASE | {"aws", "blocking", "core", "pipeline", "program", "config", "client", "daemon", "examples"},
    # shipped examples: a provider program of their own beside the steps
    "examples": BASE | {"aws", "blocking", "core", "codec", "client", "http", "objects", "steps", "transports"},
}

# Providers: modules of one never import those of another, and only the daemon names them. What stands in no row of its
# package is shared by all of them.
PROVIDERS: dict[str, dict[str, tuple[str, ...]]] = {
    "stores": {"memory": ("memory",), "sqlite": ("sqlite*",), "dynamodb": ("dynamodb*",)},
    "dispatch": {"lines": ("lines",), "memory": ("memory",), "sqs": ("sqs*",)},
    "transports": {
        "websocket": ("websocket*",),
        "webhook": ("webhook*", "checked_network", "allow_list"),
        "kafka": ("kafka*",),
        "sqs": ("sqs*",),
    },
    "workers": {"local": ("local*",), "rest": ("rest*",), "grpc": ("grpc*",), "sqs": ("sqs*",)},
    "objects": {"filesystem": ("filesystem*", "folders"), "s3": ("s3*",)},
}
NAMES_PROVIDERS = "daemon.*"
NAMED_ELSEWHERE = {
    # The service hands an attached provider's socket to the transport that is made of such sockets.
    ("service.coordinator", "transports.websocket"),
    # The example's provider is the other side of the same topics.
    ("examples.provider.kafka", "transports.kafka_settings"),
    ("examples.provider.kafka", "transports.kafka_source"),
    ("examples.provider.kafka", "transports.kafka_wire"),
}

# Libraries, and the only modules that may know of them. A library that is not here may be used by all.
NOWHERE: tuple[str, ...] = ()
LIBRARIES: dict[str, tuple[str, ...]] = {
    "asyncio": NOWHERE,
    "boto3": ("aws.clients",),
    "botocore": ("aws.clients", "aws.failures"),
    "cattrs": ("codec.*",),
    "click": ("cli.*",),
    "confluent_kafka": ("transports.kafka*", "cli.demo.kafka_link"),
    "grpc": ("workers.grpc*",),
    "h11": ("http.*",),
    "httpcore": ("transports.webhook_http", "transports.checked_network", "daemon.webhooks"),
    "httpx": ("client.*", "examples.provider.*"),
    "hypercorn": ("http.*",),
    "logging": ("ops.*",),
    "prometheus_client": ("metrics",),
    "rich": ("cli.*",),
    "sqlite3": ("stores.sqlite*",),
    "starlette": ("http.*",),
    "trio_websocket": ("client.*", "examples.provider.*"),
    "wsproto": ("http.*",),
    "yaml": ("pipeline.yaml_text", "cli.*"),
}

# The boundary behind which any error becomes a value: (module, function).
CATCH_ALL = {("boundaries", "contained")}


# ── reading the code ─────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Module:
    """One file: its name below ``tpfd``, its syntax tree, its number of lines."""

    name: str
    tree: ast.Module
    line_count: int

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]


@cache
def modules() -> tuple[Module, ...]:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__") or "__init__"
        found.append(Module(name, ast.parse(text, str(path)), len(text.splitlines())))
    return tuple(found)


def imported(module: Module) -> Iterator[str]:
    """Every dotted name that the module imports, also inside functions and for type checking only."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.name} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def inner(module: Module) -> set[str]:
    """What it imports of ``tpfd``, relative to it: modules, not the names in them."""
    known = {other.name for other in modules()}
    found = set()
    for name in imported(module):
        top, _, rest = name.partition(".")
        if top == "tpfd" and rest:
            found.add(rest if rest in known else rest.rpartition(".")[0])
    return found - {""}


def outer(module: Module) -> set[str]:
    """Top-level names of everything else that it imports."""
    return {name.partition(".")[0] for name in imported(module)} - {"tpfd", "__future__"}


def fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) or name == pattern.removesuffix(".*") for pattern in patterns)


def provider_of(name: str) -> tuple[str, str] | None:
    """Package and provider that a module belongs to; None for shared ones."""
    package, _, rest = name.partition(".")
    for provider, patterns in PROVIDERS.get(package, {}).items():
        if rest and fits(rest, patterns):
            return package, provider
    return None


# ── the rules ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_package_has_its_row() -> None:
    found = {module.package for module in modules()} - {"__init__"}
    assert found <= set(MAY_IMPORT), "say in MAY_IMPORT what it may import"


def test_layers_import_downwards_and_siblings_never_each_other() -> None:
    wrong = [
        f"{module.name} imports {name}"
        for module in modules()
        for name in sorted(inner(module))
        if name.partition(".")[0] not in {module.package, *MAY_IMPORT.get(module.package, set())}
    ]
    assert wrong == []


def test_the_table_itself_has_no_circle() -> None:
    left = dict(MAY_IMPORT)
    while free := [name for name, below in left.items() if not below & set(left)]:
        for name in free:
            del left[name]
    assert left == {}


def test_providers_do_not_know_each_other() -> None:
    wrong = [
        f"{module.name} imports {name}"
        for module in modules()
        for name in sorted(inner(module))
        if (mine := provider_of(module.name)) and (other := provider_of(name)) and mine != other
    ]
    assert wrong == []


def test_only_the_daemon_names_concrete_providers() -> None:
    named = {
        (module.name, name)
        for module in modules()
        for name in inner(module)
        if provider_of(name) and module.package != name.partition(".")[0] and not fits(module.name, (NAMES_PROVIDERS,))
    }
    assert named - NAMED_ELSEWHERE == set()
    assert NAMED_ELSEWHERE - named == set(), "an exception that is not needed any more"


def test_a_library_appears_only_in_its_own_modules() -> None:
    wrong = [
        f"{module.name} imports {name}"
        for module in modules()
        for name in sorted(outer(module))
        if name in LIBRARIES and not fits(module.name, LIBRARIES[name])
    ]
    assert wrong == []


def test_pure_code_reads_no_clock_no_dice_and_no_file() -> None:
    wrong = []
    for module in modules():
        if module.package not in PURE:
            continue
        wrong += [f"{module.name} imports {name}" for name in sorted(outer(module) & IMPURE_MODULES)]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called in IMPURE_CALLS:
                    wrong.append(f"{module.name}:{node.lineno} calls {called}()")
            elif isinstance(node, ast.AsyncFunctionDef | ast.Await):
                wrong.append(f"{module.name}:{node.lineno} is asynchronous")
    assert wrong == []


def test_any_error_is_caught_in_one_place_only() -> None:
    found = set()
    for module in modules():
        for function, handler in _handlers(module.tree, ""):
            if _catches_all(handler.type) and not _raises_again(handler):
                found.add((module.name, function))
    assert found == CATCH_ALL


def _handlers(node: ast.AST, function: str) -> Iterator[tuple[str, ast.ExceptHandler]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ExceptHandler):
            yield function, child
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _handlers(child, child.name if is_function else function)  # type: ignore[attr-defined]


def _catches_all(kind: ast.expr | None) -> bool:
    if isinstance(kind, ast.Tuple):
        return any(_catches_all(part) for part in kind.elts)
    return kind is None or (isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"})


def _raises_again(handler: ast.ExceptHandler) -> bool:
    """Cleaning up and passing the error on swallows nothing."""
    last = handler.body[-1]
    leaves = any(isinstance(node, ast.Return | ast.Break | ast.Continue) for node in ast.walk(handler))
    return isinstance(last, ast.Raise) and last.exc is None and not leaves


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_one_module_is_one_thought(module: Module) -> None:
    assert module.line_count <= MAX_LINES, f"{module.line_count} lines: two thoughts share a file"


def test_every_module_postpones_its_annotations() -> None:
    without = [
        module.name
        for module in modules()
        if any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in module.tree.body)
        and not any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in module.tree.body)
    ]
    assert without == []


# ── the reader reads ─────────────────────────────────────────────────────────────────────────────────────────────────


def _module(source: str, name: str = "core.example") -> Module:
    return Module(name, ast.parse(source), 1)


def test_imports_are_found_wherever_they_stand() -> None:
    source = """
import sqlite3
from tpfd.core import ids
from tpfd.core.records import Fact
def late():
    import trio.testing
    from tpfd import errors
"""
    module = _module(source)
    assert outer(module) == {"sqlite3", "trio"}
    assert inner(module) == {"core.ids", "core.records", "errors"}


@pytest.mark.parametrize(
    ("handler", "caught"),
    [
        ("except: pass", True),
        ("except Exception: pass", True),
        ("except (ValueError, BaseException): pass", True),
        ("except* Exception: pass", True),
        ("except ValueError: pass", False),
        ("except BaseException:\n  clean()\n  raise", False),
        ("except BaseException:\n  if x: return\n  raise", True),
        ("except Exception as error:\n  raise Other from error", True),
    ],
)
def test_catching_everything_is_found(handler: str, caught: bool) -> None:
    tree = ast.parse(f"def f():\n try: pass\n {handler.replace(chr(10), chr(10) + ' ')}")
    ((function, found),) = _handlers(tree, "")
    assert function == "f"
    assert (_catches_all(found.type) and not _raises_again(found)) is caught


def test_a_provider_is_known_by_its_name() -> None:
    assert provider_of("stores.sqlite_writer") == ("stores", "sqlite")
    assert provider_of("stores.protocol") is None
    assert provider_of("stores") is None
    assert provider_of("transports.checked_network") == ("transports", "webhook")


def test_the_tables_name_real_things() -> None:
    assert set(sys.stdlib_module_names) >= IMPURE_MODULES - {"trio"}
    assert {module for module, _ in CATCH_ALL} <= {module.name for module in modules()}
