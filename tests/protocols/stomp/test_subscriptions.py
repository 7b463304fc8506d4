"""What an ACK covers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi import Message, PeerProtocolError, StoredMessage
from tidegate_protocols.stomp._subscriptions import AckMode, Subscription
from tidegate_protocols.stomp.codec.encoder import MessageEncoder
from tidegate_protocols.stomp.codec.frames import Version

MESSAGE = Message("queue://a", b"")


def make(mode, *sequences, tracked=False):
    encoder = MessageEncoder(Version.V1_2, "1", "id-", "1-")
    subscription = Subscription("key", 1, mode, encoder, tracked=tracked)
    subscription.delivered([StoredMessage.of(s, MESSAGE) for s in sequences])
    return subscription


def test_client_is_cumulative_in_order_of_delivery():
    subscription = make(AckMode.CLIENT, 5, 3, 9, 7)
    assert subscription.cover(9) == [5, 3, 9]
    assert subscription.cover(7) == [7]


def test_client_individual_covers_one():
    assert make(AckMode.CLIENT_INDIVIDUAL, 1, 2, 3).cover(3) == [3]


@pytest.mark.parametrize("mode", [AckMode.CLIENT, AckMode.CLIENT_INDIVIDUAL])
def test_books_refuse_what_is_not_in_flight(mode):
    subscription = make(mode, 1, 2, tracked=True)
    assert subscription.holds(2)
    subscription.cover(2)
    assert not subscription.holds(2)
    for sequence in (2, 99):
        with pytest.raises(PeerProtocolError, match="not in flight"):
            subscription.cover(sequence)


def test_individual_without_books_leaves_the_check_to_the_broker():
    subscription = make(AckMode.CLIENT_INDIVIDUAL, 1)
    assert subscription.is_individual
    assert not subscription.holds(1)
    assert subscription.cover(99) == [99]


def test_books_are_kept_for_cumulative_and_where_an_ack_names_no_subscription():
    assert not make(AckMode.CLIENT).is_individual
    assert not make(AckMode.CLIENT_INDIVIDUAL, tracked=True).is_individual


@pytest.mark.parametrize("tracked", [True, False])
def test_auto_cannot_be_acknowledged(tracked):
    subscription = make(AckMode.AUTO, 1, tracked=tracked)
    assert not subscription.holds(1)
    with pytest.raises(PeerProtocolError, match="ack:auto"):
        subscription.cover(1)


@given(st.permutations([0, 1, 2]))
def test_aborted_transactions_restore_the_order_whichever_ends_first(order):
    subscription = make(AckMode.CLIENT, 10, 4, 8, 6, 2)
    covered = [subscription.cover_with_places(s) for s in (10, 8, 6)]
    for index in order:
        subscription.restore(covered[index])
    assert subscription.cover(2) == [10, 4, 8, 6, 2]


def test_restoring_without_books_changes_nothing():
    subscription = make(AckMode.CLIENT_INDIVIDUAL, 1)
    subscription.restore([(1, 0)])
    assert subscription.cover(1) == [1]
