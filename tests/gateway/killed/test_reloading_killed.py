"""SIGHUP and SIGKILL under load: what was confirmed is there, and the gateway starts with the whole new file."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from pathlib import Path

import pytest
from free_ports import free_port
from gateway_process import GatewayProcess

#: Messages that are sent in a round, at most; the kill comes behind one of the last eight of them.
SENT = 40


class Wire:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._file = self._socket.makefile("rb")
        self.send("CONNECT", "accept-version:1.2", "host:x")
        assert self.frame().startswith(b"CONNECTED\n")

    def send(self, command: str, *headers: str, body: str = "") -> None:
        self._socket.sendall("\n".join([command, *headers, "", body]).encode() + b"\0")

    def frame(self) -> bytes:
        """b"" when it has ended."""
        data = b""
        while not data.endswith(b"\0"):
            byte = self._file.read(1)
            if not byte:
                return b""
            data += byte
        return data[:-1].lstrip(b"\n")

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def reloaded_and_killed(directory: Path, rounds: int, chance: random.Random) -> None:
    """In each round the file changes and is read anew under load; the next start has the new file, or the old one."""
    running = GatewayProcess(directory)
    before, ports = running.config.read_text(), (free_port(), free_port())
    confirmed: list[str] = []
    kept = before
    with running:
        for number in range(rounds):
            wire = Wire(running.stomp_port)
            last = SENT - 8 + chance.randrange(8)
            for count in range(last + 1):
                body = f"{number}.{count}"
                wire.send("SEND", "destination:/queue/jobs", "receipt:r", body=body)
                assert wire.frame().startswith(b"RECEIPT\n")
                confirmed.append(body)
                if count == SENT - 8:
                    # Limits come and go, a listener is exchanged for another one, a queue is declared.
                    replace(
                        running,
                        before
                        + f'\n[[listeners]]\nprotocol = "stomp"\nbind = "127.0.0.1:{ports[number % 2]}"\n'
                        + f'[[destinations]]\nmatch = "queue://jobs"\nmessages_max = {10_000 + number}\n'
                        + f'overflow = "refuse"\n[[destinations]]\nmatch = "queue://d{number}"\n'
                        + "auto_create = false\n",
                    )
                    os.kill(running.pid, signal.SIGHUP)
            running.kill()
            wire.close()
            if number < rounds - 1 and chance.random() < 0.5:
                replace(running, kept)  # whatever had begun, it can be gone back
            kept = running.config.read_text()
            running.start()  # waits for all listeners of the file
        wire = Wire(ports[(rounds - 1) % 2])
        wire.send("SUBSCRIBE", "destination:/queue/jobs", "id:1", "ack:auto")
        found = [wire.frame().rpartition(b"\n")[2].decode() for _ in confirmed]
        assert found == confirmed
        wire.send("SEND", f"destination:/queue/d{rounds - 1}", "receipt:r", body="x")
        assert wire.frame().startswith(b"RECEIPT\n")
        wire.close()


def replace(running: GatewayProcess, text: str) -> None:
    new = running.config.with_name("new.toml")
    new.write_text(text)
    os.replace(new, running.config)


@pytest.mark.long
def test_a_gateway_that_is_killed_while_it_reloads_loses_nothing(tmp_path: Path) -> None:
    reloaded_and_killed(tmp_path, 4, random.Random(1))


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(3))
def test_a_gateway_that_is_killed_in_many_reloads_loses_nothing(tmp_path: Path, seed: int) -> None:
    reloaded_and_killed(tmp_path, 20, random.Random(seed))


def test_sighup_applies_the_file_and_the_log_says_what(tmp_path: Path) -> None:
    running = GatewayProcess(tmp_path)
    with running:
        wire = Wire(running.stomp_port)
        port = free_port()
        good = running.config.read_text()
        running.config.write_text(good + "[[destinations]]\nmatch = 5\n")
        os.kill(running.pid, signal.SIGHUP)
        wait_for(running, "reload=refused: ", "destinations[0].match", "; nothing was changed")
        running.config.write_text(
            good + f'[[listeners]]\nprotocol = "stomp"\nbind = "127.0.0.1:{port}"\n'
        )
        os.kill(running.pid, signal.SIGHUP)
        wait_for(running, f"key=listeners[2] added: 127.0.0.1:{port}")
        other = Wire(port)
        for client in (wire, other):
            client.send("SEND", "destination:/queue/jobs", "receipt:r", body="x")
            assert client.frame().startswith(b"RECEIPT\n")
            client.close()
        assert running.stop() == 0


def wait_for(running: GatewayProcess, *texts: str) -> None:
    """Until a line of the log has *texts*; the test's own limit ends it."""
    while not any(all(text in line for text in texts) for line in running.tail().splitlines()):
        assert running.process is not None
        assert running.process.poll() is None, running.tail()
        time.sleep(0.05)
