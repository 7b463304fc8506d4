"""`tidegate stomp`: the commands against a running gateway, and every way to call them wrong."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from free_ports import free_port
from gateway_process import GatewayProcess

from tidegate.cli import main
from tidegate_protocols.commands import stomp

STOMP_MD = (Path(__file__).resolve().parents[3] / "docs" / "stomp.md").read_text()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("gateway")) as running:
        yield running
        assert running.stop() == 0, running.tail()


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: object) -> tuple[int, str, str]:
        code = main(["stomp", *[str(argument) for argument in arguments]])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def at(gateway: GatewayProcess) -> tuple[str, ...]:
    return ("--url", f"stomp://127.0.0.1:{gateway.stomp_port}", "--timeout", "60s")


def answer(data: bytes) -> int:
    """A broker that says *data* to the first frame and then nothing; returns its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as connection, contextlib.suppress(OSError):
            connection.settimeout(60)
            connection.recv(65536)
            connection.sendall(data)
            while connection.recv(65536):
                pass

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


CONNECTED = b"CONNECTED\nversion:1.2\n\n\0"


def test_what_was_sent_is_received_once(call, at) -> None:
    assert call("send", "/queue/cli.once", "hello wörld", *at) == (0, "", "")
    assert call("receive", "/queue/cli.once", *at) == (0, "hello wörld\n", "")
    code, out, err = call("receive", "/queue/cli.once", *at, "--timeout", "3s")
    assert (code, out) == (8, "")
    assert err == "tidegate: error: received 0 of 1 messages; no more within 3s\n"


def test_headers_go_along_and_come_back_as_json(call, at) -> None:
    done = call(
        "send", "/queue/cli.json", "x", "-H", "mine:a:b\\", "-H", "priority:7", "--json", *at
    )
    assert (done[0], json.loads(done[1])) == (0, {"sent": 1, "confirmed": True, "bytes": 1})
    code, out, _ = call("receive", "/queue/cli.json", "--json", *at)
    shown = json.loads(out)
    assert (code, shown["body"]) == (0, "x")
    assert (shown["headers"]["mine"], shown["headers"]["priority"]) == ("a:b\\", "7")


def test_bytes_that_are_no_text_come_back_whole(call, at, tmp_path) -> None:
    file = tmp_path / "body"
    file.write_bytes(b"\xff\0\xfe")
    assert call("send", "/queue/cli.bytes", "--file", file, *at)[0] == 0
    code, out, _ = call("receive", "/queue/cli.bytes", "--json", *at)
    assert (code, json.loads(out)["body_base64"]) == (0, "/wD+")


def test_the_body_may_come_from_stdin(call, at, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"piped\n")))
    assert call("send", "/queue/cli.stdin", *at)[0] == 0
    assert call("receive", "/queue/cli.stdin", *at) == (0, "piped\n\n", "")


@pytest.mark.parametrize("ack", ["auto", "client", "client-individual"])
@pytest.mark.parametrize("receipt", ["--receipt", "--no-receipt"])
def test_counts_and_modes(call, at, ack, receipt) -> None:
    name = f"/queue/cli.count.{ack}.{receipt}"
    assert call("send", name, "m", "--count", 3, receipt, *at)[0] == 0
    assert call("receive", name, "--count", 3, "--ack", ack, *at) == (0, "m\nm\nm\n", "")
    assert call("browse", name, *at) == (0, "", ""), "all three were acknowledged"


def test_a_selector_chooses_what_is_received_and_shown(call, at) -> None:
    name = "/queue/cli.selector"
    for color in ("red", "blue"):
        assert call("send", name, color, "-H", f"color:{color}", *at)[0] == 0
    assert call("browse", name, "--selector", "color = 'blue'", *at) == (0, "blue\n", "")
    assert call("receive", name, "--selector", "color = 'blue'", *at) == (0, "blue\n", "")
    assert call("receive", name, *at) == (0, "red\n", "")


def test_a_bad_selector_says_where(call, at) -> None:
    code, out, err = call("receive", "/queue/cli.selector", "--selector", "color ==", *at)
    assert (code, out) == (8, "")
    assert "column 8" in err


def test_a_refused_send_says_what_the_broker_said(call, at) -> None:
    code, out, err = call("send", "nowhere", "x", *at)
    assert (code, out) == (8, "")
    assert err.startswith("tidegate: error: 127.0.0.1:")
    assert "refused: " in err
    assert "/queue/NAME" in err
    assert err.count("\n") == 1


def test_browse_prints_the_brokers_error_or_the_messages_and_leaves_them(call, at) -> None:
    name = "/queue/cli.browse"
    assert call("send", name, "kept", *at)[0] == 0
    code, out, err = call("browse", name, *at)
    if code:  # a broker without queue browsing
        assert (code, out) == (8, "")
        assert "refused: the header browser" in err
    else:
        assert out == "kept\n"
    assert call("receive", name, *at) == (0, "kept\n", "")


def test_browse_ends_at_the_brokers_end_frame(call) -> None:
    port = answer(
        CONNECTED
        + b"RECEIPT\nreceipt-id:subscribe\n\n\0"
        + b"MESSAGE\nsubscription:1\nmessage-id:1\ndestination:/queue/a\n\none\0"
        + b"MESSAGE\nsubscription:1\nmessage-id:2\ndestination:/queue/a\nbrowser:end\n\n\0"
        + b"RECEIPT\nreceipt-id:leave\n\n\0"
    )
    done = call("browse", "/queue/a", "--url", f"stomp://127.0.0.1:{port}", "--timeout", "60s")
    assert done == (0, "one\n", "")


def test_a_broker_that_is_not_there(call) -> None:
    code, out, err = call("send", "/queue/a", "x", "--url", f"stomp://127.0.0.1:{free_port()}")
    assert (code, out) == (8, "")
    assert re.fullmatch(r"tidegate: error: cannot reach 127\.0\.0\.1:\d+.*\n", err)


def test_a_broker_that_says_nothing(call) -> None:
    url = f"stomp://127.0.0.1:{answer(b'')}"
    code, _, err = call("send", "/queue/a", "x", "--url", url, "--timeout", "300ms")
    assert code == 8
    assert "no answer to CONNECT from " in err
    assert " within 0.3 s" in err


def test_a_broker_that_refuses_the_login(call, monkeypatch) -> None:
    monkeypatch.setenv(stomp.PASSWORD_VARIABLE, "s3cret")
    port = answer(b"ERROR\nmessage:wrong password\ncontent-length:4\n\nmore\0")
    code, _, err = call(
        "send", "/queue/a", "x", "--url", f"stomp://127.0.0.1:{port}", "--user", "me"
    )
    assert code == 8
    assert "refused: wrong password; more" in err
    assert "s3cret" not in err


def test_the_password_comes_from_the_environment(call, monkeypatch) -> None:
    heard: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            connection.settimeout(60)
            heard.append(connection.recv(65536))
            connection.sendall(b"ERROR\nmessage:no\n\n\0")

    thread = threading.Thread(target=serve)
    thread.start()
    monkeypatch.setenv(stomp.PASSWORD_VARIABLE, "s3cret")
    call(
        "send",
        "/queue/a",
        "x",
        "-u",
        "me",
        "--url",
        f"stomp://127.0.0.1:{listener.getsockname()[1]}",
    )
    thread.join(60)
    assert b"\nlogin:me\n" in heard[0]
    assert b"\npasscode:s3cret\n" in heard[0]


def test_a_password_is_asked_for_on_a_terminal(call, monkeypatch) -> None:
    monkeypatch.delenv(stomp.PASSWORD_VARIABLE, raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked: list[Any] = []

    def prompt(text: str, **options: Any) -> str:
        asked.append((text, options["hide_input"]))
        return "typed"

    monkeypatch.setattr(typer, "prompt", prompt)
    assert stomp._password("me") == "typed"
    assert asked == [("Password", True)]
    assert stomp._password(None) is None


def test_without_a_command_the_help_is_shown(call) -> None:
    code, out, err = call()
    assert (code, out) == (2, "")
    assert err.startswith("Usage: tidegate stomp [OPTIONS] COMMAND")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("send",), "Missing argument 'DESTINATION'"),
        (("send", "/queue/a", "x", "--file", "y"), "BODY or --file, not both"),
        (("send", "/queue/a", "--file", "/nowhere/x"), "No such file"),
        (("send", "/queue/a", "x", "--count", "0"), "--count"),
        (("send", "/queue/a", "x", "-H", "novalue"), "is not NAME:VALUE"),
        (("send", "/queue/a", "x", "-H", ":v"), "is not NAME:VALUE"),
        (("send", "/queue/a", "x", "--url", "localhost"), "is not like stomp://"),
        (("send", "/queue/a", "x", "--url", "http://x:1"), "is not like stomp://"),
        (("send", "/queue/a", "x", "--url", "stomp://x:99999"), "--url"),
        (("send", "/queue/a", "x", "--url", "stomp://me:pw@x"), "do not put a login into the URL"),
        (("send", "/queue/a", "x", "--timeout", "soon"), "is not a time"),
        (("send", "/queue/a", "x", "--timeout", "0s"), "above 0"),
        (("send", "/queue/a", "x", "--user", "me"), "set TIDEGATE_STOMP_PASSWORD"),
        (("receive", "/queue/a", "--ack", "maybe"), "--ack"),
        (("browse",), "Missing argument 'DESTINATION'"),
    ],
)
def test_a_wrong_call_is_one_line(call, monkeypatch, arguments, text) -> None:
    monkeypatch.delenv(stomp.PASSWORD_VARIABLE, raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert err.count("\n") == 1
    assert "pw" not in err.replace("(see", "") or "stomp://me" not in err


def test_without_stomp_py_the_line_says_what_to_install(call, monkeypatch) -> None:
    real = importlib.import_module

    def missing(name: str, *rest: Any) -> Any:
        if name == "stomp":
            raise ModuleNotFoundError("No module named 'stomp'", name="stomp")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    code, _, err = call("send", "/queue/a", "x")
    assert code == 8
    assert (
        err
        == "tidegate: error: `tidegate stomp` needs stomp.py: pip install 'tidegate-protocols[clients]'\n"
    )


def test_docs_stomp_md_has_every_command_and_option() -> None:
    group: Any = typer.main.get_command(stomp.app)
    assert set(group.commands) == {"send", "receive", "browse"}
    for name, command in group.commands.items():
        assert f"tidegate stomp {name}" in STOMP_MD
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("--") and option != "--help":
                    assert f"`{option}" in STOMP_MD, option
    assert stomp.PASSWORD_VARIABLE in STOMP_MD


def test_a_reader_that_went_away_is_no_error_and_its_message_stays(at, call) -> None:
    for number in range(5):
        assert call("send", "/queue/cli.head", f"body {number}", *at)[0] == 0
    command = [sys.executable, "-m", "tidegate", "stomp", "receive", "/queue/cli.head", "-n", "5"]
    with subprocess.Popen(
        [*command, *at], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.close()  # as `| head` does, only earlier
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(60) == 0
    code, out, _ = call("receive", "/queue/cli.head", "-n", "5", *at)
    assert code == 0
    assert out.splitlines() == [f"body {number}" for number in range(5)]
