"""Who owns what: this tells the clients of one principal from those of another.

A client id is a name within its principal: two principals may use the same one, and neither can take
over what the other has there, lock it out, or find out that it exists (docs/decisions/0011).
"""

from __future__ import annotations

import base64
import hashlib
from typing import NamedTuple

import msgspec

from tidegate.spi import Identity, Message, Session, Subscription


class Origin(NamedTuple):
    """Who publishes.

    Attributes: owner: the principal; key: of the client, see :func:`client_key`; version: of its
    protocol, "" when unknown.
    """

    owner: str
    key: str
    version: str = ""


def client_key(protocol: str, owner: str, client_id: str) -> str:
    """The key of a client, its session and its durable subscriptions: 22 characters, however long the
    three names are; "" for a client without an id, which keeps nothing.

    A digest (BLAKE2b, 128 bits): a client can choose its client id, but not one that gives another
    client's key.
    """
    if not client_id:
        return ""
    names = msgspec.msgpack.encode((protocol, owner, client_id))
    digest = hashlib.blake2b(names, digest_size=16).digest()
    return base64.urlsafe_b64encode(digest).decode()[:22]


def origin_of(identity: Identity, version: str = "") -> Origin:
    """The origin of what this client publishes."""
    owner = identity.principal
    return Origin(owner, client_key(identity.protocol, owner, identity.client_id), version)


def key_of(kept: Session | Subscription | Message) -> str:
    """The key of what is stored; for a retained message, that of its publisher."""
    return client_key(kept.protocol, kept.owner, kept.client_id)
