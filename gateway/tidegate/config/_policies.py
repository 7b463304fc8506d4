"""What a ``[[destinations]]`` table says. Which of them a destination has: ``_policy_map``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.spi import Kind, names, option

CURSOR_DEFAULT: Final = "store"
#: The value of ``non_persistent`` with which the store gets nothing of such messages.
SPOOLED: Final = "spool"
#: What can happen at the limit of a queue or durable subscription.
OVERFLOWS: Final = ("slow", "refuse", "drop_oldest", "drop_newest", "disconnect")
#: The cursor of unstored topic subscriptions where the queue's cursor reads from the store.
CURSOR_UNSTORED_DEFAULT: Final = "file"


@dataclass(frozen=True, slots=True)
class DestinationPolicy:
    """One ``[[destinations]]`` table: how the destinations that it matches are handled.

    The policy with the most specific match is the whole answer; policies are not merged. What no
    policy matches has the defaults given here.
    """

    match: str = option(
        help='The destinations it is for: a name or filter such as `"orders.>"`; for queues only '
        'with `"queue://"` before it, for topics only with `"topic://"`. The most specific '
        "match wins.",
    )
    cursor: str = option(
        CURSOR_DEFAULT,
        help="The cursor of queues: `store` (memory, then pages from the store), `file` (memory, "
        "then a temporary file) or `vm` (memory only, producers throttled at the limit). Decides "
        "what a slow consumer costs.",
    )
    durable_cursor: str = option(
        "",
        help="The cursor of durable topic subscriptions. Left out: the same as `cursor`.",
    )
    subscriber_cursor: str = option(
        "",
        help="The cursor of topic subscriptions that are not stored, and of temporary queues. Left out: the same as "
        "`cursor`, or `file` when that reads from the store, which has nothing for them.",
    )
    memory_limit: int = option(
        64 << 20,
        kind=Kind.SIZE,
        minimum=1,
        help="Memory that the pending messages of one destination or subscription may take; then "
        "its cursor pages, spools or throttles. Guards the process against one slow consumer.",
        act="the cursor pages, spools, or its producers are not read",
    )
    memory_messages: int = option(
        0,
        minimum=1,
        zero="unlimited",
        help="The same as a number of messages: then the cursor pages, spools or throttles, whichever of "
        "the two comes first. For destinations whose messages are much alike.",
        act="the cursor pages, spools, or its producers are not read",
    )
    cursor_memory_high_water_mark: int = option(
        70,
        minimum=1,
        maximum=100,
        help="At so many percent of `broker.unstored_memory_limit`, which all `file` and `vm` cursors share, "
        "those of this table spool, or have their producers wait, though they are below `memory_limit`: "
        "from 64 KiB on. What is lower gives way first to what is higher.",
        act="the cursor spools, or its producers are not read",
    )
    page_count: int = option(
        200,
        minimum=1,
        maximum=65_535,
        help="Messages read from store or file at once. Too few make a consumer that catches up "
        "slow, too many delay everyone else in that turn.",
    )
    page_bytes: int = option(
        8 << 20,
        kind=Kind.SIZE,
        minimum=1,
        zero="unlimited",
        help="Bytes read from store or file at once; one message is always read. Guards memory and "
        "everyone else's turn where messages are large.",
    )
    temporary_limit: int = option(
        1 << 30,
        kind=Kind.SIZE,
        minimum=1,
        help="What the cursor of one list may spool to temporary files; what is more stays in the store "
        "alone, and where nothing is stored the oldest are dropped and counted. So much again is for what "
        "`non_persistent` spools of a queue, whose producers then wait. Guards the disk.",
        act="stored messages stay in the store alone, the oldest unstored ones are dropped; a queue's producers "
        "are not read while what `non_persistent` spools has no room",
        metric="publish.messages.dropped",
    )
    non_persistent: str = option(
        "store",
        choices=("store", SPOOLED),
        help="Messages to queues whose producers do without persistence (STOMP `persistent:false`, MQTT "
        "QoS 0): `store` them as all others, or `spool` them: in memory, above `memory_limit` in temporary files, "
        "and gone when the gateway stops. Spares the store what is worthless after a restart. See "
        "[cursors](cursors.md#non-persistent-messages).",
    )
    prefetch_count: int = option(
        1_000,
        minimum=1,
        maximum=65_535,
        help="Unacknowledged messages that one consumer may hold when it asks for no number of "
        "its own. Guards against a consumer that takes everything and acknowledges nothing.",
        act="no more is delivered until some is acknowledged",
    )
    prefetch_bytes: int = option(
        8 << 20,
        kind=Kind.SIZE,
        minimum=1,
        help="Bytes of unacknowledged bodies and headers that one consumer may hold; one message is always "
        "allowed. Guards the same where messages are large.",
        act="no more is delivered until some is acknowledged",
    )
    messages_max: int = option(
        0,
        minimum=1,
        zero="unlimited",
        help="Messages that a queue may hold, those in flight included; `overflow` says what happens "
        "above it. Guards the disk, and consumers against a backlog that they never catch up with. "
        "Temporary queues are not stored and have only the limits of their cursor.",
        act="as `overflow` says",
        metric="overflow.lists",
    )
    bytes_max: int = option(
        0,
        kind=Kind.SIZE,
        minimum=1,
        zero="unlimited",
        help="The same in bytes of bodies, streamed ones included; headers do not count.",
        act="as `overflow` says",
        metric="overflow.lists",
    )
    age_max: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=1,
        zero="unlimited",
        help="A message that waits in a queue for so long leaves it, whatever `overflow` says, counted "
        "from when the gateway took it and looked at every second. Guards consumers against what is "
        "worthless when late, where producers do not say so themselves.",
        act="the message is dropped, or dead-lettered",
        metric="overflow.dropped",
    )
    overflow: str = option(
        "slow",
        choices=OVERFLOWS,
        help="What happens at `messages_max` or `bytes_max`: `slow`: producers are not read until there "
        "is room; `refuse` the publish with the protocol's error; `drop_oldest` of the queue, or "
        "`drop_newest`, the new message; `disconnect` the producer.",
    )
    overflow_wait: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=0.001,
        zero="off",
        help="With `refuse`: producers are not read for so long first, and refused when there is no "
        "room then.",
    )
    overflow_dead_letter: bool = option(
        False,
        help="What is dropped, because of `overflow` or `age_max`, moves to the dead letter queue, "
        "with the reason in a header, in one batch.",
    )
    subscription_messages_max: int = option(
        1_000_000,
        minimum=1,
        zero="unlimited",
        help="Messages that may wait for one durable topic subscription (an MQTT session, a STOMP "
        "durable subscriber); `subscription_overflow` says what happens above it. Guards the disk "
        "against a client that never comes back.",
        act="as `subscription_overflow` says",
        metric="overflow.lists",
    )
    subscription_bytes_max: int = option(
        0,
        kind=Kind.SIZE,
        minimum=1,
        zero="unlimited",
        help="The same in bytes of bodies, as `bytes_max`.",
        act="as `subscription_overflow` says",
        metric="overflow.lists",
    )
    subscription_age_max: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=1,
        zero="unlimited",
        help="The oldest message that waits for one durable subscription is at most so old, as "
        "`age_max`.",
        act="the message is dropped, or dead-lettered",
        metric="overflow.dropped",
    )
    subscription_overflow: str = option(
        "drop_oldest",
        choices=OVERFLOWS,
        help="What happens at `subscription_messages_max` or `subscription_bytes_max`, for this "
        "subscription only: drop its oldest message or the new one; `disconnect` its client, which "
        "gets no new message until there is room; or, for all who publish to it: refuse, or `slow`. "
        "The default never stops a topic for others because of one client that does not come back; "
        "whoever loses messages is told: see [limits](limits.md).",
    )
    subscription_overflow_wait: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=0.001,
        zero="off",
        help="As `overflow_wait`.",
    )
    subscription_overflow_dead_letter: bool = option(
        False,
        help="As `overflow_dead_letter`.",
    )
    slow_consumer_age: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=1,
        zero="off",
        help="A consumer is slow when the message that it was handed first and has not acknowledged has "
        "been in flight for so long; looked at every 10 seconds. It is logged, counted in "
        "`consumers.slow` and told to plugins. Guards against consumers that hang.",
    )
    slow_consumer_rate: float = option(
        0.0,
        minimum=0.1,
        maximum=1_000_000,
        zero="off",
        help="A consumer is slow when it acknowledges fewer messages a second, over 10 seconds in which "
        "more waited for it all the time. It is told as with `slow_consumer_age`. It is not for "
        "consumers that acknowledge nothing (STOMP `ack:auto`, QoS 0). Guards against consumers that "
        "fall behind.",
    )
    slow_consumer_act: str = option(
        "tell",
        choices=("tell", "cut_prefetch", "disconnect"),
        help="What happens to a slow consumer besides: nothing; its prefetch becomes 1 until it "
        "acknowledges as it should, so that others get what it would have taken; or its connection is ended, "
        "and others get all that it has.",
    )
    subscription_expiry: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=1,
        zero="never",
        help="A durable STOMP subscription whose client was away for so long ends with all that waits "
        "in it; looked at every 10 seconds, and after a restart the time begins anew. An MQTT session "
        "has an expiry of its own. Guards the disk against clients that are gone for good.",
    )
    max_deliveries: int = option(
        6,
        minimum=1,
        zero="unlimited",
        help="Deliveries of one message, the first one included, at which a rejection (STOMP NACK) "
        "moves it to the dead letter queue instead of redelivering it. Losing a consumer counts as "
        "a delivery, but only a rejection moves. Guards against a message that circles for ever.",
    )
    dead_letter: str = option(
        "DLQ.{name}",
        help="Name of the queue that such messages move to; `{name}` stands for the destination's "
        "name. Without `{name}` destinations share one. Nothing is lost when nobody looks.",
    )

    auto_create: bool = option(
        True,
        help="Clients make queues by using them. False: only the operator does; who sends to or consumes from "
        "one that is not there is refused. When `match` is a queue's full name, the gateway makes it at "
        "start. Guards against queues made by mistyped names.",
    )
    idle_delete: float = option(
        0,
        kind=Kind.DURATION,
        minimum=1,
        zero="never",
        help="A queue that is empty and had no consumers for so long is deleted; it is looked at every 5s. "
        "Guards memory and quotas where clients make queues under ever new names.",
    )

    @property
    def declared_queue(self) -> str:
        """The canonical queue that this policy makes at start; "" for none."""
        prefix, name = split_match(self.match)
        if self.auto_create or prefix == names.TOPIC_PREFIX or names.is_filter(name):
            return ""
        return names.queue(name)

    def dead_letter_queue(self, destination: str) -> str:
        """The canonical queue that undeliverable messages of canonical *destination* move to."""
        return names.queue(self.dead_letter.replace("{name}", names.name_of(destination)))


def split_match(match: str) -> tuple[str, str]:
    """Split a policy's ``match`` into the prefix ("" for both kinds) and the NAME pattern."""
    for prefix in (names.QUEUE_PREFIX, names.TOPIC_PREFIX):
        if match.startswith(prefix):
            return prefix, match.removeprefix(prefix)
    return "", match


#: What applies where no ``[[destinations]]`` table matches.
DEFAULT_POLICY: Final = DestinationPolicy(match=">")


@dataclass(frozen=True, slots=True)
class PolicyTable:
    """One ``[[destinations]]`` table of the file.

    Attributes:
        policy: what it says.
        key: where it is: ``destinations[2]``; "" for the defaults, which no table gives.
        written: by option, the key under which the file gives it; what is not here is left out there.
        paging_key: the key that asks for a cursor that pages; "" when none does.
    """

    policy: DestinationPolicy
    key: str
    written: Mapping[str, str]
    paging_key: str = ""
