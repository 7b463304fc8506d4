"""The pytest plugin of the conformance kits; entry point ``tidegate`` of the group ``pytest11``.

It only adds options and assertion rewriting for the kits; whatever the kits need is imported when
they are collected.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "tidegate.testing._portable_contents",
    "tidegate.testing._store_kit",
    "tidegate.testing._store_machine",
    "tidegate.testing._cursor_machine",
    "tidegate.testing.cursor_kit",
    "tidegate.testing.store_kit",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the conformance kits."""
    group = parser.getgroup("tidegate", "conformance kits of Tidegate plugins")
    group.addoption(
        "--store",
        metavar="NAME",
        help="message store that tidegate.testing.store_kit tests (entry point store-NAME)",
    )
    group.addoption(
        "--store-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="option of that store, VALUE as in TOML, e.g. 'checkpoint_interval=\"5s\"'; repeatable",
    )
    group.addoption(
        "--cursor",
        metavar="NAME",
        help="cursor that tidegate.testing.cursor_kit tests (entry point cursor-NAME)",
    )
