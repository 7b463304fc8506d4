"""What a client may do: authorizers, interceptors, and what the gateway itself refuses.

Every access to messages asks here. What the gateway writes by itself is :class:`OwnWrite`.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Container, Iterator, Sequence, Sized
from functools import partial
from typing import Final, Protocol, TypeAlias, cast, final

import msgspec

from tidegate.broker.limits.accounts import Account
from tidegate.broker.limits.acknowledged import AcknowledgedLog
from tidegate.plugin_exit import FAILURES
from tidegate.spi import (
    AccessError,
    Action,
    AuditEvent,
    AuditKind,
    Auditor,
    Authorizer,
    Explainer,
    FlowControlError,
    Held,
    Identity,
    Interceptor,
    Message,
    RequestError,
    SubscribeRequest,
    Verdict,
    names,
    text_bytes,
)
from tidegate.spi.events import Event, Tell, log_only

_log = logging.getLogger("tidegate.broker")

#: Answers cached for a connection, of each kind; beyond this the cache starts over.
AUTHORIZATIONS_MAX: Final = 1000

#: Answers for longer names are not cached.
_REMEMBERED_CHARACTERS: Final = 256

#: Bytes of one answer, besides the name: its place in a dict, and a tuple.
_ANSWER_BYTES: Final = 160

#: Tells whether messages of a destination may be delivered.
Allows: TypeAlias = Callable[[str], bool]


class OwnWrite(enum.Enum):
    """Everything the gateway writes without asking an authorizer, and why.

    A retained message's copy for a new subscription, a durable subscription's list and a message
    that goes back are not such writes: authorizers are asked when they are delivered.
    """

    #: A message that was rejected too often goes to the dead-letter queue of the destination's
    #: policy. Only the operator's configuration names it; the rejecting client chooses nothing, and
    #: a reader needs the right to consume from that queue.
    DEAD_LETTER = "dead-letter"
    #: ``$SYS``: what the gateway tells about itself. Clients can never publish there, and a reader
    #: needs the right to subscribe.
    SYSTEM_TOPIC = "system-topic"
    #: How far a replay came (``$SYS.broker.replays.ID``). A replay needs the right ADMIN, and what it
    #: publishes is checked like any publish.
    REPLAY = "replay"


#: What auditors and operators are told, under the same names.
_EVENTS: Final = {
    AuditKind.LOGIN_REFUSED: Event.LOGIN_REFUSED,
    AuditKind.REFUSED: Event.REFUSED,
    AuditKind.OPERATED: Event.OPERATED,
}

#: Where each may go: the prefix of the destination.
_OWN: Final = {
    OwnWrite.DEAD_LETTER: names.QUEUE_PREFIX,
    OwnWrite.SYSTEM_TOPIC: names.topic("$SYS."),
    OwnWrite.REPLAY: names.topic("$SYS.broker.replays."),
}


def check_own(write: OwnWrite, destination: str) -> None:
    """Raises: AccessError for a destination that such a write may not go to."""
    if not destination.startswith(_OWN[write]):
        raise AccessError(f"the gateway writes no {write.value} there", destination=destination)


class Rights:
    """Cached answers about what a requester may do, until rights change.

    Args: account: of a connection, charged for it; None: of a will, which needs few answers. Where
        there is no room for an answer, it is asked for each time.

    Attributes:
        publishable: destinations of publishes that need no further check.
        takeable: by action, destinations of deliveries and whether they are permitted.
        is_complete: *verdicts* has every answer since rights changed.
    """

    __slots__ = ("_account", "_size", "is_complete", "publishable", "takeable", "verdicts")

    def __init__(self, account: Account | None = None) -> None:
        self._account = account
        self._size = 0
        self.publishable: dict[str, None] = {}
        self.takeable: dict[Action, _Takeable] = {}
        self.verdicts: dict[tuple[Action, str], Verdict] = {}
        self.is_complete = True

    def forget(self) -> None:
        """Rights have changed."""
        self._clear()
        self.is_complete = True

    def end(self) -> None:
        """The connection has ended, and its account will be cleared."""
        self._clear()
        self._account = None

    def takes(self, answers: Sized, destination: str) -> bool:
        """Count one about to be put into *answers*. Returns: False when it must not be put there."""
        if len(destination) > _REMEMBERED_CHARACTERS:
            return False
        if len(answers) >= AUTHORIZATIONS_MAX:
            self._clear()
            self.is_complete = False
        account = self._account
        if account is not None:
            size = _ANSWER_BYTES + text_bytes(destination)
            if not account.has_room(size):
                return False
            account.add(Held.RIGHTS, size)
            self._size += size
        return True

    def _clear(self) -> None:
        self.publishable.clear()
        self.verdicts.clear()
        for known in self.takeable.values():
            known.clear()
        if self._account is not None:
            self._account.add(Held.RIGHTS, -self._size)
        self._size = 0


@final
class _Takeable(dict[str, bool]):
    """Whether messages of a destination may be delivered, asked when unknown.

    Each delivery to a filter broader than the client's rights looks here, so it must be one lookup.
    """

    __slots__ = ("_permits", "_rights")

    def __init__(self, permits: Allows, rights: Rights) -> None:
        super().__init__()
        self._permits = permits
        self._rights = rights

    def __missing__(self, destination: str) -> bool:
        is_permitted = self._permits(destination)
        if self._rights.takes(self, destination):
            self[destination] = is_permitted
        return is_permitted


class Requester(Protocol):
    """A connection, or the will of one that is gone."""

    address: str
    rights: Rights

    @property
    def identity(self) -> Identity: ...

    @property
    def principal(self) -> str: ...


class Access:
    """Asks the extensions.

    Args: extensions: all configured ones, in order; others are ignored. queues: those that exist.
    """

    def __init__(
        self, extensions: Sequence[object], log: AcknowledgedLog, queues: Container[str]
    ) -> None:
        self.authorizers = [e for e in extensions if isinstance(e, Authorizer)]
        self._auditors = [e for e in extensions if isinstance(e, Auditor)]
        self._interceptors = [e for e in extensions if isinstance(e, Interceptor)]
        self._log = log
        self._queues = queues
        self.tell: Tell = log_only

    @property
    def checks_publish(self) -> bool:
        """Every publish must be checked for now, whatever its sender and destination."""
        return bool(self._interceptors or self._log.refusing)

    # --- questions to the authorizers ------------------------------------------------------------

    def decide(self, requester: Requester, action: Action, destination: str) -> Verdict:
        """The verdict of all authorizers together: the strictest."""
        if not self.authorizers:
            return Verdict.ALLOW
        verdicts = requester.rights.verdicts
        verdict = verdicts.get((action, destination))
        if verdict is not None:
            return verdict
        verdict = Verdict.ALLOW
        # Any client told its name may send to it, and only its owner may take from it, which
        # TemporaryDestinations enforces.
        if not names.is_temporary(destination):
            for authorizer in self.authorizers:
                asked = self.ask(authorizer, requester.identity, action, destination)
                if asked is Verdict.DENY:
                    verdict = asked
                    break
                if asked is Verdict.FILTER:
                    verdict = asked
        if requester.rights.takes(verdicts, destination):
            verdicts[action, destination] = verdict
        else:
            requester.rights.is_complete = False
        return verdict

    @staticmethod
    def ask(
        authorizer: Authorizer, identity: Identity, action: Action, destination: str
    ) -> Verdict:
        """The answer of one of them, as it counts."""
        try:
            verdict = authorizer.authorize(identity, action, destination)
        except FAILURES:
            _log.exception("authorizer=%s failed", authorizer)
            return Verdict.DENY
        if verdict is Verdict.ALLOW or (
            verdict is Verdict.FILTER
            and action in _OF_FILTERS
            and names.is_filter(names.name_of(destination))
        ):
            return verdict
        if verdict is not Verdict.DENY:
            _log.error(
                "authorizer=%s action=%s answer=%r: not a valid answer, treated as a refusal",
                authorizer,
                action.value,
                verdict,
            )
        return Verdict.DENY

    @staticmethod
    def reasons(
        authorizer: Authorizer, identity: Identity, action: Action, destination: str
    ) -> tuple[str, ...]:
        """One authorizer's reasons, in its words; () when it gives none."""
        if not isinstance(authorizer, Explainer):
            return ()
        try:
            return authorizer.explain(identity, action, destination).why
        except FAILURES:
            _log.exception("authorizer=%s failed to explain", authorizer)
            return ()

    def permits(self, requester: Requester, action: Action, destination: str) -> bool:
        """It is allowed unconditionally."""
        return self.decide(requester, action, destination) is Verdict.ALLOW

    def may_take(self, requester: Requester, destination: str) -> bool:
        """See :meth:`tidegate.spi.BrokerConnection.may_take`."""
        if names.is_temporary(destination):
            return False  # only its owner may, and had it
        if names.is_queue(destination) and self.permits(requester, Action.BROWSE, destination):
            return True
        return self.permits(requester, taking_from(destination), destination)

    def authorize(self, requester: Requester, action: Action, destination: str) -> None:
        """Raises: AccessError unless it is allowed unconditionally."""
        if self.authorizers and not self.permits(requester, action, destination):
            raise self.refusal(requester, action, destination)

    def refusal(self, requester: Requester, action: Action, destination: str) -> AccessError:
        """The error for the client; auditors are told, too."""
        problem = f"{action.value} is not allowed"
        self.audit(AuditKind.REFUSED, requester.identity, action, destination, problem)
        return AccessError(problem, principal=requester.principal, destination=destination)

    def audit(
        self,
        kind: AuditKind,
        identity: Identity,
        action: Action | None = None,
        destination: str = "",
        problem: str = "",
        detail: str = "",
    ) -> None:
        """Tell auditors, and operators except of logins: clients let in are reported anyway."""
        event = _EVENTS.get(kind)
        if event is not None:
            self.tell(
                event,
                _log,
                "principal=%r client=%r peer=%s protocol=%s action=%s destination=%r: %s",
                identity.principal,
                identity.client_id,
                identity.address,
                identity.protocol,
                "none" if action is None else action.value,
                destination,
                detail or problem,
            )
        for auditor in self._auditors:
            try:
                auditor.audit(AuditEvent(kind, identity, action, destination, problem, detail))
            except FAILURES:
                _log.exception("auditor=%s failed", auditor)

    # --- publishing ------------------------------------------------------------------------------

    def check_destination(self, requester: Requester, destination: str) -> None:
        """Limits and authorizers. Raises: AccessError, FlowControlError."""
        if self._log.refusing:
            raise FlowControlError(
                "publishes are refused: the acknowledged log is at its limit because "
                "the sinks are not keeping up (broker.acknowledged_limit)"
            )
        publishable = requester.rights.publishable
        if not self.authorizers or destination in publishable:
            return
        self.authorize(requester, Action.PUBLISH, destination)
        self._check_create(requester, destination)
        is_there = destination in self._queues or not names.is_queue(destination)
        if is_there and requester.rights.takes(publishable, destination):
            publishable[destination] = None

    def _check_create(self, requester: Requester, destination: str) -> None:
        if (
            names.is_queue(destination)
            and destination not in self._queues
            and not names.is_temporary(destination)
        ):
            self.authorize(requester, Action.CREATE, destination)

    def check_publish(self, requester: Requester, message: Message) -> Message:
        """Limits, authorizers and interceptors. Raises: AccessError, FlowControlError."""
        asked = message.destination
        self.check_destination(requester, asked)
        for interceptor in self._interceptors:
            try:
                answer = cast("object", interceptor.intercept(message, requester.principal))
                if not isinstance(answer, Message):
                    raise TypeError(f"intercept() returned {answer!r}, which is no Message")
                message = answer
            except AccessError:
                raise
            except FAILURES:
                _log.exception("interceptor=%s failed", interceptor)
                raise AccessError(
                    "the publish could not be checked",
                    principal=requester.principal,
                    destination=message.destination,
                ) from None
        destination = message.destination
        if destination != asked:
            self.check_destination(requester, destination)
        check_large(message)
        if message.retain:
            if names.is_queue(destination) or names.is_temporary(destination):
                # A queue keeps its messages anyway; a temporary topic's could not be found later.
                return msgspec.structs.replace(message, retain=False)
            self.authorize(requester, Action.RETAIN, destination)
        return message

    def check_held(self, requester: Requester, message: Message) -> None:
        """Check again what a transaction or a prepared branch has held back since its first check:
        the right may be gone. Raises: AccessError."""
        self.authorize(requester, Action.PUBLISH, message.destination)
        if message.retain:
            self.authorize(requester, Action.RETAIN, message.destination)

    def check_will(self, requester: Requester, will: Message) -> None:
        """Refuse now what would be refused later, when nobody can be told. Raises: AccessError."""
        if not self.authorizers:
            return
        destination = will.destination
        self.authorize(requester, Action.PUBLISH, destination)
        self._check_create(requester, destination)
        if will.retain and names.is_topic(destination) and not names.is_temporary(destination):
            self.authorize(requester, Action.RETAIN, destination)

    # --- subscribing -----------------------------------------------------------------------------

    def check_subscribe(self, requester: Requester, request: SubscribeRequest) -> None:
        """Raises: RequestError for a bad name, AccessError when refused."""
        destination = request.destination
        if not (names.is_queue(destination) or names.is_topic(destination)):
            raise RequestError(f"{destination!r} is neither a queue nor a topic")
        try:
            names.check_filter(names.name_of(destination))
        except ValueError as error:
            raise RequestError(str(error)) from None
        if not self.authorizers:
            return
        action = Action.BROWSE if request.browse else taking_from(destination)
        if self.decide(requester, action, destination) is Verdict.DENY:
            raise self.refusal(requester, action, destination)
        if action is Action.CONSUME and not names.is_filter(names.name_of(destination)):
            self._check_create(requester, destination)

    @staticmethod
    def given(rights: Rights) -> set[tuple[Action, str]]:
        """The rights a client may have been handed something by, as far as *rights* remembers."""
        return {
            asked
            for asked, verdict in rights.verdicts.items()
            if asked[0] in _OF_FILTERS and verdict is Verdict.ALLOW
        }

    def check_unsent(
        self, requester: Requester, given: set[tuple[Action, str]] | None
    ) -> Iterator[int]:
        """Call after rights changed for a client that has not taken everything it was given.

        Args: given: see :meth:`given`, from before the change; None: not all of it is remembered.
        Yields: how many answers were asked for.
        Raises: AccessError when it may have been given something that it may no longer have.
        """
        for action, destination in given or ():
            if not self.permits(requester, action, destination):
                raise self.refusal(requester, action, destination)
            yield 1
        if given is None:
            raise AccessError(
                "permissions have changed, and messages in flight may no longer be allowed",
                principal=requester.principal,
            )

    def allows(self, requester: Requester, destination: str) -> Allows | None:
        """What may be delivered to a subscription; None: everything.

        Raises: AccessError when nothing may.
        """
        if not self.authorizers:
            return None
        action = taking_from(destination)
        verdict = self.decide(requester, action, destination)
        if verdict is Verdict.ALLOW:
            return None
        if verdict is Verdict.DENY:
            raise self.refusal(requester, action, destination)
        takeable = requester.rights.takeable
        if action not in takeable:
            takeable[action] = _Takeable(partial(self.permits, requester, action), requester.rights)
        return takeable[action].__getitem__


#: Actions that can be asked about for a filter.
_OF_FILTERS: Final = frozenset({Action.SUBSCRIBE, Action.CONSUME, Action.BROWSE})


def taking_from(destination: str) -> Action:
    """The action that a subscription to *destination* is."""
    return Action.CONSUME if names.is_queue(destination) else Action.SUBSCRIBE


def check_large(message: Message) -> None:
    """Raises: RequestError for a large message that would be retained, or has another body.

    Retained messages are kept in memory, and one with an empty body would clear what is retained.
    """
    if message.large is None:
        return
    if message.retain:
        raise RequestError(
            f"a message with a body of {message.large.size} bytes cannot be retained: retained"
            " messages are kept in memory, and the store streams bodies of this size"
        )
    if message.body:
        raise RequestError("a message has either a body or a large body")
