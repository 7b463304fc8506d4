"""File names of the presets: found whatever made them, and never taken for one another."""

from __future__ import annotations

from pathlib import Path

import pytest
from journal_kit import checkpoint, opened, pending, write
from numbered import ack, add

from tidegate.spi import StoreIOError
from tidegate_store_journal import inspect, why
from tidegate_store_journal.log.names import NAMINGS, NamedStorage, holds_journal

CANONICAL = [
    "journal-0000000007.data",
    "journal-0000000007.data.tmp",
    "journal-0000000012.free",
    "journal-0000000007.data.4096.torn",
    "bindings-0000000007.data",
    "bindings-0000000007.free",
    "bindings-0000000007.data.tmp",
]


@pytest.mark.parametrize("preset", NAMINGS)
@pytest.mark.parametrize("name", CANONICAL)
def test_a_path_says_which_file_it_is(preset: str, name: str) -> None:
    naming = NAMINGS[preset]
    assert naming.name_of(naming.path_of(name)) == name


@pytest.mark.parametrize(
    ("preset", "path"),
    [
        ("", "journal-0000000007.data"),
        ("kahadb", "db-7.log"),
        ("amq", "journal/data-7"),
        ("artemis", "journal/activemq-data-7.amq"),
        ("flatfile", "journal-0000000007.data"),
    ],
)
def test_data_files_are_called_as_in_the_documents(preset: str, path: str) -> None:
    assert NAMINGS[preset].path_of("journal-0000000007.data") == path


@pytest.mark.parametrize(
    ("preset", "path"),
    [
        ("kahadb", "db-07.log"),  # would be file 7 a second time
        ("kahadb", "db-x.log"),
        ("kahadb", "journal/db-7.log"),
        ("kahadb", "lock"),
        ("amq", "data-7"),
        ("amq", "journal/data-7x"),
        ("artemis", "journal/activemq-data-7"),
        ("", "journal-7.data"),
        ("", "reserve"),
    ],
)
def test_other_files_are_not_taken_for_data_files(preset: str, path: str) -> None:
    assert NAMINGS[preset].name_of(path) is None


def files_below(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("preset", "directory", "expected"),
    [
        ("kahadb", "kahadb", {"db-1.log", "db-2.log", "db.data/data.mdb", "lock"}),
        (
            "amq",
            "activemq-data/test",
            {
                "journal/data-1",
                "kr-store/data/data.mdb",
                "kr-store/state/bindings-2.free",
                "kr-store/state/bindings-8",
            },
        ),
        (
            "artemis",
            "data",
            {
                "journal/activemq-data-1.amq",
                "bindings/activemq-bindings-2.bindings.free",
                "bindings/activemq-bindings-8.bindings",
            },
        ),
        (
            "flatfile",
            "instances/test/fs350",
            {"journal-0000000001.data", "message/queue#q/journal-0000000003.data"},
        ),
    ],
)
async def test_a_store_lies_where_its_document_has_it(
    tmp_path: Path, preset: str, directory: str, expected: set[str]
) -> None:
    store, _ = await opened(tmp_path, preset=preset)
    await write(store, add(1))
    await store.close()
    assert expected <= files_below(tmp_path / directory)


@pytest.mark.parametrize("second", ["none", "kahadb", "amq", "artemis", "flatfile"])
@pytest.mark.parametrize("first", ["none", "kahadb", "amq", "artemis", "flatfile"])
async def test_a_journal_goes_on_under_another_preset(
    tmp_path: Path, first: str, second: str
) -> None:
    store, _ = await opened(tmp_path, preset=first, directory="here")
    await write(store, *(add(sequence, size=9000) for sequence in range(1, 6)))
    await write(store, *(add(sequence, size=9000) for sequence in range(6, 11)))
    await write(store, ack(1, 2))
    await store.close()
    store, state = await opened(tmp_path, preset=second, directory="here")
    assert state.report.clean
    await write(store, *(add(sequence, size=9000) for sequence in range(11, 16)))
    await write(store, *(add(sequence, size=9000) for sequence in range(16, 21)))
    assert await pending(store) == list(range(3, 21))
    await write(store, ack(*range(3, 11)))
    await checkpoint(store, cleanup=True)
    await store.close()
    store, state = await opened(tmp_path, preset=first, directory="here")
    assert state.report.clean
    assert await pending(store) == list(range(11, 21))
    await store.close()


@pytest.mark.parametrize("preset", ["kahadb", "amq", "artemis"])
async def test_it_is_rebuilt_without_metadata_under_every_name(tmp_path: Path, preset: str) -> None:
    store, _ = await opened(tmp_path, preset=preset, directory="here")
    await write(store, add(1), add(2))
    await write(store, ack(1))
    metadata = store._storage.metadata_directory  # pyright: ignore[reportPrivateUsage]
    await store.close()
    assert metadata is not None
    (metadata / "data.mdb").unlink()
    store, state = await opened(tmp_path, preset=preset, directory="here")
    assert not state.report.clean
    assert await pending(store) == [2]
    await store.close()


async def test_removing_the_marker_where_the_amq_document_has_it_rebuilds(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, preset="amq", directory="here")
    await write(store, add(1))
    await store.close()
    (marker,) = (tmp_path / "here").rglob("index-store-state*")
    assert marker == tmp_path / "here" / "kr-store" / "state" / "index-store-state"
    marker.unlink()
    store, state = await opened(tmp_path, preset="amq", directory="here")
    assert any("rebuilt" in note for note in state.report.notes)
    assert await pending(store) == [1]
    await store.close()
    store, state = await opened(tmp_path, preset="amq", directory="here")
    assert state.report.clean
    await store.close()
    assert marker.is_file()


async def test_a_marker_stays_where_another_preset_put_it(tmp_path: Path) -> None:
    for preset in ("none", "amq", "none"):
        store, state = await opened(tmp_path, preset=preset, directory="here")
        assert state.report.notes == ()
        await store.close()
    (marker,) = (tmp_path / "here").rglob("index-store-state*")
    assert marker.parent == tmp_path / "here"


async def test_archived_files_have_the_names_of_the_preset(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, preset="kahadb", archive_data_logs=True)
    for sequence in range(1, 21):
        await write(store, add(sequence, size=9000))
    await write(store, ack(*range(1, 21)))
    await checkpoint(store, cleanup=True)
    await store.close()
    assert (tmp_path / "kahadb" / "archive" / "db-1.log").is_file()


async def test_two_files_that_are_the_same_one_are_refused_by_name(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, preset="kahadb")
    await store.close()
    there = tmp_path / "kahadb" / "db-1.log"
    there.with_name("journal-0000000001.data").write_bytes(there.read_bytes())
    with pytest.raises(StoreIOError, match=r"db-1\.log.*under two names"):
        await opened(tmp_path, preset="kahadb")


async def test_inspect_and_why_use_the_names_on_the_disk(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, preset="artemis")
    await write(store, add(1))
    reports = inspect(tmp_path / "data")
    assert reports[0].name == "activemq-data-1.amq"
    for asked in ("activemq-data-1.amq", "journal-0000000001.data"):
        report = why(tmp_path / "data", asked)
        assert report.name == "activemq-data-1.amq"
        assert [holder.sequences for holder in report.holders] == [[1]]
    with pytest.raises(StoreIOError, match=r"it has: activemq-data-1\.amq"):
        why(tmp_path / "data", "activemq-data-77.amq")
    await store.close()


def test_a_directory_holds_a_journal_when_there_is_a_data_file_of_any_name(tmp_path: Path) -> None:
    assert not holds_journal(tmp_path / "none")
    (tmp_path / "lock").write_text("")
    assert not holds_journal(tmp_path)
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "data-3").write_text("")
    assert holds_journal(tmp_path)


def test_a_file_keeps_the_name_that_it_was_found_under(tmp_path: Path) -> None:
    (tmp_path / "bindings-0000000001.free").write_text("old")
    storage = NamedStorage(tmp_path, NAMINGS["artemis"])
    storage.lock("test")
    assert "bindings-0000000001.free" in storage.list()
    file = storage.open("bindings-0000000001.free")
    file.pwritev([b"new"], 0)
    file.close()
    storage.sync_directory()
    storage.unlock()
    assert (tmp_path / "bindings-0000000001.free").read_text() == "new"
    assert list((tmp_path / "bindings").iterdir()) == []
