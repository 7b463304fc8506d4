"""Maps a rule's destinations between the other broker and this gateway."""

from __future__ import annotations

import re
from typing import Final

from tidegate.spi import ConfigError, names

#: Prefixes that STOMP clients of various brokers put before the name of a queue or topic.
_KINDS: Final = ("/queue/", "/topic/", "queue://", "topic://")
_WILDCARDS: Final = re.compile(r"[*+#>]")


def bare(remote: str) -> str:
    """A STOMP destination without the prefix for its kind."""
    for kind in _KINDS:
        if remote.startswith(kind):
            return remote[len(kind) :]
    return remote


def is_queue_like(remote: str) -> bool:
    """Whether only one consumer there gets a message: the bridge cannot drop its copy then."""
    return remote.startswith(("/queue/", "queue://", "/amq/queue/", "$queue/"))


def overlap(one: str, two: str) -> bool:
    """Whether both may cover the same name; True when in doubt."""
    (first, first_wild), (second, second_wild) = _stem(one), _stem(two)
    if first_wild and second.startswith(first):
        return True
    if second_wild and first.startswith(second):
        return True
    return first == second


def _stem(name: str) -> tuple[str, bool]:
    found = _WILDCARDS.search(name)
    return (name, False) if found is None else (name[: found.start()], True)


class Names:
    """Names of one rule. Args: as its options say. Raises: ConfigError for a bad combination."""

    def __init__(self, remote: str, local: str, *, is_in: bool, is_mqtt: bool) -> None:
        self._is_mqtt = is_mqtt
        self._remote = remote
        self._local = local
        local_name = names.name_of(local)
        self.keeps_rest = local_name.endswith(">")
        if not remote:
            raise ConfigError("must name a destination", key="remote")
        if is_mqtt and is_queue_like(remote) and not remote.startswith("$queue/"):
            raise ConfigError(
                f"{remote!r} is no MQTT topic; write it with '/' between its levels", key="remote"
            )
        if self.keeps_rest:
            ends = "#" if is_mqtt else "#>*"
            if remote[-1] not in ends:
                raise ConfigError(
                    f"{remote!r} must end with a wildcard ({' or '.join(ends)}) as `local` does, so that the rest of "
                    "each name can be kept",
                    key="remote",
                )
        if is_in and names.is_filter(local_name) and not self.keeps_rest:
            raise ConfigError(
                "messages come in to one destination: a wildcard may only be the last level, '>'",
                key="local",
            )
        if not is_in and not self.keeps_rest and is_mqtt and _WILDCARDS.search(remote):
            raise ConfigError(
                "messages go out to one topic: no wildcard, unless `local` ends with '>'",
                key="remote",
            )
        if "*" in local_name and self.keeps_rest:
            raise ConfigError("'*' and '>' do not go together here: write one of them", key="local")

    def arriving(self, remote: str) -> str | None:
        """The destination here of a message from *remote*; None: the rule does not cover it."""
        if not self.keeps_rest:
            return self._local
        prefix, name = self._remote[:-1], remote
        if not self._is_mqtt:
            prefix, name = bare(prefix), bare(remote)
        if name == prefix[:-1]:  # `a/#` covers `a` itself
            return self._local[:-2]
        if not name.startswith(prefix):
            return None
        rest = name[len(prefix) :]
        found = self._local[:-1] + (names.swap_separators(rest) if self._is_mqtt else rest)
        return None if names.is_filter(names.name_of(found)) else found

    def leaving(self, local: str) -> str:
        """The destination there of a message from *local*, which the rule covers."""
        if not self.keeps_rest:
            return self._remote
        rest = local[len(self._local) - 1 :]
        if self._is_mqtt:
            rest = names.swap_separators(rest)
        return self._remote[:-1] + rest if rest else self._remote[:-2]
