"""The admin process as a child that waits to be told how to serve."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import closing

import pytest
from admin_start import START
from http_raw import HttpClient

from tidegate.spi import ListenerConfig
from tidegate.spi.clients.operators import Phase, Readiness
from tidegate_admin import _protocol as protocol
from tidegate_admin._front_end import AdminFrontEnd
from tidegate_admin._options import AdminOptions
from tidegate_admin._process import AdminProcess
from tidegate_admin.plugin import AdminFrontEndFactory


async def answering(ask: protocol.FromServer) -> protocol.FromGateway:
    if isinstance(ask, protocol.AskSample):
        return protocol.Sample(ask.id, None)
    return protocol.Health(ask.id, Readiness(Phase.RECOVERING, "replaying", 40.0))


async def test_it_serves_when_it_is_told_to_and_whoever_came_before_has_waited() -> None:
    process = await AdminProcess.start()
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            asking = asyncio.create_task(HttpClient(port).get("/health/ready"))
            await process.serve(START, listening, answering)
            found = await asking
        assert (found.status, found.json()["percent"]) == (503, 40.0)
    finally:
        await process.end()


async def test_one_that_is_never_told_ends_with_the_gateway() -> None:
    process = await AdminProcess.start()
    process._link.close()
    assert await process.wait() == 0
    await process.end()


async def test_one_that_has_ended_meanwhile_cannot_serve() -> None:
    process = await AdminProcess.start()
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        pytest.raises(OSError, match="pipe"),
    ):
        await process.serve(START, listening, answering)
    await process.end()


async def test_one_that_is_killed_with_something_unread_has_asked_nothing_wrong(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = await AdminProcess.start()
    os.kill(process.pid, signal.SIGSTOP)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await process.serve(START, listening, answering)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await asyncio.gather(*process._following)
    await process.end()
    assert caplog.text == ""


@pytest.mark.parametrize("said", [b"", b"\0\0", b"\0\0\0\5", b"\0\0\0\5{}"])
def test_a_gateway_that_is_gone_before_it_has_said_all_is_gone(said: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(said)
        assert protocol.handed_over(theirs) is None


@pytest.mark.parametrize("pieces", [1, 3])
def test_the_socket_that_listens_is_handed_over_with_what_to_do(pieces: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listening:
        if pieces == 1:
            protocol.hand_over(ours, START, listening)
        else:  # as a kernel may cut it
            text = protocol.line(START).rstrip()
            data = struct.pack(">I", len(text)) + text
            socket.send_fds(ours, [data[:2]], [listening.fileno()])
            ours.sendall(data[2:9])
            ours.sendall(data[9:])
        ours.sendall(b"what comes behind it")
        handed_over = protocol.handed_over(theirs)
        assert handed_over is not None
        start, found = handed_over
        with closing(found):
            assert start == START
            assert found.getsockname() == listening.getsockname()
        assert theirs.recv(100) == b"what comes behind it"


async def test_a_listener_takes_a_process_that_was_begun_and_the_next_one_starts_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[AdminProcess] = []
    really: Callable[[], object] = AdminProcess.start

    async def start() -> AdminProcess:
        process = await really()  # type: ignore[misc]  # a coroutine
        started.append(process)
        return process

    async def serve(self: AdminProcess, *_: object) -> None:
        pass

    monkeypatch.setattr(AdminProcess, "start", start)
    monkeypatch.setattr(AdminProcess, "serve", serve)
    monkeypatch.setattr(AdminFrontEnd, "_start", lambda _: START)
    factory = AdminFrontEndFactory()
    await factory.begin()
    config = ListenerConfig("admin", "tcp", "127.0.0.1", 0, False, AdminOptions())
    made = [factory.create(config, None) for _ in range(3)]  # type: ignore[arg-type]  # the first one is only a trial
    try:
        for front_end, number in zip(made[1:], (0, 1), strict=True):
            assert isinstance(front_end, AdminFrontEnd)
            await front_end._bind()
            assert (await front_end._started()) is started[number]
            await front_end.stop()
    finally:
        for process in started:
            await process.end()


async def test_what_cannot_begin_early_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start() -> AdminProcess:
        raise OSError("no processes")

    monkeypatch.setattr(AdminProcess, "start", start)
    factory = AdminFrontEndFactory()
    await factory.begin()
    assert factory._begun == []
