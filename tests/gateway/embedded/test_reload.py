"""SIGHUP: every extension that has files reads them at once, each for itself, and the log says which did."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from jwt.algorithms import OKPAlgorithm

from tidegate.testing.embedded import EmbeddedGateway

NAMES = ("users", "acl.toml", "jwks")
CONFIG = """
[[extensions]]
plugin = "auth-file"
users = "{directory}/users"

[[extensions]]
plugin = "acl"
rules = "{directory}/acl.toml"
check_interval = "60s"

[[extensions]]
plugin = "auth-jwt"
jwks = "{directory}/jwks"
issuer = "https://issuer.example"
audience = ["tidegate"]
"""


def good_files() -> dict[str, str]:
    public = ed25519.Ed25519PrivateKey.generate().public_key()
    key = OKPAlgorithm.to_jwk(public, as_dict=True) | {"kid": "one", "use": "sig"}
    key.pop("key_ops", None)
    hashed = "{SHA}CEo1Ae3vaEXy8eQZjsOiuBz1xrw="
    return {
        "users": f"alice:{hashed}\n",
        "acl.toml": '[[rules]]\nallow = "all"\n',
        "jwks": json.dumps({"keys": [key]}),
    }


#: What is put into a file, and what the log says then.
WRONG = {
    "users": ("alice:what\n", "users: line 1 is not NAME:HASH"),
    "acl.toml": (
        '# rules\n[[rules]]\nallow = "al"\n',
        "acl.toml: rule 1 (line 2), allow: there is no",
    ),
    "jwks": ("{", "jwks is not JSON: "),
}


def write(directory: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (directory / name).touch(0o600)
        (directory / name).write_text(text)


def told(caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """By file: what the gateway said of its extension, since the last time."""
    lines = [record.getMessage() for record in caplog.records if " reloaded" in record.msg]
    caplog.clear()
    return {
        name: line.split(" ", 2)[2]
        for index, name in enumerate(NAMES)
        for line in lines
        if line.startswith(f"extensions[{index}] plugin=")
    }


async def test_each_extension_is_reloaded_or_keeps_what_it_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    good = good_files()
    write(tmp_path, good)
    async with EmbeddedGateway(CONFIG.format(directory=tmp_path)) as running:
        gateway = running.gateway
        await gateway.reload()
        assert told(caplog) == dict.fromkeys(NAMES, "was reloaded")
        for wrong, (text, problem) in WRONG.items():
            write(tmp_path, good | {wrong: text})
            await gateway.reload()
            said = told(caplog)
            assert {name: said[name] for name in NAMES if name != wrong} == dict.fromkeys(
                (name for name in NAMES if name != wrong), "was reloaded"
            )
            assert said[wrong].startswith("could not be reloaded and keeps what it read before: ")
            assert str(tmp_path) in said[wrong]
            assert problem in said[wrong]
        write(tmp_path, good)
        await gateway.reload()
        assert told(caplog) == dict.fromkeys(NAMES, "was reloaded")


async def test_none_waits_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write(tmp_path, good_files())
    async with EmbeddedGateway(CONFIG.format(directory=tmp_path)) as running:
        extensions = [item.instance for item in running.gateway.config.extensions]
        begun, may_end = [asyncio.Event() for _ in extensions], asyncio.Event()

        for extension, event in zip(extensions, begun, strict=True):

            async def slow(event: asyncio.Event = event) -> bool:
                event.set()
                await may_end.wait()
                return True

            monkeypatch.setattr(type(extension), "reload", lambda _self, slow=slow: slow())
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(running.gateway.reload())
            for event in begun:
                await event.wait()
            assert told(caplog) == {}
            may_end.set()
        assert told(caplog) == dict.fromkeys(NAMES, "was reloaded")
