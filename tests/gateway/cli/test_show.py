"""What the commands print, where the whole command is not needed to see it."""

import io
import json

import pytest
from rich.console import Console

from tidegate.cli import _run, _show
from tidegate.config import parse_config, resolve
from tidegate.plugins import PluginHost, PluginRow

BASE = """
[broker]
persistent = {persistent}
data_directory = "/srv/data"
[[listeners]]
protocol = "toy"
bind = ":9"
allow_anonymous = true
[store]
plugin = "toy"
[[destinations]]
match = ">"
cursor = "toy"
[[sinks]]
plugin = "toy"
name = "lake"
table = "[red]x[/red]"
"""


def resolved(site, persistent: str = "true"):
    site.add_toys()
    host = site.host()
    return resolve(parse_config(BASE.format(persistent=persistent)), host), host


def printed(renderable: object, width: int = 100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(renderable)
    return stream.getvalue()


def test_the_description_is_plain_json_and_reads_like_the_file(site) -> None:
    config, host = resolved(site)
    description = _show.describe(config, host)
    assert json.loads(json.dumps(description)) == description
    assert description["listeners"][0]["bind"] == ":9"
    tree = printed(_show.config_tree(description))
    assert "configuration: the embedded default" in tree
    assert "[[sinks]]" in tree
    assert 'table = "[red]x[/red]"' in tree  # never taken for markup
    assert "extensions: none" in tree


def test_nothing_is_cut_off_where_the_terminal_is_narrow(site) -> None:
    config, host = resolved(site)
    description = _show.describe(config, host)
    description["broker"]["name"] = "x" * 500
    assert printed(_show.config_tree(description), width=40).count("x") >= 500


@pytest.mark.parametrize(
    ("persistent", "store", "directory"),
    [("true", "store: toy", "/srv/data"), ("false", "store: toy (not persistent)", "none")],
)
def test_run_says_one_fact_a_line(site, persistent: str, store: str, directory: str) -> None:
    config, host = resolved(site, persistent)
    assert _run.start_lines(config, ["toy://a:1", "toy://b:2"], host) == [
        "listening: toy://a:1",
        "listening: toy://b:2",
        store,
        f"data directory: {directory}",
        "sinks: lake (toy)",
        "plugins: cursor-toy 0.9, protocol-toy 0.9, sink-toy 0.9, store-toy 0.9",
    ]


def test_a_row_with_a_problem_shows_it_instead_of_the_summary() -> None:
    row = PluginRow("", "gadget-x", "1", "", "odd", False, "nice", "unknown [kind]")
    text = printed(_show.plugin_table([row]), width=200)
    assert "PROBLEM: unknown [kind]" in text
    assert "nice" not in text
    assert "?" in text


def test_only_kinds_of_which_nothing_is_installed_are_missing(site) -> None:
    site.add_toys()
    assert _show.missing_kinds(site.host().list_plugins(())) == {}
    assert list(_show.missing_kinds(PluginHost([]).list_plugins(()))) == [
        "store",
        "cursor",
        "protocol",
        "sink",
        "extension",
    ]


def test_output_into_a_pipe_has_no_colour_and_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    console = _show.make_console()
    console.print("x" * 1500, style="red")
    assert capsys.readouterr().out == "x" * 1500 + "\n"
    _show.print_json({"ü": 1})
    assert capsys.readouterr().out == '{\n  "ü": 1\n}\n'
