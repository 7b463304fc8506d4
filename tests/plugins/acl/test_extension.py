"""The extension: rules as they are in the file now, and what is written about it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path

import pytest

from tidegate.members import problem_of, product_of
from tidegate.spi import (
    AccessRule,
    Action,
    AuditEvent,
    AuditKind,
    Auditor,
    Authorizer,
    ConfigError,
    Explainer,
    ExtensionFactory,
    RuleList,
    Service,
    Verdict,
    private_files,
)
from tidegate_acl._audit import TEXT_LENGTH_MAX, AuditLog
from tidegate_acl._extension import Acl, AclOptions
from tidegate_acl.plugin import AclFactory, register_extension

OPEN = '[[rules]]\nallow = "all"\n'
SHUT = '[[rules]]\ndeny = "all"\n'


def test_it_is_what_the_host_asks(rules_file) -> None:
    acl = AclFactory().create(AclOptions(rules_file(OPEN)))
    assert problem_of(acl, product_of(ExtensionFactory), (Service,)) == ""
    assert isinstance(acl, Authorizer)
    assert isinstance(acl, Auditor)
    assert isinstance(register_extension(), AclFactory)
    assert repr(acl) == "acl"
    with pytest.raises(ConfigError, match="cannot be read"):
        Acl(AclOptions(rules_file(OPEN).with_name("missing")))
    with pytest.raises(TypeError):
        AclFactory().create(object())


def test_it_explains_what_it_decides_by_the_rule_that_does(rules_file, somebody) -> None:
    text = '[[rules]]\nallow = ["publish"]\ngroups = "senders"\ndestinations = "queue://a.>"\n'
    acl = Acl(AclOptions(rules_file(text)))
    assert isinstance(acl, Explainer)
    sender, other = somebody(groups=("senders",)), somebody()
    for who, action, name in (
        (sender, Action.PUBLISH, "queue://a.b"),
        (sender, Action.PUBLISH, "queue://b"),
        (other, Action.PUBLISH, "queue://a.b"),
        (sender, Action.CONNECT, ""),
    ):
        assert acl.explain(who, action, name).verdict is acl.authorize(who, action, name)
    assert acl.explain(sender, Action.PUBLISH, "queue://a.b").why == (
        "rule 1 (line 1): allows, by groups senders; destinations queue://a.>",
    )
    assert acl.explain(other, Action.PUBLISH, "queue://a.b").why == (
        "none of the 1 rules matches, so it is refused",
    )


def test_it_lists_the_rules_as_they_are_written_and_where(rules_file) -> None:
    path = rules_file(
        """
[[rules]]
deny = "connect"
principals = ["eve", "anonymous"]
addresses = "10.0.0.0/8"

[[rules]]
allow = ["publish", "consume"]
destinations = ["queue://a.{principal}", "mqtt:b/+/#"]
groups = "senders"
client_ids = "c"

[[rules]]
allow = "all"
"""
    )
    acl = Acl(AclOptions(path))
    assert isinstance(acl, RuleList)
    assert acl.rules_source() == str(path)
    listed = acl.access_rules()
    rules_file(SHUT)
    first, second, third = listed
    who = {"principals": ("anonymous", "eve"), "addresses": ("10.0.0.0/8",)}
    assert first == AccessRule(1, 2, False, (Action.CONNECT,), None, who)
    assert second == AccessRule(
        2,
        7,
        True,
        (Action.PUBLISH, Action.CONSUME),
        ("queue://a.{principal}", "topic://b.*.>"),
        {"groups": ("senders",), "client_ids": ("c",)},
    )
    assert (third.line, third.who, third.destinations) == (13, {}, None)
    assert set(third.actions) == set(Action) - {Action.ADMIN}


async def test_a_changed_file_counts_and_a_broken_one_does_not(
    rules_file, somebody, tmp_path, caplog
) -> None:
    log = tmp_path / "audit.log"
    acl = Acl(AclOptions(rules_file(OPEN), check_interval=0.001, audit_log=log))
    changes = asyncio.Event()
    assert not await acl.refresh()
    await acl.start(changes.set)
    try:
        rules_file(SHUT + "# another length\n")
        await asyncio.wait_for(changes.wait(), 60)
        assert [rule.allows for rule in acl.access_rules()] == [False]
        assert acl.authorize(somebody(), Action.CONNECT, "") is Verdict.DENY
        rules_file("[[rules]]\nallow = 'nothing at all'\n")
        while "rules unchanged" not in caplog.text:
            await asyncio.sleep(0.001)
        assert "rule 1 (line 1), allow: there is no action" in caplog.text
        assert acl.authorize(somebody(), Action.CONNECT, "") is Verdict.DENY
    finally:
        await acl.stop()
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events == ["rules-changed", "rules-refused"]
    rules_file(OPEN)
    assert await acl.refresh()


async def test_a_failing_look_does_not_end_the_looking(rules_file, monkeypatch, caplog) -> None:
    acl = Acl(AclOptions(rules_file(OPEN), check_interval=0.001))
    changes = asyncio.Event()

    def first() -> None:
        if not changes.is_set():
            changes.set()
            raise RuntimeError("a bug of somebody else")

    await acl.start(first)
    rules_file(SHUT + "# longer\n")
    await asyncio.wait_for(changes.wait(), 60)
    rules_file(OPEN)
    while acl.rules.rules[0].allows is False:
        await asyncio.sleep(0.001)
    await acl.stop()
    assert "will try again" in caplog.text


def test_what_is_written_of_an_event(rules_file, somebody, tmp_path) -> None:
    log = tmp_path / "audit.log"
    acl = Acl(AclOptions(rules_file(OPEN), audit_log=log), clock=lambda: 0.0, now=lambda: 1e9)
    who = somebody('ann"\n{"event":"login"}', groups=("b", "a"))
    acl.audit(AuditEvent(AuditKind.LOGIN, who))
    acl.audit(AuditEvent(AuditKind.REFUSED, who, Action.PUBLISH, "topic://" + "x" * 70_000, "no"))
    first, second = [json.loads(line) for line in log.read_text().splitlines()]
    assert first == {
        "time": "2001-09-09T01:46:40.000+00:00",
        "event": "login",
        "principal": 'ann"\n{"event":"login"}',
        "groups": "a,b",
        "client_id": "c",
        "address": "192.0.2.1",
        "protocol": "mqtt",
    }
    assert (second["event"], second["action"], second["problem"]) == ("refused", "publish", "no")
    assert len(second["destination"]) == TEXT_LENGTH_MAX
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    Acl(AclOptions(rules_file(OPEN))).audit(AuditEvent(AuditKind.LOGIN, who))  # no log: nothing


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make_log(path, clock, **more) -> AuditLog:
    limits = {"size_bytes_max": 1 << 20, "files_max": 2, "rate_max": 10, **more}
    return AuditLog(path, clock=clock, now=lambda: 0.0, **limits)


def test_no_more_lines_a_second_than_allowed_and_the_rest_is_counted(tmp_path) -> None:
    clock = Clock()
    log = make_log(tmp_path / "log", clock)
    for number in range(1000):
        log.write("refused", {}, f"{number}")
    clock.now = 0.5
    for number in range(1000, 2000):
        log.write("refused", {}, f"{number}")
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert len(lines) == 15
    assert [line["suppressed_before"] for line in lines if "suppressed_before" in line] == [990]


def test_who_floods_it_pushes_out_nobody_else(tmp_path) -> None:
    clock = Clock()
    log = make_log(tmp_path / "log", clock, rate_max=100)
    for _ in range(100):  # ten seconds
        for _ in range(50):
            log.write("refused", {"principal": "mallory"}, "mallory")
        log.write("login", {"principal": "ann"}, "ann")
        clock.now += 0.1
    log.write("rules-changed", {})
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert sum(event.get("principal") == "ann" for event in events) == 100
    refused = sum(event.get("principal") == "mallory" for event in events)
    assert 100 <= refused <= 111
    assert refused + sum(event.get("suppressed_before", 0) for event in events) == 5000


def test_sources_that_are_told_apart_have_a_limit(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tidegate_acl._audit._SOURCES_MAX", 3)
    log = make_log(tmp_path / "log", Clock(), rate_max=1000)
    for number in range(9):
        log.write("refused", {}, f"{number}")
    assert len(log._sources) == 3


def test_what_was_not_written_is_told_at_the_end(tmp_path) -> None:
    log = make_log(tmp_path / "log", Clock())
    for _ in range(5):
        log.write("refused", {}, "mallory")
    log.close()
    last = json.loads((tmp_path / "log").read_text().splitlines()[-1])
    assert (last["event"], last["suppressed_before"]) == ("suppressed", 4)


def test_it_takes_so_much_of_the_disk_and_no_more(tmp_path) -> None:
    clock = Clock()
    for files_max in (0, 2):
        path = tmp_path / str(files_max) / "log"
        path.parent.mkdir()
        log = make_log(path, clock, size_bytes_max=4096, files_max=files_max, rate_max=10**9)
        for number in range(500):
            log.write("refused", {"problem": f"{number:0100}"})
        files = sorted(path.parent.iterdir())
        assert [item.name for item in files] == ["log", "log.1", "log.2"][: files_max + 1]
        assert all(item.stat().st_size < 4096 + 300 for item in files)
        last = json.loads(path.read_text().splitlines()[-1])
        assert last["problem"].endswith("499")
        log.close()


def test_a_file_that_somebody_else_rotated_is_begun_anew(tmp_path) -> None:
    path = tmp_path / "log"
    log = make_log(path, Clock())
    log.write("one", {})
    path.rename(tmp_path / "log.old")
    log.write("two", {})
    assert json.loads(path.read_text())["event"] == "two"


def test_a_full_disk_leaves_whole_lines_and_is_told_once(tmp_path, monkeypatch, caplog) -> None:
    path, write, room = tmp_path / "log", os.write, [20, 0]
    log = make_log(path, Clock())
    log.write("one", {})

    def nearly_full(descriptor: int, data: bytes) -> int:
        if not room:
            return write(descriptor, data)
        if not (left := room.pop(0)):
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:left])

    monkeypatch.setattr("tidegate_acl._audit.os.write", nearly_full)
    for event in ("two", "three", "four"):
        log.write(event, {})
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[0])["event"] == "one"
    last = json.loads(lines[2])
    assert (last["event"], last["suppressed_before"]) == ("four", 2)
    assert caplog.text.count("cannot be written") == 1
    assert caplog.text.count("is being written again") == 1
    log.close()


@pytest.mark.parametrize("kind", ["full", "pipe", "directory"])
def test_what_cannot_be_written_never_stops_the_gateway(tmp_path, caplog, kind) -> None:
    path = tmp_path / "log"
    if kind == "full":
        path = Path("/dev/full")
    elif kind == "pipe":
        os.mkfifo(path)  # nobody reads it
    else:
        path.mkdir()
    log = make_log(path, Clock())
    log.write("one", {})
    log.write("two", {})
    log.close()
    assert caplog.text.count("cannot be written") == 1


async def test_it_is_begun_anew_on_reload_and_the_rules_are_read(
    rules_file, somebody, tmp_path
) -> None:
    path = tmp_path / "log"
    acl = Acl(AclOptions(rules_file(OPEN), check_interval=60, audit_log=path))
    changes: list[bool] = []
    await acl.start(lambda: changes.append(True))
    acl.audit(AuditEvent(AuditKind.LOGIN, somebody()))
    path.rename(tmp_path / "log.1")
    rules_file(SHUT)
    await acl.reload()
    assert changes == [True]
    assert acl.authorize(somebody(), Action.CONNECT, "") is Verdict.DENY
    assert path.exists()
    rules_file(OPEN).unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        await acl.reload()
    assert "rules-refused" in path.read_text()
    assert acl.authorize(somebody(), Action.CONNECT, "") is Verdict.DENY
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        await acl.reload()
    await acl.stop()
    rules_file(OPEN)
    with pytest.raises(ConfigError, match="cannot be written"):
        await acl.start(lambda: None)


def test_a_control_character_acts_on_no_terminal(tmp_path) -> None:
    log = make_log(tmp_path / "log", Clock())
    name = "".join(map(chr, [*range(32), 127, *range(128, 160), 0x2028, 0x202E, 0xD800]))
    log.write("one", {"principal": name})
    text = (tmp_path / "log").read_bytes()
    assert text.count(b"\n") == 1
    assert all(32 <= byte < 127 for byte in text[:-1])
    assert json.loads(text)["principal"] == name


def test_a_disk_that_refuses_ends_nothing_and_is_told_once(tmp_path, caplog) -> None:
    path = tmp_path / "log"
    target = tmp_path / "elsewhere"
    os.symlink(target, path)  # nobody can send it elsewhere
    log = make_log(path, Clock())
    log.write("one", {})
    log.write("two", {})
    assert not target.exists()
    assert caplog.text.count("cannot be written") == 1
    path.unlink()
    log.write("three", {})
    assert json.loads(path.read_text())["suppressed_before"] == 2


async def test_the_audit_log_is_made_at_the_start_with_its_directory(
    rules_file, tmp_path, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(private_files, "_within_reach", lambda _path: 0o077)
    log = tmp_path / "log" / "audit" / "audit.log"
    before = os.umask(0)
    try:
        acl = Acl(AclOptions(rules_file(OPEN), audit_log=log))
        await acl.start(lambda: None)
    finally:
        os.umask(before)
    await acl.stop()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (log, *log.parents[:2])]
    assert modes == [0o600, 0o700, 0o700]
    log.chmod(0o644)
    rules_file(OPEN).chmod(0o666)
    caplog.clear()
    await acl.start(lambda: None)
    await acl.stop()
    assert f"audit log {log}: everybody on this machine can read it" in caplog.text
    assert "file of rules" in caplog.text
    assert f"go-w {rules_file(OPEN)}" in caplog.text


@pytest.mark.parametrize("place", ["file/audit.log", "link", ""])
async def test_an_audit_log_that_cannot_be_written_ends_the_start(
    rules_file, tmp_path, place: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    acl = Acl(AclOptions(rules_file(OPEN), audit_log=tmp_path / place))
    with pytest.raises(ConfigError, match="cannot be written: ") as caught:
        await acl.start(lambda: None)
    assert caught.value.key == "audit_log"
    await acl.stop()
