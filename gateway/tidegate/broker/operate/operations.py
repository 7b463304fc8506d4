"""The operator's contract, as the broker keeps it: who may, what happens, and who is told."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Final

import msgspec

from tidegate.broker.core import BrokerCore
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.operate.authorized import ALONE, Around, Asking
from tidegate.broker.operate.gateway_seen import GatewaySeen
from tidegate.broker.operate.log_rows import log_rows
from tidegate.broker.operate.messages.browsing import browse
from tidegate.broker.operate.messages.grouping import grouped
from tidegate.broker.operate.messages.over_messages import OverMessages, durable
from tidegate.broker.operate.messages.publishing import Publishing
from tidegate.broker.operate.messages.replaying import Replaying
from tidegate.broker.operate.paging import Key, page
from tidegate.broker.operate.pausing import NOT_STORED, Pausing
from tidegate.broker.operate.seen.access_seen import AccessSeen
from tidegate.broker.operate.seen.connections_operated import ConnectionsOperated
from tidegate.broker.operate.seen.events_seen import EventsSeen
from tidegate.broker.operate.seen.held_seen import HeldSeen
from tidegate.broker.operate.seen.sessions_operated import SessionsOperated
from tidegate.broker.operate.seen.store_seen import StoreSeen
from tidegate.broker.operate.views import Views, no_such
from tidegate.broker.publish.system_topics import is_system
from tidegate.broker.purged import kept_name, origin_of, purged
from tidegate.spi import (
    Action,
    ConnectionEndedError,
    GatewayError,
    Identity,
    RequestError,
    StoreError,
    names,
)
from tidegate.spi.operate import (
    KEPT_S,
    BrowseMessages,
    CompactSink,
    CopyMessages,
    CountDeadLetters,
    CreateDestination,
    DeadLetterGroups,
    DeleteDestination,
    DestinationDetails,
    DestinationPage,
    Done,
    ListDestinations,
    ListPurged,
    ListSinks,
    LogRows,
    MessagePage,
    MoveMessages,
    PauseDestination,
    PublishMessage,
    PurgeDestination,
    PurgedPage,
    PurgedRow,
    ReadLog,
    ResumeDestination,
    RetryMessages,
    ShowDestination,
    ShowSink,
    Side,
    SinkDetails,
    SinkList,
    SinkStatus,
    SinkTurn,
    UndoPurge,
)
from tidegate.spi.replay import (
    AskDestinations,
    BeginReplay,
    ForgetReplay,
    PublishReplayed,
    Replay,
    ReplayedMessage,
    Verdicts,
)

#: Destinations asked about before others get their turn: an authorizer may take some microseconds for each.
_ASKED_AT_ONCE: Final = 50

_AGAIN: Final = "The queue no longer exists; the next client that uses it creates it again."


class Operations(
    GatewaySeen, EventsSeen, ConnectionsOperated, SessionsOperated, HeldSeen, AccessSeen, StoreSeen
):
    """A :class:`tidegate.spi.operate.Operator` on a running broker; on its event loop.

    Args: around: what the broker does not know about the gateway it is in.
    """

    def __init__(self, core: BrokerCore, around: Around = ALONE) -> None:
        super().__init__(core, around)
        self._views = Views(core.store, core.destinations, core.publisher, core.tally)
        self._over = OverMessages(core.flow, core.publisher)
        self._pausing = Pausing(core)
        self._publishing = Publishing(core)
        self._replaying = Replaying(core)

    # --- seeing ----------------------------------------------------------------------------------

    async def list_destinations(self, who: Identity, request: ListDestinations) -> DestinationPage:
        """See Operator."""
        self._authorize(who)
        return await self._views.page(request)

    async def show_destination(self, who: Identity, request: ShowDestination) -> DestinationDetails:
        """See Operator."""
        self._authorize(who)
        details = await self._views.details(request.destination)
        try:
            self._core.writer.check_writable()
        except StoreError as error:
            return msgspec.structs.replace(details, refused=str(error))
        return details

    async def list_sinks(self, who: Identity, request: ListSinks) -> SinkList:
        """See Operator."""
        self._authorize(who)
        return SinkList(tuple(map(_with_last_problem, await self._sinks())))

    async def show_sink(self, who: Identity, request: ShowSink) -> SinkDetails:
        """See Operator."""
        self._authorize(who)
        found = {status.name: status for status in await self._sinks()}
        if request.sink not in found:
            known = ", ".join(found) or "none"
            raise RequestError(f"there is no sink {request.sink!r}; there are: {known}")
        return SinkDetails(found[request.sink])

    async def read_log(self, who: Identity, request: ReadLog) -> LogRows:
        """See Operator."""
        self._authorize(who)
        if not self._core.acknowledged_log.is_read:
            raise RequestError("there are no sinks, and therefore no acknowledged log")
        found = await log_rows(self._core.acknowledged_log, request)
        destinations = {row.message.destination for row in found.rows}
        self._authorize(who, *((Action.BROWSE, name) for name in sorted(destinations)))
        return found

    async def compact_sink(self, who: Identity, request: CompactSink) -> SinkTurn:
        """See Operator."""
        self._authorize(who)
        return SinkTurn(self._core.acknowledged_log.compact(request.sink))

    async def _sinks(self) -> list[SinkStatus]:
        return await self._core.acknowledged_log.statuses(self._core.writer.now())

    # --- making and ending -----------------------------------------------------------------------

    async def create_destination(self, who: Identity, request: CreateDestination) -> Done:
        """See Operator."""
        core, destination = self._core, request.destination
        self._authorize(who, (Action.CREATE, destination))
        if not names.is_queue(destination):
            raise RequestError(
                f"{destination!r} is not a queue; topics exist as soon as somebody uses them"
            )
        if names.is_temporary(destination):
            raise RequestError("temporary queues are created by their connections only")
        if destination in core.destinations.queues:
            return Done(note="The queue already existed.")
        core.writer.check_writable()
        core.publisher.resolve(destination)
        await durable(core.flow)
        self._tell(who, Action.CREATE, destination, "created")
        return Done(count=1)

    async def delete_destination(self, who: Identity, request: DeleteDestination) -> Done:
        """See Operator."""
        core, destination = self._core, request.destination
        self._authorize(who, (Action.DELETE, destination))
        pending_list = self._queue(destination)
        self._check_deletable(pending_list, request)
        core.writer.check_writable(adds=False)
        await durable(core.flow)  # what was published before has arrived
        is_empty = not await core.store.page_in(pending_list.id, 0, 1, 1)
        if pending_list.is_removed:
            raise no_such(destination)
        self._check_deletable(pending_list, request)
        if not request.with_messages and (
            pending_list.cursor.size or not is_empty or core.writer.is_adding(pending_list)
        ):
            raise RequestError(
                f"{destination} is not empty; purge it, move its messages, or delete it "
                "together with its messages"
            )
        self._end_consumers(pending_list)
        lost = pending_list.cursor.size
        core.publisher.pause(destination, is_paused=False)
        core.destinations.remove_queue(destination, "its queue was deleted")
        self._tell(who, Action.DELETE, destination, f"deleted with {lost} pending messages")
        await durable(core.flow)
        return Done(count=lost, note=_AGAIN)

    @staticmethod
    def _check_deletable(pending_list: PendingList, request: DeleteDestination) -> None:
        consumers = len(pending_list.all_consumers())
        if consumers and not request.with_consumers:
            raise RequestError(
                f"{request.destination} has {consumers} consumers; end them, or delete "
                "the queue together with its consumers"
            )

    def _end_consumers(self, pending_list: PendingList) -> None:
        """End connections that subscribed to it by name: they would wait for ever."""
        own = [
            item
            for item in pending_list.all_consumers()
            if item.destination == pending_list.destination
        ]
        if not own:
            return
        error = ConnectionEndedError(
            "administrative", f"{pending_list.destination} was deleted by an operator"
        )
        for connection in list(self._core.connections):
            if any(connection.consumers.get(item.key) is item for item in own):
                connection.end(error)

    # --- pausing ---------------------------------------------------------------------------------

    async def pause_destination(self, who: Identity, request: PauseDestination) -> Done:
        """See Operator."""
        return await self._pause(who, request.destination, request.sides, is_paused=True)

    async def resume_destination(self, who: Identity, request: ResumeDestination) -> Done:
        """See Operator."""
        return await self._pause(who, request.destination, request.sides, is_paused=False)

    async def _pause(
        self, who: Identity, destination: str, sides: Sequence[Side], *, is_paused: bool
    ) -> Done:
        self._authorize(who)
        if not sides:
            raise RequestError("say what to pause or resume: producers, consumers or both")
        pending_list: PendingList | None = None
        if names.is_queue(destination) or Side.CONSUMERS in sides:
            pending_list = self._queue(destination)
        else:
            self._check_topic(destination)
        is_stored = await self._pausing.change(
            destination, pending_list, sides, is_paused=is_paused
        )
        whom = " and ".join(side.value for side in sides)
        self._tell(who, Action.ADMIN, destination, f"{'paused' if is_paused else 'resumed'} {whom}")
        return Done(note="" if is_stored else NOT_STORED)

    @staticmethod
    def _check_topic(destination: str) -> None:
        if not names.is_topic(destination):
            raise RequestError(f"{destination!r} is neither a queue nor a topic")
        try:
            names.check_name(names.name_of(destination))
        except ValueError as error:
            raise RequestError(str(error)) from None
        if is_system(destination):
            raise RequestError("only the gateway itself publishes there")

    # --- messages --------------------------------------------------------------------------------

    async def browse_messages(self, who: Identity, request: BrowseMessages) -> MessagePage:
        """See Operator."""
        self._authorize(who, (Action.BROWSE, request.destination))
        core, pending_list = self._core, self._queue(request.destination)
        return await browse(core.store, pending_list, request, core.writer.now())

    async def count_dead_letters(
        self, who: Identity, request: CountDeadLetters
    ) -> DeadLetterGroups:
        """See Operator."""
        self._authorize(who, (Action.BROWSE, request.destination))
        core, pending_list = self._core, self._queue(request.destination)
        writer = core.writer
        last = writer.next_sequence - 1
        through = min(request.through or last, last)
        return await grouped(core.store, pending_list, request, through, writer.now())

    async def publish_message(self, who: Identity, request: PublishMessage) -> Done:
        """See Operator."""
        self._authorize(who)
        item = ReplayedMessage(
            "",
            request.destination,
            request.body,
            request.headers,
            request.expires_at,
            request.priority,
            request.persistent,
            content_type=request.content_type,
            correlation_data=request.correlation_data,
            reply_to=request.reply_to,
            protocol=who.protocol,
        )
        await self._publishing.publish(Asking(who, who.address), item)
        self._tell(who, Action.PUBLISH, request.destination, "published a message")
        return Done(count=1)

    async def purge_destination(self, who: Identity, request: PurgeDestination) -> Done:
        """See Operator."""
        destination, until = request.destination, request.keep_until
        self._authorize(who, (Action.DELETE, destination))
        source = self._queue(destination)
        if not until:
            done = await self._over.purge(source, request)
            self._tell(who, Action.DELETE, destination, f"purged {done.count} messages")
            return done
        kept = await self._kept(destination, until)
        try:
            done = await self._over.move(source, kept, request)
        except GatewayError:  # an invalid selector, for instance
            with contextlib.suppress(GatewayError):
                await self._forget_empty(kept, "nothing was purged")
            raise
        if await self._forget_empty(kept, "nothing was purged"):
            return done
        text = f"purged {done.count} messages, which are in {kept.destination}"
        self._tell(who, Action.DELETE, destination, text)
        return msgspec.structs.replace(done, note=f"They are kept in {kept.destination}.")

    async def _kept(self, destination: str, until: int) -> PendingList:
        """A queue for what is purged, from which nobody gets anything. Raises: RequestError, StoreError."""
        core = self._core
        if origin_of(destination) is not None:
            raise RequestError(
                "purged messages cannot be kept a second time: purge them without `keep_until`"
            )
        if not 1_000_000 <= until - core.writer.now() <= KEPT_S * 1_000_000:
            raise RequestError(
                f"`keep_until` must be between one second and {KEPT_S // 86400} days from now"
            )
        core.writer.check_writable()
        name = kept_name(destination, until)
        core.publisher.resolve(name)
        kept = self._queue(name)
        if not kept.is_paused:
            await self._pausing.change(name, kept, (Side.CONSUMERS,), is_paused=True)
        return kept

    async def undo_purge(self, who: Identity, request: UndoPurge) -> Done:
        """See Operator."""
        found = origin_of(request.kept)
        destination = request.kept if found is None else found[0]
        self._authorize(who, (Action.DELETE, destination), (Action.PUBLISH, destination))
        if found is None:
            raise RequestError(
                f"{request.kept!r} is not kept from a purge; `list-purged` shows what is"
            )
        kept = self._queue(request.kept)
        done = await self._over.move(kept, self._queue(destination), request)
        self._tell(who, Action.PUBLISH, destination, f"took {done.count} purged messages back")
        await self._forget_empty(kept, "all of it has been taken back")
        return done

    async def _forget_empty(self, kept: PendingList, why: str) -> bool:
        """Remove *kept* if it is empty. Returns: whether it is gone."""
        core = self._core
        if await core.store.page_in(kept.id, 0, 1, 1) or core.writer.is_adding(kept):
            return False
        if not kept.is_removed:
            core.destinations.remove_queue(kept.destination, why)
            await durable(core.flow)
        return True

    async def list_purged(self, who: Identity, request: ListPurged) -> PurgedPage:
        """See Operator."""
        self._authorize(who)
        match = request.match.casefold()

        def key(row: tuple[PendingList, str, int]) -> Key | None:
            return (-row[2], row[0].destination) if match in row[1].casefold() else None

        found = list(purged(self._core.destinations))
        shown, following = await page(found, key, request.after, request.limit)
        rows = [
            PurgedRow(item.destination, origin, item.cursor.size, until)
            for item, origin, until in shown
        ]
        return PurgedPage(tuple(rows), following)

    async def move_messages(self, who: Identity, request: MoveMessages) -> Done:
        """See Operator."""
        source, target = self._ends(who, request, Action.CONSUME)
        done = await self._over.move(source, target, request)
        text = f"moved {done.count} messages to {target.destination}"
        self._tell(who, Action.CONSUME, source.destination, text)
        return done

    async def retry_messages(self, who: Identity, request: RetryMessages) -> Done:
        """See Operator. The right PUBLISH is required for each queue that they go back to."""
        destination = request.destination
        self._authorize(who, (Action.CONSUME, destination))

        def home_of(origin: str) -> PendingList:
            self._authorize(who, (Action.PUBLISH, origin))
            if origin == destination:
                raise RequestError(
                    f"a message in {destination} names this same queue as its origin"
                )
            return self._queue(origin)

        done = await self._over.retry(self._queue(destination), request, home_of)
        text = f"moved {done.count} dead letters back to where they come from"
        self._tell(who, Action.CONSUME, destination, text)
        return done

    async def copy_messages(self, who: Identity, request: CopyMessages) -> Done:
        """See Operator."""
        source, target = self._ends(who, request, Action.BROWSE)
        done = await self._over.copy(source, target, request)
        text = f"copied {done.count} messages to {target.destination}"
        self._tell(who, Action.BROWSE, source.destination, text)
        return done

    def _ends(
        self, who: Identity, request: MoveMessages | CopyMessages, action: Action
    ) -> tuple[PendingList, PendingList]:
        destination, target = request.destination, request.target
        self._authorize(who, (action, destination), (Action.PUBLISH, target))
        if destination == target:
            raise RequestError("source and target are the same queue")
        return self._queue(destination), self._queue(target)

    # --- publishing again ------------------------------------------------------------------------

    async def begin_replay(self, who: Identity, request: BeginReplay) -> Replay:
        """See Operator."""
        self._authorize(who)
        replay = await self._replaying.begin(request)
        text = f"{'began' if replay.is_new else 'goes on with'} the replay {request.replay}"
        self._tell(who, Action.ADMIN, "", f"{text} at {replay.count} messages")
        return replay

    async def publish_replayed(self, who: Identity, request: PublishReplayed) -> Replay:
        """See Operator. The right PUBLISH is required for each destination, CREATE for a new queue."""
        self._authorize(who)
        before = {item.destination for item in request.messages[:1]}
        replay = await self._replaying.publish(Asking(who, who.address), request)
        others = {item.destination for item in request.messages} - before
        text = f"the replay {request.replay} has published {replay.count} messages"
        if others:
            text += f", the last ones to {len(others)} other destinations, too"
        self._tell(who, Action.PUBLISH, next(iter(before), ""), text)
        return replay

    async def forget_replay(self, who: Identity, request: ForgetReplay) -> Done:
        """See Operator."""
        self._authorize(who)
        was_there = await self._replaying.forget(request.replay)
        self._tell(who, Action.ADMIN, "", f"forgot the replay {request.replay}")
        return Done(count=int(was_there))

    async def ask_destinations(self, who: Identity, request: AskDestinations) -> Verdicts:
        """See Operator."""
        self._authorize(who)
        asking = Asking(who, who.address)
        problems: dict[str, str] = {}
        for number, destination in enumerate(request.destinations, 1):
            problem = await self._replaying.check_destination(asking, destination)
            if problem:
                problems[destination] = problem
            if not number % _ASKED_AT_ONCE:
                await asyncio.sleep(0)
        return Verdicts(problems)

    # --- all of them -----------------------------------------------------------------------------

    def _queue(self, destination: str) -> PendingList:
        """Raises: RequestError when it is not a queue, or a temporary one."""
        if not names.is_queue(destination):
            raise RequestError(f"{destination!r} is not a queue; this works for queues only")
        found = self._core.destinations.queues.get(destination)
        if found is None:
            raise no_such(destination)
        if not found.is_stored:
            raise RequestError(
                f"{destination} is a temporary queue: it belongs to its connection, and "
                "ends with it"
            )
        return found


def _with_last_problem(status: SinkStatus) -> SinkStatus:
    health = dataclasses.replace(status.health, problems=status.health.problems[:1])
    return msgspec.structs.replace(status, health=health)
