"""What a ``[[destinations]]`` table says. Which table a destination has: ``_policy_map``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.spi import Kind, names, option

CURSOR_DEFAULT: Final = "store"
#: The value of ``non_persistent`` that keeps such messages out of the store.
SPOOLED: Final = "spool"
#: What can happen at the limit of a queue or durable subscription.
OVERFLOWS: Final = ("slow", "refuse", "drop_oldest", "drop_newest", "disconnect")
#: The cursor of unstored topic subscriptions when the queue's cursor reads from the store.
CURSOR_UNSTORED_DEFAULT: Final = "file"


@dataclass(frozen=True, slots=True)
class DestinationPolicy:
    """One ``[[destinations]]`` table: how the destinations that it matches are handled.

    Only the policy with the most specific match applies; policies are not merged. A destination that
    no policy matches has the defaults given here.
    """

    match: str = option(
        help="Destinations that the table applies to: a name or filter such as "
        '`"orders.>"`; with `"queue://"` in front only queues, with `"topic://"` only '
        "topics. The most specific match wins.",
    )
    cursor: str = option(
        CURSOR_DEFAULT,
        help="Cursor of queues: `store` (memory, then pages from the store), `file` "
        "(memory, then a temporary file) or `vm` (memory only, producers throttled at "
        "the limit). Decides what a slow consumer costs.",
    )
    durable_cursor: str = option(
        "",
        help="Cursor of durable topic subscriptions. The default is the value of `cursor`.",
    )
    subscriber_cursor: str = option(
        "",
        help="Cursor of topic subscriptions that are not stored, and of temporary queues. "
        "The default is the value of `cursor`, or `file` if that one reads from the "
        "store, which does not hold their messages.",
    )
    memory_limit: int = option(
        64 << 20,
        kind=Kind.SIZE,
        minimum=1,
        help="Memory for the pending messages of one destination or subscription; above it "
        "the cursor pages, spools or throttles. Guards the process against one slow "
        "consumer.",
        act="the cursor pages or spools, or its producers are not read",
    )
    memory_messages: int = option(
        0,
        minimum=1,
        zero="unlimited",
        help="The same as a number of messages; whichever limit is reached first applies. "
        "For destinations whose messages are all about the same size.",
        act="the cursor pages or spools, or its producers are not read",
    )
    cursor_memory_high_water_mark: int = option(
        70,
        minimum=1,
        maximum=100,
        help="Percentage of `broker.unstored_memory_limit`, which all `file` and `vm` "
        "cursors share. When it is reached, the cursors of this table that hold more "
        "than 64 KiB spool or make their producers wait, even below `memory_limit`. "
        "Tables with a lower value give way first.",
        act="the cursor spools, or its producers are not read",
    )
    page_count: int = option(
        200,
        minimum=1,
        maximum=65_535,
        help="Messages read from store or file at a time. Too few slow down a consumer that "
        "catches up, too many delay everybody else in that turn.",
    )
    page_bytes: int = option(
        8 << 20,
        kind=Kind.SIZE,
        minimum=1,
        zero="unlimited",
        help="Bytes read from store or file at a time; one message is always read. Guards "
        "memory, and everybody else's turn, when messages are large.",
    )
    temporary_limit: int = option(
        1 << 30,
        kind=Kind.SIZE,
        minimum=1,
        help="What the cursor of one list may spool to temporary files. Beyond it, messages "
        "stay in the store only; where nothing is stored, the oldest are dropped and "
        "counted. Messages that `non_persistent` spools have the same amount again, "
        "and the queue's producers wait when it is used up. Guards the disk.",
        act="stored messages stay in the store only, and of the unstored ones the oldest "
        "are dropped; a queue's producers are not read while `non_persistent` messages "
        "have no room to spool",
        metric="publish.messages.dropped",
    )
    non_persistent: str = option(
        "store",
        choices=("store", SPOOLED),
        help="Non-persistent messages to queues (STOMP `persistent:false`, MQTT QoS 0): "
        "`store` them like all others, or `spool` them: in memory, above "
        "`memory_limit` in temporary files, and lost when the gateway stops. Spares "
        "the store what is worthless after a restart. See "
        "[cursors](cursors.md#non-persistent-messages).",
    )
    prefetch_count: int = option(
        1_000,
        minimum=1,
        maximum=65_535,
        help="Unacknowledged messages that one consumer may hold unless it asks for another "
        "number. Guards against a consumer that takes everything and acknowledges "
        "nothing.",
        act="no more messages are delivered until some are acknowledged",
    )
    prefetch_bytes: int = option(
        8 << 20,
        kind=Kind.SIZE,
        minimum=1,
        help="Bytes of unacknowledged bodies and headers that one consumer may hold; one "
        "message is always allowed. Guards against the same when messages are large.",
        act="no more messages are delivered until some are acknowledged",
    )
    messages_max: int = option(
        0,
        minimum=1,
        zero="unlimited",
        help="Messages that a queue may hold, including those in flight; `overflow` says "
        "what happens above it. Guards the disk, and consumers against a backlog they "
        "never catch up with. Temporary queues are not stored and have only the limits "
        "of their cursor.",
        act="as `overflow` says",
        metric="overflow.lists",
    )
    bytes_max: int = option(
        0,
        kind=Kind.SIZE,
        minimum=1,
        zero="unlimited",
        help="The same in bytes of bodies, including streamed ones; headers do not count.",
        act="as `overflow` says",
        metric="overflow.lists",
    )
    age_max: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=1,
        zero="unlimited",
        help="A message that has waited in a queue for this long leaves it, whatever "
        "`overflow` says; counted from when the gateway received it, checked every "
        "second. Guards consumers against messages that are worthless when late, when "
        "producers set no expiry.",
        act="the message is dropped, or dead-lettered",
        metric="overflow.dropped",
    )
    overflow: str = option(
        "slow",
        choices=OVERFLOWS,
        help="What happens at `messages_max` or `bytes_max`. `slow`: producers are not read "
        "until there is room; `refuse`: the publish fails with the protocol's error; "
        "`drop_oldest` drops the queue's oldest message, `drop_newest` the new one; "
        "`disconnect` disconnects the producer.",
    )
    overflow_wait: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=0.001,
        zero="off",
        help="With `refuse`: stop reading from the producer for up to this long, and refuse "
        "only if there is still no room.",
    )
    overflow_dead_letter: bool = option(
        False,
        help="Move messages that `overflow` or `age_max` drops to the dead letter queue, "
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
        help="Maximum age of a message that waits for one durable subscription, as `age_max`.",
        act="the message is dropped, or dead-lettered",
        metric="overflow.dropped",
    )
    subscription_overflow: str = option(
        "drop_oldest",
        choices=OVERFLOWS,
        help="What happens at `subscription_messages_max` or `subscription_bytes_max`. For "
        "this subscription only: drop its oldest message or the new one, or "
        "`disconnect` its client, which gets no new messages until there is room. For "
        "everybody who publishes to it: `refuse`, or `slow`. By default a client that "
        "does not come back never stops a topic for others; whoever loses messages is "
        "told: see [limits](limits.md).",
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
        help="A consumer is slow when its oldest unacknowledged message has been in flight "
        "for this long; checked every 10 seconds. It is logged, counted in "
        "`consumers.slow` and reported to plugins. Guards against consumers that hang.",
    )
    slow_consumer_rate: float = option(
        0.0,
        minimum=0.1,
        maximum=1_000_000,
        zero="off",
        help="A consumer is slow when it acknowledges fewer messages per second than this, "
        "over 10 seconds in which more were always waiting for it. Reported as with "
        "`slow_consumer_age`. Does not apply to consumers that acknowledge nothing "
        "(STOMP `ack:auto`, QoS 0). Guards against consumers that fall behind.",
    )
    slow_consumer_act: str = option(
        "tell",
        choices=("tell", "cut_prefetch", "disconnect"),
        help="What else happens to a slow consumer: nothing; its prefetch is 1 until it "
        "keeps up again, so that other consumers get what it would have taken; or it "
        "is disconnected, and other consumers get all its messages.",
    )
    subscription_expiry: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=1,
        zero="never",
        help="A durable STOMP subscription whose client has been disconnected for this long "
        "is deleted, with its messages; checked every 10 seconds, and a restart starts "
        "the time again. MQTT sessions have their own expiry. Guards the disk against "
        "clients that never come back.",
    )
    max_deliveries: int = option(
        6,
        minimum=1,
        zero="unlimited",
        help="Deliveries of one message, including the first, after which a rejection "
        "(STOMP NACK) moves it to the dead letter queue instead of redelivering it. A "
        "lost consumer counts as a delivery, but only a rejection moves the message. "
        "Guards against a message that circles forever.",
    )
    dead_letter: str = option(
        "DLQ.{name}",
        help="Name of the queue that such messages move to; `{name}` stands for the "
        "destination's name. Without `{name}`, destinations share one queue. Nothing "
        "is lost if nobody looks.",
    )

    auto_create: bool = option(
        True,
        help="Clients create queues by using them. With `false` only the operator creates "
        "queues; sending to or consuming from a queue that does not exist is refused. "
        "If `match` is a queue's full name, the gateway creates it at start. Guards "
        "against queues created by mistyped names.",
    )
    idle_delete: float = option(
        0,
        kind=Kind.DURATION,
        minimum=1,
        zero="never",
        help="A queue that has been empty and without consumers for this long is deleted; "
        "checked every 5s. Guards memory and quotas when clients create queues under "
        "ever new names.",
    )

    @property
    def declared_queue(self) -> str:
        """The canonical queue that this policy creates at start; "" for none."""
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
        key: where it is: ``destinations[2]``; "" for the defaults, which come from no table.
        written: by option, the key under which the file gives it; without the options the file omits.
        paging_key: the key that asks for a cursor that pages; "" when none does.
    """

    policy: DestinationPolicy
    key: str
    written: Mapping[str, str]
    paging_key: str = ""
