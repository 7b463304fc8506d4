"""STOMP 1.0, 1.1 and 1.2: codec, session and front-end. See docs/stomp.md."""

from __future__ import annotations

from tidegate_protocols.stomp._front_end import StompFrontEndFactory
from tidegate_protocols.stomp._options import StompOptions
from tidegate_protocols.stomp.codec.decoder import Decoder
from tidegate_protocols.stomp.codec.encoder import (
    MessageEncoder,
    encode,
    encode_connected,
    encode_error,
    encode_receipts,
)
from tidegate_protocols.stomp.codec.frames import (
    CLIENT_COMMANDS,
    HEART_BEAT,
    NEED_DATA,
    SERVER_COMMANDS,
    AckRun,
    Frame,
    Limits,
    Version,
)

__all__ = [
    "CLIENT_COMMANDS",
    "HEART_BEAT",
    "NEED_DATA",
    "SERVER_COMMANDS",
    "AckRun",
    "Decoder",
    "Frame",
    "Limits",
    "MessageEncoder",
    "StompFrontEndFactory",
    "StompOptions",
    "Version",
    "encode",
    "encode_connected",
    "encode_error",
    "encode_receipts",
]
