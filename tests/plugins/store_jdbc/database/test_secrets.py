"""User and password: where they come from, in which order, and that nobody else sees them."""

from __future__ import annotations

import asyncio
import logging
import os
import pty
import sys
import termios
import threading
from pathlib import Path

import pytest
from jdbc_kit import QUEUE, new_store, opened, postgres_options, write
from numbered import add
from postgres_server import PostgresServer

from tidegate.spi import ConfigError
from tidegate_store_jdbc._options import JdbcOptions
from tidegate_store_jdbc.database.secrets import (
    FILE_BYTES_MAX,
    KEY_VARIABLE,
    PASSWORD_VARIABLE,
    USER_VARIABLE,
    Credentials,
    ask,
    credentials,
    mask,
    new_key,
    read_password_file,
)
from tidegate_store_jdbc.database.url import parse_url

NO_URL = parse_url("postgresql://host/db")
URL = parse_url("postgresql://url-user:url-pass@host/db")


def password_file(directory: Path, content: str, mode: int = 0o600) -> JdbcOptions:
    path = directory / "secret"
    path.write_text(content)
    path.chmod(mode)
    return JdbcOptions(password_file="secret", user="option-user")


def test_the_password_file_comes_first(tmp_path: Path) -> None:
    options = password_file(tmp_path, "# of the store\nuser=file-user\npassword= a=b \n")
    environment = {USER_VARIABLE: "env-user", PASSWORD_VARIABLE: "env-pass"}
    found = credentials(options, URL, tmp_path, environment)
    assert found == Credentials("file-user", " a=b ")


def test_the_environment_comes_before_the_configuration(tmp_path: Path) -> None:
    options = JdbcOptions(user="option-user", password="option-pass")
    environment = {USER_VARIABLE: "env-user", PASSWORD_VARIABLE: "env-pass"}
    assert credentials(options, URL, tmp_path, environment) == Credentials("env-user", "env-pass")


def test_a_password_in_clear_that_is_not_used_is_warned_of_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = JdbcOptions(password="option-pass")
    credentials(options, URL, tmp_path, {PASSWORD_VARIABLE: "env-pass"})
    assert "store.password holds a password in clear" in caplog.text
    assert "store.url holds a password in clear" in caplog.text
    assert "-pass" not in caplog.text


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (JdbcOptions(user="me"), "user"),
        (JdbcOptions(password="secret"), "password"),
        (JdbcOptions(password_file="secret"), "password_file"),
        (JdbcOptions(needpassword=True), "needpassword"),
        (JdbcOptions(mask_key_file="key"), "mask_key_file"),
        (JdbcOptions(url="sqlite://me@/file.db"), "url"),
        (JdbcOptions(url="sqlite://host/file.db"), "url"),
    ],
)
def test_sqlite_refuses_options_that_would_do_nothing(
    options: JdbcOptions, key: str, tmp_path: Path
) -> None:
    (tmp_path / "secret").touch(0o600)
    with pytest.raises(ConfigError) as caught:
        new_store(tmp_path, options)
    assert caught.value.key == key


def test_a_password_in_the_environment_does_not_disturb_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "of another store")
    new_store(tmp_path)


@pytest.mark.parametrize(
    ("options", "expected", "key"),
    [
        (
            JdbcOptions(user="u", password="option-pass"),
            Credentials("u", "option-pass"),
            "password",
        ),
        (JdbcOptions(), Credentials("url-user", "url-pass"), "url"),
    ],
)
def test_a_password_in_clear_is_warned_of_and_not_shown(
    options: JdbcOptions,
    expected: Credentials,
    key: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert credentials(options, URL, tmp_path, {}) == expected
    assert f"store.{key} holds a password in clear" in caplog.text
    assert expected.password not in caplog.text
    assert expected.password not in repr(expected)


def test_a_database_without_a_password_needs_none(tmp_path: Path) -> None:
    assert credentials(JdbcOptions(), NO_URL, tmp_path, {}) == Credentials()


def test_a_file_with_one_line_is_the_password(tmp_path: Path) -> None:
    options = password_file(tmp_path, "just=this\n")
    assert credentials(options, NO_URL, tmp_path, {}) == Credentials("option-user", "just=this")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_can_use_is_refused(mode: int, tmp_path: Path) -> None:
    options = password_file(tmp_path, "password=s3cret", mode)
    with pytest.raises(ConfigError, match="chmod 600") as caught:
        credentials(options, NO_URL, tmp_path, {})
    assert caught.value.key == "password_file"
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"password=x\nsecret=y", "line 2 is not"),
        (b"x" * (FILE_BYTES_MAX + 1), "more than"),
        (b"password=\xff", "not UTF-8"),
    ],
)
def test_a_file_that_is_none_is_refused_without_showing_it(
    content: bytes, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=problem):
        read_password_file(path)


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_password_file(tmp_path / "none")
    with pytest.raises(ConfigError):
        read_password_file(tmp_path)


async def test_the_password_is_in_no_log_and_no_process_list(
    postgres: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    store, _ = await opened(tmp_path, postgres_options(postgres, tmp_path))
    await write(store, QUEUE, add(1))
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert postgres.password.encode() not in process.read_bytes(), process
        except OSError:
            continue  # it has ended
    await store.close()
    assert postgres.password not in caplog.text
    assert postgres.password not in (postgres.directory / "log").read_text()


async def test_bodies_are_in_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    store, _ = await opened(tmp_path)
    await write(store, QUEUE, add(4711))
    await store.close()
    assert "4711 ..." not in caplog.text


def test_masked_values_are_read_with_the_key_and_are_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = new_key(tmp_path / "key")
    options = JdbcOptions(
        user=mask("masked-user", key), password=mask("masked-pass", key), mask_key_file="key"
    )
    with caplog.at_level(logging.DEBUG, "tidegate"):
        found = credentials(options, NO_URL, tmp_path, {})
    assert found == Credentials("masked-user", "masked-pass")
    assert caplog.records == []
    options = JdbcOptions(password=mask("masked-pass", key))
    found = credentials(options, NO_URL, tmp_path, {KEY_VARIABLE: key.decode()})
    assert found.password == "masked-pass"
    lines = f"password={mask('in-file', key)}\n"
    made = password_file(tmp_path, lines)
    assert credentials(made, NO_URL, tmp_path, {KEY_VARIABLE: key.decode()}).password == "in-file"


def test_a_masked_value_without_its_key_is_refused_and_not_shown(tmp_path: Path) -> None:
    key = new_key(tmp_path / "key")
    new_key(tmp_path / "other")
    value = mask("masked-pass", key)
    for options, expected in (
        (JdbcOptions(password=value), "mask_key_file"),
        (JdbcOptions(password=value, mask_key_file="missing"), "mask_key_file"),
        (JdbcOptions(password=value, mask_key_file="other"), "password"),
        (JdbcOptions(password="ENC(nonsense)", mask_key_file="key"), "password"),
        (JdbcOptions(password="ENC(ü)", mask_key_file="key"), "password"),
    ):
        with pytest.raises(ConfigError) as caught:
            credentials(options, NO_URL, tmp_path, {})
        assert caught.value.key == expected
        assert value not in str(caught.value)
        assert caught.value.__cause__ is None or expected == "mask_key_file"
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(ConfigError, match="0644"):
        credentials(JdbcOptions(password=value, mask_key_file="key"), NO_URL, tmp_path, {})
    (tmp_path / "bad").write_text("not a key")
    (tmp_path / "bad").chmod(0o600)
    with pytest.raises(ConfigError, match="not one of"):
        credentials(JdbcOptions(password=value, mask_key_file="bad"), NO_URL, tmp_path, {})


def test_a_password_is_asked_for_on_the_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = JdbcOptions(needpassword=True)
    found = credentials(options, NO_URL, tmp_path, {})
    assert found.is_asked_for
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(ConfigError, match="no terminal"):
        found.ask()
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda _: True})())
    monkeypatch.setattr("getpass.getpass", lambda *_, **__: "typed")
    found.ask()
    assert (found.password, found.is_asked_for) == ("typed", False)
    given = credentials(options, NO_URL, tmp_path, {PASSWORD_VARIABLE: "given"})
    given.ask()
    assert given.password == "given"


def test_the_text_of_options_holds_no_secret() -> None:
    options = JdbcOptions(password="hunter2", url="postgresql://me:hunter2@host/db?a=hunter2")
    assert repr(options) == "JdbcOptions(host/db)"
    assert "hunter2" not in f"{options}"


async def test_a_prompt_that_is_given_up_leaves_the_terminal_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = pty.openpty()
    over = threading.Event()
    prompted = threading.Event()

    def silent(*_: object, **__: object) -> str:
        mode = termios.tcgetattr(theirs)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, mode)
        prompted.set()
        over.wait(60)
        return "too late"

    monkeypatch.setattr("getpass.getpass", silent)

    try:
        with os.fdopen(theirs, closefd=False) as terminal:
            monkeypatch.setattr(sys, "stdin", terminal)
            secret = Credentials(is_asked_for=True)
            asking = asyncio.create_task(ask(secret))
            while not prompted.is_set():
                await asyncio.sleep(0.005)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert termios.tcgetattr(theirs)[3] & termios.ECHO
    finally:
        over.set()
        for thread in threading.enumerate():
            if thread.name == "jdbc-password":
                thread.join(60)
        os.close(theirs)
        os.close(ours)


async def test_a_prompt_beside_the_event_loop_tells_what_was_typed_or_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(ConfigError, match="no terminal"):
        await ask(Credentials(is_asked_for=True))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda *_, **__: "typed")
    secret = Credentials(is_asked_for=True)
    await ask(secret)
    assert secret.password == "typed"
    await ask(Credentials())  # nothing to ask
