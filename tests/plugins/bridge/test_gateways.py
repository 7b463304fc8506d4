"""Two gateways, and what goes through a bridge between them: all of a message, filters, topics both ways, and what is said of it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import trustme
from free_ports import free_port
from two_gateways import Pair, produce, rule, take
from wire import StompClient

LARGE = b"\x00\x01" * 3_000_000


def rows(pair: Pair) -> dict[str, dict[str, Any]]:
    """What `tidegate bridges` says, by rule."""
    command = [
        sys.executable,
        "-m",
        "tidegate",
        "bridges",
        "--json",
        "--config",
        str(pair.new.config),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {row["rule"]: row for row in json.loads(done.stdout)}


@pytest.mark.long
def test_stomp_keeps_all_of_a_message_both_ways(tmp_path: Path) -> None:
    rules = [
        rule("in", "in", "/queue/in", "queue://in", "selector = \"color = 'red'\""),
        rule("out", "out", "/queue/out.>", "queue://out.>", "selector = \"color = 'red'\""),
        rule("news", "in", "/topic/news.>", "topic://news.>", 'durable = "news"'),
        rule("news-back", "out", "/topic/news.>", "topic://news.>"),
    ]
    headers = {
        "color": "red",
        "priority": "7",
        "correlation_id": "c",
        "reply_to": "/queue/r",
        "persistent": "false",
    }
    later = str(time.time_ns() // 1_000_000 + 3_600_000)

    async def scenario(pair: Pair) -> None:
        old, new = pair.old.stomp_port, pair.new.stomp_port
        await produce(old, "/queue/in", [b"no"], color="blue")
        await produce(old, "/queue/in", [LARGE, b"hi"], expires=later, **headers)
        await produce(new, "/queue/out.a", [b"no"], color="blue")
        await produce(new, "/queue/out.a", [LARGE, b"hi"], expires=later, **headers)
        for port, queue in ((new, "/queue/in"), (old, "/queue/out.a")):
            large, small = await take(port, queue, b"hi")
            assert large.body == LARGE
            assert small.headers["destination"] == queue
            for name, value in headers.items():
                assert small.headers[name.replace("_", "-")] == value
            assert small.headers["expires"] == later
            assert small.headers["tidegate_hops"] == "1"
        here, there = await StompClient.connect(new), await StompClient.connect(old)
        for client in (here, there):
            client.send("SUBSCRIBE", destination="/topic/news.>", id="1", receipt="1")
            await client.receipt("1")
        here.send("SEND", b"of new", destination="/topic/news.a")
        there.send("SEND", b"of old", destination="/topic/news.b")
        for client in (here, there):
            found = {
                (one.body, one.headers["destination"])
                for one in [await client.receive() for _ in "12"]
            }
            assert found == {(b"of new", "/topic/news.a"), (b"of old", "/topic/news.b")}
        # Each came once: what comes next is the next one.
        for client in (here, there):
            client.send("SEND", b"end", destination="/topic/news.end")
            assert (await client.receive()).body == b"end"
        await here.aclose()
        await there.aclose()

    with Pair(tmp_path, "stomp", rules) as pair:
        pair.said("event=bridge-connected", 4)
        asyncio.run(scenario(pair))
        found = rows(pair)
        assert {name: row["moved"] >= 2 for name, row in found.items()} == dict.fromkeys(
            found, True
        )
        assert found["in"]["server"].startswith("tidegate/")
        assert (found["out"]["source"], found["out"]["target"]) == ("queue://out.>", "/queue/out.>")
        assert found["out"]["problem"] == ""
        assert found["news-back"]["looped"] >= 1


@pytest.mark.long
def test_what_is_wrong_is_said_with_its_remedy_and_goes_on_when_it_is_mended(
    tmp_path: Path,
) -> None:
    rules = [
        rule("in", "in", "/queue/in", "queue://in"),
        rule("big", "out", "/queue/big", "queue://big"),
    ]
    with Pair(tmp_path, "stomp", rules, 'message_limit = "1kb"') as pair:
        pair.said("event=bridge-connected", 2)
        asyncio.run(produce(pair.new.stomp_port, "/queue/big", [b"x" * 2000, b"y"]))
        pair.said("message_limit is 1024")
        row = rows(pair)["big"]
        assert (row["moved"], row["on_the_way"]) == (0, 2)
        assert "raise message_limit" in row["remedy"]
        pair.old.kill()
        pair.said("cannot be reached: Connection refused")
        assert rows(pair)["in"]["server"] == ""
        assert "start it" in rows(pair)["in"]["remedy"]
        pair.old.start()
        asyncio.run(produce(pair.old.stomp_port, "/queue/in", [b"hi"]))
        assert len(asyncio.run(take(pair.new.stomp_port, "/queue/in", b"hi"))) == 1


@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param("stomps", marks=pytest.mark.long),
        pytest.param(
            "mqtts", marks=pytest.mark.crash
        ),  # it takes as long, and the other is the harder one
    ],
)
def test_tls_is_spoken_with_whom_the_authority_vouches_for_alone(
    tmp_path: Path, scheme: str
) -> None:
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    other.cert_pem.write_to_path(tmp_path / "other.pem")
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "key.pem").chmod(0o600)
    (tmp_path / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    old = (
        f'[[listeners]]\nprotocol = "{scheme[:-1]}"\ntransport = "tls"\nbind = "127.0.0.1:{free_port()}"\n'
        f'tls_certificate = "{tmp_path / "cert.pem"}"\ntls_key = "{tmp_path / "key.pem"}"\n'
    )
    there = "/topic/t.>" if scheme == "stomps" else "t/#"
    rules = [rule(name, name, there, "topic://t.>") for name in ("in", "out")]
    for ca, is_trusted in (("other.pem", False), ("ca.pem", True)):
        directory = tmp_path / f"with-{ca}"
        directory.mkdir()
        with Pair(directory, scheme, rules, f'tls_ca = "{tmp_path / ca}"', old) as pair:
            if not is_trusted:
                pair.said("event=bridge-lost", 2)
                assert "event=bridge-connected" not in pair.new.log.read_text()
                assert "tls_ca" in rows(pair)["in"]["remedy"]
                continue
            pair.said("event=bridge-connected", 2)
            earlier = asyncio.run(topics_both_ways(pair))
            pair.old.kill()
            pair.said("event=bridge-lost", 2)
            pair.old.start()
            pair.said("event=bridge-connected", 4)
            asyncio.run(topics_both_ways(pair, earlier))


async def topics_both_ways(pair: Pair, earlier: Iterable[bytes] = ()) -> set[bytes]:
    """What is published at each end comes once at both.

    Args: earlier: bodies of a round before a kill, which may come again.
    Returns: those of this round.
    """
    ends = [await StompClient.connect(one.stomp_port) for one in (pair.new, pair.old)]
    for client in ends:
        client.send("SUBSCRIBE", destination="/topic/t.>", id="1", receipt="1")
        await client.receipt("1")
    number = b"%d" % len(set(earlier))
    sent: set[bytes] = set()
    for topic, bodies in (
        ("a", (LARGE + number, b"small" + number)),
        ("end", (b"1." + number, b"2." + number)),
    ):
        for body, client in zip(bodies, ends, strict=True):
            client.send("SEND", body, destination=f"/topic/t.{topic}")
        for client in ends:
            come: list[bytes] = []
            while len(come) < len(bodies):
                body = (await client.receive()).body
                if body not in earlier:
                    come.append(body)
            assert set(come) == set(bodies)
        sent |= set(bodies)
    for client in ends:
        await client.aclose()
    return sent
