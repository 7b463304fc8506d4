"""The file that a run of the benchmark leaves."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands above the figures. Attributes: command; machine: its facts; versions: by broker."""

    command: Sequence[str]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]


def write(path: Path, heading: Heading, **figures: object) -> None:
    """Write the heading, and the figures as JSON takes them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "command": list(heading.command),
        "machine": dict(heading.machine),
        "versions": dict(heading.versions),
        **figures,
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
