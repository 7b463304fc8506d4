"""The file of users."""

import asyncio
import base64
import logging

import pytest

from tidegate.spi import ConfigError, Principal
from tidegate_auth_file import _directory
from tidegate_auth_file._directory import UserDirectory
from tidegate_auth_file._users import parse_users, read_users
from tidegate_auth_file._verifier import is_correct

SECRET = "!secret:" + base64.b64encode(bytes(32)).decode()


def test_each_line_is_a_user_and_comments_mean_nothing(users_file, line):
    path = users_file(
        "# ours",
        "",
        SECRET,
        line("alice", "a"),
        line("a:b", "b"),
        line("alice", "c", "SCRAM-SHA-512"),
    )
    users = read_users(path)
    assert users.secret == bytes(32)
    for name, method, password in (
        ("alice", "SCRAM-SHA-256", "a"),
        ("alice", "SCRAM-SHA-512", "c"),
        ("a:b", "SCRAM-SHA-256", "b"),
    ):
        verifier = users.get(name, method)
        assert verifier is not None
        assert is_correct(password, verifier)
    for name, password in (("alice", "a"), ("a:b", "b")):  # without a hash of its own
        found = users.hash_of(name)
        assert found is not None
        assert found.matches(password)
    assert users.get("a:b", "SCRAM-SHA-512") is None
    assert users.hash_of("ALICE") is None


def test_a_user_may_have_a_hash_for_plain_passwords_besides(users_file, line, hashed):
    users = read_users(users_file(line("alice", "scram"), hashed("alice", "plain")))
    found = users.hash_of("alice")
    assert found is not None
    assert (found.kind, found.matches("plain"), found.matches("scram")) == ("argon2id", True, False)
    assert [verifier.method for verifier in users.verifiers_of("alice")] == ["SCRAM-SHA-256"]


def test_groups_are_on_a_line_of_their_own(users_file, hashed):
    path = users_file("!groups:ops,admins:a:b", hashed("a:b", "x"), hashed("bob", "y"))
    users = read_users(path)
    assert users.names == {"a:b", "bob"}
    assert users.groups_of("a:b") == {"ops", "admins"}
    assert users.groups_of("bob") == frozenset()


def test_a_hash_reaches_no_representation(users_file, line, hashed):
    users = read_users(users_file(line("alice", "a"), hashed("bob", "b")))
    for name in ("alice", "bob"):
        found = users.hash_of(name)
        assert found is not None
        assert found.written().split("$")[-1] not in repr(found)


def test_line_ends_of_other_systems_are_read(line):
    text = line("alice", "a") + "\r\n"
    assert parse_users(text, "users").names == {"alice"}


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("alice", "line 2 is not NAME:HASH"),
        ("alice:pencil", "line 2 is not NAME:HASH"),
        ("alice:SCRAM-SHA-256$1:x$y:z", "line 2 is not METHOD"),
        ("!secret:AAAA", "line 2 is not !secret:"),
        ("!secret:***", "line 2 is not !secret:"),
        ("alice:$argon2id$v=19$m=1,t=1$a$b", "line 2 has an argon2id hash"),
        ("alice:$2y$31$" + "a" * 53, "line 2 has a bcrypt cost of 31"),
        ("alice:$2y$05$short", "line 2 has a hash of an unknown kind"),
        ("alice:$7$0$AAAA$AAAA", r"line 2 has a hash that is not \$7\$"),
        ("alice:$7$99999999$AAAA$AAAA", "line 2 has 99999999 iterations"),
        ("alice:$7$101$AAAA$AAAA", "line 2 has a hash that is not 64 bytes"),
        ("alice:$6$rounds=90000000$salt$" + "a" * 86, "line 2 has 90000000 rounds"),
        ("alice:$apr1$salt$short", "line 2 has a hash that is not of the form"),
        ("alice:{SHA}AAAA", "line 2 has a {SHA} hash that is not 20 bytes"),
        (
            "anonymous:{SHA}CEo1Ae3vaEXy8eQZjsOiuBz1xrw=",
            "'anonymous' is not allowed as a user name",
        ),
        ("!groups:ops", "line 2 is not !groups:"),
        ("!groups:ops:nobody", "line 2 gives groups to 'nobody', which is not a user"),
        ("!groups:o ps:bob", "line 2 'o ps' is not a valid group"),
    ],
)
def test_a_line_that_is_wrong_is_named(users_file, line, bad, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        read_users(users_file(line("bob", "b"), bad))
    assert caught.value.key == "users"


def test_a_user_cannot_come_twice(users_file, line):
    with pytest.raises(ConfigError, match="second one of 'bob'"):
        read_users(users_file(line("bob", "b"), line("bob", "c")))
    sha = "{SHA}CEo1Ae3vaEXy8eQZjsOiuBz1xrw="
    with pytest.raises(ConfigError, match="line 2 is the second one of 'bob'"):
        read_users(users_file(f"bob:{sha}", f"bob:{sha}"))
    with pytest.raises(ConfigError, match="line 3 is the second one with groups of 'bob'"):
        read_users(users_file(f"bob:{sha}", "!groups:a:bob", "!groups:b:bob"))


@pytest.mark.parametrize("name", ["", "\u2168"])
def test_a_name_that_no_client_can_give_is_refused(users_file, line, name):
    with pytest.raises(ConfigError, match=r"line 1 .*user name"):
        read_users(users_file(line(name, "b")))


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o601])
def test_a_file_that_others_can_read_or_write_is_refused(users_file, line, mode):
    path = users_file(line("alice", "a"))
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}.*chmod 600"):
        read_users(path)


def test_a_group_may_read(users_file, line):
    path = users_file(line("alice", "a"))
    path.chmod(0o640)
    assert read_users(path).names == {"alice"}


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match="tidegate user add --file"):
        UserDirectory(tmp_path / "none")


def test_what_is_no_text_file_is_refused(tmp_path, users_file):
    with pytest.raises(ConfigError, match=r"cannot be read|not a regular file"):
        read_users(tmp_path)
    path = users_file()
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_users(path)
    with path.open("r+b") as file:
        file.truncate(17 << 20)
    with pytest.raises(ConfigError, match="larger than"):
        read_users(path)


class TestDirectory:
    async def test_a_change_is_seen(self, users_file, line):
        directory = UserDirectory(users_file(line("alice", "a")))
        users_file(line("bob", "b"))
        assert directory.find_hash("alice")[1]
        await directory.refresh()
        assert not directory.find_hash("alice")[1]
        assert directory.find_hash("bob")[1]

    async def test_a_file_that_became_wrong_is_logged_once_and_changes_nothing(
        self, users_file, line, caplog
    ):
        directory = UserDirectory(users_file(line("alice", "a")))
        users_file("half a li")
        with caplog.at_level(logging.ERROR):
            await directory.refresh()
            await directory.refresh()
        assert [record.message for record in caplog.records if "line 1" in record.message] != []
        assert len(caplog.records) == 1
        assert directory.find_hash("alice")[1]
        users_file(line("bob", "b"))
        await directory.refresh()
        assert directory.find_hash("bob")[1]

    async def test_a_file_that_is_gone_changes_nothing_until_it_is_back(self, users_file, line):
        path = users_file(line("alice", "a"))
        directory = UserDirectory(path)
        path.unlink()
        await directory.refresh()
        assert directory.find_hash("alice")[1]
        users_file(line("bob", "b"))
        await directory.refresh()
        assert not directory.find_hash("alice")[1]

    def test_a_user_that_does_not_exist_looks_like_one_that_does(self, users_file, line):
        path = users_file(SECRET, line("alice", "a", iterations=5000), line("bob", "b"))
        found, exists = UserDirectory(path).find("nobody", "SCRAM-SHA-256")
        assert not exists
        assert found.iterations in {4096, 5000}
        assert len(found.salt) == 16
        assert found.method == "SCRAM-SHA-256"
        again, _ = UserDirectory(path).find("nobody", "SCRAM-SHA-256")  # after a restart
        assert (again.salt, again.iterations) == (found.salt, found.iterations)
        assert again.stored_key != found.stored_key
        other, _ = UserDirectory(path).find("somebody", "SCRAM-SHA-256")
        assert other.salt != found.salt

    def test_what_is_made_up_depends_on_a_secret(self, users_file, line):
        directory = UserDirectory(users_file(line("alice", "a")))
        one, _ = directory.find("nobody", "SCRAM-SHA-256")
        assert directory.find("nobody", "SCRAM-SHA-256")[0].salt == one.salt
        other = UserDirectory(users_file(line("alice", "a")))
        assert other.find("nobody", "SCRAM-SHA-256")[0].salt != one.salt

    @pytest.mark.parametrize("method", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
    def test_an_empty_file_makes_up_users_too(self, users_file, method):
        directory = UserDirectory(users_file())
        found, exists = directory.find("nobody", method)
        assert not exists
        assert found.method == method
        assert directory.find_hash("nobody") == (None, False)

    def test_a_user_that_does_not_exist_costs_what_some_other_costs(self, users_file, line, hashed):
        path = users_file(SECRET, line("alice", "a"), hashed("bob", "b"))
        kinds = set()
        for number in range(20):
            found, exists = UserDirectory(path).find_hash(f"nobody{number}")
            again, _ = UserDirectory(path).find_hash(f"nobody{number}")
            assert found is not None
            assert not exists
            assert again == found
            kinds.add(found.kind)
        assert kinds == {"argon2id", "SCRAM-SHA-256"}

    async def test_who_is_gone_or_in_other_groups_is_told(self, users_file, hashed, monkeypatch):
        monkeypatch.setattr(_directory, "WATCH_INTERVAL_S", 0.001)
        alice, bob = hashed("alice", "a"), hashed("bob", "b")
        directory = UserDirectory(users_file(alice))
        told = asyncio.Event()
        watching = asyncio.create_task(directory.watch(told.set))

        async def changes(*lines: str) -> None:
            users_file(*lines)
            await asyncio.wait_for(told.wait(), 60)
            told.clear()

        users_file(alice, bob)  # one more is nothing that anybody has to know
        while not directory.find_hash("bob")[1]:
            await asyncio.sleep(0)
        assert not told.is_set()
        await changes(alice, hashed("bob", "another password"))
        await changes(alice, bob, "!groups:ops:alice")
        found, _ = directory.find_hash("alice")
        assert found is not None
        assert directory.principal("alice", found) == Principal("alice", frozenset({"ops"}))
        await changes(bob)
        assert directory.principal("alice", found) is None
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    async def test_two_that_look_at_once_never_go_back_to_older_users(self, users_file, hashed):
        directory = UserDirectory(users_file(hashed("alice", "a")))
        users_file(hashed("bob", "b"))
        await asyncio.gather(*(directory.refresh() for _ in range(5)))
        assert directory.find_hash("bob")[1]

    def test_a_hash_that_takes_more_memory_than_it_may_is_named(self, users_file, hashed):
        path = users_file(hashed("alice", "a"))
        UserDirectory(path, 1 << 16)
        with pytest.raises(ConfigError, match=r"password of 'alice' takes .*memory_limit"):
            UserDirectory(path, (1 << 16) - 1)

    def test_a_user_of_one_method_is_made_up_for_the_other(self, users_file, line):
        directory = UserDirectory(users_file(line("alice", "a")))
        assert not directory.find("alice", "SCRAM-SHA-512")[1]
