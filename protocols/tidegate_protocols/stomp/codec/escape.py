"""Header escaping of each version. STOMP 1.2 "Value Encoding", STOMP 1.1 "Value Encoding".

=======  =======================  ==================================================
version  decoded                  encoded
=======  =======================  ==================================================
1.0      nothing                  nothing; what would end the line becomes a space
1.1      ``\\n \\c \\\\``             line feed, colon, backslash
1.2      ``\\n \\c \\\\ \\r``          line feed, colon, backslash, carriage return
=======  =======================  ==================================================

CONNECT and CONNECTED are never escaped. U+0000 cannot come in (the decoder refuses it) and is
written as a space: clients use it to find the end of a frame.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tidegate.spi import PeerProtocolError
from tidegate_protocols.stomp.codec.frames import Version

_BACKSLASH: Final = re.compile(r"\\(.?)", re.DOTALL)

_DECODED: Final[Mapping[Version, Mapping[str, str]]] = {
    Version.V1_1: {"n": "\n", "c": ":", "\\": "\\"},
    Version.V1_2: {"n": "\n", "c": ":", "\\": "\\", "r": "\r"},
}

_PLAIN_NAME: Final = str.maketrans({"\n": " ", "\r": " ", ":": " ", "\0": " "})
_PLAIN_VALUE: Final = str.maketrans({"\n": " ", "\r": " ", "\0": " "})
_ESCAPED_1_1: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", ":": "\\c", "\0": " "})
_ESCAPED_1_2: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", ":": "\\c", "\r": "\\r", "\0": " "})
_NAMES: Final[Mapping[Version, dict[int, str]]] = {
    Version.V1_0: _PLAIN_NAME,
    Version.V1_1: _ESCAPED_1_1,
    Version.V1_2: _ESCAPED_1_2,
}
_VALUES: Final[Mapping[Version, dict[int, str]]] = {
    Version.V1_0: _PLAIN_VALUE,
    Version.V1_1: _ESCAPED_1_1,
    Version.V1_2: _ESCAPED_1_2,
}


def unescape(text: str, version: Version) -> str:
    """Undo the escaping of a header name or value.

    Raises: PeerProtocolError for an escape that *version* does not define (STOMP 1.2 "Value
        Encoding": "MUST be treated as a fatal protocol error").
    """
    table = _DECODED.get(version)
    if table is None or "\\" not in text:
        return text

    def decoded(match: re.Match[str]) -> str:
        try:
            return table[match.group(1)]
        except KeyError:
            known = ", ".join(f"\\{letter}" for letter in table)
            raise PeerProtocolError(
                f"undefined escape {match.group()} in a header; STOMP {version.value} knows {known}"
            ) from None

    return _BACKSLASH.sub(decoded, text)


def escape_name(text: str, version: Version) -> str:
    """Write a header name so that *version* can carry it."""
    return text.translate(_NAMES[version])


def escape_value(text: str, version: Version) -> str:
    """Write a header value so that *version* can carry it."""
    return text.translate(_VALUES[version])
