"""What a connected client sends, from its bytes to the conversation's handling of each packet.

In small steps (:class:`~tidegate_protocols.transport.Share`), in the client's order: a step ends after
a number of packets, and after a SUBSCRIBE or an UNSUBSCRIBE, which may take several steps. What
arrived completely before the link was lost is handled as if the link still existed, including a
large body.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from operator import length_hint
from typing import Final, Protocol, final

from tidegate.spi import Broker, GatewayError
from tidegate_protocols._pace import Pace
from tidegate_protocols.mqtt.codec.codec import Codec
from tidegate_protocols.mqtt.codec.packets import Event, LargePublish
from tidegate_protocols.mqtt.session.context import Runtime
from tidegate_protocols.mqtt.session.conversation import Conversation
from tidegate_protocols.mqtt.session.large_in import LargePublishes
from tidegate_protocols.mqtt.session.reading import Pause, Reading
from tidegate_protocols.transport import Link, Share

logger = logging.getLogger("tidegate.mqtt")

#: While a packet at least this long is arriving, its bytes count as a sign of life: a client
#: cannot send a PINGREQ in the middle of a packet.
LONG_PACKET_BYTES: Final = 4096


class Session(Protocol):
    """What receiving needs of the session."""

    @property
    def is_connected(self) -> bool: ...

    def control(self, packet: Event) -> bool:
        """Handle any packet but PUBLISH and PUBACK. Returns: False when no more is to be handled now."""
        ...

    def fail(self, error: GatewayError) -> None:
        """The connection has to end."""
        ...

    def lose(self, reason: str) -> None:
        """The link is gone, and everything that arrived completely is handled."""
        ...


@final
class Receiving:
    """Owned by one session, from CONNACK to the end.

    Args: codec: has the bytes; bodies: the broker's store for large ones; pace: theirs.
    """

    __slots__ = (
        "_broker",
        "_codec",
        "_conversation",
        "_held",
        "_large_in",
        "_link",
        "_lost",
        "_pace",
        "_packets",
        "_reading",
        "_rest",
        "_runtime",
        "_session",
        "_share",
        "_steps",
    )

    def __init__(
        self,
        session: Session,
        conversation: Conversation,
        codec: Codec,
        reading: Reading,
        link: Link,
        runtime: Runtime,
        broker: Broker,
        pace: Pace,
    ) -> None:
        self._pace = pace
        self._session = session
        self._conversation = conversation
        self._codec = codec
        self._reading = reading
        self._link = link
        self._runtime = runtime
        self._broker = broker
        self._share = Share(link, self._work, self._turned)
        self._held: list[Event] = []  # decoded, to be handled in the next step
        self._packets: list[Event] = []  # those of this step
        self._rest: Iterator[Event] = iter(())  # those not handled yet
        self._steps: Iterator[None] | None = None  # of a packet that takes several
        self._large_in: LargePublishes | None = None  # since the first large PUBLISH of the client
        self._lost: str | None = None  # why the link is gone, while complete input is handled

    def run(self) -> None:
        """The codec has new bytes."""
        self._share.run()

    def hold(self, value: bool) -> None:
        """Make input already read wait, too, from the next packet on; or let it go on."""
        if not value:
            self._share.release()
            return
        self._share.hold()
        left = length_hint(self._rest)
        if left:
            self._held = self._packets[-left:]
            del self._packets[-left:]  # the step ends here

    def lost(self, reason: str) -> bool:
        """The link is gone. Returns: True when the session must wait: it is told later."""
        large = self._large_in
        is_large = large is not None and large.cut()
        if not (is_large or self._share.is_waiting or self._share.is_held):
            return False
        self._lost = reason
        self._conversation.connection.writable(False)
        return True

    def stop(self) -> None:
        """The session ended, or was refused: nothing more is handled."""
        self._share.stop()
        lost, self._lost = self._lost, None
        if lost is not None:  # not now: the session is in the middle of it
            self._runtime.call_later(0.0, partial(self._session.lose, lost))
        self._held = []
        self._steps = None
        large, self._large_in = self._large_in, None
        if large is not None:
            large.abandon()

    # ----------------------------------------------------------------------------------- in steps

    def _turned(self) -> None:
        """The connection has to wait for its turn, or no longer has to."""
        if self._share.is_waiting:
            self._reading.pause(Pause.OTHERS_TURN)
        else:
            self._reading.resume(Pause.OTHERS_TURN)
            self._lose_if_done()

    def _work(self, count_max: int) -> bool:
        """Handle complete packets, at most *count_max*. Returns: True when there may be more."""
        if not self._session.is_connected:
            return False
        codec, runtime, reading, large = self._codec, self._runtime, self._reading, self._large_in
        conversation = self._conversation
        has_more = False
        try:
            if self._steps is not None:
                for _ in self._steps:
                    reading.last_heard = runtime.time()
                    return True
                self._steps = None
            packets, self._held = self._held, []
            if not packets:
                if codec.incomplete_bytes >= LONG_PACKET_BYTES:
                    reading.last_heard = runtime.time()
                if large is not None:
                    if large.is_busy:
                        reading.last_heard = runtime.time()
                    if not large.receive():
                        return False
                    held = large.take_held()
                    if held is not None:
                        packets = [held]
                if not packets:
                    packets = codec.events(count_max)
            if packets:
                reading.last_heard = runtime.time()
                self._packets, self._rest = packets, iter(packets)
                if not conversation.receive(self._rest, runtime.now_us(), self._session.control):
                    if not self._session.is_connected:
                        return False
                    self._held = [*self._rest, *self._held]
                    return bool(self._steps or self._held or codec.left_behind)
                packets.clear()  # a client that falls silent holds none of them
                has_more = codec.left_behind
            # What the client acknowledged in a step counts before the next step, which may be far off.
            conversation.settle()
        except GatewayError as error:
            self._session.fail(error)
            return False
        return has_more or bool(self._held)

    def carry_out(self, steps: Iterator[None]) -> None:
        """Carry out a packet's request in *steps*; later packets wait. Raises: GatewayError."""
        for _ in steps:
            self._steps = steps
            return

    # -------------------------------------------------------------------- large PUBLISH packets

    def begin_large(self, packet: LargePublish) -> None:
        """Raises: GatewayError, when the connection has to end."""
        bodies = self._broker.large_bodies
        assert bodies is not None, "the codec was told of a store that streams"
        if self._large_in is None:
            runtime = self._runtime
            self._large_in = LargePublishes(
                bodies,
                self._codec,
                self._conversation.incoming,
                now_us=runtime.now_us,
                spawn=runtime.spawn,
                adjust=self._adjust_reading,
                failed=lambda error, _blamed: self._session.fail(error),
                go_on=self._go_on_behind_large,
                crashed=self._large_crashed,
                pace=self._pace,
            )
        self._large_in.begin(packet)

    def _adjust_reading(self) -> None:
        if self._large_in is not None and self._large_in.wants_pause:
            self._reading.pause(Pause.BEHIND_LARGE)
        else:
            self._reading.resume(Pause.BEHIND_LARGE)

    def _go_on_behind_large(self) -> None:
        """Everything is published that the next packet had to wait for."""
        if self._session.is_connected:
            self._share.run()
        self._lose_if_done()

    def _lose_if_done(self) -> None:
        lost, large = self._lost, self._large_in
        share = self._share
        if lost is None or share.is_waiting or share.is_held or not self._session.is_connected:
            return
        if large is None or not large.cut():
            self._lost = None
            self._session.lose(lost)

    def _large_crashed(self, error: Exception) -> None:
        logger.error("connection failed peer=%s", self._link.peer, exc_info=error)
        self._link.abort()
        if self._lost is not None:  # nobody else will report it
            self._session.lose(self._lost)
