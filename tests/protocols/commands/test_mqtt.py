"""`tidegate mqtt`: the commands against a running gateway, and every way to call them wrong."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
import typer.main
from free_ports import free_port
from gateway_process import GatewayProcess

from tidegate.cli import main
from tidegate_protocols.commands import mqtt, mqtt_values

MQTT_MD = (Path(__file__).resolve().parents[3] / "docs" / "mqtt.md").read_text()
VERSIONS = pytest.mark.parametrize("version", ["3.1", "3.1.1", "5"])


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    directory = tmp_path_factory.mktemp("gateway")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    ours = authority.issue_cert("127.0.0.1", "localhost")
    ours.private_key_pem.write_to_path(str(directory / "key.pem"))
    ours.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
    ports = {transport: free_port() for transport in ("tls", "ws", "wss")}
    files = f'tls_certificate = "{directory}/cert.pem"\ntls_key = "{directory}/key.pem"\n'
    extra = "".join(
        f'[[listeners]]\nprotocol = "mqtt"\ntransport = "{transport}"\nbind = "127.0.0.1:{port}"\n'
        + ("" if transport == "ws" else files)
        for transport, port in ports.items()
    )
    with GatewayProcess(directory, extra=extra) as running:
        yield SimpleNamespace(
            url=f"mqtt://127.0.0.1:{running.mqtt_port}", ports=ports, cafile=directory / "ca.pem"
        )
        assert running.stop() == 0, running.tail()


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: object) -> tuple[int, str, str]:
        code = main(["mqtt", *[str(argument) for argument in arguments]])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def at(gateway: Any) -> tuple[str, ...]:
    return ("--url", gateway.url, "--answer-timeout", "60s")


def retained(call: Any, at: Any, name: str, body: str, *more: object) -> None:
    assert call("pub", "-t", name, "-m", body, "--retain", *more, *at) == (0, "", "")


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_was_published_is_heard(call, at, version, qos) -> None:
    name = f"cli/{version}/{qos}"
    given = ("-q", qos, "--protocol", version, *at)
    retained(call, at, name, "hello wörld", "-q", qos, "--protocol", version)
    assert call("sub", "-t", f"cli/{version}/{qos}/#", "-n", 1, "--timeout", "60s", *given) == (
        0,
        "hello wörld\n",
        "",
    )


@VERSIONS
def test_a_kept_session_is_gone_on_with(call, at, version) -> None:
    sub = ("sub", "-t", "kept/+", "-i", f"keeper-{version}", "--protocol", version, *at)
    assert call(*sub, "--keep-session", "--timeout", "200ms") == (0, "", "")
    for body in "abc":
        assert call("pub", "-t", "kept/x", "-m", body, *at, "--protocol", version)[0] == 0
    assert call(*sub, "--keep-session", "-n", 2, "--timeout", "60s") == (0, "a\nb\n", "")
    assert call(*sub, "--keep-session", "-n", 1, "-v", "--timeout", "60s") == (0, "kept/x c\n", "")
    assert call("pub", "-t", "kept/x", "-m", "d", *at, "--protocol", version)[0] == 0
    assert call(*sub, "--clean", "--timeout", "200ms") == (0, "", ""), "the session is dropped"


def test_each_line_is_a_message_in_order(call, at, monkeypatch) -> None:
    sub = ("sub", "-t", "lines", "-i", "liner", "--keep-session", *at)
    assert call(*sub, "--timeout", "200ms")[0] == 0
    lines = [str(number) for number in range(250)]
    stdin = io.TextIOWrapper(io.BytesIO("\n".join(lines).encode() + b"\r\n"))
    monkeypatch.setattr("sys.stdin", stdin)
    code, out, _ = call("pub", "-t", "lines", "--lines", "--json", *at)
    done = json.loads(out)
    assert (code, done["sent"], done["confirmed"], done["bytes"]) == (0, 250, True, 640)
    assert sum(done["reasons"].values()) == 250
    assert call(*sub, "-n", 250, "--timeout", "60s") == (0, "\n".join(lines) + "\n", "")


def test_the_body_may_come_from_stdin_or_a_file(call, at, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"piped\nwhole")))
    assert call("pub", "-t", "from/stdin", "-r", *at)[0] == 0
    file = tmp_path / "body"
    file.write_bytes(b"\xff\0")
    assert call("pub", "-t", "from/file", "--file", file, "-r", *at)[0] == 0
    code, out, _ = call("sub", "-t", "from/stdin", "-n", 1, "--timeout", "60s", *at)
    assert (code, out) == (0, "piped\nwhole\n")
    code, out, _ = call("sub", "-t", "from/file", "-n", 1, "--json", "--timeout", "60s", *at)
    assert (code, json.loads(out)["body_base64"]) == (0, "/wA=")


def test_properties_go_along_and_come_back_as_json(call, at) -> None:
    retained(
        call, at, "props", "{}", "--content-type", "application/json", "--response-topic", "answers",
        "--correlation-data", "7", "--expiry", "1h", "--text", "-D", "b:1", "-D", "a:x:y", "-D",
        "b:2",
    )  # fmt: skip
    code, out, _ = call("sub", "-t", "props", "-n", 1, "--json", "--timeout", "60s", *at)
    shown = json.loads(out)
    properties = shown.pop("properties")
    assert code == 0
    assert shown == {"topic": "props", "qos": 1, "retain": True, "dup": False, "body": "{}"}
    assert 3590 <= properties.pop("expiry_seconds") <= 3600
    assert properties == {
        "payload_format": 1,
        "content_type": "application/json",
        "response_topic": "answers",
        "correlation_data": "7",
        "user": [["b", "1"], ["a", "x:y"], ["b", "2"]],
    }


def test_subscription_options_of_5(call, at) -> None:
    retained(call, at, "options", "old")
    sub = ("sub", "-t", "options", "-n", 1, "--timeout", "300ms", *at)
    assert call(*sub, "--retain-handling", "never")[0] == 8
    assert call(*sub, "--retain-handling", "always", "--timeout", "60s")[1] == "old\n"
    named = (*sub, "-i", "optioned", "--keep-session", "--retain-handling", "new")
    assert call(*named, "--timeout", "60s")[1] == "old\n"
    assert call(*named)[0] == 8, "the subscription is not new any more"
    kept = ("sub", "-t", "options", "-i", "local", "--keep-session", "--no-local", "-n", 1)
    kept = (*kept, "--retain-as-published", "--retain-handling", "never", "--json", *at)
    assert call(*kept, "--timeout", "200ms")[0] == 8
    # From the same client id: not sent back to it. Without --keep-session its session would end.
    retained(call, at, "options", "from another", "-i", "other")
    shown = json.loads(call(*kept, "--timeout", "60s")[1])
    assert (shown["body"], shown["retain"]) == ("from another", True)


@pytest.mark.parametrize("transport", ["tls", "ws", "wss"])
def test_every_transport(call, gateway, transport) -> None:
    scheme = {"tls": "mqtts", "ws": "ws", "wss": "wss"}[transport]
    path = "" if transport == "tls" else "/mqtt"
    at = ("--url", f"{scheme}://127.0.0.1:{gateway.ports[transport]}{path}")
    trust = () if transport == "ws" else ("--cafile", gateway.cafile)
    name = f"transport/{transport}"
    assert call("pub", "-t", name, "-m", transport, "-r", *at, *trust) == (0, "", "")
    done = call("sub", "-t", name, "-n", 1, "--timeout", "60s", *at, *trust)
    assert done == (0, f"{transport}\n", "")
    if trust:
        code, out, err = call("pub", "-t", name, "-m", "x", *at)
        assert (code, out) == (8, "")
        assert "cannot reach " in err
        assert "CERTIFICATE_VERIFY_FAILED" in err


def test_several_filters_and_too_few_messages(call, at) -> None:
    retained(call, at, "several/a", "1")
    retained(call, at, "several/b", "2")
    code, out, err = call(
        "sub", "-t", "several/a", "-t", "several/b", "-n", 3, "--timeout", "3s", *at
    )
    assert (code, sorted(out.split())) == (8, ["1", "2"])
    assert err == "tidegate: error: received 2 of 3 messages; no more within 3s\n"


def test_a_refused_subscription_and_a_refused_message_are_one_line(call, at) -> None:
    code, out, err = call("sub", "-t", "$share/nofilter", "--timeout", "60s", *at)
    assert (code, out, err.count("\n")) == (8, "", 1)
    code, out, err = call("pub", "-t", "$SYS/mine", "-m", "x", *at)
    assert (code, out, err.count("\n")) == (8, "", 1)
    assert "refused" in err


def test_nobody_listens(call) -> None:
    for arguments in (("pub", "-m", "x"), ("sub",)):
        port = free_port()
        code, out, err = call(*arguments, "-t", "a", "--url", f"127.0.0.1:{port}")
        assert (code, out, err.count("\n")) == (8, "", 1)
        assert f"cannot reach 127.0.0.1:{port}: " in err


def test_the_will_is_published_when_the_command_is_killed(call, at, gateway) -> None:
    sub = ("sub", "-t", "will/+", "-i", "heir", "--keep-session", *at)
    assert call(*sub, "--timeout", "200ms")[0] == 0
    retained(call, at, "ready", "yes")
    dying = subprocess.Popen(
        [
            sys.executable, "-m", "tidegate", "mqtt", "sub", "-t", "ready", "--url", gateway.url,
            "--will-topic", "will/sub", "--will-message", "gone", "--will-qos", "1",
        ],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    with dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == b"yes\n", "it is connected"
        dying.kill()
    assert call(*sub, "-n", 1, "-v", "--timeout", "60s") == (0, "will/sub gone\n", "")


def test_a_reader_that_goes_away_ends_the_command_well(call, at, gateway) -> None:
    for number in range(3):
        retained(call, at, f"pipe/{number}", "x")
    command = [sys.executable, "-m", "tidegate", "mqtt", "sub", "-t", "pipe/+"]
    given = ("--url", gateway.url, "--timeout", "60s", "-n", "4")
    with subprocess.Popen(
        [*command, *given], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b"x\n"
        running.stdout.close()
        retained(call, at, "pipe/4", "for nobody")
        assert running.wait(60) == 0
        assert running.stderr.read() == b""


def test_without_a_command_the_help_is_shown(call) -> None:
    code, out, err = call()
    assert (code, out) == (2, "")
    assert err.startswith("Usage: tidegate mqtt [OPTIONS] COMMAND")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("pub", "-m", "x"), "Missing option '--topic'"),
        (("sub",), "Missing option '--topic'"),
        (("pub", "-t", "a", "-m", "x", "--lines"), "one of --message, --file and --lines"),
        (("pub", "-t", "a", "-m", "x", "--file", "y"), "one of --message, --file and --lines"),
        (("pub", "-t", "a", "--file", "/nowhere/x"), "No such file"),
        (("pub", "-t", "a/#", "-m", "x"), "not a topic to publish to"),
        (("pub", "-t", "a", "-m", "x", "--response-topic", "+"), "not a topic to publish to"),
        (("pub", "-t", "a", "-m", "x", "-q", "3"), "--qos"),
        (("pub", "-t", "a", "-m", "x", "-D", "novalue"), "is not NAME:VALUE"),
        (("pub", "-t", "a", "-m", "x", "-D", "a:b", "-V", "3.1.1"), "properties need MQTT 5"),
        (("pub", "-t", "a", "-m", "x", "--text", "-V", "3.1"), "properties need MQTT 5"),
        (("pub", "-t", "a", "-m", "x", "--expiry", "0s"), "whole number of seconds"),
        (("pub", "-t", "a", "-m", "x", "--expiry", "500ms"), "whole number of seconds"),
        (("pub", "-t", "a", "-m", "x", "--url", "http://x"), "is not HOST"),
        (("pub", "-t", "a", "-m", "x", "--url", "mqtt://me:s3cret@x"), "do not put a login into"),
        (("pub", "-t", "a", "-m", "x", "--user", "me"), "set TIDEGATE_MQTT_PASSWORD"),
        (("pub", "-t", "a", "-m", "x", "--password-file", "y"), "needs --user"),
        (("pub", "-t", "a", "-m", "x", "--cafile", "y"), "needs TLS"),
        (("pub", "-t", "a", "-m", "x", "--will-message", "y"), "a will needs a topic"),
        (("pub", "-t", "a", "-m", "x", "--will-retain"), "a will needs a topic"),
        (("pub", "-t", "a", "-m", "x", "--will-qos", "1"), "a will needs a topic"),
        (("pub", "-t", "a", "-m", "x", "--will-topic", "#"), "not a topic to publish to"),
        (
            ("pub", "-t", "a", "-m", "x", "--will-topic", "w", "--will-delay", "1s", "-V", "3.1"),
            "--will-delay",
        ),
        (("pub", "-t", "a", "-m", "x", "--protocol", "4"), "--protocol"),
        (("pub", "-t", "a", "-m", "x", "--keep-alive", "1d"), "--keep-alive"),
        (("pub", "-t", "a", "-m", "x", "--answer-timeout", "0s"), "above 0"),
        (("sub", "-t", "a", "--timeout", "soon"), "is not a time"),
        (("sub", "-t", "a", "--json", "--verbose"), "--verbose or --json, not both"),
        (("sub", "-t", "a", "--keep-session"), "needs --client-id"),
        (("sub", "-t", "a", "--session-expiry", "1h"), "needs --keep-session"),
        (
            ("sub", "-t", "a", "-i", "x", "--keep-session", "--session-expiry", "1h", "-V", "3.1"),
            "needs MQTT 5",
        ),
        (("sub", "-t", "a", "-i", "x", "--keep-session", "--session-expiry", "0s"), "whole"),
        (("sub", "-t", "a", "--no-local", "-V", "3.1.1"), "need MQTT 5"),
        (("sub", "-t", "a", "--retain-handling", "maybe"), "--retain-handling"),
    ],
)
def test_a_wrong_call_is_one_line(call, monkeypatch, arguments, text) -> None:
    monkeypatch.delenv(mqtt_values.PASSWORD_VARIABLE, raising=False)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert err.count("\n") == 1
    assert "s3cret" not in err


def test_docs_mqtt_md_has_every_command_and_option() -> None:
    section = MQTT_MD.partition("## From the terminal")[2].partition("\n## ")[0]
    group: Any = typer.main.get_command(mqtt.app)
    assert set(group.commands) == {"pub", "sub"}
    for name, command in group.commands.items():
        assert f"tidegate mqtt {name}" in section
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("--") and option != "--help":
                    assert f"`{option}" in section, option
    assert mqtt_values.PASSWORD_VARIABLE in section
