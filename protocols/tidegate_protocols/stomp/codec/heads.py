"""The beginning of a frame, its command and headers, by the rules of a version.

A common one (no carriage return, no backslash) takes a short path, :meth:`Heads.common`; every
other is read by :meth:`Heads.parse`.
"""

from __future__ import annotations

import re
from typing import Final, final

from tidegate.spi import FrameTooLargeError, PeerProtocolError
from tidegate.spi.clients.mistaken import mistaken
from tidegate_protocols.stomp.codec.escape import unescape
from tidegate_protocols.stomp.codec.frames import Limits, Version

#: The longest command is UNSUBSCRIBE; more bytes than this without a line end are not a frame.
_COMMAND_BYTES_MAX: Final = 12
#: Bytes of the peer's input shown in a message.
SHOWN_MAX: Final = 40
_WORD: Final = re.compile(rb"\A[A-Za-z]+")
#: Frames that contain a passcode: their faulty lines are shown in no error and no log.
_WITH_SECRETS: Final = frozenset({"CONNECT", "STOMP"})
_NUL_IN_HEADERS: Final = "NUL inside the headers; is the blank line before the body missing?"

#: Headers that the gateway interprets. STOMP 1.0's examples pad values (``login: <username>``), so
#: in 1.0 these are trimmed; users' headers never are (STOMP 1.2 "Value Encoding": padding).
_TRIMMED_IN_1_0: Final = frozenset(
    {
        "ack",
        "client-id",
        "content-length",
        "destination",
        "host",
        "id",
        "login",
        "message-id",
        "passcode",
        "receipt",
        "reply-to",
        "subscription",
        "transaction",
    }
)


@final
class Heads:
    """Reads the heads of frames. Args: as for the decoder.

    After an error the stream is broken; the decoder remembers that.
    """

    __slots__ = ("_commands", "_common_bytes_max", "_limits", "_reads_common", "_version")

    def __init__(self, limits: Limits, commands: frozenset[str]) -> None:
        self._limits = limits
        self._commands = commands
        self._common_bytes_max = min(limits.header_bytes, limits.header_line_bytes)
        self._reads_common = False
        self._version: Version | None = None

    @property
    def version(self) -> Version | None:
        """Rules for reading the next head; None until a version is negotiated."""
        return self._version

    @version.setter
    def version(self, version: Version | None) -> None:
        self._version = version
        self._reads_common = version in (Version.V1_1, Version.V1_2)

    def common(self, head: bytes) -> dict[str, str] | None:
        """The headers of a frame with nothing unusual in it, its command under ``""``.

        Returns: None when this must be left to :meth:`parse`.
        """
        try:
            text = head.decode()
        except UnicodeDecodeError:
            return None
        if "\r" in text or "\\" in text or "\0" in text or len(head) > self._common_bytes_max:
            return None
        lines = text.split("\n")
        rest = iter(lines)
        command = next(rest)
        headers = {"": command}
        for line in rest:
            name, colon, value = line.partition(":")
            if not colon:
                return None
            headers[name] = value
        count = len(lines)
        if (
            len(headers) == count  # no name is repeated or empty
            and count <= self._limits.header_count
            and command in self._commands
            and self._reads_common
        ):
            return headers
        return None

    def check_beginning(self, buffer: bytes, position: int) -> None:
        """Refuse at once what can never become a frame, however much follows."""
        beginning = buffer[position : position + _COMMAND_BYTES_MAX + 2]
        command, line_end, _ = beginning.partition(b"\n")
        command = command.removesuffix(b"\r")
        text = command.decode("ascii", "replace")
        if line_end:
            if text not in self._commands:
                raise PeerProtocolError(_unknown(buffer[position:]))
        elif not any(known.startswith(text) for known in self._commands):
            raise PeerProtocolError(_unknown(buffer[position:]))
        header_bytes_max = self._limits.header_bytes
        if len(buffer) - position > header_bytes_max:
            raise too_large("frame's header block", header_bytes_max)
        if 0 in buffer[position:]:
            raise PeerProtocolError(_NUL_IN_HEADERS)

    def parse(self, head: bytes) -> tuple[str, dict[str, str], tuple[tuple[str, str], ...]]:
        """Parse command and headers, whatever they look like."""
        limits = self._limits
        command = head.partition(b"\n")[0].removesuffix(b"\r").decode("utf-8", "replace")
        if command not in self._commands:
            raise PeerProtocolError(_unknown(head))
        if len(head) > limits.header_bytes:
            raise too_large("frame's header block", limits.header_bytes)
        if 0 in head:
            raise PeerProtocolError(_NUL_IN_HEADERS)
        first, *rest = head.split(b"\n")
        if len(rest) > limits.header_count:
            raise too_large("header count", limits.header_count, unit="header lines")
        strip = self._strips_carriage_returns(first)
        pairs: list[tuple[str, str]] = []
        for raw in rest:
            line = raw.removesuffix(b"\r") if strip else raw
            if len(line) > limits.header_line_bytes:
                raise too_large("header line", limits.header_line_bytes)
            pairs.append(self._parse_line(command, line))
        if self._trims(command, pairs):
            pairs = [_trimmed(name, value) for name, value in pairs]
        headers: dict[str, str] = {}
        for name, value in pairs:
            headers.setdefault(name, value)  # the first one counts
        return command, headers, tuple(pairs) if len(headers) != len(pairs) else ()

    def _strips_carriage_returns(self, first_line: bytes) -> bool:
        """Tell whether CRLF ends the lines of this frame.

        STOMP 1.2 allows it for each line, and a CONNECT may come from a 1.2 client. In 1.0 and 1.1
        a carriage return is part of the value, unless the command's line ends in one as well.
        """
        return self._version is None or self._version is Version.V1_2 or first_line.endswith(b"\r")

    def _parse_line(self, command: str, line: bytes) -> tuple[str, str]:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise PeerProtocolError(
                f"a header of {command} is not UTF-8{self._quoted(command, line)}"
            ) from None
        name, colon, value = text.partition(":")
        if not colon:
            raise PeerProtocolError(
                f"a header line of {command} has no colon{self._quoted(command, line)}"
            )
        if not name:
            raise PeerProtocolError(
                f"a header line of {command} has no name{self._quoted(command, line)}"
            )
        if self._version is None or command == "CONNECTED":
            return name, value  # STOMP 1.2 "Value Encoding": CONNECT is not escaped
        if self._version is Version.V1_2 and "\r" in text:
            raise PeerProtocolError(
                f"a header of {command} has a bare carriage return{self._quoted(command, line)}"
            )
        return unescape(name, self._version), unescape(value, self._version)

    def _quoted(self, command: str, line: bytes) -> str:
        """The faulty line, for a message; nothing of what may be (part of) a passcode."""
        if self._version is None or command in _WITH_SECRETS:
            return ""
        return f": {_shown(line)}"

    def _trims(self, command: str, pairs: list[tuple[str, str]]) -> bool:
        """Tell whether padding is to be stripped: STOMP 1.0, or a CONNECT that means 1.0."""
        if self._version is not None:
            return self._version is Version.V1_0
        return command == "CONNECT" and all(name != "accept-version" for name, _ in pairs)


def too_large(what: str, limit: int, *, unit: str = "bytes") -> FrameTooLargeError:
    """The error for *what* being larger than the listener allows."""
    return FrameTooLargeError(f"the {what} exceeds this listener's limit of {limit} {unit}")


def _trimmed(name: str, value: str) -> tuple[str, str]:
    key = name.strip(" ")
    return (key, value.strip(" ")) if key in _TRIMMED_IN_1_0 else (name, value)


def _shown(data: bytes) -> str:
    """The beginning of *data* in a form fit for a message."""
    text = data[:SHOWN_MAX].decode("ascii", "backslashreplace")
    return ascii(text) + ("…" if len(data) > SHOWN_MAX else "")


def _unknown(data: bytes) -> str:
    """Say what is wrong with bytes that do not begin with a known command."""
    if said := mistaken(data, "STOMP"):
        return said
    # Not the line: if CONNECT lacks its line end, the passcode may be in it.
    word = _WORD.match(data, 0, _COMMAND_BYTES_MAX + 1)
    return f"unknown command {_shown(word.group())}" if word else "unknown command: no letters"
