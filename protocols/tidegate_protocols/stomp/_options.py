"""Options of a STOMP listener: the keys of a ``[[listeners]]`` table beside the host's own."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.spi import Kind, option
from tidegate_protocols.stomp.codec.frames import Limits
from tidegate_protocols.transport import TransportOptions


@dataclass(frozen=True, slots=True)
class StompOptions(TransportOptions):
    """See docs/stomp.md. Sizes are bytes, times are seconds."""

    connect_timeout: float = option(
        10.0,
        kind=Kind.DURATION,
        minimum=0.01,
        help="A connection that has not completed CONNECT within this time is closed. "
        "Guards against idle sockets that use up connections_max.",
        act="ERROR, the connection is closed",
    )
    heart_beat_send_minimum: float = option(
        1.0,
        kind=Kind.DURATION,
        minimum=0.01,
        zero="the gateway sends no heart-beats",
        help="Shortest interval at which the gateway offers to send heart-beats. Guards "
        "against clients that ask for more than a loop full of timers can give.",
    )
    heart_beat_receive_minimum: float = option(
        1.0,
        kind=Kind.DURATION,
        minimum=0.01,
        zero="the gateway wants no heart-beats",
        help="Shortest interval at which the gateway wants heart-beats from a client that "
        "can send them. Guards against floods of them.",
    )
    heart_beat_grace_factor: float = option(
        2.0,
        minimum=2.0,
        maximum=1000.0,
        help="A client is lost after this many of its heart-beat intervals without a byte. "
        "Guards against disconnecting clients that are only slow.",
    )
    connections_max: int = option(
        10_000,
        minimum=1,
        help="Connections of this listener at a time; the next one is told so and closed.",
        act="ERROR, the connection is closed",
    )
    subscriptions_max: int = option(
        1_000,
        minimum=1,
        help="Subscriptions of one connection; one more is an ERROR.",
        act="ERROR, the connection is closed",
    )
    transactions_max: int = option(
        100,
        minimum=1,
        help="Open transactions of one connection; one more is an ERROR.",
        act="ERROR, the connection is closed",
    )
    header_count_max: int = option(
        128,
        minimum=4,
        help="Header lines of one frame; more are an ERROR.",
        act="ERROR, the connection is closed",
    )
    header_line_max: int = option(
        16 * 1024,
        kind=Kind.SIZE,
        minimum=64,
        help="Length of one header line without its line end; a longer one is an ERROR.",
        act="ERROR, the connection is closed",
    )
    headers_max: int = option(
        64 * 1024,
        kind=Kind.SIZE,
        minimum=256,
        help="Command and header lines of one frame together; more are an ERROR. "
        "Bounds what a peer that never ends its headers can make the gateway hold.",
        act="ERROR, the connection is closed",
    )
    body_max: int = option(
        100 * 1024 * 1024,
        kind=Kind.SIZE,
        minimum=0,
        help="Body of one frame; a larger one is an ERROR, as soon as content-length states "
        "it or that many bytes have arrived.",
        act="ERROR, the connection is closed",
    )
    large_message_max_size: int = option(
        4 * 1024 * 1024 * 1024,
        kind=Kind.SIZE,
        minimum=1024 * 1024,
        help="Body of a SEND that is streamed to a file of its own, which happens when the "
        "store can do that and the body has at least the store's large_message_min_size; a "
        "larger one is an ERROR. body_max is for all other bodies.",
        act="ERROR, the connection is closed",
    )
    stop_timeout: float = option(
        5.0,
        kind=Kind.DURATION,
        minimum=0.01,
        help="When the gateway stops, connections get this long to take what was written to them.",
    )

    @property
    def limits(self) -> Limits:
        """What the decoder enforces when no body is streamed."""
        return self.limits_with(0)

    def limits_with(self, large_size_min: int, *, unsized: bool = False) -> Limits:
        """What the decoder enforces when bodies of *large_size_min* bytes and more are streamed.

        Args: unsized: including those without content-length.
        """
        return Limits(
            header_count=self.header_count_max,
            header_line_bytes=self.header_line_max,
            header_bytes=self.headers_max,
            body_bytes=self.body_max,
            large_bytes_min=large_size_min,
            large_bytes_max=self.large_message_max_size,
            large_unsized=unsized,
        )

    @property
    def heart_beat_ms(self) -> tuple[int, int]:
        """What the gateway announces in the ``heart-beat`` header."""
        return (
            round(self.heart_beat_send_minimum * 1000),
            round(self.heart_beat_receive_minimum * 1000),
        )
