"""Topic aliases (MQTT 5.0 section 3.3.2.3.4): numbers that stand for topic names on one connection.

Each direction has its own table, which ends with the connection [MQTT-3.3.2-7].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tidegate.spi import text_bytes
from tidegate_protocols.mqtt.codec.codes import PacketViolationError, ReasonCode

#: The broker is told of changes this large, in bytes: short topics are not worth it.
STEP_BYTES: Final = 16 * 1024

_EMPTY_TOPIC: Final = b"\0\0"


@final
class AliasesIn:
    """The topics that the client's aliases stand for.

    Args: alias_max: 0 to 65535; bounds the table; tell: called from time to time with how many bytes the
        topics take. May raise FlowControlError.
    """

    __slots__ = ("_alias_max", "_bytes", "_tell", "_told", "_topics")

    def __init__(self, alias_max: int, tell: Callable[[int], None]) -> None:
        self._alias_max = alias_max
        self._tell = tell
        self._bytes = self._told = 0
        self._topics: dict[int, str] = {}

    def resolve(self, topic: str, alias: int) -> str:
        """The topic of a PUBLISH that has an alias; learns it when *topic* is given.

        Raises: PacketViolationError for an alias that we did not offer, or that is not defined yet;
            FlowControlError: no more may be held for this client.
        """
        if not 0 < alias <= self._alias_max:
            raise PacketViolationError(
                f"topic alias {alias} is above the maximum of {self._alias_max}",
                "5.0:MQTT-3.3.2-9",
                ReasonCode.TOPIC_ALIAS_INVALID,
            )
        if topic:
            self._bytes += text_bytes(topic) - text_bytes(self._topics.get(alias, ""))
            self._topics[alias] = topic
            if abs(self._bytes - self._told) >= STEP_BYTES:
                self._tell(self._bytes)
                self._told = self._bytes
            return topic
        known = self._topics.get(alias)
        if known is None:
            raise PacketViolationError(f"topic alias {alias} is not defined", "MQTT 5.0 3.3.2.3.4")
        return known


@final
class AliasesOut:
    """Our aliases for a client: the first topics sent to it get one each, permanently.

    First come, first served, not least recently used: with more topics than aliases, replacement
    would send the long name nearly every time, plus the alias.

    Args: alias_max: the client's Topic Alias Maximum, or ours when smaller; 1 to 65535.
    """

    __slots__ = ("_alias_max", "_aliases")

    def __init__(self, alias_max: int) -> None:
        self._alias_max = alias_max
        self._aliases: dict[str, int] = {}

    def use(self, destination: str, topic: bytes) -> tuple[bytes, int]:
        """The topic field and alias of the next PUBLISH to *destination*, which must then be sent.

        Returns: an empty topic and the alias when the client knows it; *topic* and a new alias
            while there are some left; otherwise *topic* and 0.
        """
        aliases = self._aliases
        alias = aliases.get(destination, 0)
        if alias:
            return _EMPTY_TOPIC, alias
        if len(aliases) < self._alias_max:
            alias = len(aliases) + 1
            aliases[destination] = alias
        return topic, alias
