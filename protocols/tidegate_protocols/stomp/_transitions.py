"""The states of a STOMP session and every step between them.

A (state, input) pair that is not in the table is a protocol error.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from tidegate.spi import PeerProtocolError


class State(enum.Enum):
    """The state of a session; the value completes "… is not allowed <value>"."""

    WAITING = "before CONNECT"
    CONNECTING = "before the answer to CONNECT"
    CONNECTED = "on a connection that is already connected"
    LEAVING = "after DISCONNECT"
    REFUSED = "after a frame that was refused"
    CLOSED = "on a closed connection"


class Input(enum.Enum):
    """What can happen to a session."""

    CONNECT = "CONNECT"  # frame CONNECT or STOMP
    WORK = "work"  # any client frame but CONNECT, STOMP and DISCONNECT
    DISCONNECT = "DISCONNECT"
    ACCEPT = "accept"  # the broker accepted the client
    REFUSE = "refuse"  # a frame is refused, and the client is first told the outcome of others
    SETTLED = "settled"  # everything before DISCONNECT, or before that frame, is durable
    FAIL = "fail"  # ERROR has been written: our refusal, or the broker ended the connection
    LOST = "lost"  # the socket is gone


_TRANSITIONS: Final[Mapping[tuple[State, Input], State]] = {
    (State.WAITING, Input.CONNECT): State.CONNECTING,  # STOMP 1.2 "CONNECT or STOMP Frame"
    (State.WAITING, Input.FAIL): State.CLOSED,
    (State.WAITING, Input.LOST): State.CLOSED,
    (State.CONNECTING, Input.ACCEPT): State.CONNECTED,  # STOMP 1.2 "CONNECTED Frame"
    (State.CONNECTING, Input.FAIL): State.CLOSED,
    (State.CONNECTING, Input.LOST): State.CLOSED,
    (State.CONNECTED, Input.WORK): State.CONNECTED,  # STOMP 1.2 "Client Frames"
    (State.CONNECTED, Input.DISCONNECT): State.LEAVING,  # STOMP 1.2 "DISCONNECT"
    (State.CONNECTED, Input.REFUSE): State.REFUSED,
    (State.CONNECTED, Input.FAIL): State.CLOSED,  # STOMP 1.2 "ERROR": MUST close after it
    (State.CONNECTED, Input.LOST): State.CLOSED,
    # STOMP 1.2 "DISCONNECT": "Clients MUST NOT send any more frames after the DISCONNECT frame".
    (State.LEAVING, Input.REFUSE): State.REFUSED,
    (State.LEAVING, Input.SETTLED): State.CLOSED,
    (State.LEAVING, Input.FAIL): State.CLOSED,
    (State.LEAVING, Input.LOST): State.CLOSED,
    (State.REFUSED, Input.SETTLED): State.CLOSED,
    (State.REFUSED, Input.FAIL): State.CLOSED,
    (State.REFUSED, Input.LOST): State.CLOSED,
    (State.CLOSED, Input.LOST): State.CLOSED,
}

_INPUTS: Final[Mapping[str, Input]] = {
    "CONNECT": Input.CONNECT,
    "STOMP": Input.CONNECT,
    "DISCONNECT": Input.DISCONNECT,
}


def input_of(command: str) -> Input:
    """The input that a frame with *command* is."""
    return _INPUTS.get(command, Input.WORK)


def step(state: State, what: Input, name: str = "") -> State:
    """The state after *what* happened in *state*.

    Args: name: what to call the input in an error; its own value when "".
    Raises: PeerProtocolError when the table has no such step.
    """
    after = _TRANSITIONS.get((state, what))
    if after is None:
        raise PeerProtocolError(f"{name or what.value} is not allowed {state.value}")
    return after
