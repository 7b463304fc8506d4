"""Imports go one way: walks the syntax tree of every module of every room and fails on any other arrow.

    spi       -> the standard library, pluggy, msgspec
    testing   -> spi, pytest, hypothesis, msgspec, pluggy; the host only inside functions (embedded gateway)
    broker    -> the host, but never the command line
    host      -> tidegate.*, but never a plugin, a protocol, or the testing kits
    protocols -> spi          each plugin -> spi          and never each other

Beyond Tidegate itself a room imports what its pyproject declares, and nothing that only happens to be
installed. What counts is every import, at any depth, for type checking only or by a literal name.
"""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Room:
    """One part of the tree and what it may import.

    `own` and `denied` are dotted prefixes; `denied` wins. `lazy` may be imported inside functions only.
    """

    name: str
    folder: Path
    package: str
    own: tuple[str, ...]
    third_party: frozenset[str]
    denied: tuple[str, ...] = ()
    lazy: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Import:
    """One imported dotted name, where it stands, and whether a function must run first."""

    target: str
    line: int
    is_lazy: bool


# Distributions whose import name is not their own with underscores.
_IMPORT_NAMES = {
    "argon2-cffi": "argon2",
    "google-crc32c": "google_crc32c",
    "libpass": "passlib",
    "opentelemetry-api": "opentelemetry",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "paho-mqtt": "paho",
    "pyjwt": "jwt",
    "stomp-py": "stomp",
}


def declared(pyproject: Path, *extras: str) -> frozenset[str]:
    """Return the import names of the distributions that a pyproject depends on.

    *extras*: which optional dependencies count too; ``*`` stands for all of them.
    """
    project = tomllib.loads(pyproject.read_text())["project"]
    requirements: list[str] = list(project["dependencies"])
    optional = project.get("optional-dependencies", {})
    for extra in optional if extras == ("*",) else extras:
        requirements += optional[extra]
    names = {re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0].lower() for text in requirements}
    return frozenset(_IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names)


#: Rooms that run where there is no gateway, and their packages.
_ALONE = {"spark_source": "pyspark_tidegate"}


def _outside_room(name: str, folder: str, package: str) -> Room:
    return Room(
        name,
        ROOT / folder / package,
        package,
        own=(package,) if name in _ALONE else (package, "tidegate.spi"),
        # `tidegate` is a declared dependency of every room; `own` says which part of it counts.
        third_party=declared(ROOT / folder / "pyproject.toml", "*") - {"tidegate"},
    )


_HOST = ROOT / "gateway" / "tidegate"
_PROTOCOLS = ROOT / "protocols"
_HOST_THIRD_PARTY = declared(ROOT / "pyproject.toml", "portable")

ROOMS = (
    Room("spi", _HOST / "spi", "tidegate.spi", ("tidegate.spi",), frozenset({"msgspec", "pluggy"})),
    Room(
        "testing",
        _HOST / "testing",
        "tidegate.testing",
        own=("tidegate.spi", "tidegate.testing"),
        third_party=frozenset({"hypothesis", "msgspec", "pluggy", "pytest"}),
        lazy=("tidegate",),
    ),
    Room(
        "broker",
        _HOST / "broker",
        "tidegate.broker",
        own=("tidegate",),
        third_party=_HOST_THIRD_PARTY - {"pyarrow", "rich", "typer"},
        denied=("tidegate.cli", "tidegate.testing"),
    ),
    Room("host", _HOST, "tidegate", ("tidegate",), _HOST_THIRD_PARTY, ("tidegate.testing",)),
    Room(
        "protocols",
        _PROTOCOLS / "tidegate_protocols",
        "tidegate_protocols",
        own=("tidegate_protocols", "tidegate.spi"),
        third_party=declared(_PROTOCOLS / "pyproject.toml") - {"tidegate", "typer"},
        denied=("tidegate_protocols.commands",),
    ),
    Room(
        "commands",
        _PROTOCOLS / "tidegate_protocols" / "commands",
        "tidegate_protocols.commands",
        own=("tidegate_protocols.commands", "tidegate.spi"),
        third_party=declared(_PROTOCOLS / "pyproject.toml", "clients") - {"tidegate", "msgspec"},
    ),
    *(
        _outside_room(
            folder.name,
            f"plugins/{folder.name}",
            _ALONE.get(folder.name, f"tidegate_{folder.name}"),
        )
        for folder in sorted((ROOT / "plugins").iterdir())
        if (folder / "pyproject.toml").is_file()
    ),
)
_BY_NAME = {room.name: room for room in ROOMS}


def modules(room: Room) -> Iterator[Path]:
    """Yield the room's modules, without those of the rooms inside it."""
    inner = [other.folder for other in ROOMS if other is not room]
    inner = [folder for folder in inner if folder.is_relative_to(room.folder)]
    for path in sorted(room.folder.rglob("*.py")):
        if not any(path.is_relative_to(folder) for folder in inner):
            yield path


def imports(source: str, module: str, *, is_package: bool = False) -> Iterator[Import]:
    """Yield every import of a module, relative ones resolved against its dotted name."""
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    while pending:
        node, is_lazy = pending.pop()
        for target in _targets(node, module, is_package):
            yield Import(target, getattr(node, "lineno", 0), is_lazy)
        inside = is_lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        pending.extend((child, inside) for child in ast.iter_child_nodes(node))


def _targets(node: ast.AST, module: str, is_package: bool) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = module.split(".")
            parts = parts[: len(parts) - node.level + (1 if is_package else 0)]
            base = ".".join([*parts, base] if base else parts)
        # `from tidegate import broker` reaches tidegate.broker, so each name counts as a path.
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else None
        called = node.func.id if isinstance(node.func, ast.Name) else called
        name = node.args[0].value
        if called in {"import_module", "__import__"} and isinstance(name, str):
            return [name]
    return []


def under(target: str, prefixes: tuple[str, ...]) -> bool:
    """Say whether a dotted name is one of the prefixes or inside one."""
    return any(target == prefix or target.startswith(prefix + ".") for prefix in prefixes)


def is_allowed(found: Import, room: Room) -> bool:
    """Say whether a room may hold this import."""
    top = found.target.partition(".")[0]
    if under(found.target, room.denied):
        return False
    if under(found.target, room.own):
        # Private modules of the contract are not part of what it publishes, not even to the host.
        from_outside = not under(room.package, ("tidegate.spi",))
        names = found.target.split(".")
        contract = under(found.target, ("tidegate.spi",))
        return not (contract and from_outside and any(_is_private(name) for name in names))
    if found.is_lazy and under(found.target, room.lazy):
        return True
    return top in sys.stdlib_module_names or top in room.third_party


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def violations(source: str, room: Room, module: str, *, is_package: bool = False) -> list[str]:
    """Return one line for each import of a module that its room may not hold."""
    found = imports(source, module, is_package=is_package)
    bad = [one for one in found if not is_allowed(one, room)]
    return [f"{module}:{one.line} ({room.name}) imports {one.target}" for one in bad]


def _dotted(path: Path, room: Room) -> str:
    parts = path.relative_to(room.folder).with_suffix("").parts
    return ".".join([room.package, *(part for part in parts if part != "__init__")])


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_imports_only_what_its_rule_allows(room: Room) -> None:
    paths = list(modules(room))
    assert paths, f"{room.folder} holds no module, so this rule checks nothing"
    found = [
        line
        for path in paths
        for line in violations(
            path.read_text(), room, _dotted(path, room), is_package=path.name == "__init__.py"
        )
    ]
    assert found == []


# A room that is made of others, from their public parts, as a third party's could be.
_COMPOSED = {
    "sink_flight": {"tidegate_sink_spark"},
    "store_journaled": {"tidegate_store_jdbc", "tidegate_store_journal"},
}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_is_declared_to_depend_on_the_host_alone(room: Room) -> None:
    siblings = {name for name in room.third_party if name.startswith("tidegate")}
    assert siblings == _COMPOSED.get(room.name, set())


@pytest.mark.parametrize("name", _COMPOSED)
def test_a_composed_room_imports_only_the_public_face_of_the_others(name: str) -> None:
    for path in modules(_BY_NAME[name]):
        for one in imports(path.read_text(), path.stem):
            package, _, inner = one.target.partition(".")
            if package in _COMPOSED[name]:
                assert not inner.startswith("_"), f"{path.name}:{one.line} {one.target}"


def test_each_room_holds_exactly_one_typed_import_package() -> None:
    folders = {ROOT / "gateway"} | {room.folder.parent for room in ROOMS if "." not in room.package}
    for folder in sorted(folders):
        packages = [path.parent for path in folder.glob("*/__init__.py")]
        assert len(packages) == 1, folder
        assert (packages[0] / "py.typed").is_file(), packages[0]
        assert packages[0].name not in {"gateway", "plugins", "protocols", "tests"}


#: Packages whose modules, and whose folders, are layers: a folder knows only those below it.
LAYERED = {room.package: room.folder for room in (_BY_NAME["broker"], _BY_NAME["store_journal"])}


def arrows(package: str, folder: Path) -> dict[str, set[str]]:
    """Return which modules of a package each of its modules imports, for type checking too."""
    paths: dict[str, Path] = {}
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        paths[".".join([package, *(part for part in parts if part != "__init__")])] = path
    found: dict[str, set[str]] = {}
    for module, path in paths.items():
        targets = [one.target for one in imports(path.read_text(), module)]
        found[module] = {
            max((name for name in paths if under(target, (name,))), key=len)
            for target in targets
            if under(target, (package,))
        } - {module}
    return found


def by_folder(graph: dict[str, set[str]], package: str) -> dict[str, set[str]]:
    """Return the same between folders; a module that is in none of them stands for itself."""

    def place(module: str) -> str:
        return module.removeprefix(package).lstrip(".").partition(".")[0]

    found: dict[str, set[str]] = {}
    for module, targets in graph.items():
        found.setdefault(place(module), set()).update(map(place, targets))
    return {name: targets - {name} for name, targets in found.items()}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return one circle of the graph; empty: there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@pytest.mark.parametrize("package", LAYERED)
def test_no_module_and_no_folder_is_part_of_a_circle(package: str) -> None:
    graph = arrows(package, LAYERED[package])
    assert len(graph) > 20, "the modules were not found"
    assert circle(graph) == []
    assert circle(by_folder(graph, package)) == []


def test_the_checker_finds_a_circle_of_modules_and_of_folders() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    graph = {"p.x.a": {"p.y.b"}, "p.y.c": {"p.x.d"}, "p.y.b": set(), "p.x.d": set()}
    assert circle(graph) == []
    assert circle(by_folder(graph, "p"))


FOLDER_FILES_MAX = 15


def test_no_folder_of_a_room_holds_too_many_files() -> None:
    counts = Counter(str(path.parent.relative_to(ROOT)) for room in ROOMS for path in modules(room))
    assert {folder: n for folder, n in counts.items() if n > FOLDER_FILES_MAX} == {}


# What would make a codec depend on a socket, on the time of day, or on who drives it.
_IMPURE = ("asyncio", "time", "datetime", "socket", "select", "selectors", "ssl", "threading")


def impurities(source: str, module: str) -> list[str]:
    """Return one line for each import that a sans-IO codec may not hold."""
    bad = [one for one in imports(source, module) if under(one.target, _IMPURE)]
    return [f"{module}:{one.line} imports {one.target}" for one in bad]


def test_codecs_do_no_io_and_read_no_clock() -> None:
    room = _BY_NAME["protocols"]
    codecs = [path for path in modules(room) if path.parent.name == "codec"]
    assert len(codecs) > 2, "no codec found, so this rule checks nothing"
    found = [line for path in codecs for line in impurities(path.read_text(), _dotted(path, room))]
    assert found == []


# ------------------------------------------------------------- the checker itself catches each arrow
_FORBIDDEN = [
    ("spi", "import typer"),
    ("spi", "from tidegate.broker import Broker"),
    ("spi", "from tidegate import config"),
    ("spi", "from ..broker import Broker"),
    ("host", "import tidegate_store_journal"),
    ("host", "from tidegate_protocols.stomp import plugin"),
    ("host", "import importlib\nimportlib.import_module('tidegate_cursors.store_plugin')"),
    ("host", "def later():\n    import tidegate_sink_spark"),
    ("host", "from tidegate.testing import store_kit"),
    ("host", "import lmdb"),
    ("host", "from tidegate.spi._private import helper"),
    ("broker", "from tidegate import cli"),
    ("broker", "from ..cli import main"),
    ("broker", "import rich"),
    ("testing", "from tidegate.broker import Broker"),
    ("testing", "import typer"),
    ("testing", "def later():\n    import tidegate_cursors"),
    ("protocols", "from tidegate.broker import Broker"),
    ("protocols", "import tidegate"),
    ("protocols", "from tidegate import broker"),
    ("protocols", "from tidegate.spi import _private"),
    ("protocols", "import tidegate_store_journal"),
    ("protocols", "import stomp"),
    ("protocols", "import typer"),
    ("protocols", "from tidegate_protocols.commands import stomp"),
    ("commands", "from tidegate_protocols.stomp import Decoder"),
    ("commands", "from tidegate.cli import main"),
    ("protocols", "if TYPE_CHECKING:\n    from tidegate.broker import Broker"),
    ("store_journal", "import tidegate_cursors"),
    ("store_journal", "import pyarrow"),
    ("cursors", "from tidegate_store_journal import store"),
    ("sink_spark", "def later():\n    from tidegate.config import Config"),
    ("spark_source", "from tidegate.spi import names"),
]
_PERMITTED = [
    ("spi", "import msgspec, pluggy, enum\nfrom .errors import GatewayError"),
    ("host", "import uvloop\nfrom . import config\nfrom tidegate.broker import Broker"),
    ("broker", "from tidegate.spi.messages import Message\nfrom ._lists import PendingList"),
    ("testing", "import pytest\nfrom tidegate.spi import MessageStore"),
    ("testing", "def start():\n    from tidegate.broker import Broker"),
    ("protocols", "import asyncio\nfrom tidegate.spi import FrontEnd\nfrom ._codec import Codec"),
    ("store_journal", "import lmdb, google_crc32c\nfrom tidegate.spi import MessageStore"),
    ("sink_spark", "def job():\n    from pyspark.sql import SparkSession\n    import pyarrow"),
]


@pytest.mark.parametrize(("name", "source"), _FORBIDDEN)
def test_the_checker_catches_a_forbidden_arrow(name: str, source: str) -> None:
    room = _BY_NAME[name]
    assert violations(source, room, f"{room.package}.module")


@pytest.mark.parametrize(("name", "source"), _PERMITTED)
def test_the_checker_lets_a_permitted_arrow_pass(name: str, source: str) -> None:
    room = _BY_NAME[name]
    assert violations(source, room, f"{room.package}.module") == []


@pytest.mark.parametrize(
    "source", ["import time", "from asyncio import Queue", "import ssl as tls"]
)
def test_the_checker_catches_an_impure_codec(source: str) -> None:
    assert impurities(source, "tidegate_protocols.stomp.codec.frames")


def test_relative_imports_resolve_against_the_package_that_holds_them() -> None:
    in_module = [one.target for one in imports("from . import x", "a.b.c")]
    in_package = [one.target for one in imports("from . import x", "a.b", is_package=True)]
    above = [one.target for one in imports("from ..d import x", "a.b.c")]
    assert (in_module, in_package, above) == (["a.b.x"], ["a.b.x"], ["a.d.x"])
