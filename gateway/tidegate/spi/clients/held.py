"""Kinds of memory held for somebody: the words in which the gateway counts it."""

from __future__ import annotations

import enum


@enum.unique
class Held(enum.IntEnum):
    """Why bytes are held.

    A front-end reports INPUT, OUTPUT, ALIASES and its own PACKET_IDS with :meth:`BrokerConnection.holds`. The
    broker counts all others, and the packet ids that a session keeps.
    """

    INPUT = 0  # an incomplete frame or packet
    OUTPUT = 1  # written, and not yet taken by the client's socket
    TRANSACTIONS = 2  # operations of open transactions, and the messages they acknowledged
    WILLS = 3
    RETAINED = 4
    SESSIONS = 5  # kept for a session: ids, states of packets
    SUBSCRIPTIONS = 6  # filters, selectors, names
    QUEUES = 7  # without their messages, which their cursors count
    DUPLICATE_IDS = 8
    LOGIN = 9  # sent by clients that are not let in yet
    PACKET_IDS = 10  # of MQTT messages in the middle of their handshake
    ALIASES = 11  # long topic names that have an alias
    RIGHTS = 12  # cached decisions on what a client may do
    CONNECTIONS = 13  # a socket with its buffers, and the objects of each client
    OBSERVED = 14  # what extensions that follow messages remember of them
