"""The file of users."""

import base64
import logging

import pytest

from tidegate.spi import ConfigError
from tidegate_auth_file._users import UserDirectory, parse_users, read_users
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
        ("alice", "", "a"),
        ("a:b", "", "b"),
    ):
        verifier = users.get(name, method)
        assert verifier is not None
        assert is_correct(password, verifier)
    assert users.get("a:b", "SCRAM-SHA-512") is None
    assert users.get("ALICE", "") is None


def test_line_ends_of_other_systems_are_read(line):
    text = line("alice", "a") + "\r\n"
    assert parse_users(text, "users").get("alice", "") is not None


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("alice", "line 2 is not NAME:SCRAM"),
        ("alice:pencil", "line 2 is not NAME:SCRAM"),
        ("alice:SCRAM-SHA-256$1:x$y:z", "line 2 is not METHOD"),
        ("!secret:AAAA", "line 2 is not !secret:"),
        ("!secret:***", "line 2 is not !secret:"),
    ],
)
def test_a_line_that_is_wrong_is_named(users_file, line, bad, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        read_users(users_file(line("bob", "b"), bad))
    assert caught.value.key == "users"


def test_a_user_cannot_come_twice(users_file, line):
    with pytest.raises(ConfigError, match="second one of 'bob'"):
        read_users(users_file(line("bob", "b"), line("bob", "c")))


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
    assert read_users(path).get("alice", "") is not None


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match="python -m tidegate_auth_file add"):
        UserDirectory(tmp_path / "none")


def test_what_is_no_text_file_is_refused(tmp_path, users_file):
    with pytest.raises(ConfigError, match=r"cannot be read|not a file"):
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
        assert directory.find("alice", "")[1]
        await directory.refresh()
        assert not directory.find("alice", "")[1]
        assert directory.find("bob", "")[1]

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
        assert directory.find("alice", "")[1]
        users_file(line("bob", "b"))
        await directory.refresh()
        assert directory.find("bob", "")[1]

    async def test_a_file_that_is_gone_changes_nothing_until_it_is_back(self, users_file, line):
        path = users_file(line("alice", "a"))
        directory = UserDirectory(path)
        path.unlink()
        await directory.refresh()
        assert directory.find("alice", "")[1]
        users_file(line("bob", "b"))
        await directory.refresh()
        assert not directory.find("alice", "")[1]

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

    @pytest.mark.parametrize("method", ["", "SCRAM-SHA-256", "SCRAM-SHA-512"])
    def test_an_empty_file_makes_up_users_too(self, users_file, method):
        found, exists = UserDirectory(users_file()).find("nobody", method)
        assert not exists
        assert found.method == (method or "SCRAM-SHA-256")

    def test_a_user_of_one_method_is_made_up_for_the_other(self, users_file, line):
        directory = UserDirectory(users_file(line("alice", "a")))
        assert not directory.find("alice", "SCRAM-SHA-512")[1]
