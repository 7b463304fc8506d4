"""Tells those who wait for a turn what became of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidegate.broker.turn.turn import Unit, Waiting
from tidegate.plugin_exit import FAILURES
from tidegate.spi import StoreError, Token

_log = logging.getLogger("tidegate.broker.writer")


def tell_durable(units: Sequence[Unit]) -> int:
    """Tell each client once of all that it waits for. Returns: how many confirmations these were."""
    waiting: dict[Waiting, list[Token]] = {}
    for unit in units:
        token = unit.token
        if token is not None:
            who = unit.who
            tokens = waiting.get(who)
            if tokens is None:
                waiting[who] = [token]
            else:
                tokens.append(token)
    count = 0
    for who, tokens in waiting.items():
        count += len(tokens)
        try:
            who.confirmed(tokens)
        except FAILURES:  # the others must still be told, and the messages handed out
            _log.exception("confirming a durable batch failed")
    return count


def tell_failed(units: Sequence[Unit], error: StoreError) -> None:
    """Take back what else the units did, and tell those who wait for them why."""
    for unit in reversed(units):  # what was done last is undone first
        if unit.undo is not None:
            try:
                unit.undo()
            except FAILURES:
                _log.exception("taking back a dropped unit failed")
    for unit in units:
        try:
            unit.who.failed(unit.token, error)
        except FAILURES:
            _log.exception("telling a failure failed")
