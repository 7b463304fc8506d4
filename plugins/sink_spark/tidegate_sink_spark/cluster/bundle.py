"""Makes the file that ``spark-submit`` runs: a zip archive that Python executes, with the job's code in it.

It holds this room's code and what it uses of the contract, all of it plain Python. The driver's Python also needs
pyspark, pyarrow and msgspec; the job says so when one is missing.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidegate.spi.private_files import private_opener

_MAIN: Final = '''\
"""A job of a Tidegate sink; made by `tidegate sink submit`. Run it with spark-submit."""
import importlib.util
import sys

missing = [name for name in ("pyspark", "pyarrow", "msgspec") if importlib.util.find_spec(name) is None]
if missing:
    sys.exit(f"{sys.executable} has no {', '.join(missing)}; install it on the machine of the driver, or give "
             "spark-submit an environment that has it (--archives, PYSPARK_PYTHON)")
from tidegate_sink_spark.cluster.job import main

sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else %r))
'''
#: Whole packages of plain Python. Their __init__ imports what the job lacks, or does not need.
_PACKAGES: Final = ("tidegate.spi", "tidegate_sink_spark", "pluggy")
_EMPTY: Final = ("tidegate/__init__.py", "tidegate_sink_spark/__init__.py")


def write_bundle(path: Path, exchange: Path) -> None:
    """Write the job to *path*, which ends in ``.py``. Raises: OSError.

    Args: exchange: the directory through which it speaks to its sink.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("__main__.py", _MAIN % str(exchange))
            for name in _EMPTY:
                file.writestr(name, "")
            for name, source in _modules():
                file.write(source, name)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_properties(path: Path, text: str) -> None:
    """Write Spark's settings, for this user only: they may include keys. Raises: OSError."""
    path.unlink(missing_ok=True)
    with open(path, "w", encoding="ascii", opener=private_opener) as file:
        file.write(text)


def _modules() -> Iterator[tuple[str, Path]]:
    """(name in the archive, file) of each module."""
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None, "it is installed: this module runs"
        assert spec.origin is not None, "it is no namespace package"
        root = Path(spec.origin).parent
        prefix = package.replace(".", "/")
        for source in sorted(root.rglob("*.py")):
            name = f"{prefix}/{source.relative_to(root).as_posix()}"
            if name not in _EMPTY:
                yield name, source
