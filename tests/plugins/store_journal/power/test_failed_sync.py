"""A sync fails, the operator starts the gateway again, and the power goes later.

``make crash`` does it by the hundred (tests/crash/test_crash_schedules.py).
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from journal_crash import fast_directory, restart_after_faults
from journal_kit import with_maps
from journal_load import EAGER, Profile

from tidegate.testing.faulty_storage import Call, Faults

SPARSE = Profile("sparse", sizes=(5, 1500, 20_000), staying=0.125, unordered=0.1, options=EAGER)
PROFILES = (
    Profile("state", small=0.5, unordered=0.3),
    SPARSE,
    SPARSE._replace(name="mapped", options={**EAGER, "journal_type": "MAPPED"}, prepare=with_maps),
)


@pytest.mark.long
async def test_what_is_confirmed_after_a_failed_sync_and_a_restart_is_on_the_disk(
    tmp_path: Path,
) -> None:
    """Fault 2: what recovery replays is in memory only, and its pages are clean, so that a sync of
    them succeeds and does nothing; a later power cut loses what was confirmed, or the start fails.
    """

    with fast_directory(tmp_path) as name:
        directory = Path(name)
        failed = 0
        for seed in range(1, 76):
            profile, nth = PROFILES[seed % 3], 2 + seed * 2 // 3
            faults = Faults(errors={(Call.SYNC, nth): errno.EIO})
            where = directory / str(seed)
            problem, storage = await restart_after_faults(where, seed, profile, faults)
            failed += storage.count_of(Call.SYNC) >= nth
            assert not problem, f"{profile.name} seed {seed}: {problem}"
        assert failed > 50, "too few syncs failed to prove anything"
