"""A broker core in a test: a store that obeys the test, clients that write down what they hear.

The store is the one of ``scripted_store``, the time that of ``virtual_loop``.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripted_store import ScriptedStore
from tallied import check_tally

from tidegate.broker import BrokerCore
from tidegate.broker.connection.connection import Connection
from tidegate.broker.limits.accounts import Counted
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.owner import client_key
from tidegate.broker.sessions.state import ID_BYTES, ID_STEP
from tidegate.broker.unstored.store import SpoolingStore
from tidegate.config import BrokerConfig, DestinationPolicy, Quota
from tidegate.spi import (
    ClientRules,
    ConnectRequest,
    ConnectResult,
    CursorFactory,
    Extension,
    GatewayError,
    Held,
    Message,
    RecoveredState,
    StoredMessage,
    SubscribeRequest,
    Token,
    WriteBatch,
    body_bytes,
    names,
)
from tidegate.testing.memory_store import MemoryContents
from tidegate_cursors import FileCursorFactory, StoreCursorFactory, VmCursorFactory

START_US = 1_700_000_000_000_000
ROUNDS_MAX = 2_000

CURSORS: Mapping[str, CursorFactory] = {
    "store": StoreCursorFactory(),
    "vm": VmCursorFactory(),
    "file": FileCursorFactory(),
}


class Client:
    """A front-end's side of one connection that records what it is told.

    Attributes:
        confirmations: tokens in the order of their confirmation.
        failures: (token, error).
        deliveries: (subscription key, message), in order.
        events: all of it as words, for tests about order.
        browsing: keys of the browsing subscriptions that are not over.
        is_paused: the broker asked to stop reading.
        has_unsent: as ClientPeer says it.
        ended: the error given to ``closed``, if any.
        on_deliver, on_closed: called from within the callback, as a front-end may.
    """

    def __init__(self) -> None:
        self.confirmations: list[Token] = []
        self.failures: list[tuple[Token, GatewayError]] = []
        self.deliveries: list[tuple[str, StoredMessage]] = []
        self.events: list[object] = []
        self.browsing: list[str] = []
        self.is_paused = False
        self.has_unsent = False
        self.ended: GatewayError | None = None
        self.on_deliver: Callable[[str, Sequence[StoredMessage]], None] | None = None
        self.on_closed: Callable[[], None] | None = None
        self.connection: Connection
        self.result: ConnectResult

    # --- tidegate.spi.ClientPeer

    def confirmed(self, tokens: Sequence[Token]) -> None:
        self.confirmations += tokens
        self.events += tokens

    def failed(self, token: Token, error: GatewayError) -> None:
        self.failures.append((token, error))
        self.events.append(("failed", token))

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> None:
        assert self.ended is None, "a delivery after the end"
        if not messages:
            assert key in self.browsing, "an empty delivery"
            self.browsing.remove(key)
            return
        self.deliveries += [(key, message) for message in messages]
        self.events += [("delivered", message.message.body) for message in messages]
        if self.on_deliver is not None:
            self.on_deliver(key, messages)

    def throttle(self, paused: bool, *, at_once: bool = False) -> None:
        assert paused != self.is_paused, "throttled twice, or resumed without being throttled"
        self.is_paused = paused

    def closed(self, error: GatewayError) -> None:
        assert self.ended is None, "closed twice"
        self.ended = error
        if self.on_closed is not None:
            self.on_closed()

    # --- what tests say

    def send(self, destination: str, body: bytes | str, token: Token = None, **more: Any) -> None:
        """Publish; *more*: fields of the message, or transaction, inflight, duplicate_id."""
        call = {
            key: more.pop(key) for key in ("transaction", "inflight", "duplicate_id") if key in more
        }
        self.connection.publish(message(destination, body, **more), token, **call)

    def subscribe(self, destination: str, key: str = "s", token: Token = None, **more: Any) -> bool:
        return self.connection.subscribe(
            SubscribeRequest(key=key, destination=destination, **more), token
        )

    async def browse(self, destination: str, key: str = "b", token: Token = None) -> None:
        """Browse a queue until the broker says that it is over."""
        self.begin_browsing(destination, key, token)
        await self.browsed(key)

    def begin_browsing(self, destination: str, key: str = "b", token: Token = None) -> None:
        assert not self.subscribe(destination, key, token, acknowledge=False, browse=True)
        self.browsing.append(key)

    async def browsed(self, key: str = "b") -> None:
        for _ in range(ROUNDS_MAX):
            if key not in self.browsing:
                return
            await asyncio.sleep(0)
        raise AssertionError("browsing does not end")

    def bodies(self, key: str | None = None) -> list[bytes]:
        """Bodies delivered so far (to one subscription)."""
        return [m.message.body for found, m in self.deliveries if key in (None, found)]

    def sequences(self, key: str = "s") -> list[int]:
        return [m.sequence for found, m in self.deliveries if found == key]

    def counts(self, key: str = "s") -> list[int]:
        """Delivery counts delivered so far."""
        return [m.delivery_count for found, m in self.deliveries if found == key]

    def ack_all(self, key: str = "s", token: Token = None) -> None:
        """Acknowledge everything that was delivered and is in flight."""
        consumer = self.connection.consumers[key]
        self.connection.acknowledge(key, list(consumer.in_flight), token)

    def acknowledge_at_once(self) -> None:
        """From now on acknowledge from within ``deliver``."""
        self.on_deliver = lambda key, messages: self.connection.acknowledge(
            key, [m.sequence for m in messages]
        )


def message(destination: str, body: bytes | str, **fields: Any) -> Message:
    """A message with defaults for tests; text bodies are encoded."""
    return Message(destination, body.encode() if isinstance(body, str) else body, **fields)


class Core(BrokerCore):
    """A broker core on virtual time."""

    step_us = 0  # how much the wall clock was set forwards meanwhile

    def now(self) -> int:
        return START_US + self.step_us + int(asyncio.get_running_loop().time() * 1_000_000)


class Broker:
    """A broker core, its store and a way to restart both.

    Args: policies, extensions, quotas: as for BrokerCore; config: keys of ``[broker]``.
    """

    def __init__(
        self,
        *policies: DestinationPolicy,
        extensions: Sequence[Extension] = (),
        contents: MemoryContents | None = None,
        keep_acknowledged: bool = False,
        quotas: Sequence[Quota] = (),
        **config: Any,
    ) -> None:
        self.contents = contents or MemoryContents()
        self.config = BrokerConfig(**config)
        self.policies = policies
        self.extensions = extensions
        self.quotas = quotas
        self.sequence_floor = 0
        self.keep_acknowledged = keep_acknowledged
        self.recovered: RecoveredState
        self.store: ScriptedStore
        self.core: Core
        self._directory = tempfile.TemporaryDirectory(prefix="tidegate-test-")

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(self, *failure: object) -> None:
        self.store.release()
        await self.core.stop()
        self._directory.cleanup()
        if not any(failure):
            self._check_nothing_is_left()

    def _check_nothing_is_left(self) -> None:
        """When every connection has ended, no more is known than what is durable."""
        core = self.core
        assert not core.connections
        assert not core._by_client
        assert not core.destinations._queue_watchers
        assert not core.flow._throttled
        assert set(core.destinations.shared) <= set(core.destinations._members)
        assert not core.tasks.closers
        self._check_nothing_is_charged()
        self._check_limits()
        self.check_counts()
        known: set[PendingList] = set()
        nodes = [core.destinations._router._filters._root]
        while nodes:
            node = nodes.pop()
            known.update(node.lists)
            nodes += node.children.values()
        assert known == {*core.destinations.durable.values(), *core.destinations.shared.values()}
        numbers = {known.pending_list for known in self.contents.destinations.values()}
        numbers.update(self.contents.subscriptions)
        numbers |= {branch.pending_list for branch in self.contents.branches.values()}
        assert set(self.contents.lists) <= numbers, "messages for lists that do not exist"

    def check_counts(self) -> None:
        """What is counted as it comes and goes is what there is."""
        core = self.core
        served = sum(len(connection.consumers) for connection in core.connections)
        away = sum(not item.consumers for item in core.destinations.durable.values())
        alone = sum(item.connection is None for item in core.sessions.all())
        assert core.served == served
        assert core.destinations.count_unattended() == away
        assert core.sessions.count_disconnected() == alone

    def _check_limits(self) -> None:
        """What is counted of each list is what the store has for it."""
        for pending_list in self.core.destinations.all_lists():
            limit: Any = pending_list.limit
            if limit is not None and pending_list.unstored is None:  # else some is gone by now
                stored = self.contents.lists.get(pending_list.id, {}).values()
                assert limit.count == len(stored), pending_list.destination
                assert limit._leaving_count == limit._leaving_bytes == 0
                if limit.weighs:
                    assert limit.bytes == sum(body_bytes(item.message) for item in stored)

    def _check_nothing_is_charged(self) -> None:
        """What clients had that are gone is given back, to the byte."""
        core = self.core
        account = core.accounts.gateway
        assert account.in_flight == 0
        assert account.held == sum(account.kinds)
        assert min(account.kinds) >= 0
        for kind in (Held.INPUT, Held.OUTPUT, Held.TRANSACTIONS, Held.LOGIN):
            assert account.kinds[kind] == 0, kind
        sessions = core.sessions._by_key.values()
        assert account.counts[Counted.CONNECTIONS] == 0
        assert account.counts[Counted.SESSIONS] == len(sessions)
        assert account.counts[Counted.QUEUES] == len(core.destinations.queues)
        kept = len(core.destinations.durable) + len(core.destinations.shared)
        assert account.counts[Counted.SUBSCRIPTIONS] == kept
        ids = sum(len(session.inflight) for session in sessions)
        slack = 3 * ID_STEP * len(sessions)
        assert ids * ID_BYTES <= account.kinds[Held.PACKET_IDS] <= (ids + slack) * ID_BYTES

    async def start(self) -> None:
        self.store = ScriptedStore(self.contents, keep_acknowledged=self.keep_acknowledged)
        self.core = Core(
            self.config,
            self.store,
            cursors=CURSORS,
            policies=self.policies,
            extensions=self.extensions,
            quotas=self.quotas,
            temporary_directory=Path(self._directory.name),
            version="0",
            sequence_floor=self.sequence_floor,
            keeps_log=self.keep_acknowledged,
        )
        self.recovered = await self.core.start()

    async def kill(self) -> None:
        """Start again with what is durable, as after SIGKILL."""
        core = self.core
        tasks = [*core.tasks.running, *core.tasks.closers, core.writer._task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        lists = {
            *core.destinations.queues.values(),
            *core.destinations.durable.values(),
            *core.destinations.shared.values(),
        }
        for connection in core.connections:
            lists.update(item for c in connection.consumers.values() for item in c.lists)
        for pending_list in lists:
            await pending_list.cursor.close()  # only so that no open file is left in this process
        if isinstance(core.store, SpoolingStore):
            await core.store.forget()  # likewise
        self.contents.owner = None
        await self.start()

    async def client(
        self, protocol: str = "stomp", client_id: str = "", *, resume: bool = True, **request: Any
    ) -> Client:
        """Connect, and by default finish the handshake."""
        client = Client()
        client.result = await self.core.connect(
            connect_request(protocol, client_id, **request), client
        )
        assert isinstance(client.result.connection, Connection)
        client.connection = client.result.connection
        if resume:
            client.connection.resume()
        return client

    async def consumer(self, destination: str = "queue://q", *bodies: bytes | str) -> Client:
        """A client that consumes from *destination*, and has sent *bodies* there itself."""
        client = await self.client()
        client.subscribe(destination)
        for body in bodies:
            client.send(destination, body)
        await self.settle()
        return client

    async def settle(self, *, looks: bool = True) -> None:
        """Let everything happen that can happen without the test doing something.

        Args: looks: see then whether what is kept from look to look is what there is, which is such a look.
        """
        core, writer, store = self.core, self.core.writer, self.store
        idle = 0
        for _ in range(ROUNDS_MAX):
            await asyncio.sleep(0)
            is_writing = writer._in_flight is not None and not store.waiting
            is_full = writer.shortage.until > asyncio.get_running_loop().time()
            pages = [
                task
                for task in core.tasks.running
                if task.get_name().startswith(("page-in", "select"))
            ]
            work_waits = not writer.turn.is_empty() and writer._in_flight is None
            busy = (is_writing and not is_full) or pages or work_waits
            if busy or writer.scheduled or core.flow._resting or core.tasks.closers:
                idle = 0
            else:
                idle += 1
            if idle == 5:
                self.check_counts()
                if looks:
                    check_tally(core)
                return
        raise AssertionError("the broker does not come to rest")

    def queue(self, name: str) -> Any:
        return self.core.destinations.queues[names.queue(name)]


def has(batch: WriteBatch, *types: type) -> bool:
    """Whether an operation of one of these types is in the batch."""
    return any(isinstance(operation, types) for operation in batch.operations)


def key_of(client_id: str, owner: str = "anonymous", protocol: str = "mqtt") -> str:
    """What the store keeps a client's session under."""
    return client_key(protocol, owner, client_id)


def connect_request(protocol: str = "stomp", client_id: str = "", **more: Any) -> ConnectRequest:
    rules = ClientRules()
    if protocol == "mqtt":
        rules = ClientRules(replaces=True, acknowledges_unstored=False, delivers_once=True)
    fields: dict[str, Any] = {"anonymous_allowed": True, "rules": rules, "version": "1.2"} | more
    fields.setdefault("peer", "127.0.0.1:4711")
    return ConnectRequest(
        protocol=protocol,
        client_id=client_id,
        listener=f"{protocol}://127.0.0.1:1",
        **fields,
    )
