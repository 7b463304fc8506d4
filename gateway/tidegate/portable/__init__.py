"""Everything in a store as a directory of Parquet files, and back: docs/portable-format.md.

Works through the store contract alone, so it carries the contents of any store into any other.
"""

from __future__ import annotations

from tidegate.portable._carry import carry_in, carry_out, export_store, import_store
from tidegate.portable._manifest import (
    FORMAT_NAME,
    FORMAT_VERSION,
    Manifest,
    TableFacts,
    read_manifest,
)

__all__ = [
    "FORMAT_NAME",
    "FORMAT_VERSION",
    "Manifest",
    "TableFacts",
    "carry_in",
    "carry_out",
    "export_store",
    "import_store",
    "read_manifest",
]
