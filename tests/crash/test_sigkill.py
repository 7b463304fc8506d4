"""Kill the real gateway with SIGKILL under load, again and again, and account for every message.

What clients do meanwhile, and what is asked of the gateway, is in ``killed_under_load``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from crash_crew import amount
from killed_under_load import check, run_kills


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_nothing_confirmed_is_lost_over_twenty_kills(tmp_path: Path) -> None:
    oracle = await run_kills(tmp_path, seed=20, kills=20, load_s=(0.15, 0.9), at_least=2_000)
    check(oracle, "seed 20")
    print(
        f"sent={len(oracle.sent)} confirmed={len(oracle.confirmed)}"
        f" delivered={sum(map(len, oracle.delivered.values()))} acknowledged={len(oracle.acknowledged)}"
    )


#: How the journal writes and where: the default, the other journal types, directories of destinations.
JOURNALS = {
    "default": "",
    "mapped": '[store]\nplugin = "journal"\njournal_type = "MAPPED"\n',
    "asyncio": '[store]\nplugin = "journal"\njournal_type = "ASYNCIO"\n',
    "flatfile": '[store]\nplugin = "journal"\npreset = "flatfile"\n',
}
#: (journal, seed, kills) of the loops of ``make crash``.
USUAL = [("default", 0), ("default", 1), ("mapped", 2), ("asyncio", 3), ("flatfile", 4)]
LOOPS = amount(
    [(name, seed, 20 if name == "default" else 15) for name, seed in USUAL],
    [(name, seed, 40) for name, seed in [*USUAL, ("default", 5), ("default", 6), ("default", 7)]],
)


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("journal", "seed", "kills"), LOOPS)
async def test_nothing_confirmed_is_lost_over_many_kills(
    tmp_path: Path, journal: str, seed: int, kills: int
) -> None:
    extra = JOURNALS[journal]
    oracle = await run_kills(tmp_path, seed, kills, load_s=(0.02, 1.2), at_least=2_000, extra=extra)
    check(oracle, f"{journal}, seed {seed}")


#: The journal at its busiest: small files, compaction, checkpoints and cleanups all the time.
BUSY_JOURNAL = """
[store]
plugin = "journal"
journal_max_file_length = "64kb"
journal_compact_min_files = 3
journal_compact_percentage = 50
journal_pool_files = 6
checkpoint_interval = "100ms"
cleanup_interval = "150ms"
"""


@pytest.mark.crash
@pytest.mark.timeout(600)
async def test_nothing_confirmed_is_lost_over_kills_of_a_journal_that_compacts(
    tmp_path: Path,
) -> None:
    oracle = await run_kills(
        tmp_path, seed=77, kills=15, load_s=(0.05, 1.0), at_least=2_000, extra=BUSY_JOURNAL
    )
    check(oracle, "seed 77")
    journal = tmp_path / "data" / "journal"
    used = [int(path.name[8:18]) for path in journal.glob("journal-*.data")]
    assert max(used) > 20, "no file was used again, so nothing was compacted"
    assert not list(journal.glob("damage-*.report"))
