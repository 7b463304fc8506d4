"""What one batch does to the index: a value between the encoder, the log and the index."""

from __future__ import annotations

from tidegate.spi import LargeBody, Operation
from tidegate_store_journal.index.acklog import AckBlock


class Effects:
    """What one batch does to the index; made by the encoder and by replay.

    Attributes:
        file_id: the data file the batch is in.
        adds: per list, sequence → location, in sequence order.
        shared: (sequence, number of lists) of messages with more than one list.
        others: everything but added messages, in order.
        copies: (sequence, new location, lists) of messages that compaction copied.
        copied_rows: rows of the acknowledged log whose messages are among them, without locations.
        large: (sequence, body) of messages whose body is in a file of its own.
        small_sizes: bytes of the record of each operation in *others* that is about the small state.
        small_bytes: of those that put something.
        ack_firsts: first ack sequence of each Acknowledge in *others*; 0 without a log.
        messages: messages added (moves included); references: their references.
        message_bytes: bytes of their records.
        batch, last_sequence, last_ack, last_list: counters after this batch.
    """

    __slots__ = (
        "ack_firsts",
        "adds",
        "batch",
        "copied_rows",
        "copies",
        "file_id",
        "large",
        "last_ack",
        "last_list",
        "last_sequence",
        "message_bytes",
        "messages",
        "others",
        "references",
        "shared",
        "small_bytes",
        "small_sizes",
    )

    def __init__(self, file_id: int) -> None:
        self.file_id = file_id
        self.adds: dict[int, dict[int, int]] = {}
        self.shared: list[tuple[int, int]] = []
        self.others: list[Operation] = []
        self.small_sizes: list[int] = []
        self.small_bytes = 0
        self.ack_firsts: list[int] = []
        self.copies: list[tuple[int, int, tuple[int, ...]]] = []
        self.copied_rows: list[AckBlock] = []
        self.large: list[tuple[int, LargeBody]] = []
        self.messages = 0
        self.references = 0
        self.message_bytes = 0
        self.batch = 0
        self.last_sequence = 0
        self.last_ack = 0
        self.last_list = 0
