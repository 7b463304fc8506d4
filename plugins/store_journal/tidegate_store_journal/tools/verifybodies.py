"""What ``verify`` reads outside of the data files: large bodies.

Takes no lock and writes nothing. What looks damaged beside a running gateway may only be under way
(a body is removed): the caller looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tidegate.spi import CorruptRecordError, LargeBody, Progress
from tidegate_store_journal.bodies.large import file_name_of, read_large
from tidegate_store_journal.tools.lookon import look

#: How often something suspicious is looked at again before it is called damage.
_ATTEMPTS: Final = 5


class Broken(NamedTuple):
    """One place. Attributes: file (below the journal's directory), offset (bytes), sequences of the
    messages that cannot be read, problem."""

    file: str
    offset: int
    sequences: frozenset[int]
    problem: str


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are. Attributes: directory: of the journal; large: of the large bodies."""

    directory: Path
    large: Path


def check_bodies(
    places: Places, bodies: Mapping[int, LargeBody], progress: Progress
) -> list[Broken]:
    """Read all *bodies* (by sequence). Blocks. Returns: what cannot be read, one for each place."""
    return list(_check_large(places.large, bodies, progress))


def confirmed(
    places: Places,
    bodies: Mapping[int, LargeBody],
    broken: list[Broken],
    batch: int,
    pause: Callable[[], None],
) -> list[Broken]:
    """What of *broken* is still needed and still cannot be read a moment later. Blocks.

    Args: batch: the journal's last one when *bodies* was read; pause: what to do before each look.
    Raises: StoreIOError, CorruptRecordError: the journal cannot be read.
    """
    for _ in range(_ATTEMPTS):
        if not broken:
            break
        pause()
        with look(places.directory) as seen:
            index = seen.replay.index
            suspects = frozenset[int]().union(*(one.sequences for one in broken))
            suspects &= index.large.bodies.keys()
            bodies = {key: body for key, body in bodies.items() if key in suspects}
            is_quiet = index.batch == batch
            batch = index.batch
        broken = check_bodies(places, bodies, _ignore)
        if is_quiet:
            break  # nothing is being written: it stays as it is
    return broken


def _ignore(_what: str, _done: int, _total: int) -> None:
    """It was told before."""


# ------------------------------------------------------------------------------------ large bodies


def _check_large(
    directory: Path, bodies: Mapping[int, LargeBody], progress: Progress
) -> Iterator[Broken]:
    holders: dict[str, list[int]] = {}
    unique: dict[str, LargeBody] = {}
    for sequence, body in sorted(bodies.items()):
        holders.setdefault(body.id, []).append(sequence)
        unique[body.id] = body
    for done, (body_id, body) in enumerate(unique.items()):
        progress("reading large bodies", done, len(unique))
        try:
            for _ in read_large(directory, body):
                pass
            continue
        except CorruptRecordError as error:
            problem = error.problem
        except OSError as error:
            problem = f"it cannot be read: {error}"
        who = ", ".join(map(str, holders[body_id]))
        text = f"the body of message {who}: {problem}"
        file = f"{directory.name}/{file_name_of(body_id)}"
        yield Broken(file, 0, frozenset(holders[body_id]), text)
    progress("reading large bodies", len(unique), len(unique))
