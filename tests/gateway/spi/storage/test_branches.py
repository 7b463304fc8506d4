"""Branch ids: what XA allows, and their text."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi import (
    BRANCH_PART_BYTES_MAX,
    Branch,
    BranchId,
    BranchState,
    LockedMessages,
    check_branch_id,
    parse_branch_id,
)

branch_ids = st.builds(
    BranchId,
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.binary(min_size=1, max_size=BRANCH_PART_BYTES_MAX),
    st.binary(max_size=BRANCH_PART_BYTES_MAX),
)
owned_ids = st.builds(msgspec.structs.replace, branch_ids, owner=st.text().map(str.strip))


@given(branch_ids)
def test_the_text_of_a_branch_id_is_read_back(branch_id: BranchId) -> None:
    check_branch_id(branch_id)
    assert parse_branch_id(f" {branch_id} ".upper()) == branch_id


@given(owned_ids)
def test_its_owner_is_part_of_it(branch_id: BranchId) -> None:
    assert parse_branch_id(str(branch_id)) == branch_id


@pytest.mark.parametrize(
    "text",
    ["", "1", "1:", "1::", "1:6", "1:6g:", "x:6f:", "1:6f", "1:6f:6", "1:" + 65 * "6f" + ":"],
)
def test_what_is_not_the_text_of_a_branch_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a branch id"):
        parse_branch_id(text)


@pytest.mark.parametrize(
    ("branch_id", "said"),
    [
        (BranchId(1 << 31, b"x"), "32 bits"),
        (BranchId(-(1 << 31) - 1, b"x"), "32 bits"),
        (BranchId(1, b""), "1 to 64 bytes"),
        (BranchId(1, bytes(65)), "1 to 64 bytes"),
        (BranchId(1, b"x", bytes(65)), "not be longer than 64 bytes"),
    ],
)
def test_what_xa_does_not_allow_is_refused(branch_id: BranchId, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_branch_id(branch_id)


def test_a_format_id_of_more_than_32_bits_is_no_text_either() -> None:
    with pytest.raises(ValueError, match="32 bits"):
        parse_branch_id("9999999999:6f:")


def test_a_branch_comes_back_and_may_grow() -> None:
    branch = Branch(
        BranchId(1, b"g", b"q"),
        7,
        BranchState.ROLLED_BACK,
        1,
        2,
        "c",
        "stomp",
        (LockedMessages(1, (2, 3), (4, 5), "c", "s", "stomp", True),),
        ((8, "queue://q", "id"),),
    )
    encoded = msgspec.msgpack.encode(branch)
    assert msgspec.msgpack.decode(encoded, type=Branch) == branch
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(encoded), "a field of the future"])
    assert msgspec.msgpack.decode(longer, type=Branch) == branch
