"""`tidegate mqtt pub|sub`: an MQTT client for the terminal, on paho-mqtt.

It speaks 3.1, 3.1.1 and 5.0 to any broker, over TCP, TLS, WebSocket and WSS.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from tidegate.spi import ClientError
from tidegate_protocols.commands import mqtt_values as values
from tidegate_protocols.commands.mqtt_link import Wanted, connected
from tidegate_protocols.commands.mqtt_values import (
    DEFAULT_URL,
    PASSWORD_VARIABLE,
    Login,
    MessageProperties,
    Output,
    Version,
    Will,
)
from tidegate_protocols.commands.values import (
    bad,
    read_file,
    read_pairs,
    read_password,
    read_wait,
)

#: Unconfirmed messages of --lines; more lines are read as these are confirmed.
_PENDING_MAX: Final = 100

app = typer.Typer(
    rich_markup_mode=None,
    help="Publish to and subscribe at any MQTT broker, with MQTT 3.1, 3.1.1 or 5.0.",
    epilog=f"The password is read from --password-file or {PASSWORD_VARIABLE}, or asked for. Exit "
    "code 8: the broker cannot be reached, refused, or did not answer in time.",
)


class RetainHandling(StrEnum):
    """When a subscription gets the retained messages (5.0, section 3.8.3.1)."""

    ALWAYS = "always"
    NEW = "new"
    NEVER = "never"


UrlOption = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        help="The broker: HOST, HOST:PORT, or an mqtt://, mqtts://, ws:// or wss:// URL.",
    ),
]
QosOption = Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="0, 1 or 2.")]
ClientIdOption = Annotated[
    str,
    typer.Option("--client-id", "-i", metavar="ID", help="Client id; without it, a random one."),
]
ProtocolOption = Annotated[Version, typer.Option("--protocol", "-V", help="3.1, 3.1.1 or 5.")]
KeepAliveOption = Annotated[
    str,
    typer.Option(
        "--keep-alive", metavar="TIME", help="How long the connection may be silent; 0s: forever."
    ),
]
UserOption = Annotated[
    str | None, typer.Option("--user", "-u", metavar="NAME", help="User name to log in with.")
]
PasswordFileOption = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="FILE", help="File that contains the password."),
]
CafileOption = Annotated[
    Path | None,
    typer.Option(
        "--cafile", metavar="FILE", help="PEM file with the certificate authorities to trust."
    ),
]
CertOption = Annotated[
    Path | None,
    typer.Option("--cert", metavar="FILE", help="PEM file with the client's certificate."),
]
KeyOption = Annotated[
    Path | None,
    typer.Option(
        "--key", metavar="FILE", help="PEM file with its private key, if that is not in --cert."
    ),
]
AnswerTimeoutOption = Annotated[
    str,
    typer.Option(
        "--answer-timeout", metavar="TIME", help="How long to wait for each answer from the broker."
    ),
]
WillTopicOption = Annotated[
    str | None,
    typer.Option("--will-topic", metavar="TOPIC", help="Topic of the will."),
]
WillMessageOption = Annotated[
    str | None, typer.Option("--will-message", metavar="BODY", help="Body of the will.")
]
WillQosOption = Annotated[int, typer.Option("--will-qos", min=0, max=2, help="QoS of the will.")]
WillRetainOption = Annotated[bool, typer.Option("--will-retain", help="Retain the will.")]
WillDelayOption = Annotated[
    str | None,
    typer.Option("--will-delay", metavar="TIME", help="How long the broker delays the will (5)."),
]
PropertyOption = Annotated[
    list[str] | None,
    typer.Option("--property", "-D", metavar="NAME:VALUE", help="A user property (5); repeatable."),
]


@app.command()
def pub(
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="Where to.")],
    message: Annotated[
        str | None,
        typer.Option(
            "--message", "-m", metavar="BODY", help="Body of the message; without it, all of stdin."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="Send the contents of this file."),
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", "-l", help="Each line of stdin is a message.")
    ] = False,
    qos: QosOption = 1,
    retain: Annotated[
        bool, typer.Option("--retain", "-r", help="Ask the broker to retain the message.")
    ] = False,
    content_type: Annotated[
        str | None,
        typer.Option("--content-type", metavar="TYPE", help="Content type of the body (5)."),
    ] = None,
    response_topic: Annotated[
        str | None, typer.Option("--response-topic", metavar="TOPIC", help="Topic for answers (5).")
    ] = None,
    correlation_data: Annotated[
        str | None,
        typer.Option(
            "--correlation-data", metavar="DATA", help="Correlation data of a request (5)."
        ),
    ] = None,
    expiry: Annotated[
        str | None, typer.Option("--expiry", metavar="TIME", help="When the message expires (5).")
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Mark the body as UTF-8 text (5).")] = False,
    properties: PropertyOption = None,
    url: UrlOption = DEFAULT_URL,
    client_id: ClientIdOption = "",
    protocol: ProtocolOption = Version.V5,
    keep_alive: KeepAliveOption = "60s",
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    cafile: CafileOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    will_topic: WillTopicOption = None,
    will_message: WillMessageOption = None,
    will_qos: WillQosOption = 0,
    will_retain: WillRetainOption = False,
    will_delay: WillDelayOption = None,
    answer_timeout: AnswerTimeoutOption = "10s",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Publish a message, or one for each line.

    With --qos 1, the default, or 2, success means that the broker has confirmed it.
    """
    if sum((message is not None, file is not None, lines)) > 1:
        raise typer.BadParameter("give only one of --message, --file and --lines")
    values.read_topic(topic, "--topic")
    wanted = MessageProperties(
        content_type=content_type,
        response_topic=_topic(response_topic, "--response-topic"),
        correlation_data=correlation_data,
        expiry_s=None if expiry is None else values.read_seconds(expiry, "--expiry", least=1),
        user=read_pairs(properties, "--property"),
        is_text=text,
    )
    if protocol is not Version.V5 and not wanted.is_empty:
        raise bad("--protocol", "properties need MQTT 5")
    login = _login(
        url, protocol, client_id, None, keep_alive, user, password_file, cafile, cert, key,
        _will(protocol, will_topic, will_message, will_qos, will_retain, will_delay),
        answer_timeout,
    )  # fmt: skip
    if file is not None:
        bodies: Iterator[bytes] = iter([read_file(file, "--file")])
    elif message is not None:
        bodies = iter([message.encode()])
    elif lines:
        bodies = (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    else:
        bodies = iter([sys.stdin.buffer.read()])
    sent = size = 0
    reasons: dict[str, int] = {}
    with connected(login) as link:
        packed = link.properties(wanted) if protocol is Version.V5 else None
        pending: deque[int] = deque()
        for body in bodies:
            pending.append(link.publish(topic, body, qos, retain=retain, properties=packed))
            sent, size = sent + 1, size + len(body)
            if len(pending) >= _PENDING_MAX:
                _count(reasons, link.wait_published(pending.popleft()))
        while pending:
            _count(reasons, link.wait_published(pending.popleft()))
    if as_json:
        done = {"sent": sent, "confirmed": qos > 0, "bytes": size}
        typer.echo(json.dumps(done | ({"reasons": reasons} if qos else {})))


@app.command()
def sub(
    topics: Annotated[
        list[str],
        typer.Option("--topic", "-t", metavar="FILTER", help="Topic filter; repeatable."),
    ],
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Stop after this many messages; 0: never.")
    ] = 0,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="TIME", help="Stop after this time without a message."),
    ] = None,
    qos: QosOption = 1,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean/--keep-session",
            help="Start a clean session, or resume the client id's session.",
        ),
    ] = True,
    session_expiry: Annotated[
        str | None,
        typer.Option(
            "--session-expiry",
            metavar="TIME",
            help="How long the session is kept (5); without it, forever.",
        ),
    ] = None,
    no_local: Annotated[
        bool,
        typer.Option(
            "--no-local", help="Do not receive messages that this client id published (5)."
        ),
    ] = False,
    retain_as_published: Annotated[
        bool,
        typer.Option(
            "--retain-as-published", help="Keep the RETAIN flag as the publisher set it (5)."
        ),
    ] = False,
    retain_handling: Annotated[
        RetainHandling,
        typer.Option("--retain-handling", help="When to receive retained messages (5)."),
    ] = RetainHandling.ALWAYS,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print the topic before each body.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    client_id: ClientIdOption = "",
    protocol: ProtocolOption = Version.V5,
    keep_alive: KeepAliveOption = "60s",
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    cafile: CafileOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    will_topic: WillTopicOption = None,
    will_message: WillMessageOption = None,
    will_qos: WillQosOption = 0,
    will_retain: WillRetainOption = False,
    will_delay: WillDelayOption = None,
    answer_timeout: AnswerTimeoutOption = "10s",
) -> None:
    """Subscribe, and print what comes.

    Each message is acknowledged after it was printed. Ends with exit code 8 when --timeout is over
    before --count messages came.
    """
    if verbose and as_json:
        raise typer.BadParameter("give either --verbose or --json, not both")
    output = Output.JSON if as_json else Output.VERBOSE if verbose else Output.PLAIN
    wanted = Wanted(qos, no_local, retain_as_published, list(RetainHandling).index(retain_handling))
    if protocol is not Version.V5 and wanted != Wanted(qos):
        raise bad("--protocol", "--no-local, --retain-as-published, --retain-handling need MQTT 5")
    login = _login(
        url, protocol, client_id, _session(protocol, client_id, clean, session_expiry),
        keep_alive, user, password_file, cafile, cert, key,
        _will(protocol, will_topic, will_message, will_qos, will_retain, will_delay),
        answer_timeout,
    )  # fmt: skip
    seconds = None if timeout is None else read_wait(timeout, "--timeout")
    received = 0
    with connected(login) as link:
        link.subscribe(topics, wanted)
        while count == 0 or received < count:
            message = link.next_message(seconds)
            if message is None:
                break
            try:
                values.show(message, output)
            except BrokenPipeError:
                # The reader of our output went away (`| head`); it has what it wanted, and typer would
                # report a failure. The message was not printed, so it is not acknowledged either.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return
            received += 1
            link.acknowledge(message)
    if received < count:
        raise ClientError(f"received {received} of {count} messages; no more within {timeout}")


def _login(
    url: str,
    protocol: Version,
    client_id: str,
    session_expiry_s: int | None,
    keep_alive: str,
    user: str | None,
    password_file: Path | None,
    cafile: Path | None,
    cert: Path | None,
    key: Path | None,
    will: Will | None,
    answer_timeout: str,
) -> Login:
    address = values.read_address(url)
    return Login(
        address=address,
        version=protocol,
        client_id=client_id,
        session_expiry_s=session_expiry_s,
        keep_alive_s=values.read_seconds(keep_alive, "--keep-alive", most=values.KEEP_ALIVE_MAX),
        tls=values.read_tls(address, cafile, cert, key),
        will=will,
        answer_timeout_s=read_wait(answer_timeout, "--answer-timeout"),
        user=user,
        password=read_password(user, PASSWORD_VARIABLE, password_file, " or give --password-file"),
    )


def _will(
    protocol: Version,
    topic: str | None,
    message: str | None,
    qos: int,
    is_retained: bool,
    delay: str | None,
) -> Will | None:
    if topic is None:
        if message is not None or qos or is_retained or delay is not None:
            raise bad("--will-topic", "a will needs a topic")
        return None
    if delay is not None and protocol is not Version.V5:
        raise bad("--will-delay", "it needs MQTT 5")
    delay_s = None if delay is None else values.read_seconds(delay, "--will-delay")
    return Will(
        values.read_topic(topic, "--will-topic"),
        (message or "").encode(),
        qos,
        is_retained,
        MessageProperties(delay_s=delay_s),
    )


def _session(
    protocol: Version, client_id: str, clean: bool, session_expiry: str | None
) -> int | None:
    """How long the session is to be kept, in seconds; None: not at all."""
    if clean:
        if session_expiry is not None:
            raise bad("--session-expiry", "it needs --keep-session")
        return None
    if not client_id:
        raise bad("--keep-session", "it needs --client-id, by which the broker knows the session")
    if session_expiry is None:
        return values.SECONDS_MAX
    if protocol is not Version.V5:
        raise bad("--session-expiry", "it needs MQTT 5")
    return values.read_seconds(session_expiry, "--session-expiry", least=1)


def _topic(topic: str | None, option: str) -> str | None:
    return None if topic is None else values.read_topic(topic, option)


def _count(reasons: dict[str, int], reason: str) -> None:
    reasons[reason] = reasons.get(reason, 0) + 1
