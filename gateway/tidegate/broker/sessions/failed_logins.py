"""Which addresses have failed to log in, as which user, and when each may try again.

Only guessing is slowed down, never a user: an address's failures delay that address. The caller
passes the time, and nothing here waits; :mod:`.checks` does.

* An address that failed for a user is delayed for that user, twice as long after each failure.
* One that failed for many users is slowed down as a whole (somebody tries one password on all).
* Once many addresses have failed for a user, further ones are delayed from their first failure on.
* A client that was let in before, from the same address with the same user name and client id, is
  *known*: it comes before strangers, is delayed only by attempts under the same client id, and
  never for longer than :data:`KNOWN_DELAY_MAX_S`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import unicodedata
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from tidegate.spi.clients.bind import host_of

#: Failures of one address, for any user, and for one user, from any address, each as a multiple of
#: ``login_failures_free``: a router with a hundred devices behind it has a few that are
#: misconfigured.
MANY: Final = 10

#: The longest delay of a known client, seconds: well below the time that clients give a CONNECT.
KNOWN_DELAY_MAX_S: Final = 1.0

#: Of one table entry: measured, 16 bytes of key and an object of three numbers in an OrderedDict.
ENTRY_BYTES: Final = 320

#: The leading bits that count as one IPv6 address: what one customer gets.
_IPV6_PREFIX: Final = 64

_EXPONENT_MAX: Final = 30

#: Characters of a user name that count.
_NAME_MAX: Final = 256

#: In RFC 3454 table B.1 besides what a category covers.
_UNSEEN: Final = frozenset(" \u1806")


def address_of(peer: str) -> str:
    """What counts as one address: the IPv4 address or IPv6 /64 of *peer* (``host:port``)."""
    host = host_of(peer).partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host  # sockets without an address all count as one
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    network = ipaddress.IPv6Network((int(address), _IPV6_PREFIX), strict=False)
    return str(network.network_address)


def counted_name(username: str) -> str:
    """What counts as one user name: authenticators accept many spellings of the same one.

    Compatibility forms, letter case, invisible characters and marks above letters make no
    difference, so that nobody gets a free try with each of them. Some names that differ for an
    authenticator count as one here.
    """
    if username.isascii():
        return username.lower().replace(" ", "")
    # First as in SASLprep, which uses an old Unicode.
    text = unicodedata.ucd_3_2_0.normalize("NFKC", username[:_NAME_MAX])
    text = unicodedata.normalize("NFKC", text).casefold()
    text = unicodedata.normalize("NFKD", text)
    return "".join(c for c in text if c not in _UNSEEN and unicodedata.category(c)[0] not in "CMZ")


@dataclass(frozen=True, slots=True)
class Attempt:
    """Somebody who wants to log in. Attributes: address: see :func:`address_of`; the rest as shown."""

    address: str
    username: str
    client_id: str


class _Failures:
    __slots__ = ("count", "last")

    def __init__(self) -> None:
        self.count = 0
        self.last = 0.0


class FailedLogins:
    """See the module.

    Args:
        free: failures of an address for a user without a delay, 0 or more.
        delay_s: after the next one, doubled with each; 0: nobody is ever delayed.
        delay_max_s: the longest delay.
        age_s: failures older than this are forgotten.
        limit_bytes: for both tables together; the least recently used entries are forgotten. Known
            clients have half of it, which nobody without a password can take from them.
    """

    def __init__(
        self, *, free: int, delay_s: float, delay_max_s: float, age_s: float, limit_bytes: int
    ) -> None:
        self._free = free
        self._delay_s = delay_s
        self._delay_max_s = max(delay_s, delay_max_s)
        self._age_s = age_s
        self._entries_max = max(1, limit_bytes // 2 // ENTRY_BYTES)
        self._failures: OrderedDict[bytes, _Failures] = OrderedDict()
        self._known: OrderedDict[bytes, None] = OrderedDict()
        # Keys have one length whatever clients send, and nobody can make them collide.
        self._secret = secrets.token_bytes(16)

    @property
    def size_bytes(self) -> int:
        """Bytes the tables take."""
        return ENTRY_BYTES * (len(self._failures) + len(self._known))

    def is_known(self, attempt: Attempt) -> bool:
        """Whether this client was let in before."""
        return self._whole_key(attempt) in self._known

    def pause_s(self, attempt: Attempt, now: float) -> float | None:
        """None if checks need not wait, which is so for nearly everybody.

        Otherwise the seconds from *now* until the next check of this client, or of this address for
        this user; 0 when it may be now. Then only one runs at a time.
        """
        if not self._delay_s:
            return None
        if self.is_known(attempt):
            key, longest = self._whole_key(attempt), min(self._delay_max_s, KNOWN_DELAY_MAX_S)
        else:
            key, longest = self._pair_key(attempt), self._delay_max_s
        count = self._count(key, now)
        if not count:
            return None
        free = self._free
        if self._count(self._key(b"user", attempt.username), now) > free * MANY:
            free = 0
        return self._rest(key, self._grown(count - free, longest), now)

    def address_pause_s(self, address: str, now: float) -> float | None:
        """The same for all strangers at *address* together.

        Never more than ``delay_s``: others may be behind the same address.
        """
        key = self._key(b"address", address)
        if not self._delay_s or self._count(key, now) <= self._free * MANY:
            return None
        return self._rest(key, self._delay_s, now)

    def failed(self, attempt: Attempt, now: float) -> None:
        """It was refused."""
        keys = [self._pair_key(attempt)]
        if self.is_known(attempt):
            keys.append(self._whole_key(attempt))
        keys += self._key(b"user", attempt.username), self._key(b"address", attempt.address)
        for key in keys:  # the address last: it is forgotten last
            self._count_up(key, now)

    def abandoned(self, attempt: Attempt, now: float) -> None:
        """Its client left in the middle of the check: the cost counts against its address.

        It says nothing about the user: clients also leave because they have waited too long.
        """
        self._count_up(self._key(b"address", attempt.address), now)

    def succeeded(self, attempt: Attempt) -> None:
        """It was let in. What failed before is not forgiven: somebody else may be guessing there."""
        key = self._whole_key(attempt)
        self._known[key] = None
        self._known.move_to_end(key)
        if len(self._known) > self._entries_max:
            self._known.popitem(last=False)

    # ------------------------------------------------------------------------------------- inside

    def _count_up(self, key: bytes, now: float) -> None:
        entry = self._failures.get(key)
        if entry is None:
            entry = self._failures[key] = _Failures()
            if len(self._failures) > self._entries_max:
                self._failures.popitem(last=False)
        else:
            self._failures.move_to_end(key)
            if now - entry.last > self._age_s:
                entry.count = 0
        entry.count += 1
        entry.last = now

    def _grown(self, count: int, longest: float) -> float:
        if count <= 0:
            return 0.0
        return min(longest, self._delay_s * 2.0 ** min(count - 1, _EXPONENT_MAX))

    def _rest(self, key: bytes, delay_s: float, now: float) -> float:
        return max(0.0, self._failures[key].last + delay_s - now)

    def _count(self, key: bytes, now: float) -> int:
        entry = self._failures.get(key)
        if entry is None or now - entry.last > self._age_s:
            return 0
        return entry.count

    def _pair_key(self, attempt: Attempt) -> bytes:
        return self._key(b"pair", attempt.address, attempt.username)

    def _whole_key(self, attempt: Attempt) -> bytes:
        return self._key(b"known", attempt.address, attempt.username, attempt.client_id)

    def _key(self, kind: bytes, *parts: str) -> bytes:
        digest = hashlib.blake2b(key=self._secret, person=kind, digest_size=16)
        for part in parts:
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(4, "big") + data)
        return digest.digest()
