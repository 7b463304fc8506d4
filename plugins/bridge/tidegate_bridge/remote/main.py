"""``python -m tidegate_bridge.remote.main LINK``: the process that a bridge starts."""

from __future__ import annotations

import logging
import os
import socket
import sys

from tidegate_bridge import _protocol as protocol
from tidegate_bridge.remote.lane import Lane
from tidegate_bridge.remote.link import Link
from tidegate_bridge.remote.mqtt_lane import MqttLane
from tidegate_bridge.remote.stomp_lane import StompLane


def serve(link: Link) -> None:
    """Move messages until the gateway is gone."""
    start = link.receive()
    if not isinstance(start, protocol.Start):
        return
    kind = MqttLane if start.scheme.startswith("mqtt") else StompLane
    lanes: dict[int, Lane] = {number: kind(start, number, link) for number in start.rules}
    for lane in lanes.values():
        lane.begin()
    while (told := link.receive()) is not None:
        if isinstance(told, protocol.Begin):
            start.rules[told.rule] = told.what
            lane = lanes[told.rule] = kind(start, told.rule, link)
            lane.begin()
        elif isinstance(told, protocol.End):
            lanes.pop(told.rule).inbox.put(told)
        elif not isinstance(told, protocol.Start) and told.rule in lanes:
            lanes[told.rule].inbox.put(told)


def main(arguments: list[str]) -> None:
    """Move messages until the gateway is gone."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    # Errors are reported to the gateway once; the libraries would log them at each attempt.
    logging.getLogger("stomp.py").setLevel(logging.CRITICAL)
    try:
        serve(Link(socket.socket(fileno=int(arguments[0]))))
    finally:
        os._exit(0)  # lanes may wait for a broker; they have nothing to lose


if __name__ == "__main__":
    main(sys.argv[1:])
