"""What is held in memory for somebody, by kind: the words in which the gateway counts it."""

from __future__ import annotations

import enum


@enum.unique
class Held(enum.IntEnum):
    """Why bytes are held.

    The first two, packet ids and aliases are what a front-end holds and tells with
    :meth:`BrokerConnection.holds`. Packet ids that a session keeps, and all others, the broker counts.
    """

    INPUT = 0  # a frame or packet whose end has not come
    OUTPUT = 1  # written, and not yet taken by the client's socket
    TRANSACTIONS = 2  # of an open transaction, and the messages that it acknowledged
    WILLS = 3
    RETAINED = 4
    SESSIONS = 5  # what is kept of a session: ids, states of packets
    SUBSCRIPTIONS = 6  # filters, selectors, names
    QUEUES = 7  # without the messages in them, which their cursors count
    DUPLICATE_IDS = 8
    LOGIN = 9  # sent by clients that are not let in yet
    PACKET_IDS = 10  # of MQTT messages in the middle of their handshake
    ALIASES = 11  # long topic names that have one
    RIGHTS = 12  # what is remembered of what a client may do
    CONNECTIONS = 13  # a socket with its buffers, and what there is of each client
    OBSERVED = 14  # what extensions that follow messages remember of them
