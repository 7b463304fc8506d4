"""What the host lends to commands: the configured store, tables, bars."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tidegate.cli import _host
from tidegate.cli._host import Bars, Host, plain_table
from tidegate.spi import ConfigError


def rendered(table: object) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=80).print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_numbers_stand_to_the_right_and_text_is_not_markup() -> None:
    lines = rendered(plain_table(("name", "count"), [("[b]a[/b]", 5), ("b", 12345), ("c", 0)]))
    assert lines[0].split() == ["name", "count"]
    assert lines[2] == "[b]a[/b]       5"
    assert lines[3] == "b          12345"


def test_nothing_is_an_empty_cell(capsys: pytest.CaptureFixture[str]) -> None:
    Host().print_table(("a", "b"), [(None, "x")])
    assert capsys.readouterr().out.splitlines()[-1].strip() == "x"


def test_the_store_is_that_of_the_configuration(tidegate, toys, tmp_path: Path) -> None:
    store = Host().store(toys(data=tmp_path / "data"))
    assert (store.plugin, store.gateway_name) == ("toy", "toybox")
    assert store.data_directory == tmp_path / "data"
    assert store.persistent
    with pytest.raises(ConfigError):
        Host().store(tmp_path / "nowhere.toml")


def console(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> io.StringIO:
    out = io.StringIO()

    def make(**_: object) -> Console:
        return Console(file=out, force_terminal=terminal, width=100)

    monkeypatch.setattr(_host, "Console", make)
    return out


def test_a_bar_is_drawn_on_a_terminal_and_ends_with_the_total(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = console(monkeypatch, terminal=True)
    bars = Bars()
    bars("reading", 0, 10)
    bars("reading", 5, 10)
    bars("reading", 10, 10)
    text = out.getvalue()
    assert "reading" in text
    assert "10/10" in text
    length = len(text)
    bars.close()
    assert len(out.getvalue()) == length  # it had ended


def test_a_bar_of_unknown_length_ends_with_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    out = console(monkeypatch, terminal=True)
    with Bars() as bars:
        bars("looking", 3, 0)
    assert "looking" in out.getvalue()


def test_without_a_terminal_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    out = console(monkeypatch, terminal=False)
    with Bars() as bars:
        bars("reading", 1, 2)
    assert out.getvalue() == ""


def test_a_name_in_a_table_cannot_act_on_the_terminal() -> None:
    text = "\n".join(rendered(plain_table(("name", "count"), [("\x1b[2Jq\x9b31m\u202e", 5)])))
    assert r"\x1b[2Jq\x9b31m\u202e" in text
    assert not set("\x1b\x9b\u202e") & set(text)
