"""What is stored of a password."""

import base64
import contextlib
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_auth_file import _verifier
from tidegate_auth_file._verifier import (
    ITERATIONS_MAX,
    METHODS,
    Verifier,
    is_correct,
    make,
    parse,
    prepared_name,
)

#: RFC 7677 section 3: user "user", password "pencil".
RFC_7677_SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
#: As PostgreSQL writes it, worked out from the example.
RFC_7677 = (
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$"
    "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
)

SALT = b"0123456789abcdef"


def test_the_example_of_rfc_7677_is_stored_as_postgresql_stores_it():
    assert make("pencil", "SCRAM-SHA-256", 4096, RFC_7677_SALT).written() == RFC_7677
    assert parse(RFC_7677).salt == RFC_7677_SALT


@pytest.mark.parametrize("method", METHODS)
def test_a_password_is_correct_and_others_are_not(method):
    verifier = make("pencil", method, 4096, SALT)
    assert len(verifier.stored_key) == len(verifier.server_key) == METHODS[method]
    assert parse(verifier.written()) == verifier
    assert is_correct("pencil", verifier)
    assert is_correct("pen\u00adcil", verifier)  # SASLprep maps the soft hyphen to nothing
    for wrong in ("Pencil", "pencil ", "", "\0", "a\u0627b"):
        assert not is_correct(wrong, verifier)


@given(
    st.integers(4096, ITERATIONS_MAX),
    st.binary(min_size=12, max_size=40),
    st.binary(min_size=32, max_size=32),
)
def test_what_is_written_is_read(iterations, salt, key):
    verifier = Verifier("SCRAM-SHA-256", iterations, salt, key, key[::-1])
    assert parse(verifier.written()) == verifier


def test_the_keys_are_not_shown():
    assert (
        repr(parse(RFC_7677)) == str(parse(RFC_7677)) == "Verifier(SCRAM-SHA-256, 4096 iterations)"
    )


SHORT = base64.b64encode(b"short").decode()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not METHOD"),
        ("SCRAM-SHA-256$4096", "is not METHOD"),
        (RFC_7677 + ":x", "is not METHOD"),
        (RFC_7677.replace("4096", "٤٠٩٦"), "is not METHOD"),
        (RFC_7677.replace("SHA-256", "SHA-1"), "SCRAM-SHA-1; known are"),
        (RFC_7677.replace("4096", "4095"), "from 4096"),
        (RFC_7677.replace("4096", "99999999"), "to 10000000"),
        (RFC_7677.replace("W22Z", "W22*"), "a salt or a key that is not base64"),
        (RFC_7677.replace("W22ZaJ0SNY7soEsUEjb6gQ==", SHORT), "salt of 5 bytes"),
        (RFC_7677[: RFC_7677.rindex(":") + 1] + SHORT, "not 32 bytes"),
        (RFC_7677.replace("SHA-256", "SHA-512"), "not 64 bytes"),
    ],
)
def test_what_cannot_be_one_is_refused_with_the_reason(text, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        parse(text)
    assert "WG5d8oPm3" not in str(caught.value)


@pytest.mark.parametrize("password", ["", "\u00ad", "a\0", "\u0627a"])
def test_a_password_that_nobody_could_give_is_not_stored(password):
    with pytest.raises(ValueError, match="password"):
        make(password, "SCRAM-SHA-256", 4096, SALT)


@pytest.mark.parametrize(
    ("name", "prepared"), [("alice", "alice"), ("I\u00adX", "IX"), ("\u2168", "IX"), ("a:b", "a:b")]
)
def test_names_are_compared_as_rfc_4013_says(name, prepared):
    assert prepared_name(name) == prepared


@pytest.mark.parametrize("one", ["a", "\u00e9", "\ufdfa", "\u0345"])
def test_nobody_makes_a_name_or_password_that_takes_long_to_prepare(one, monkeypatch):
    """Counted in characters; with this defence off, 4096 bytes took up to 113 ms of the event loop."""
    prepared = []

    def counted(text):
        prepared.append(len(unicodedata.normalize("NFKC", text)))
        return text

    monkeypatch.setattr(_verifier, "saslprep", counted)
    for count in (1, 10, 100, 200, 2000, 60_000):
        for made in (prepared_name, lambda text: make(text, "SCRAM-SHA-256", 4096, SALT)):
            with contextlib.suppress(ValueError):
                made(one * count)
    assert max(prepared, default=0) <= 1024
    with pytest.raises(ValueError, match="a user name must not be longer than 256 bytes"):
        prepared_name(one * (256 // len(one.encode()) + 1))


@pytest.mark.parametrize("name", ["", "\u00ad", "a\nb", "\u0627a"])
def test_a_name_that_cannot_be_compared_is_refused(name):
    with pytest.raises(ValueError, match="user name"):
        prepared_name(name)
