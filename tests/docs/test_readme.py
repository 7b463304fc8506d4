"""README.md: a stranger who types what it shows sees the messages; its configuration is one."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tidegate.config import parse_config
from tidegate.testing.embedded import EmbeddedGateway
from tidegate_acl._reading import parse_rules

TEXT = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


async def run(*words: str) -> str:
    """What a program that ends well prints."""
    done = await asyncio.to_thread(
        subprocess.run, words, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_the_first_messages_arrive_from_the_terminal_and_from_clients() -> None:
    (typed,) = (block for block in blocks("") if "tidegate stomp send" in block)
    (program,) = (block for block in blocks("python") if "stomp.Connection12" in block)
    command = str(Path(sys.executable).with_name("tidegate"))
    async with EmbeddedGateway() as gateway:
        ports = {"61613": str(gateway.stomp_port), "1883": str(gateway.mqtt_port)}
        printed = ""
        for line in typed.splitlines():
            path, protocol, *rest = shlex.split(line, comments=True)
            assert path == ".venv/bin/tidegate"
            port = ports["61613" if protocol == "stomp" else "1883"]
            printed = await run(command, protocol, *rest, "--url", f"{protocol}://127.0.0.1:{port}")
        assert printed.split("\n") == ['{"id": 1}', '{"id": 2}', ""]
        for shown, port in ports.items():
            assert shown in program
            program = program.replace(shown, port)
        await run(sys.executable, "-c", program)
        browse = ("stomp", "browse", "/queue/orders", "--url")
        printed = await run(command, *browse, f"stomp://127.0.0.1:{ports['61613']}")
        assert printed.count('"id"') == 4


def test_its_configuration_and_its_rules_are_right() -> None:
    whole, users, rules = blocks("toml")
    assert parse_config(whole).sinks
    assert len(parse_config(users).extensions) == 2
    assert not parse_rules(rules).warnings
