"""What both command-line clients read from their options."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from tidegate_protocols.commands import values

VARIABLE = "TIDEGATE_TEST_PASSWORD"


def test_the_password_comes_from_the_file_or_the_environment(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, "from environment")
    file = tmp_path / "password"
    file.write_bytes(b"from file \r\n")
    assert values.read_password("me", VARIABLE, file, "") == b"from file "
    assert values.read_password("me", VARIABLE, None, "") == b"from environment"
    assert values.read_password(None, VARIABLE, None, "") is None
    with pytest.raises(typer.BadParameter, match="needs --user"):
        values.read_password(None, VARIABLE, file, "")
    with pytest.raises(typer.BadParameter, match="No such file"):
        values.read_password("me", VARIABLE, tmp_path / "nothing", "")


def test_the_password_is_asked_for_on_a_terminal_only(monkeypatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    with pytest.raises(typer.BadParameter, match=f"{VARIABLE} or ask"):
        values.read_password("me", VARIABLE, None, " or ask")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    asked: list[Any] = []

    def prompt(text: str, **options: Any) -> str:
        asked.append((text, options["hide_input"]))
        return "typed"

    monkeypatch.setattr(typer, "prompt", prompt)
    assert values.read_password("me", VARIABLE, None, "") == b"typed"
    assert asked == [("Password", True)]


def test_waits_are_above_zero_and_finite() -> None:
    assert values.read_wait("200ms", "--x") == 0.2
    for text in ("0s", "31d", "never"):
        with pytest.raises(typer.BadParameter):
            values.read_wait(text, "--x")


def test_pairs_keep_their_order_and_may_repeat() -> None:
    assert values.read_pairs(["b:1", "a:x:y", "b:"], "-D") == (("b", "1"), ("a", "x:y"), ("b", ""))
    for line in ("novalue", ":v"):
        with pytest.raises(typer.BadParameter, match="is not NAME:VALUE"):
            values.read_pairs([line], "-D")


@pytest.mark.parametrize(
    ("is_terminal", "printed"),
    [(True, b"t a\\x1b[2J\nb\\x07\tc\xef\xbf\xbd\n"), (False, b"t a\x1b[2J\nb\x07\tc\xff\n")],
)
def test_a_body_cannot_act_on_a_terminal_and_is_as_it_is_elsewhere(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, printed: bytes
) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="utf-8", newline="")
    monkeypatch.setattr(out, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr("sys.stdout", out)
    values.write_body(b"a\x1b[2J\nb\x07\tc\xff", b"t ")
    assert raw.getvalue() == printed
