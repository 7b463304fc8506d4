"""Where readers are survives restarts, and nothing moves back."""

from pathlib import Path

import pytest

from tidegate.spi import ConfigError, RequestError
from tidegate_sink_flight._positions import FILE_NAME, Positions


def loaded(directory: Path, *names: str, first: int = 1, last: int = 1000) -> Positions:
    positions = Positions(directory, "store-1")
    assert positions.load(list(names), first, last) == []
    return positions


def test_a_new_reader_begins_with_the_oldest_row_that_there_is(tmp_path: Path) -> None:
    positions = loaded(tmp_path, "etl", first=51, last=70)
    assert (positions.of("etl").committed, positions.of("etl").planned) == (50, 50)
    assert positions.common == 50


def test_what_was_committed_and_planned_survives_a_restart(tmp_path: Path) -> None:
    positions = loaded(tmp_path, "etl", "ml")
    generation = positions.opened("etl").generation
    positions.planned("etl", generation, 300, 1000)
    positions.committed("etl", generation, 120, 1000)
    again = loaded(tmp_path, "etl", "ml")
    assert again.of("etl") == positions.of("etl")
    assert (again.of("etl").committed, again.of("etl").planned) == (120, 300)
    assert again.common == 0, "the other one has nothing yet"


def test_a_plan_goes_no_further_than_it_may_and_never_back(tmp_path: Path) -> None:
    positions = loaded(tmp_path, "etl")
    generation = positions.opened("etl").generation
    ends = [positions.planned("etl", generation, 400, 1000).planned for _ in range(4)]
    assert ends == [400, 800, 1000, 1000]
    assert positions.planned("etl", generation, 0, 900).planned == 1000
    assert positions.committed("etl", generation, 500, 1000).committed == 500
    assert positions.committed("etl", generation, 100, 1000).committed == 500


def test_a_query_that_was_replaced_is_refused(tmp_path: Path) -> None:
    positions = loaded(tmp_path, "etl")
    old = positions.opened("etl").generation
    new = loaded(tmp_path, "etl").opened("etl").generation  # also across a restart
    assert new > old
    positions.opened("etl")
    for change in (positions.planned, positions.committed):
        with pytest.raises(RequestError, match="another query reads as 'etl'"):
            change("etl", old, 10, 1000)


def test_what_is_not_there_yet_cannot_be_committed(tmp_path: Path) -> None:
    positions = loaded(tmp_path, "etl")
    generation = positions.opened("etl").generation
    with pytest.raises(RequestError, match="not there yet"):
        positions.committed("etl", generation, 1001, 1000)


def test_another_store_and_readers_that_are_gone_are_told(tmp_path: Path) -> None:
    positions = loaded(tmp_path, "etl", "old")
    positions.committed("etl", positions.opened("etl").generation, 500, 1000)
    (told,) = loaded_again = Positions(tmp_path, "store-1").load(["etl"], 1, 1000)
    assert "reader old" in told, loaded_again
    other = Positions(tmp_path, "store-2")
    (told,) = other.load(["etl"], 1, 10)
    assert "store-2" in told
    assert other.of("etl").committed == 0


def test_a_store_that_is_older_than_a_position_is_an_error_that_says_what_to_do(
    tmp_path: Path,
) -> None:
    positions = loaded(tmp_path, "etl")
    positions.committed("etl", positions.opened("etl").generation, 500, 1000)
    with pytest.raises(ConfigError, match="committed row 500, and the log ends with 499"):
        Positions(tmp_path, "store-1").load(["etl"], 1, 499)


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"epoch": "store-1", "readers": {')
    with pytest.raises(ConfigError, match=FILE_NAME):
        Positions(tmp_path, "store-1").load(["etl"], 1, 10)


def test_what_cannot_be_saved_is_not_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = loaded(tmp_path, "etl")
    generation = positions.opened("etl").generation

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        positions.committed("etl", generation, 10, 1000)
    assert positions.of("etl").committed == 0
