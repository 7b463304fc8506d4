"""Frames to bytes, by the rules of each version.

MESSAGE and RECEIPT are on the hot path: whatever is the same for all messages of a subscription is
built once (:class:`MessageEncoder`), and receipts of one confirmation leave in one join.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, final

import msgspec

from tidegate.spi import PRIORITY_DEFAULT, LargeBody, StoredMessage
from tidegate_protocols._user_headers import escaped
from tidegate_protocols.stomp.codec.destinations import to_stomp
from tidegate_protocols.stomp.codec.escape import escape_name, escape_value
from tidegate_protocols.stomp.codec.frames import Frame, Version
from tidegate_protocols.stomp.codec.messages import CORRELATION_BASE64, PROTOCOL

HEART_BEAT_BYTES: Final = b"\n"

#: Destinations whose header line an encoder caches. A queue has one; a wildcard subscription may see
#: any number, so the cache is bounded and simply starts over when full.
_DESTINATIONS_REMEMBERED: Final = 256

_RECEIPT_START: Final = "RECEIPT\nreceipt-id:"
_RECEIPT_END: Final = "\n\n\0"
_RECEIPT_SEPARATOR: Final = _RECEIPT_END + _RECEIPT_START
_NUL: Final = b"\0"


def encode(frame: Frame, version: Version) -> bytes:
    """Any frame, with content-length added when it has a body and states none.

    CONNECT, STOMP and CONNECTED are not escaped (STOMP 1.2 "Value Encoding").
    """
    rules = Version.V1_0 if frame.command in ("CONNECT", "STOMP", "CONNECTED") else version
    pairs = frame.pairs or tuple(frame.headers.items())
    if frame.body and "content-length" not in frame.headers:
        pairs = (*pairs, ("content-length", str(len(frame.body))))
    lines = "".join(f"{escape_name(n, rules)}:{escape_value(v, rules)}\n" for n, v in pairs)
    return b"".join((f"{frame.command}\n{lines}\n".encode(), frame.body, _NUL))


def encode_connected(
    version: Version, *, session: str, server: str, heart_beat: tuple[int, int]
) -> bytes:
    """CONNECTED. *heart_beat*: milliseconds we can send and want to receive; omitted in 1.0.

    Source: STOMP 1.2 "CONNECTED Frame"; 1.0 knows only ``session`` and ignores the others.
    """
    headers = {"version": version.value, "session": session, "server": server}
    if version is not Version.V1_0:
        headers["heart-beat"] = f"{heart_beat[0]},{heart_beat[1]}"
    return encode(Frame("CONNECTED", headers), version)


def encode_error(
    message: str,
    body: str,
    version: Version,
    *,
    receipt: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """ERROR: a short *message*, the full text in *body*. STOMP 1.2 "ERROR"."""
    named = {"message": message, "content-type": "text/plain"}
    if receipt is not None:
        named["receipt-id"] = receipt
    named.update(headers or {})
    return encode(Frame("ERROR", named, (body + "\n").encode("utf-8", "replace")), version)


def encode_receipts(receipts: Sequence[str], version: Version) -> bytes:
    """One RECEIPT for each id, in order. *receipts* is not empty."""
    text = _RECEIPT_SEPARATOR.join(receipts)
    between = len(receipts) - 1
    if (
        text.count(":") != between
        or text.count("\n") != between * 3
        or "\\" in text
        or "\r" in text
    ):
        text = _RECEIPT_SEPARATOR.join([escape_value(receipt, version) for receipt in receipts])
    return (_RECEIPT_START + text + _RECEIPT_END).encode()


class LargeBodyMetError(Exception):
    """A message has a large body: the page has to be written message by message."""


@final
class MessageEncoder:
    """Writes the MESSAGE frames of one subscription.

    Args:
        version: of the session.
        subscription: the client's id for it; None: it gave none (STOMP 1.0).
        message_id_prefix: precedes the sequence in ``message-id``; needs no escaping.
        ack_prefix: precedes the sequence in ``ack``; "": no such header (1.0, 1.1, auto).
    """

    __slots__ = ("_ack", "_destinations", "_lead", "_origins", "_subscription", "_version")

    def __init__(
        self, version: Version, subscription: str | None, message_id_prefix: str, ack_prefix: str
    ) -> None:
        self._version = version
        self._subscription = subscription
        lead = "MESSAGE\n"
        if subscription is not None:
            lead += f"subscription:{escape_value(subscription, version)}\n"
        self._lead = f"{lead}message-id:{message_id_prefix}"
        self._ack = f"\nack:{ack_prefix}" if ack_prefix else ""
        self._destinations: dict[str, str] = {}
        self._origins: dict[tuple[str, int], str] = {}  # as many as front-ends, times three

    def encode(self, messages: Iterable[StoredMessage]) -> bytes:
        """The MESSAGE frames of *messages*, in order, in one piece. Raises: LargeBodyMetError."""
        lead = self._lead
        ack = self._ack
        destinations = self._destinations
        pieces: list[bytes] = []
        for stored in messages:
            message = stored.message
            sequence = stored.sequence
            body = message.body
            if not body and message.large is not None:
                raise LargeBodyMetError
            destination = destinations.get(message.destination)
            if destination is None:
                destination = self._remember(message.destination)
            user = message.headers
            if message.protocol != PROTOCOL:
                lines, stamped = self._lines_of_other(stored)
            elif user:
                lines = self._user_lines(user)
                stamped = "timestamp:" in lines and any(name == "timestamp" for name, _ in user)
            else:
                lines = ""
                stamped = False
            if (
                stored.delivery_count
                or message.content_type
                or message.expires_at
                or message.priority != PRIORITY_DEFAULT
                or message.correlation_data
                or message.reply_to
                or message.original_name
                or message.retain
                or message.retained
                or message.payload_format
                or not message.persistent
            ):
                lines = self._rare_lines(stored) + lines
                if message.original_name and message.protocol == PROTOCOL:
                    destination = self._destination_line(message.original_name)
            if not stamped:
                lines = f"timestamp:{message.received_at // 1000}\n{lines}"
            numbers = f"{sequence}{ack}{sequence}" if ack else sequence
            pieces += (
                f"{lead}{numbers}{destination}{len(body)}\n{lines}\n".encode(),
                body,
                _NUL,
            )
        return b"".join(pieces)

    def encode_large(self, stored: StoredMessage) -> tuple[bytes, LargeBody, bytes]:
        """What precedes a large body, the body, and what follows it."""
        body = stored.message.large
        assert body is not None, "only a message with a large body is written in pieces"
        message = msgspec.structs.replace(stored.message, large=None)
        frame = self.encode((msgspec.structs.replace(stored, message=message),))
        # It cannot occur before: line ends are escaped in values.
        head = frame.replace(b"\ncontent-length:0\n", b"\ncontent-length:%d\n" % body.size, 1)
        return head[:-1], body, _NUL

    def end_of_browsing(self, message_id: str, destination: str) -> bytes:
        """The MESSAGE that ends a browsing subscription which has shown everything."""
        headers = {"message-id": message_id, "destination": destination, "browser": "end"}
        if self._subscription is not None:
            headers["subscription"] = self._subscription
        headers["content-length"] = "0"
        return encode(Frame("MESSAGE", headers), self._version)

    def _remember(self, destination: str) -> str:
        if len(self._destinations) >= _DESTINATIONS_REMEMBERED:
            self._destinations.clear()
        line = self._destinations[destination] = self._destination_line(to_stomp(destination))
        return line

    def _destination_line(self, name: str) -> str:
        return f"\ndestination:{escape_value(name, self._version)}\ncontent-length:"

    def _user_lines(self, headers: tuple[tuple[str, str], ...]) -> str:
        lines = "".join([f"{name}:{value}\n" for name, value in headers])
        count = len(headers)
        if (
            lines.count(":") == count
            and lines.count("\n") == count
            and "\\" not in lines
            and "\r" not in lines
            and "\0" not in lines
        ):
            return lines
        return self._lines(headers)

    def _rare_lines(self, stored: StoredMessage) -> str:
        """Headers that most messages do not have; their order is that of docs/stomp.md."""
        message = stored.message
        pairs: list[tuple[str, str]] = []
        if stored.delivery_count:
            pairs.append(("redelivered", "true"))
        if message.content_type:
            pairs.append(("content-type", message.content_type))
        if message.expires_at:
            pairs.append(("expires", str(message.expires_at // 1000)))
        if message.priority != PRIORITY_DEFAULT:
            pairs.append(("priority", str(message.priority)))
        if not message.persistent:
            pairs.append(("persistent", "false"))
        if message.correlation_data:
            pairs += _correlation_id(message.correlation_data, self._version)
        if message.reply_to:
            pairs.append(("reply-to", to_stomp(message.reply_to)))
        if message.payload_format:
            pairs.append(("payload-format", str(message.payload_format)))
        if message.retain:
            pairs.append(("retain", "true"))
        if message.retained:
            pairs.append(("retained", "true"))
        version = self._version
        return "".join([f"{name}:{escape_value(value, version)}\n" for name, value in pairs])

    def _lines_of_other(self, stored: StoredMessage) -> tuple[str, bool]:
        """The origin of a message of another protocol, and its user's headers under names that STOMP
        does not use otherwise. Returns: also whether one of them is a timestamp."""
        message = stored.message
        # A QoS 0 message is not persistent, and a queue keeps it as QoS 1.
        origin = message.protocol, message.qos if message.persistent or message.qos > 1 else 0
        lines = self._origins.get(origin)
        if lines is None:
            pairs = [("origin-protocol", origin[0]), ("origin-qos", str(origin[1]))]
            lines = self._origins[origin] = self._lines(pairs if origin[0] else ())
        if message.original_name:
            lines += self._lines([("origin-destination", message.original_name)])
        if not message.headers:
            return lines, False
        user = tuple([(escaped(name), value) for name, value in message.headers])
        user_lines = self._user_lines(user)
        stamped = "timestamp:" in user_lines and any(name == "timestamp" for name, _ in user)
        return lines + user_lines, stamped

    def _lines(self, pairs: Iterable[tuple[str, str]]) -> str:
        version = self._version
        return "".join(
            [
                f"{escape_name(name, version)}:{escape_value(value, version)}\n"
                for name, value in pairs
            ]
        )


#: What a version cannot write in a header, or its clients may strip.
_NOT_IN_TEXT: Final[Mapping[Version, str]] = {
    Version.V1_0: "\0\r\n\\",
    Version.V1_1: "\0\r",
    Version.V1_2: "\0",
}


def _correlation_id(data: bytes, version: Version) -> list[tuple[str, str]]:
    """Correlation data as headers: it may be any bytes, and a header is UTF-8 text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not any(character in text for character in _NOT_IN_TEXT[version]) and (
        version is not Version.V1_0 or text == text.strip(" ")
    ):
        return [("correlation-id", text)]
    return [
        ("correlation-id", base64.b64encode(data).decode()),
        ("correlation-id-encoding", CORRELATION_BASE64),
    ]
