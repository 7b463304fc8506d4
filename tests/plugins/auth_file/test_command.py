"""``tidegate user``."""

import io
import json
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidegate.cli import main
from tidegate_auth_file import _command, _edit, _hashes
from tidegate_auth_file._users import read_users
from tidegate_auth_file._verifier import is_correct

FAILED = 2
SHA = "{SHA}CEo1Ae3vaEXy8eQZjsOiuBz1xrw="  # sesame


@pytest.fixture(autouse=True)
def cheap(monkeypatch):
    make = _hashes.make_hash
    monkeypatch.setattr(_edit, "make_hash", lambda word: make(word, memory_kib=64, time_cost=1))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def typed(monkeypatch):
    """What stands on stdin, which is no terminal."""

    def types(text):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    return types


def user(command, path, *more):
    return main(["user", command, "--file", str(path), *map(str, more)])


def correct(path, name, password):
    found = read_users(path).hash_of(name)
    return found is not None and found.matches(password)


def scram(path, name, password, method):
    verifier = read_users(path).get(name, method)
    return verifier is not None and is_correct(password, verifier)


def test_the_first_user_makes_the_file_for_its_owner_alone(tmp_path, typed):
    path = tmp_path / "users"
    typed("secret\n")
    assert user("add", path, "alice", "--group", "ops", "-g", "admins") == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert correct(path, "alice", "secret")
    users = read_users(path)
    assert users.groups_of("alice") == {"ops", "admins"}
    assert users.secret is not None
    assert users.verifiers_of("alice") == []
    assert list(tmp_path.iterdir()) == [path]


def test_a_user_can_be_added_changed_and_removed(tmp_path, typed, users_file, hashed):
    path = users_file("# ours", hashed("bob", "b"))
    path.chmod(0o640)
    typed("one")
    assert user("add", path, "alice", "-g", "ops") == 0
    secret = read_users(path).secret
    typed("two")
    assert user("passwd", path, "alice") == 0
    assert correct(path, "alice", "two")
    assert correct(path, "bob", "b")
    assert path.read_text().count("alice:") == 1
    assert "# ours" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert read_users(path).groups_of("alice") == {"ops"}
    assert user("groups", path, "alice", "a", "b") == 0
    assert read_users(path).groups_of("alice") == {"a", "b"}
    assert user("groups", path, "alice") == 0
    assert read_users(path).groups_of("alice") == frozenset()
    assert user("groups", path, "alice", "c") == 0
    assert user("remove", path, "alice") == 0
    assert read_users(path).names == {"bob"}
    assert "alice" not in path.read_text()
    assert read_users(path).secret == secret


def test_a_user_may_have_scram_besides_and_keeps_it(tmp_path, typed):
    path = tmp_path / "users"
    typed("one")
    methods = ("-m", "argon2id", "-m", "SCRAM-SHA-256", "-m", "SCRAM-SHA-512")
    assert user("add", path, "alice", *methods, "--iterations", 4096) == 0
    typed("two")
    assert user("passwd", path, "alice") == 0
    assert correct(path, "alice", "two")
    for method in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert scram(path, "alice", "two", method)
    assert {found.iterations for found in read_users(path).verifiers_of("alice")} == {4096}
    typed("three")
    assert user("passwd", path, "alice", "-m", "SCRAM-SHA-256", "--iterations", 4096) == 0
    assert path.read_text().count("alice:") == 1
    assert correct(path, "alice", "three")
    typed("four")
    assert user("passwd", path, "alice") == 0
    assert "argon2id" not in path.read_text()
    assert scram(path, "alice", "four", "SCRAM-SHA-256")


def test_a_name_that_begins_like_another_is_another(tmp_path, typed):
    path = tmp_path / "users"
    for name in ("a", "a:b", "ab"):
        typed(name)
        assert user("add", path, name, "-g", "g") == 0
    assert user("remove", path, "a") == 0
    assert read_users(path).names == {"a:b", "ab"}
    assert correct(path, "a:b", "a:b")


def test_the_password_is_asked_for_twice_on_a_terminal(tmp_path, monkeypatch, capsys):
    answers = iter(["secret", "secret", "secret", "Secret"])
    monkeypatch.setattr(_command.getpass, "getpass", lambda prompt: next(answers))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    path = tmp_path / "users"
    assert user("add", path, "alice") == 0
    assert correct(path, "alice", "secret")
    assert user("add", path, "bob") == FAILED
    assert "do not match" in capsys.readouterr().err
    assert read_users(path).names == {"alice"}


@pytest.mark.parametrize(
    ("name", "password", "more", "problem"),
    [
        ("alice", "", [], "empty password"),
        ("", "a", [], "must not be empty"),
        ("#alice", "a", [], "must not begin"),
        ("!secret", "a", [], "must not begin"),
        ("a\nb", "a", [], "cannot contain"),
        ("anonymous", "a", [], "'anonymous' is not allowed as a user name"),
        ("x" * 257, "a", [], "user name must not be longer than 256 bytes"),
        ("\ud800", "a", [], "user name must be UTF-8"),
        ("alice", "x" * 1025, [], "password must not be longer than 1024 bytes"),
        ("alice", "\udcff", [], "password must be UTF-8"),
        ("alice", "a", ["-g", "a,b"], "is not a valid group"),
        ("alice", "\0", ["-m", "SCRAM-SHA-256"], "cannot contain"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(
    tmp_path, typed, capsys, name, password, more, problem
):
    typed(password)
    assert user("add", tmp_path / "users", *more, "--", name) == FAILED
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_user_that_is_there_is_not_added_again(users_file, hashed, typed, capsys):
    path = users_file(hashed("alice", "a"))
    typed("b")
    assert user("add", path, "alice") == FAILED
    assert "already has a user 'alice'; use passwd" in capsys.readouterr().err
    assert correct(path, "alice", "a")


@pytest.mark.parametrize("command", ["passwd", "remove", "groups"])
def test_a_user_that_does_not_exist_cannot_be_changed(users_file, hashed, typed, capsys, command):
    path = users_file(hashed("bob", "b"))
    before = path.read_text()
    typed("x")
    assert user(command, path, "alice") == FAILED
    assert "has no user 'alice'" in capsys.readouterr().err
    assert path.read_text() == before


def test_a_file_that_is_wrong_stays_as_it_is(users_file, typed, capsys):
    path = users_file("nonsense")
    typed("a")
    assert user("add", path, "alice") == FAILED
    assert "line 1" in capsys.readouterr().err
    assert path.read_text() == "nonsense\n"


@pytest.mark.parametrize(("command", "exists"), [("add", True), ("passwd", False)])
def test_nobody_is_asked_for_a_password_in_vain(users_file, hashed, monkeypatch, command, exists):
    monkeypatch.setattr(_command.getpass, "getpass", lambda prompt: pytest.fail("asked"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    path = users_file(hashed("alice" if exists else "bob", "a"))
    assert user(command, path, "alice") == FAILED


def test_a_link_to_the_file_stays_a_link(tmp_path, users_file, hashed, typed):
    path = users_file(hashed("bob", "b"))
    link = tmp_path / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(path)
    typed("a")
    assert user("add", link, "alice") == 0
    assert link.is_symlink()
    assert read_users(path).names == {"alice", "bob"}
    assert list(link.parent.iterdir()) == [link]


def test_what_is_no_file_is_said_to_be_none_and_not_waited_for(tmp_path, users_file, capsys):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (pipe, tmp_path):
        assert user("list", path) == FAILED
        assert user("import", users_file(), path) == FAILED
        error = capsys.readouterr().err
        assert error.count(f"{path} is not a regular file") == 2
        assert "user add" not in error


def test_many_at_a_time_lose_nothing(tmp_path):
    path = tmp_path / "users"

    def adds(number):
        _edit.add(path, f"user{number}", "secret", _edit.Wanted())
        _edit.set_groups(path, f"user{number}", ["ops"])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(adds, range(12)))
    users = read_users(path)
    assert users.names == {f"user{number}" for number in range(12)}
    assert all(users.groups_of(name) == {"ops"} for name in users.names)
    assert list(tmp_path.iterdir()) == [path]


#: Adds a user and is killed at the call of a function of ``os`` that is counted from 1.
KILLED = """
import os, signal, sys
from pathlib import Path
from tidegate_auth_file import _edit
name, count = sys.argv[2], int(sys.argv[3])
called, real = 0, getattr(os, name)
def dies(*args, **more):
    global called
    called += 1
    if called == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **more)
setattr(os, name, dies)
_edit.rewrite(Path(sys.argv[1]), lambda lines: [*lines, "alice:{SHA}CEo1Ae3vaEXy8eQZjsOiuBz1xrw="])
"""


@pytest.mark.parametrize(
    ("name", "count", "is_done"),
    [("fsync", 1, False), ("replace", 1, False), ("fsync", 2, True)],
)
def test_a_kill_leaves_the_old_file_or_the_new_one(users_file, hashed, name, count, is_done):
    path = users_file(hashed("bob", "b"))
    before = path.read_bytes()
    arguments = [sys.executable, "-c", KILLED, str(path), name, str(count)]
    code = subprocess.run(arguments, check=False, timeout=120).returncode
    assert code == -signal.SIGKILL
    assert ("alice" in read_users(path).names) is is_done
    assert is_done or path.read_bytes() == before
    assert {stat.S_IMODE(item.stat().st_mode) for item in path.parent.iterdir()} == {0o600}
    _edit.remove(path, "bob")  # the next one cleans up
    assert list(path.parent.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_that_is_missing_is_named(tmp_path, typed, capsys):
    typed("a")
    assert user("add", tmp_path / "none" / "users", "alice") != 0
    assert "none" in capsys.readouterr().err


def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    users_file, hashed, typed, monkeypatch
):
    def fails(descriptor):
        raise OSError(28, "No space left on device")

    path = users_file(hashed("bob", "b"))
    before = path.read_text()
    monkeypatch.setattr(_edit.os, "fsync", fails)
    typed("a")
    assert user("add", path, "alice") != 0
    assert path.read_text() == before
    assert list(path.parent.iterdir()) == [path]


def test_file_and_directory_are_synced_before_and_after_it_has_its_name(
    users_file, hashed, monkeypatch
):
    done = []
    path = users_file(hashed("bob", "b"), hashed("alice", "a"))
    sync, replace = _edit.os.fsync, _edit.Path.replace

    def synced(descriptor):
        is_directory = stat.S_ISDIR(_edit.os.fstat(descriptor).st_mode)
        done.append("directory" if is_directory else "file")
        sync(descriptor)

    def replaced(self, target):
        done.append("name")
        return replace(self, target)

    monkeypatch.setattr(_edit.os, "fsync", synced)
    monkeypatch.setattr(_edit.Path, "replace", replaced)
    assert user("remove", path, "bob") == 0
    assert done == ["file", "name", "directory"]


def test_the_list_shows_who_there_is_and_no_hash(users_file, hashed, line, capsys):
    path = users_file(
        hashed("alice", "a"), line("alice", "a"), f"bob:{SHA}", "!groups:ops,admins:alice"
    )
    assert user("list", path) == 0
    shown = capsys.readouterr().out
    assert [text.split() for text in shown.splitlines() if "alice" in text or "bob" in text] == [
        ["alice", "argon2id", "(old)", "SCRAM-SHA-256", "admins", "ops"],
        ["bob", "SHA-1", "(old)"],
    ]
    assert "$" not in shown
    assert user("list", path, "--json") == 0
    users = json.loads(capsys.readouterr().out)["users"]
    assert users[1] == {
        "user": "bob",
        "password": "SHA-1",
        "scram": [],
        "groups": [],
        "should_be_replaced": True,
    }


class TestImport:
    def test_users_of_other_programs_come_with_their_hashes(self, tmp_path, capsys):
        source, path = tmp_path / "htpasswd", tmp_path / "users"
        apr1 = "$apr1$tidegate$XAlUUm0FHfELORTSKY3rX."
        source.write_text(f"# old\n\nalice:{SHA}\r\nbob:{apr1}\n")
        assert user("import", path, source) == 0
        assert "2 users imported" in capsys.readouterr().out
        for name in ("alice", "bob"):
            assert correct(path, name, "sesame")
        assert apr1 in path.read_text()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    @pytest.mark.parametrize(
        ("bad", "problem"),
        [
            ("carol:rqXexS6ZhobKA", "a DES hash, which anybody can break"),
            ("carol:pencil", "a plain password; give the user a password with `tidegate user add"),
            ("carol", "is not NAME:HASH"),
            ("carol:$9$a$b", "is not NAME:HASH"),
            (f"anonymous:{SHA}", "'anonymous' is not allowed as a user name"),
            (f"alice:{SHA}", "is the second one of 'alice'"),
        ],
    )
    def test_what_cannot_be_taken_over_is_named_and_nothing_done(
        self, tmp_path, capsys, bad, problem
    ):
        source, path = tmp_path / "htpasswd", tmp_path / "users"
        source.write_text(f"alice:{SHA}\n{bad}\n")
        assert user("import", path, source) == FAILED
        error = capsys.readouterr().err
        assert f"{source}: line 2 " in error
        assert problem in error
        assert "nothing was changed" in error
        assert "rqXexS6ZhobKA" not in error
        assert "pencil" not in error
        assert not path.exists()
        assert user("import", path, source, "--skip") == 0
        assert read_users(path).names == {"alice"}

    def test_a_user_that_is_there_already_stays(self, tmp_path, users_file, hashed, capsys):
        path = users_file(hashed("alice", "a"))
        source = tmp_path / "htpasswd"
        source.write_text(f"bob:{SHA}\nalice:{SHA}\n")
        assert user("import", path, source) == FAILED
        assert "already has a user 'alice'" in capsys.readouterr().err
        assert read_users(path).names == {"alice"}

    def test_what_is_no_text_is_refused(self, tmp_path, capsys):
        source = tmp_path / "htpasswd"
        source.write_bytes(b"\xff\n")
        assert user("import", tmp_path / "users", source) == FAILED
        assert "not UTF-8" in capsys.readouterr().err


class TestConfiguration:
    def test_it_names_the_file(self, tmp_path, typed):
        path, config = tmp_path / "users", tmp_path / "tidegate.toml"
        config.write_text(f'[[extensions]]\nplugin = "auth-file"\nusers = "{path}"\n')
        typed("secret")
        assert main(["user", "add", "--config", str(config), "alice"]) == 0
        assert correct(path, "alice", "secret")

    def test_one_that_names_none_is_an_error_that_says_what_to_do(self, tmp_path, capsys):
        config = tmp_path / "tidegate.toml"
        config.write_text("")
        assert main(["user", "list", "--config", str(config)]) == FAILED
        assert "no [[extensions]] with plugin" in capsys.readouterr().err
        assert main(["user", "list"]) == FAILED

    def test_one_that_is_wrong_names_the_key(self, tmp_path, capsys):
        config = tmp_path / "tidegate.toml"
        config.write_text('[[extensions]]\nplugin = "auth-file"\nuser = "x"\n')
        assert main(["user", "list", "--config", str(config)]) == FAILED
        assert "extensions[0].user" in capsys.readouterr().err
