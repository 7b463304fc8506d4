"""Every pair of state and input."""

import itertools

import pytest

from tidegate.spi import PeerProtocolError
from tidegate_protocols.stomp._transitions import Input, State, input_of, step
from tidegate_protocols.stomp.codec.frames import ACK_RUN, CLIENT_COMMANDS

W, C, K, X = State.WAITING, State.CONNECTING, State.CONNECTED, State.CLOSED
L, R = State.LEAVING, State.REFUSED

# Rows: state; columns: the state after each input, None: a protocol error.
TABLE = {
    #  CONNECT  WORK  DISCONNECT  ACCEPT  REFUSE  SETTLED  FAIL  LOST
    W: (C, None, None, None, None, None, X, X),
    C: (None, None, None, K, None, None, X, X),
    K: (None, K, L, None, R, None, X, X),
    L: (None, None, None, None, R, X, X, X),
    R: (None, None, None, None, None, X, X, X),
    X: (None, None, None, None, None, None, None, X),
}
COLUMNS = (
    Input.CONNECT,
    Input.WORK,
    Input.DISCONNECT,
    Input.ACCEPT,
    Input.REFUSE,
    Input.SETTLED,
    Input.FAIL,
    Input.LOST,
)


def test_the_table_has_every_pair():
    assert set(TABLE) == set(State)
    assert set(COLUMNS) == set(Input)


@pytest.mark.parametrize(("state", "what"), list(itertools.product(State, Input)))
def test_every_pair(state, what):
    after = TABLE[state][COLUMNS.index(what)]
    if after is None:
        with pytest.raises(PeerProtocolError, match=f"SEND is not allowed {state.value}"):
            step(state, what, "SEND")
    else:
        assert step(state, what) is after


def test_an_input_without_a_name_is_called_by_its_value():
    with pytest.raises(PeerProtocolError, match="settled is not allowed before CONNECT"):
        step(State.WAITING, Input.SETTLED)


def test_every_command_is_an_input():
    assert {c: input_of(c) for c in CLIENT_COMMANDS if input_of(c) is not Input.WORK} == {
        "CONNECT": Input.CONNECT,
        "STOMP": Input.CONNECT,
        "DISCONNECT": Input.DISCONNECT,
    }
    assert input_of(ACK_RUN) is Input.WORK
