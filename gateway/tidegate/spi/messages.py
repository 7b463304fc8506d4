"""The message, as it is on disk, in memory, and between front-end, broker and plugins.

These are :class:`msgspec.Struct` types: immutable, slotted, invisible to the garbage collector,
and ten times cheaper to build than a frozen dataclass (docs/decisions/0002-value-types.md).
``array_like`` makes their MessagePack encoding an array, so that fields can be appended later
without breaking what is already on disk; fields are never removed or reordered.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.spi.storage.large import LargeBody

#: Of sequences, and of times in microseconds: stores keep signed 64-bit integers.
NUMBER_MAX: Final = 2**63 - 1
#: Priority of a message that states none (JMS and STOMP convention, 0 lowest to 9 highest).
PRIORITY_DEFAULT: Final = 4


class Message(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a producer sent. Never changed once accepted.

    Attributes:
        destination: canonical destination it was sent to (``queue://…`` or ``topic://…``).
        body: the bytes as they came; never decoded.
        headers: the producer's own headers in order, unescaped; names may repeat (STOMP: the
            first one counts).
        received_at: when the gateway received it, microseconds since the Unix epoch, UTC.
        expires_at: when it expires, same unit; 0 means never.
        priority: 0 (lowest) to 9.
        persistent: the producer's wish. A store keeps every message it is given; the queue's
            ``non_persistent`` decides whether non-persistent ones are given to it.
        qos: highest MQTT quality of service it may be delivered with; 2 when the producer's
            protocol has no such notion.
        retain: the publisher asked to keep it as the topic's retained message (MQTT RETAIN).
        protocol: front-end it came through, e.g. ``stomp`` or ``mqtt``.
        client_id: the producer's client id, "" when it has none.
        original_name: the destination as the producer wrote it when that cannot be derived from
            the canonical form, else "".
        content_type: MIME type of the body, None when the producer did not say. MQTT distinguishes
            empty from absent, here and in the other two that may be None.
        correlation_data: bytes that tie an answer to its request.
        reply_to: canonical destination for the answer, "" when absent.
        retained: this copy is delivered because it was the retained message when the consumer
            subscribed, not because it was published just now.
        payload_format: 1 when the producer says that the body is UTF-8 text, 0 when it says that
            it may be anything (MQTT 5.0 section 3.3.2.3.2).
        large: handle of the body when it is stored elsewhere (``body`` is empty then); None for most
            messages. Such a message is never retained.
        owner: the principal that published it. Kept with retained messages, and with all messages
            when a sink is configured; otherwise "".
        protocol_version: of the producer's protocol, e.g. ``1.2`` or ``5.0``; stored_at: when it was
            given to the store, microseconds since the Unix epoch. Both only when a sink is
            configured; otherwise "" and 0.
    """

    destination: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    received_at: int = 0
    expires_at: int = 0
    priority: int = PRIORITY_DEFAULT
    persistent: bool = True
    qos: int = 2
    retain: bool = False
    protocol: str = ""
    client_id: str = ""
    original_name: str = ""
    content_type: str | None = None
    correlation_data: bytes | None = None
    reply_to: str = ""
    retained: bool = False
    payload_format: int | None = None
    large: LargeBody | None = None
    owner: str = ""
    protocol_version: str = ""
    stored_at: int = 0


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message with its place in the gateway.

    Attributes:
        sequence: its identity: store-wide, unsigned 64-bit, strictly increasing, never reused.
        message: the message itself.
        delivery_count: how many deliveries *from this pending list* were started but not
            acknowledged; above 0 the next delivery carries the protocol's redelivered mark.
        size: :func:`content_bytes` of the message. When you make one from another, pass it along;
            if you do not know it, use :meth:`of`.
    """

    sequence: int
    message: Message
    size: int
    delivery_count: int = 0

    @classmethod
    def of(cls, sequence: int, message: Message, delivery_count: int = 0) -> StoredMessage:
        """Make one from a message whose size is not known yet."""
        return cls(sequence, message, content_bytes(message), delivery_count)


#: What a message costs in memory besides its body and what is counted separately: the objects
#: around it, measured with ``sys.getsizeof`` over a typical STOMP message and rounded up.
MESSAGE_OVERHEAD_BYTES: Final = 450
#: The same for one header: its tuple, its two strings, and its place in the message's.
HEADER_OVERHEAD_BYTES: Final = 170
#: The object of a string.
TEXT_OVERHEAD_BYTES: Final = 56
#: Destination and client id are counted separately when they are longer.
_NAME_LENGTH: Final = 128


def memory_bytes(message: Message) -> int:
    """Memory charged for *message*, in bytes: :func:`content_bytes` plus fixed overhead."""
    return MESSAGE_OVERHEAD_BYTES + content_bytes(message)


def content_bytes(message: Message) -> int:
    """Bytes of body, headers and long names: the part of its size that the client decides."""
    size = len(message.body)
    if message.headers:
        size += _headers_bytes(message.headers)
    # Short names are part of the overhead, and mostly shared between messages.
    if len(message.destination) > _NAME_LENGTH or len(message.client_id) > _NAME_LENGTH:
        size += text_bytes(message.destination) + text_bytes(message.client_id)
    if message.correlation_data or message.reply_to or message.original_name:
        size += TEXT_OVERHEAD_BYTES + len(message.correlation_data or b"")
        size += text_bytes(message.reply_to) + text_bytes(message.original_name)
    if message.content_type:
        size += text_bytes(message.content_type)
    return size


def body_bytes(message: Message) -> int:
    """Bytes of the body of *message*, wherever it is: what the limits of lists count."""
    return len(message.body) if message.large is None else message.large.size


def text_bytes(text: str) -> int:
    """Memory charged for *text*, in bytes.

    Always the same, so that what was charged can be given back: ``sys.getsizeof`` of a string grows
    when somebody encodes it.
    """
    length = len(text)
    if text.isascii():
        return TEXT_OVERHEAD_BYTES + length
    # One character beyond the basic plane makes the whole string four bytes wide.
    is_basic = len(text.encode("utf-16-le", "surrogatepass")) == 2 * length
    return TEXT_OVERHEAD_BYTES + length * (2 if is_basic else 4)


def _headers_bytes(headers: tuple[tuple[str, str], ...]) -> int:
    size = len(headers) * HEADER_OVERHEAD_BYTES
    for name, value in headers:
        if name.isascii() and value.isascii():
            size += len(name) + len(value)
        else:
            size += text_bytes(name) + text_bytes(value)
    return size
