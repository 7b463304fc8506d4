"""The user's headers between protocols: names that STOMP needs for itself are escaped, reversibly.

MQTT 5.0 user properties may have any name, even an empty one, or one that would break a STOMP frame
(``content-length``) or look like the gateway's own (``message-id``). In a STOMP frame such a name
gets the prefix ``user-``: the property ``destination`` is the header ``user-destination``, and the
property ``user-destination`` is ``user-user-destination``. A message keeps its headers as its
producer wrote them, so escaping happens only when a message changes protocols.
"""

from __future__ import annotations

import re
from typing import Final

#: Headers of SEND that say how to carry it.
ENVELOPE: Final = ("content-length", "destination", "receipt", "transaction")

#: Headers that the MESSAGE frame sets itself. A bridge that copies all headers of what it received
#: sends them too; passed on, they would contradict the real ones for a client that lets the last
#: of repeated headers win.
OF_MESSAGE_FRAME: Final = (
    "ack",
    "message-id",
    "origin-destination",
    "origin-protocol",
    "origin-qos",
    "redelivered",
    "retained",
    "subscription",
)

#: Headers that are fields of the message, for every protocol.
MAPPED: Final = (
    "content-type",
    "correlation-id",
    "correlation-id-encoding",
    "expires",
    "payload-format",
    "persistent",
    "priority",
    "reply-to",
    "retain",
)

#: The producer's id of a message; a message whose id was already used is discarded (the name is
#: Artemis's, "Duplicate Message Detection"). It also remains a header of the user's.
DUPLICATE_ID: Final = "_AMQ_DUPL_ID"

_PREFIX: Final = "user-"
_PREFIXES: Final = re.compile(f"(?:{_PREFIX})*")
#: A header must have a name, and ``browser:end`` is how the gateway ends queue browsing.
_RESERVED: Final = frozenset(("", "browser", *ENVELOPE, *OF_MESSAGE_FRAME, *MAPPED))


def escaped(name: str) -> str:
    """How a user's header of another protocol is named in a STOMP frame."""
    if name in _RESERVED:
        return _PREFIX + name
    if name.startswith(_PREFIX) and _is_escapable(name):
        return _PREFIX + name
    return name


def unescaped(name: str) -> str:
    """How a STOMP user's header is named in another protocol: undoes :func:`escaped`."""
    if not name.startswith(_PREFIX):
        return name
    inner = name[len(_PREFIX) :]
    return inner if _is_escapable(inner) else name


def _is_escapable(name: str) -> bool:
    """Whether it is a reserved name, perhaps with prefixes."""
    found = _PREFIXES.match(name)
    return found is not None and name[found.end() :] in _RESERVED
