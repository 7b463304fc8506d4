"""Which exit code and which line an error becomes."""

import asyncio
import errno
import socket
from types import SimpleNamespace

import pytest

from tidegate.cli._exit import ExitCode, failure_of
from tidegate.config import ResolvedConfig, ResolvedListener
from tidegate.spi import (
    AccessError,
    ConfigError,
    FlowControlError,
    ListenerConfig,
    PluginLoadError,
    RequestError,
    StoreClosedError,
    StoreLockedError,
)


def config_with_ports(*ports: int) -> ResolvedConfig:
    listeners = tuple(
        ResolvedListener(
            f"listeners[{index}]",
            SimpleNamespace(),  # type: ignore[arg-type]  # no factory is needed here
            ListenerConfig("toy", "tcp", "127.0.0.1", port, True, None),
        )
        for index, port in enumerate(ports)
    )
    return SimpleNamespace(listeners=listeners)  # type: ignore[return-value]  # the rest is unused


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            ConfigError("is bad", key="a.b", path="f.toml"),
            ExitCode.CONFIG,
            "f.toml: a.b: is bad",
        ),
        (PluginLoadError("store-x", "no\nway"), ExitCode.PLUGIN, "plugin store-x: no way"),
        (RequestError("--where: no such column"), ExitCode.BROKER, "--where: no such column"),
        (
            StoreLockedError("owned by pid 7"),
            ExitCode.STORE_LOCKED,
            "owned by pid 7 (the directory is set by broker.data_directory)",
        ),
        (
            StoreLockedError("in use by a gateway: stop it first"),
            ExitCode.STORE_LOCKED,
            "in use by a gateway: stop it first",
        ),
        (StoreClosedError("closed"), ExitCode.STORAGE, "closed"),
        (OSError(errno.ENOSPC, "No space left", "/d"), ExitCode.STORAGE, "/d: No space left"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/d"),
            ExitCode.STORAGE,
            "/d: Permission denied; make it writable for this user or change broker.data_directory",
        ),
        (FlowControlError("limit"), ExitCode.UNEXPECTED, "limit"),
        (AccessError("no", principal="p"), ExitCode.BROKER, "p: no"),
        (KeyError("x"), ExitCode.UNEXPECTED, "unexpected KeyError: 'x'"),
        (
            ZeroDivisionError(),
            ExitCode.UNEXPECTED,
            "unexpected ZeroDivisionError: ZeroDivisionError",
        ),
    ],
)
def test_each_error_has_its_code_and_one_line(error: Exception, code: int, text: str) -> None:
    failure = failure_of(error)
    assert (failure.code, failure.text) == (code, text)


async def bind_error(host: str, port: int) -> OSError:
    """What the event loop raises when it cannot listen there."""

    with pytest.raises(OSError, match=r".") as caught:
        await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port)
    return caught.value


async def test_a_port_in_use_names_address_and_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = await bind_error("127.0.0.1", port)
    failure = failure_of(error, config_with_ports(port + 1, port))
    assert failure.code is ExitCode.BIND
    assert failure.text == (
        f"127.0.0.1:{port} is already in use; stop the other program or change listeners[1].bind"
    )


async def test_an_address_of_another_machine_is_a_bind_error() -> None:
    failure = failure_of(await bind_error("192.0.2.1", 0), config_with_ports(0))
    assert failure.code is ExitCode.BIND
    assert "192.0.2.1:0" in failure.text
    assert "change listeners[0].bind" in failure.text


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.EACCES, "error while attempting to bind on address ('::', 80, 0, 0): no"),
            "no permission to listen on [::]:80",
        ),
        (
            OSError(errno.EINVAL, "error while attempting to bind on address ('h', 80): odd"),
            "cannot listen on h:80",
        ),
        (OSError(errno.EADDRINUSE, "Address already in use"), "a listener is already in use"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
    ],
)
def test_every_way_not_to_listen_is_code_3(error: OSError, said: str) -> None:
    failure = failure_of(error, config_with_ports(80))
    assert failure.code is ExitCode.BIND
    assert said in failure.text
    assert ".bind" in failure.text


def test_the_codes_are_what_scripts_rely_on() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "UNEXPECTED": 1,
        "CONFIG": 2,
        "BIND": 3,
        "STORE_LOCKED": 4,
        "STORAGE": 5,
        "PLUGIN": 6,
        "STORE_CORRUPT": 7,
        "BROKER": 8,
    }
