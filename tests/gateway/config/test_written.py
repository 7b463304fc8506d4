"""Options that are set, as the file writes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.config import HIDDEN, options_set
from tidegate.spi import Kind, option


@dataclass(frozen=True)
class Options:
    table: str
    size: int = option(1 << 20, kind=Kind.SIZE, help="")
    token: str = option("", help="")
    url: str = option("", help="")
    names: tuple[str, ...] = field(default_factory=tuple)


def test_what_has_no_default_is_set_and_what_is_secret_is_hidden() -> None:
    assert options_set(Options("t")) == {"table": '"t"'}
    found = options_set(Options("t", 2 << 20, "abc", "s3://me:abc@host/", ("a",)))
    assert found == {
        "table": '"t"',
        "size": '"2mb"',
        "token": f'"{HIDDEN}"',
        "url": f'"s3://me:{HIDDEN}@host/"',
        "names": '["a"]',
    }
