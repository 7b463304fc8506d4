"""Topic aliases (MQTT 5.0 section 3.3.2.3.4): numbers that stand for topic names on one connection.

Each direction has its own table, which ends with the connection [MQTT-3.3.2-7].
"""

from __future__ import annotations

from typing import Final, final

from tidegate_protocols.mqtt.codec.codes import PacketViolationError, ReasonCode

_EMPTY_TOPIC: Final = b"\0\0"


@final
class AliasesIn:
    """What the client's aliases mean. alias_max: 0 to 65535; bounds the table."""

    __slots__ = ("_alias_max", "_topics")

    def __init__(self, alias_max: int) -> None:
        self._alias_max = alias_max
        self._topics: dict[int, str] = {}

    def resolve(self, topic: str, alias: int) -> str:
        """The topic of a PUBLISH that has an alias; learns it when *topic* is given.

        Raises: PacketViolationError for an alias that we did not offer, or that means nothing yet.
        """
        if not 0 < alias <= self._alias_max:
            raise PacketViolationError(
                f"topic alias {alias}; the maximum is {self._alias_max}",
                "5.0:MQTT-3.3.2-9",
                ReasonCode.TOPIC_ALIAS_INVALID,
            )
        if topic:
            self._topics[alias] = topic
            return topic
        known = self._topics.get(alias)
        if known is None:
            raise PacketViolationError(f"topic alias {alias} means nothing", "MQTT 5.0 3.3.2.3.4")
        return known


@final
class AliasesOut:
    """Our aliases for a client: the first topics that it is sent get one each, for good.

    First come, first served instead of the least recently used: with more topics than aliases
    that changing around would send the long name nearly every time, with the alias on top.

    Args: alias_max: the client's Topic Alias Maximum, or ours when smaller; 1 to 65535.
    """

    __slots__ = ("_alias_max", "_aliases")

    def __init__(self, alias_max: int) -> None:
        self._alias_max = alias_max
        self._aliases: dict[str, int] = {}

    def use(self, destination: str, topic: bytes) -> tuple[bytes, int]:
        """The topic field and alias of the next PUBLISH to *destination*, which must then be sent.

        Returns: an empty topic and the alias when the client knows it; *topic* and a new alias
            while there are some left; *topic* and 0 otherwise.
        """
        aliases = self._aliases
        alias = aliases.get(destination, 0)
        if alias:
            return _EMPTY_TOPIC, alias
        if len(aliases) < self._alias_max:
            alias = len(aliases) + 1
            aliases[destination] = alias
        return topic, alias
