"""Errors keep their data in attributes and say what happened, where, and what to do."""

import copy
import pickle
import re

import pytest

from tidegate.spi import (
    AccessError,
    ConfigError,
    ConnectionEndedError,
    CorruptRecordError,
    FrameTooLargeError,
    GatewayError,
    LargeBodyError,
    PeerProtocolError,
    PluginContractError,
    PluginError,
    PluginLoadError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    StoreIOError,
    StoreLockedError,
    StoreLostError,
    StoreUnavailableError,
    errors,
)


def test_the_tree_is_as_it_is_drawn() -> None:
    drawn: list[tuple[str, str]] = []
    open_branches: list[str] = ["GatewayError"]
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"([│ ]*)[├└]── (\w+)", line):
            depth = len(match[1]) // 4 + 1
            del open_branches[depth:]
            drawn.append((match[2], open_branches[-1]))
            open_branches.append(match[2])
    real = [
        (name, found.__bases__[0].__name__)
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, GatewayError) and name != "GatewayError"
    ]
    assert sorted(drawn) == sorted(real)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError("is wrong"), "is wrong"),
        (ConfigError("is wrong", key="a.b"), "a.b: is wrong"),
        (ConfigError("is wrong", key="a.b", path="f.toml"), "f.toml: a.b: is wrong"),
        (PluginLoadError("store-x", "cannot be imported"), "plugin store-x: cannot be imported"),
        (CorruptRecordError("bad CRC", location="data-1 at 4096"), "data-1 at 4096: bad CRC"),
        (AccessError("may not write"), "may not write"),
        (
            AccessError("may not write", principal="bob", destination="queue://a"),
            "bob: may not write (queue://a)",
        ),
        (PeerProtocolError("bad frame", wire_code=129), "bad frame"),
        (StoreLockedError("in use", owner="other"), "in use"),
        (ConnectionEndedError("shutdown", "the gateway stops"), "the gateway stops"),
    ],
)
def test_the_text_says_where_and_what(error: GatewayError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("is wrong", path="/etc/tidegate.toml"),
        PluginLoadError("store-x", "/opt/x.py"),
        StoreError("/var/lib/x"),
        StoreClosedError("/var/lib/x"),
        StoreFullError("/var/lib/x"),
        StoreUnavailableError("/var/lib/x"),
        StoreIOError("/var/lib/x"),
        StoreLostError("/var/lib/x"),
        LargeBodyError("/var/lib/x"),
        StoreLockedError("/var/lib/x", owner="host:/x"),
        CorruptRecordError("bad CRC", location="/var/lib/x/data-1"),
    ],
)
def test_a_client_hears_a_plain_sentence_without_a_path(error: GatewayError) -> None:
    assert "/" in str(error)
    assert "/" not in error.for_client
    assert error.for_client[0].islower()


def test_what_a_client_did_is_told_as_it_is() -> None:
    for error in (AccessError("no"), PeerProtocolError("bad"), ConnectionEndedError("r", "x")):
        assert error.for_client == str(error)


def test_a_config_error_is_seen_from_further_out() -> None:
    inner = ConfigError("is wrong", key="limit")
    middle = inner.at(prefix="store")
    assert (middle.key, middle.path) == ("store.limit", "")
    outer = middle.at(path="f.toml")
    assert (outer.key, outer.path, outer.problem) == ("store.limit", "f.toml", "is wrong")
    assert ConfigError("is wrong").at(prefix="store").key == "store"
    assert outer.at(path="").path == "f.toml"


def test_data_is_in_attributes() -> None:
    assert PluginContractError("p", "x").plugin == "p"
    assert CorruptRecordError("x", location="l").location == "l"
    assert StoreLockedError("x", owner="o").owner == "o"
    assert FrameTooLargeError("x", wire_code=149).wire_code == 149
    assert PeerProtocolError("x").wire_code == 0
    assert ConnectionEndedError("r", "x").reason == "r"
    access = AccessError("x", principal="p", destination="d")
    assert (access.principal, access.destination, access.problem) == ("p", "d", "x")


def test_families_can_be_caught_together() -> None:
    for kind in (StoreClosedError, StoreFullError, StoreIOError, LargeBodyError):
        assert issubclass(kind, StoreError)
    assert issubclass(PluginLoadError, PluginError)
    assert issubclass(FrameTooLargeError, PeerProtocolError)


def test_simple_errors_can_be_copied_and_pickled() -> None:
    for error in (StoreFullError("full"), PluginLoadError("p", "x")):
        for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert type(again) is type(error)
            assert str(again) == str(error)
