"""`tests/` mirrors the tree: every module that holds code has a test file named after it.

gateway/tidegate/broker/_dispatch.py                -> tests/gateway/broker/test_dispatch.py
protocols/tidegate_protocols/stomp/_codec.py        -> tests/protocols/stomp/test_codec.py
plugins/cursors/tidegate_cursors/_file.py           -> tests/plugins/cursors/test_file.py
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Modules that are proved elsewhere, each with the reason. Keep it tiny.
EXEMPT: dict[str, str] = {}


def packages() -> list[tuple[Path, Path]]:
    """Return each room's import package and the folder of its tests."""
    rooms = [(ROOT / "gateway", ROOT / "tests" / "gateway")]
    rooms.append((ROOT / "protocols", ROOT / "tests" / "protocols"))
    for folder in sorted((ROOT / "plugins").iterdir()):
        rooms.append((folder, ROOT / "tests" / "plugins" / folder.name))
    return [(init.parent, tests) for room, tests in rooms for init in room.glob("*/__init__.py")]


def expected() -> Iterator[tuple[Path, Path]]:
    """Yield each module that holds code, with the test file that it should have."""
    for package, tests in packages():
        for module in sorted(package.rglob("*.py")):
            if module.name != "__init__.py" and holds_code(module.read_text()):
                inner = module.parent.relative_to(package)
                yield module, tests / inner / test_name(module.stem)


def test_name(stem: str) -> str:
    """Return the name of the test file of a module."""
    return f"test_{stem.strip('_')}.py"


test_name.__test__ = False  # type: ignore[attr-defined]  # a helper, though its name begins with test_


def holds_code(source: str) -> bool:
    """Say whether a module holds a function that does something.

    One that only re-exports, or only declares (protocols, hook specs, plain value types), has none:
    what would prove it is the test of whoever implements or builds those.
    """
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, functions)]
    return any(not _is_declaration(statement) for node in found for statement in node.body)


def _is_declaration(statement: ast.stmt) -> bool:
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass)


def holds_tests(source: str) -> bool:
    """Say whether pytest would collect something here: a function, class or name that begins so."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("test_"):
                return True
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            return True
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if any(name.startswith("Test") for name in names):
                return True
    return False


MODULES = [
    pytest.param(module, test, id=module.relative_to(ROOT).as_posix())
    for module, test in expected()
    if module.relative_to(ROOT).as_posix() not in EXEMPT
]


@pytest.mark.parametrize(("module", "test"), MODULES)
def test_a_module_has_a_test_file_named_after_it(module: Path, test: Path) -> None:
    assert test.is_file(), f"{module.relative_to(ROOT)} has no {test.relative_to(ROOT)}"
    assert holds_tests(test.read_text()), f"{test.relative_to(ROOT)} holds no test"


def test_every_room_is_seen() -> None:
    names = {package.name for package, _ in packages()}
    assert names >= {"tidegate", "tidegate_protocols", "tidegate_store_journal"}
    assert names >= {"tidegate_cursors", "tidegate_sink_spark"}


def test_an_exemption_names_a_module_that_lacks_its_test_and_says_why() -> None:
    wanted = {module.relative_to(ROOT).as_posix(): test for module, test in expected()}
    for path, reason in EXEMPT.items():
        assert path in wanted, f"{path} is gone or holds no code"
        assert not wanted[path].exists(), f"{path} has its test now"
        assert reason
    assert len(EXEMPT) <= 5


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("from .x import y\n__all__ = ['y']", False),
        (
            "class P(Protocol):\n    async def f(self) -> int:\n        'Say what.'\n        ...",
            False,
        ),
        ("class S(Struct):\n    sequence: int", False),
        ("def f(x):\n    return x", True),
        ("class C:\n    def f(self):\n        'Say what.'\n        self.x = 1", True),
    ],
)
def test_a_module_that_only_declares_or_reexports_needs_no_test(source: str, answer: bool) -> None:
    assert holds_code(source) is answer


@pytest.mark.parametrize(
    ("source", "answer"),
    [("import pytest", False), ("def helper(): ...", False), ("async def test_a(): ...", True)],
)
def test_an_empty_test_file_does_not_count(source: str, answer: bool) -> None:
    assert holds_tests(source) is answer
