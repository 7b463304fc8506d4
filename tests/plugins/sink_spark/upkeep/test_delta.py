"""Slices of a Delta table that OPTIMIZE takes. With Java they are tested in test_job.py."""

from tidegate_sink_spark.upkeep.delta import PARTITIONS_MAX, where_clauses


def test_a_slice_is_as_many_partitions_as_have_so_many_bytes() -> None:
    partitions = [({"ack_date": f"2026-01-0{day}"}, 40) for day in (1, 2, 3)]
    assert where_clauses(partitions, ["ack_date"], 80) == [
        "WHERE (`ack_date` = '2026-01-01') OR (`ack_date` = '2026-01-02')",
        "WHERE (`ack_date` = '2026-01-03')",
    ]
    assert len(where_clauses(partitions, ["ack_date"], 1)) == 3


def test_a_slice_has_no_more_partitions_than_a_statement_should() -> None:
    partitions = [({"destination": str(number)}, 1) for number in range(PARTITIONS_MAX + 1)]
    assert [clause.count(" = ") for clause in where_clauses(partitions, ["destination"])] == [
        PARTITIONS_MAX,
        1,
    ]


def test_values_are_texts_of_sql_whatever_is_in_them() -> None:
    values = {"destination": "it's a \\ `q`", "odd`name": None}
    assert where_clauses([(values, 1)], list(values)) == [
        "WHERE (`destination` = 'it\\'s a \\\\ `q`' AND `odd``name` IS NULL)"
    ]


def test_without_partitions_there_is_nothing_to_do() -> None:
    assert where_clauses([], ["ack_date"]) == []
