"""Commands that plugins add to the command line, and what becomes of those that cannot."""

from collections.abc import Callable

import pytest

from tidegate.cli._exit import ExitCode
from tidegate.spi import COMMANDS_GROUP

TOOL = """
import typer
from tidegate.spi import StoreIOError

app = typer.Typer(help="Tools of a test.")

@app.command()
def {name}(context: typer.Context, as_json: bool = typer.Option(False, "--json")) -> None:
    "Say it."
    if as_json:
        context.obj.print_json({{"said": "{name}"}})
    else:
        context.obj.print_table(("what", "count"), [("{name}", 7)])

@app.command(name="{name}-fails")
def fails() -> None:
    "Fail."
    raise StoreIOError("the disk is gone")
"""

ONE = """
import typer

app = typer.Typer()

@app.command(name="{name}")
def say() -> None:
    "Say it."
    print("{name}")
"""


@pytest.fixture
def add(site) -> Callable[..., None]:
    """Install a distribution that adds commands to a group."""

    def install(distribution: str, group: str, source: str) -> None:
        module = distribution.replace("-", "_")
        site.add(distribution, {group: f"{module}:app"}, source, group=COMMANDS_GROUP)

    return install


def test_a_plugin_adds_a_group_of_commands(tidegate, add) -> None:
    add("tool-one", "tool", TOOL.format(name="speak"))
    assert "Tools of a test." in tidegate("--help").out
    assert "Say it." in tidegate("tool", "--help").out
    assert tidegate("tool", "speak").out.splitlines()[-1].split() == ["speak", "7"]
    assert tidegate("tool", "speak", "--json").out == '{\n  "said": "speak"\n}\n'


def test_a_group_whose_only_command_has_its_name_is_that_command(tidegate, add) -> None:
    add("tool-one", "tool", ONE.format(name="tool"))
    assert tidegate("tool").out == "tool\n"
    assert "Say it." in tidegate("tool", "--help").out
    add("tool-two", "tool", ONE.format(name="other"))
    assert tidegate("tool", "tool").out == "tool\n"


def test_several_plugins_add_to_one_group_and_to_the_hosts_own(tidegate, add) -> None:
    add("tool-one", "store", TOOL.format(name="speak"))
    add("tool-two", "store", TOOL.format(name="sing"))
    shown = tidegate("store", "--help").out
    assert all(name in shown for name in ("export", "import", "speak", "sing"))
    assert "sing" in tidegate("store", "sing").out


def test_an_error_of_the_contract_is_one_line_and_its_exit_code(tidegate, add) -> None:
    add("tool-one", "tool", TOOL.format(name="speak"))
    done = tidegate("tool", "speak-fails")
    assert (done.code, done.out) == (ExitCode.STORAGE, "")
    assert done.err == "tidegate: error: the disk is gone\n"


def test_a_name_given_twice_names_both_distributions(tidegate, add) -> None:
    add("tool-one", "tool", TOOL.format(name="speak"))
    add("tool-two", "tool", TOOL.format(name="speak"))
    assert tidegate("tool", "speak").code == 0  # the first one stays
    shown = " ".join(tidegate("tool", "--help").out.split())
    assert "PROBLEM" in shown
    assert "tool-one 1.2.3" in shown
    assert "tool-two 1.2.3" in shown


def test_a_plugin_cannot_take_the_place_of_a_command_of_ours(tidegate, add) -> None:
    add("tool-one", "store", TOOL.format(name="export"))
    add("tool-two", "plugins", TOOL.format(name="speak"))
    assert "the command store export already exists; it comes from tidegate itself" in " ".join(
        tidegate("store", "--help").out.split()
    )
    assert "no plugins installed" in tidegate("plugins").out


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import module_that_is_nowhere", "cannot be imported: ModuleNotFoundError"),
        ("app = 3", "found int; expected a typer.Typer"),
        ("import typer\napp = typer.Typer()", "has no commands"),
    ],
)
def test_a_broken_plugin_costs_only_its_own_commands(tidegate, add, source: str, said: str) -> None:
    add("bad-dist", "store", source)
    shown = tidegate("store", "--help")
    assert shown.code == 0
    assert said in " ".join(shown.out.split())
    assert tidegate("store", "export", "--help").code == 0
    assert tidegate("--help").code == 0
    done = tidegate("store", "create")
    assert done.code == ExitCode.PLUGIN
    assert said in done.err


def test_a_name_that_nobody_gives_is_a_wrong_call(tidegate) -> None:
    done = tidegate("store", "nothing")
    assert done.code == ExitCode.CONFIG
    assert "No such command 'nothing'" in done.err


def test_an_ordinary_command_imports_no_plugin(tidegate, add) -> None:
    add("bad-dist", "tool", "raise SystemExit('imported')")
    assert tidegate("plugins").code == 0
