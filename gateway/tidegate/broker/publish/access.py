"""What a client may do: authorizers, interceptors, and what the gateway itself refuses.

Every way to a message asks here. What the gateway writes of its own accord is :class:`OwnWrite`.
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

#: Answers that are remembered for a connection, of each kind; past it they are asked anew.
AUTHORIZATIONS_MAX: Final = 1000

#: About longer names is asked each time.
_REMEMBERED_CHARACTERS: Final = 256

#: Of one answer, besides the name: its place in a dict, and a tuple.
_ANSWER_BYTES: Final = 160

#: Tells whether messages of a destination may be delivered.
Allows: TypeAlias = Callable[[str], bool]


class OwnWrite(enum.Enum):
    """What the gateway writes without asking an authorizer: this is all of it, and the reason.

    A copy for a new subscription of what is retained, a durable subscription's list and a message
    that goes back are no writes of this kind: they are asked about when they are delivered.
    """

    #: A message that was rejected too often goes to the dead-letter queue of the destination's
    #: policy. Only the operator's configuration names it; who rejected the message chooses nothing, and
    #: who wants to read it needs the right to consume from that queue.
    DEAD_LETTER = "dead-letter"
    #: ``$SYS``: what the gateway tells about itself. Clients can never publish there, and who
    #: wants to read it needs the right to subscribe.
    SYSTEM_TOPIC = "system-topic"
    #: How far a replay came (``$SYS.broker.replays.ID``). Only who has the right ADMIN has a replay, and
    #: what that publishes is asked about like any publish.
    REPLAY = "replay"


#: What auditors and operators are told of, by the same names.
_EVENTS: Final = {
    AuditKind.LOGIN_REFUSED: Event.LOGIN_REFUSED,
    AuditKind.REFUSED: Event.REFUSED,
    AuditKind.OPERATED: Event.OPERATED,
}

#: Where each may go, as the beginning of the destination.
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
    """What is remembered of what a requester may do, until rights change.

    Args: account: of a connection, which holds it; None: of a will, about which little is asked. Where
        there is no room for an answer, it is asked for each time.

    Attributes:
        publishable: destinations of publishes about which nothing more is to be asked.
        takeable: by action, destinations of deliveries and whether they are permitted.
        is_complete: *verdicts* has all that was answered since rights changed.
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
        """Rights are other ones now."""
        self._clear()
        self.is_complete = True

    def end(self) -> None:
        """The connection has ended, and its account is to be cleared."""
        self._clear()
        self._account = None

    def takes(self, answers: Sized, destination: str) -> bool:
        """Count one more that is about to be put into *answers*. Returns: False when it is not to be."""
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
    """Whether messages of a destination may be delivered, asked when it is not known.

    Each delivery of a filter that is broader than the right looks here, so that must be one look.
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
    """Who wants something: a connection, or the will of one that is gone."""

    address: str
    rights: Rights

    @property
    def identity(self) -> Identity: ...

    @property
    def principal(self) -> str: ...


class Access:
    """Asks the extensions.

    Args: extensions: all that are configured, in order; others are ignored. queues: that exist.
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
        """Every publish must be looked at just now, whoever sends it and where to."""
        return bool(self._interceptors or self._log.refusing)

    # --- questions to the authorizers ------------------------------------------------------------

    def decide(self, requester: Requester, action: Action, destination: str) -> Verdict:
        """What all authorizers say together: the strictest of their verdicts."""
        if not self.authorizers:
            return Verdict.ALLOW
        verdicts = requester.rights.verdicts
        verdict = verdicts.get((action, destination))
        if verdict is not None:
            return verdict
        verdict = Verdict.ALLOW
        # Who was told its name may send to it, and only its owner may take from it, which
        # TemporaryDestinations sees to.
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
        """What one of them answers, as it is taken."""
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
        """Why one of them answers so, in its words; () when it gives no reasons."""
        if not isinstance(authorizer, Explainer):
            return ()
        try:
            return authorizer.explain(identity, action, destination).why
        except FAILURES:
            _log.exception("authorizer=%s failed to explain", authorizer)
            return ()

    def permits(self, requester: Requester, action: Action, destination: str) -> bool:
        """It is allowed without condition."""
        return self.decide(requester, action, destination) is Verdict.ALLOW

    def may_take(self, requester: Requester, destination: str) -> bool:
        """See :meth:`tidegate.spi.BrokerConnection.may_take`."""
        if names.is_temporary(destination):
            return False  # only its owner may, who had it
        if names.is_queue(destination) and self.permits(requester, Action.BROWSE, destination):
            return True
        return self.permits(requester, taking_from(destination), destination)

    def authorize(self, requester: Requester, action: Action, destination: str) -> None:
        """Raises: AccessError unless it is allowed without condition."""
        if self.authorizers and not self.permits(requester, action, destination):
            raise self.refusal(requester, action, destination)

    def refusal(self, requester: Requester, action: Action, destination: str) -> AccessError:
        """What the client is told; auditors are, too."""
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
        """Tell auditors, and operators but for logins: clients that are let in are told of anyway."""
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
                # A queue keeps its messages anyway; nobody could find a temporary topic's later.
                return msgspec.structs.replace(message, retain=False)
            self.authorize(requester, Action.RETAIN, destination)
        return message

    def check_held(self, requester: Requester, message: Message) -> None:
        """What was held back since it was checked, by a transaction or a prepared branch, is asked
        about again: the right may be gone. Raises: AccessError."""
        self.authorize(requester, Action.PUBLISH, message.destination)
        if message.retain:
            self.authorize(requester, Action.RETAIN, message.destination)

    def check_will(self, requester: Requester, will: Message) -> None:
        """Refuse now what would be refused when nobody is there to be told. Raises: AccessError."""
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
        """By what a client may have been handed something, as far as *rights* remembers it."""
        return {
            asked
            for asked, verdict in rights.verdicts.items()
            if asked[0] in _OF_FILTERS and verdict is Verdict.ALLOW
        }

    def check_unsent(
        self, requester: Requester, given: set[tuple[Action, str]] | None
    ) -> Iterator[int]:
        """Call after rights changed for a client that has not taken all that it was given.

        Args: given: see :meth:`given`, from before the change; None: not all of it is remembered.
        Yields: how many answers were asked for.
        Raises: AccessError when something that it was given may be of what it may not have by now.
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
        """What of a subscription may be delivered; None: everything.

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


#: What a filter can be asked about.
_OF_FILTERS: Final = frozenset({Action.SUBSCRIBE, Action.CONSUME, Action.BROWSE})


def taking_from(destination: str) -> Action:
    """What a subscription to *destination* is."""
    return Action.CONSUME if names.is_queue(destination) else Action.SUBSCRIBE


def check_large(message: Message) -> None:
    """Raises: RequestError for a large message that is to be retained or has a body besides.

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
