"""``python -m tidegate_auth_file``."""

import io
import stat
import subprocess
import sys

import pytest

from tidegate_auth_file import _command
from tidegate_auth_file._command import EXIT_FAILED, main
from tidegate_auth_file._users import read_users
from tidegate_auth_file._verifier import is_correct


@pytest.fixture
def typed(monkeypatch):
    """What stands on stdin, which is no terminal."""

    def types(text):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    return types


def add(path, name, *more):
    return main(["add", str(path), name, "--iterations", "4096", *more])


def correct(path, name, password, method=""):
    verifier = read_users(path).get(name, method)
    return verifier is not None and is_correct(password, verifier)


def test_the_first_user_makes_the_file_for_its_owner_alone(tmp_path, typed):
    path = tmp_path / "users"
    typed("secret\n")
    assert add(path, "alice") == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert correct(path, "alice", "secret")
    assert read_users(path).secret is not None
    assert list(tmp_path.iterdir()) == [path]


def test_a_user_can_be_added_replaced_and_removed(tmp_path, typed, users_file, line):
    path = users_file("# ours", line("bob", "b"))
    path.chmod(0o640)
    for name, password in (("alice", "one"), ("alice", "two")):
        typed(password)
        assert add(path, name) == 0
    assert correct(path, "alice", "two")
    assert correct(path, "bob", "b")
    assert path.read_text().count("alice:") == 1
    assert "# ours" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    secret = read_users(path).secret
    assert main(["remove", str(path), "alice"]) == 0
    assert read_users(path).get("alice", "") is None
    assert correct(path, "bob", "b")
    assert read_users(path).secret == secret


def test_a_user_may_have_both_methods(tmp_path, typed):
    path = tmp_path / "users"
    for method in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        typed(method)
        assert add(path, "alice", "--method", method) == 0
    for method in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert correct(path, "alice", method, method)
    assert main(["remove", str(path), "alice"]) == 0
    assert read_users(path).get("alice", "") is None


def test_a_name_that_begins_like_another_is_another(tmp_path, typed):
    path = tmp_path / "users"
    for name in ("a", "a:b", "ab"):
        typed(name)
        assert add(path, name) == 0
    assert main(["remove", str(path), "a"]) == 0
    assert correct(path, "a:b", "a:b")
    assert correct(path, "ab", "ab")


def test_the_password_is_asked_for_twice_on_a_terminal(tmp_path, monkeypatch, capsys):
    answers = iter(["secret", "secret", "secret", "Secret"])
    monkeypatch.setattr(_command.getpass, "getpass", lambda prompt: next(answers))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    path = tmp_path / "users"
    assert add(path, "alice") == 0
    assert correct(path, "alice", "secret")
    assert add(path, "bob") == EXIT_FAILED
    assert "not the same" in capsys.readouterr().err
    assert read_users(path).get("bob", "") is None


@pytest.mark.parametrize(
    ("name", "password", "more", "problem"),
    [
        ("alice", "", [], "empty password"),
        ("", "a", [], "must not be empty"),
        ("#alice", "a", [], "must not begin"),
        ("!secret", "a", [], "must not begin"),
        ("a\nb", "a", [], "cannot contain"),
        ("alice", "a", ["--iterations", "4095"], "from 4096"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(
    tmp_path, typed, capsys, name, password, more, problem
):
    typed(password)
    assert add(tmp_path / "users", name, *more) == EXIT_FAILED
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_wrong_stays_as_it_is(users_file, typed, capsys):
    path = users_file("nonsense")
    typed("a")
    assert add(path, "alice") == EXIT_FAILED
    assert "line 1" in capsys.readouterr().err
    assert path.read_text() == "nonsense\n"


def test_a_user_that_does_not_exist_cannot_be_removed(users_file, line, capsys):
    path = users_file(line("bob", "b"))
    assert main(["remove", str(path), "alice"]) == EXIT_FAILED
    assert "has no user 'alice'" in capsys.readouterr().err


def test_a_folder_that_is_missing_is_named(tmp_path, typed, capsys):
    typed("a")
    assert add(tmp_path / "none" / "users", "alice") == EXIT_FAILED
    assert "none" in capsys.readouterr().err


def test_it_runs_as_a_module(tmp_path):
    path = tmp_path / "users"
    command = [sys.executable, "-m", "tidegate_auth_file", "add", path, "alice"]
    done = subprocess.run(
        command, input="secret\n", text=True, timeout=60, check=False, capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert correct(path, "alice", "secret")
