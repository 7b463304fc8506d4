"""What tests of the specifications share: the versions, and frames of a session's wire."""

import pytest

from tidegate.spi import StoredMessage

ALL = pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
SINCE_1_1 = pytest.mark.parametrize("version", ["1.1", "1.2"])


def ack(version, message, command="ACK", headers=""):
    """The ACK or NACK of a MESSAGE by the rules of the version."""
    named = message.headers
    if version == "1.2":
        lines = f"id:{named['ack']}\n"
    else:
        lines = f"message-id:{named['message-id']}\n"
        if version == "1.1":
            lines += f"subscription:{named['subscription']}\n"
    return f"{command}\n{lines}{headers}\n\0"


def sent(harness):
    """The messages published since the last look."""
    return [call[1] for call in harness.connection.take() if call[0] == "publish"]


def wire(harness):
    """The bytes written since the last look."""
    data = b"".join(harness.link.written)
    harness.link.written.clear()
    return data


def deliver(harness, message):
    """One MESSAGE frame, as bytes."""
    harness.session.deliver("1", [StoredMessage.of(7, message, 0)])
    return wire(harness)
