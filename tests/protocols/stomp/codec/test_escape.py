"""Escaping by version."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi import PeerProtocolError
from tidegate_protocols.stomp.codec.escape import escape_name, escape_value, unescape
from tidegate_protocols.stomp.codec.frames import Version

text = st.text(st.characters(exclude_characters="\0", codec="utf-8"))


@given(text)
def test_1_2_carries_any_text(value):
    assert unescape(escape_value(value, Version.V1_2), Version.V1_2) == value
    assert not set(escape_name(value, Version.V1_2)) & set("\r\n:")


@given(text)
def test_1_1_carries_any_text(value):
    assert unescape(escape_value(value, Version.V1_1), Version.V1_1) == value
    assert not set(escape_name(value, Version.V1_1)) & set("\n:")


@given(text)
def test_1_0_decodes_nothing_and_never_ends_the_line(value):
    assert unescape(value, Version.V1_0) == value
    assert not set(escape_value(value, Version.V1_0)) & set("\r\n")
    assert not set(escape_name(value, Version.V1_0)) & set("\r\n:")


@pytest.mark.parametrize("version", list(Version))
def test_nul_is_never_written(version):
    assert escape_name("a\0b", version) == escape_value("a\0b", version) == "a b"


@pytest.mark.parametrize(
    ("version", "value", "known"),
    [
        (Version.V1_2, "a\\t", r"1.2 knows \\n, \\c, \\\\, \\r"),
        (Version.V1_1, "a\\r", r"1.1 knows \\n, \\c, \\\\"),
        (Version.V1_2, "a\\", "undefined escape"),
        (Version.V1_1, "\\C", "undefined escape"),
    ],
)
def test_undefined_escapes_are_errors_that_say_what_is_known(version, value, known):
    with pytest.raises(PeerProtocolError, match=known):
        unescape(value, version)
