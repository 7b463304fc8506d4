"""The token file: made once, for its owner alone."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidegate.spi import ConfigError
from tidegate_admin._token import token_of


def test_it_is_made_for_its_owner_alone_and_then_stays(tmp_path: Path) -> None:
    path = tmp_path / "admin.token"
    token = token_of(path)
    assert len(token) >= 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token_of(path) == token
    assert [item.name for item in tmp_path.iterdir()] == ["admin.token"]
    assert token_of(tmp_path / "other.token") != token


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_one_that_others_can_reach_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "admin.token"
    token_of(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=r"token_file: .*operate this gateway; run: chmod"):
        token_of(path)


@pytest.mark.parametrize("text", ["", "short\n", "x" * 31, "x" * 40 + " y", "é" * 40])
def test_what_is_no_token_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "admin.token"
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(ConfigError, match="holds no token"):
        token_of(path)


def test_one_of_ones_own_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "admin.token"
    path.touch(0o600)
    path.write_text("correct-horse-battery-staple-1234567\n")
    assert token_of(path) == "correct-horse-battery-staple-1234567"


def test_many_at_once_have_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(token_of, [tmp_path / "admin.token"] * 8))
    assert len(found) == 1


def test_where_it_cannot_be_made_the_error_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"token_file: .*cannot be written"):
        token_of(tmp_path / "nowhere" / "admin.token")
