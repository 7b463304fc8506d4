"""Bytes to frames: incremental, without I/O, for all three versions.

Input is parsed or raises :class:`~tidegate.spi.PeerProtocolError`, nothing else. The
common frame (no carriage return, no backslash) takes a short path through :meth:`Decoder.events`;
everything else goes through :class:`Heads`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Final, final

from tidegate.spi import FrameTooLargeError, PeerProtocolError
from tidegate_protocols.stomp.codec.frames import (
    CLIENT_COMMANDS,
    HEART_BEAT,
    NEED_DATA,
    AckRun,
    Frame,
    LargeSend,
    Limits,
    Signal,
    Version,
)
from tidegate_protocols.stomp.codec.heads import SHOWN_MAX, Heads, too_large

#: A run of ACK frames as every client library writes plain ones. The digits are bounded so that
#: int() of them is cheap.
_ACK_RUN: Final = re.compile(rb"(?:ACK\nid:[0-9]{1,9}-[0-9]{1,19}\n\n\0\n?)+")
_ACK_IDS: Final = re.compile(rb":([0-9]+)-([0-9]+)")
_ACK_START: Final = b"ACK\nid:"

_CR: Final = 13
#: The larger of CR and LF; a command begins with a capital letter.
_LINE_END_MAX: Final = 13
_LINE_ENDS: Final = re.compile(rb"(?:\r?\n)*")
#: Most digits of a content-length passed to int(); no limit needs more.
_CONTENT_LENGTH_DIGITS_MAX: Final = 18

#: Only these have a body (STOMP 1.2 "Body"). That of others is ignored in 1.0 and refused later, once
#: received, so no more of it is kept than of a head.
_WITH_BODY: Final = frozenset({"SEND", "MESSAGE", "ERROR"})
_GREETINGS: Final = frozenset({"CONNECT", "STOMP"})

#: Looking up a short content-length here costs a third of checking and converting it.
_SMALL_LENGTHS: Final = {str(length): length for length in range(1025)}


@final
class Decoder:
    """Turns a stream of bytes into frames.

    Args:
        limits: a frame beyond them raises FrameTooLargeError.
        commands: what is allowed; anything else is a PeerProtocolError.

    After an error the decoder stays broken: each further call raises the same error.
    """

    __slots__ = (
        "_awaits_nul",
        "_body_left",
        "_error",
        "_heads",
        "_is_in_body",
        "_is_open",
        "_large_digits",
        "_limits",
        "_may_stream",
        "_needed",
        "_pieces",
        "_pieces_bytes",
        "_position",
        "_reads_ack_runs",
        "_streams_unstated",
        "_unstated_bytes_max",
    )

    def __init__(
        self, limits: Limits | None = None, commands: frozenset[str] = CLIENT_COMMANDS
    ) -> None:
        self._reads_ack_runs = False
        self._limits = limits or Limits()
        self._heads = Heads(self._limits, commands)
        self._error: PeerProtocolError | None = None
        # Undecoded bytes. They are joined only when a frame may be complete, so that a large body is
        # not copied once for every read.
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._position = 0  # in the first piece
        self._needed = 0  # total bytes below which no frame can be complete
        # No frame can be complete without a NUL, which must come within this many bytes; 0: it can.
        self._awaits_nul = 0
        self._may_stream = False  # if no NUL comes within them, it is a large body
        self._is_in_body = False  # of a LargeSend
        self._is_open = False  # only its NUL tells where it ends
        self._body_left = 0  # bytes that it still has, or may have
        # A content-length with fewer digits is not that of a large body.
        smallest = self._limits.large_bytes_min
        self._large_digits = len(str(smallest)) if smallest else sys.maxsize
        # A longer body without content-length is streamed, or above the limit. When only bodies too large
        # for memory are to be streamed, none of these is: their size is not known in advance.
        self._unstated_bytes_max = self._limits.body_bytes
        self._streams_unstated = (
            self._limits.large_unsized and 0 < smallest <= self._limits.body_bytes + 1
        )
        if self._streams_unstated:
            self._unstated_bytes_max = smallest - 1

    @property
    def version(self) -> Version | None:
        """Rules for decoding the next frame; None until a version is negotiated."""
        return self._heads.version

    @version.setter
    def version(self, version: Version | None) -> None:
        self._heads.version = version
        self._reads_ack_runs = version is Version.V1_2  # 1.1 names message and subscription

    @property
    def buffered_bytes(self) -> int:
        """Bytes received but not decoded yet."""
        return self._pieces_bytes - self._position

    def receive_data(self, data: bytes) -> None:
        """Append bytes from the peer. Raises: PeerProtocolError when the stream is broken."""
        if self._error is not None:
            raise self._error
        if not data:
            return
        self._pieces.append(data)
        self._pieces_bytes += len(data)
        if self._awaits_nul and 0 in data:
            self._awaits_nul = 0

    def forget(self) -> None:
        """Drop what was received: nothing more is decoded."""
        self._pieces.clear()
        self._pieces_bytes = self._position = 0
        if self._error is not None:
            self._error = self._error.with_traceback(
                None
            )  # the traceback holds everything that was under way

    def next_event(self) -> Frame | AckRun | LargeSend | Signal:
        """The next frame; HEART_BEAT for a run of line ends between frames; or NEED_DATA.

        Raises: PeerProtocolError, FrameTooLargeError.
        """
        if self._may_be_complete():
            buffer = self._join()
            after = self._skip_line_ends(buffer, self._position)
            if after > self._position:
                self._position = after
                return HEART_BEAT
        return next(self.events(), NEED_DATA)

    def events(self) -> Iterator[Frame | AckRun | LargeSend]:
        """All complete frames; heart-beats are skipped. After a LargeSend nothing comes until its body
        was taken.

        The consumer may stop at any frame, set :attr:`version`, and continue with a new call.
        Raises: PeerProtocolError, FrameTooLargeError.
        """
        if not self._may_be_complete():
            return
        buffer = self._join()
        size = len(buffer)
        position = self._position
        body_bytes_max = self._limits.body_bytes
        unstated_bytes_max = self._unstated_bytes_max
        parse_common_head = self._heads.common
        is_greeted = self._heads.version is not None  # before that a frame is more restricted
        while position < size:
            if buffer[position] <= _LINE_END_MAX:
                position = self._position = self._skip_line_ends(buffer, position)
                if position >= size or buffer[position] == _CR:
                    break
            if self._reads_ack_runs and buffer.startswith(_ACK_START, position):
                run = _ACK_RUN.match(buffer, position)
                if run is not None:
                    position = self._position = run.end()
                    yield AckRun(_ACK_IDS.findall(run.group()))
                    continue
            end = buffer.find(b"\n\n", position)
            headers = parse_common_head(buffer[position:end]) if end >= 0 else None
            if headers is not None:
                command = headers.pop("")
                pairs = ()
                start = end + 2
            else:
                try:
                    found = self._find_head_end(buffer, position)
                    if found is None:
                        break
                    end, start = found
                    command, headers, pairs = self._heads.parse(buffer[position:end])
                except PeerProtocolError as error:
                    self._error = error
                    raise
            length_text = headers.get("content-length")
            if length_text is None:
                stop = buffer.find(0, start)
                common = 0 <= stop <= start + unstated_bytes_max
            else:
                stop = start + _SMALL_LENGTHS.get(length_text, size)
                common = stop < size and not buffer[stop] and stop - start <= body_bytes_max
            if not (common and is_greeted):
                size_large: int | None = 0
                if length_text is None:
                    if self._streams_unstated and _may_be_large(command, headers):
                        size_large = self._unstated_size((size if stop < 0 else stop) - start, stop)
                elif len(length_text) >= self._large_digits:
                    size_large = self._large_size(command, headers, length_text)
                if size_large != 0:
                    self._position = start
                    self._keep_rest(buffer)
                    self._is_in_body = True
                    self._is_open = size_large is None
                    self._body_left = (
                        self._limits.large_bytes_max if size_large is None else size_large
                    )
                    yield LargeSend(Frame(command, headers, b"", pairs), size_large)
                    return
                stop = self._find_body_end(buffer, start, length_text, command)
                if stop < 0:
                    break
            position = self._position = stop + 1
            yield Frame(command, headers, buffer[start:stop], pairs)
        self._keep_rest(buffer)

    def _may_be_complete(self) -> bool:
        """Tell whether the input is worth examining; check the limits if it is not."""
        if self._error is not None:
            raise self._error
        if self._is_in_body:
            return False
        if self._awaits_nul:
            if self._pieces_bytes <= self._awaits_nul:
                return False
            if not self._may_stream:
                raise self._too_large("body", self._limits.body_bytes)
            self._awaits_nul = 0
        return bool(self._pieces) and self._pieces_bytes >= self._needed

    def _join(self) -> bytes:
        pieces = self._pieces
        if len(pieces) > 1:
            if self._position:  # a step-by-step reader leaves consumed bytes in front
                pieces[0] = pieces[0][self._position :]
                self._pieces_bytes -= self._position
                self._position = 0
            pieces[:] = (b"".join(pieces),)
        self._needed = 0
        self._may_stream = False
        return pieces[0]

    def _keep_rest(self, buffer: bytes) -> None:
        rest = buffer[self._position :]
        self._position = 0
        self._pieces = [rest] if rest else []
        self._pieces_bytes = len(rest)

    def _skip_line_ends(self, buffer: bytes, position: int) -> int:
        """Where the line ends at *position* stop; a CR that ends the buffer is left there.

        STOMP 1.2 "Augmented BNF": a frame may be followed by any number of EOLs.
        """
        found = _LINE_ENDS.match(buffer, position)
        after = found.end() if found is not None else position
        if after + 1 < len(buffer) and buffer[after] == _CR:
            raise self._broken("a carriage return between frames is not followed by a line feed")
        return after

    def _find_head_end(self, buffer: bytes, position: int) -> tuple[int, int] | None:
        """Where the headers end and the body starts; None: not received yet.

        A frame with CRLF may be followed by one without, so the first of both marks counts. They
        overlap when a body begins with a line feed: the last of the one is the first of the other.
        """
        plain = buffer.find(b"\n\n", position)
        carriage = buffer.find(b"\n\r\n", position, plain + 1 if plain >= 0 else len(buffer))
        if carriage >= 0:
            return carriage, carriage + 3
        if plain >= 0:
            return plain, plain + 2
        self._heads.check_beginning(buffer, position)
        return None

    def _find_body_end(
        self, buffer: bytes, start: int, length_text: str | None, command: str
    ) -> int:
        """Where the NUL after the body is; -1: not received yet."""
        body_bytes_max = self._limits.body_bytes
        if command in _GREETINGS and self._heads.version is None:
            # Refused at its first byte: a client not yet authenticated must not make us keep it.
            is_stated = length_text is not None and length_text.strip("0")
            if is_stated or (start < len(buffer) and buffer[start]):
                self._error = PeerProtocolError(f"{command} must not have a body")
                raise self._error
            if length_text is None and start == len(buffer):
                return -1  # its next byte is the NUL, or refused
        elif command not in _WITH_BODY:
            body_bytes_max = min(body_bytes_max, self._limits.header_bytes)
        if length_text is None:
            stop = buffer.find(0, start)
            if self._may_stream:
                self._awaits_nul = start - self._position + self._unstated_bytes_max
                return -1
            if stop < 0:
                self._awaits_nul = start - self._position + body_bytes_max
                stop = len(buffer)
                if stop - start <= body_bytes_max:
                    return -1
            if stop - start > body_bytes_max:
                raise self._too_large("body", body_bytes_max)
            return stop
        if not (length_text.isascii() and length_text.isdigit()):
            raise self._broken(f"content-length {length_text[:SHOWN_MAX]!r} is not a number")
        if len(length_text) > _CONTENT_LENGTH_DIGITS_MAX or int(length_text) > body_bytes_max:
            raise self._too_large("body", body_bytes_max)
        stop = start + int(length_text)
        if stop >= len(buffer):
            self._needed = stop + 1 - self._position
            return -1
        if buffer[stop]:
            raise self._broken(
                f"content-length is {length_text}, but the body is not followed by NUL there"
            )
        return stop

    def _large_size(self, command: str, headers: dict[str, str], length_text: str) -> int:
        """Bytes of the large body that begins here; 0 when it is an ordinary one."""
        if not (
            _may_be_large(command, headers) and length_text.isascii() and length_text.isdigit()
        ):
            return 0
        largest = self._limits.large_bytes_max
        if len(length_text) > _CONTENT_LENGTH_DIGITS_MAX:
            raise self._too_large("body", largest)
        size = int(length_text)
        if size < self._limits.large_bytes_min:
            return 0
        if size > largest:
            raise self._too_large("body", largest)
        return size

    def _unstated_size(self, here: int, stop: int) -> int | None:
        """As :meth:`_large_size` for a body without content-length; None: not known yet.

        Args: here: bytes of it received; stop: -1: its NUL was not.
        """
        largest = self._limits.large_bytes_max
        if here <= self._unstated_bytes_max:
            self._may_stream = stop < 0
            return 0
        if here > largest:
            raise self._too_large("body", largest)
        return None if stop < 0 else here

    def take_body(self) -> bytes:
        """Received bytes of the large body; b"": none now, or all of it was taken.

        Raises: FrameTooLargeError, for a body whose size is known only at its end.
        """
        pieces = self._pieces
        if not pieces:
            return b""
        piece = pieces.pop(0)
        stop = piece.find(0) if self._is_open else self._body_left
        if 0 <= stop < len(piece):
            pieces.insert(0, piece[stop:])
            piece = piece[:stop]
        self._pieces_bytes -= len(piece)
        self._body_left -= len(piece)
        if self._body_left < 0:
            raise self._too_large("body", self._limits.large_bytes_max)
        return piece

    def end_body(self) -> bool:
        """Take the NUL after a large body, when :meth:`take_body` returns nothing more now.

        Returns: False: it was not received yet. Raises: PeerProtocolError.
        """
        pieces = self._pieces
        if not pieces or (self._body_left and not self._is_open):
            return False
        if pieces[0][0]:
            raise self._broken(
                "the body is not followed by NUL where content-length says that it ends"
            )
        pieces[0] = pieces[0][1:]
        if not pieces[0]:
            del pieces[0]
        self._pieces_bytes -= 1
        self._is_in_body = False
        return True

    def _broken(self, problem: str) -> PeerProtocolError:
        self._error = PeerProtocolError(problem)
        return self._error

    def _too_large(self, what: str, limit: int) -> FrameTooLargeError:
        self._error = error = too_large(what, limit)
        return error


def _may_be_large(command: str, headers: dict[str, str]) -> bool:
    return command == "SEND" and headers.get("retain") != "true"
