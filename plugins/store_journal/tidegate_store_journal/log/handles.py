"""Open data files: there can be more files than descriptors, and clients can take those that there are.

All methods are for the event loop.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from typing import Final

from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.storage import File

#: Open data files besides the current one and the spares; far below the usual limit of 1024.
OPEN_FILES_MAX: Final = 128
_OPEN_FILES_MIN: Final = 4
#: errno values that mean "no descriptor left", in this process or in the system.
NO_HANDLE_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE})


class OpenFiles:
    """Data files that are only read are open while they are borrowed, and some longer."""

    def __init__(self) -> None:
        self._open_max = OPEN_FILES_MAX
        self._open_old: OrderedDict[int, DataFile] = OrderedDict()

    def close_for_good(self, file: DataFile) -> None:
        """The file is not ours any more. Idempotent."""
        self._open_old.pop(file.file_id, None)
        file.close()

    def borrow(self, file: DataFile) -> File:
        """An open handle that stays open until :meth:`give_back`. Raises: OSError."""
        file.readers += 1
        handle = file.handle
        if handle is None:
            try:
                handle = file.handle = self.open(file)
            except OSError:
                file.readers -= 1
                raise
            self.retire(file)
        elif file.file_id in self._open_old:
            self._open_old.move_to_end(file.file_id)
        return handle

    def give_back(self, file: DataFile) -> None:
        """The handle is not used any more."""
        file.readers -= 1

    @contextmanager
    def lent(self, files: Iterable[DataFile]) -> Generator[list[File]]:
        """Handles of all *files*, see :meth:`borrow`."""
        with ExitStack() as stack:
            handles: list[File] = []
            for file in files:
                handles.append(self.borrow(file))
                stack.callback(self.give_back, file)
            yield handles

    def retire(self, file: DataFile) -> None:
        """The file is full: from now on it is only read, and may be closed when many are open."""
        self._open_old[file.file_id] = file
        self.close_surplus()

    def close_surplus(self) -> None:
        """Close the files that were not read for longest, above a limit."""
        for file in list(self._open_old.values()):
            if len(self._open_old) <= self._open_max:
                return
            if not file.readers:
                del self._open_old[file.file_id]
                file.close()

    def gives_up_handles(self, error: OSError) -> bool:
        """For want of descriptors: close files that are only read, and keep fewer from now on.

        Clients can take all descriptors there are. Returns: it is worth trying again.
        """
        if error.errno not in NO_HANDLE_ERRNOS or not self._open_old:
            return False
        self._open_max = max(_OPEN_FILES_MIN, len(self._open_old) // 2)
        before = len(self._open_old)
        self.close_surplus()
        return len(self._open_old) < before

    def open(self, file: DataFile) -> File:
        """A handle of the file. Raises: OSError."""
        while True:
            try:
                return file.home.open(file.name)
            except OSError as error:
                if not self.gives_up_handles(error):
                    raise
