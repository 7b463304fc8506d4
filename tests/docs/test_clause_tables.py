"""docs/mqtt.md and docs/stomp.md: every normative statement of each standard has a test, or a stated reason."""

from collections import Counter

import mqtt_clauses
import pytest
import stomp_clauses

#: Statements in each section, counted in appendix B of the two standards.
COUNTS = {
    "3.1.1": {
        "1.5.3": 3, "2.2.2": 2, "2.3.1": 7, "3.1.0": 2, "3.1.2": 24, "3.1.3": 11, "3.1.4": 5,
        "3.2.0": 1, "3.2.2": 6, "3.3.1": 12, "3.3.2": 3, "3.3.4": 1, "3.3.5": 2, "3.6.1": 1,
        "3.8.1": 1, "3.8.3": 4, "3.8.4": 6, "3.9.3": 2, "3.10.1": 1, "3.10.3": 2, "3.10.4": 6,
        "3.12.4": 1, "3.14.1": 1, "3.14.4": 3, "4.1.0": 2, "4.3.1": 1, "4.3.2": 2, "4.3.3": 2,
        "4.4.0": 1, "4.5.0": 2, "4.6.0": 6, "4.7.1": 3, "4.7.2": 1, "4.7.3": 4, "4.8.0": 2,
        "6.0.0": 4, "7.0.0": 2, "7.1.1": 1, "7.1.2": 1,
    },
    "5.0": {
        "1.5.4": 3, "1.5.5": 1, "1.5.7": 1, "2.1.3": 1, "2.2.1": 5, "2.2.2": 1, "3.1.0": 2,
        "3.1.2": 30, "3.1.3": 12, "3.1.4": 6, "3.2.0": 2, "3.2.2": 22, "3.3.1": 13, "3.3.2": 20,
        "3.3.4": 10, "3.4.2": 3, "3.5.2": 3, "3.6.1": 1, "3.6.2": 3, "3.7.2": 3, "3.8.1": 1,
        "3.8.3": 5, "3.8.4": 8, "3.9.2": 2, "3.9.3": 2, "3.10.1": 1, "3.10.3": 2, "3.10.4": 6,
        "3.11.2": 2, "3.11.3": 2, "3.12.4": 1, "3.14.0": 1, "3.14.1": 1, "3.14.2": 4, "3.14.4": 3,
        "3.15.1": 1, "3.15.2": 3, "4.1.0": 2, "4.2.0": 1, "4.3.1": 1, "4.3.2": 5, "4.3.3": 13,
        "4.4.0": 2, "4.5.0": 2, "4.6.0": 6, "4.7.0": 1, "4.7.1": 2, "4.7.2": 1, "4.7.3": 4,
        "4.8.2": 6, "4.9.0": 3, "4.12.0": 7, "4.12.1": 2, "4.13.1": 1, "4.13.2": 1, "6.0.0": 4,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def statements():
    return mqtt_clauses.read_statements()


@pytest.fixture(scope="module")
def proofs():
    return mqtt_clauses.read_proofs()


@pytest.mark.parametrize("version", mqtt_clauses.VERSIONS)
def test_mqtts_standards_are_all_there(statements, version):
    found = [s for s in statements.values() if s.version == version]
    assert Counter(s.section for s in found) == COUNTS[version]


def test_every_mqtt_statement_has_a_test_or_a_reason(statements, proofs):
    assert mqtt_clauses.gaps(statements, proofs) == []


def test_every_mqtt_mark_names_a_statement(statements, proofs):
    unknown = {mark: tests for mark, tests in proofs.items() if mark not in statements}
    assert unknown == {}


def test_mqtts_tables_are_those_of_the_statements_and_marks(statements, proofs):
    text = mqtt_clauses.DOCUMENT.read_text()
    assert mqtt_clauses.with_tables(text, statements, proofs) == text, (
        "run: python tests/_support/mqtt/mqtt_clauses.py"
    )


def test_an_mqtt_statement_without_test_or_reason_is_missed(statements):
    proofs = {mark: ["a::b"] for mark in statements if mark != "5.0:MQTT-3.1.2-24"}
    assert mqtt_clauses.gaps(statements, proofs) == ["5.0:MQTT-3.1.2-24"]


def test_every_stomp_clause_is_proved_for_every_version_that_has_it() -> None:
    proofs = stomp_clauses.read_proofs()
    wanted = {
        (version, clause.name)
        for clause in stomp_clauses.read_clauses().values()
        for version in clause.levels
    }
    assert sorted(wanted - set(proofs)) == [], "these have no test"
    assert sorted(set(proofs) - wanted) == [], "these marks name no clause"


def test_stomps_table_is_that_of_the_clauses_and_marks() -> None:
    text = stomp_clauses.DOCUMENT.read_text()
    assert stomp_clauses.with_table(text) == text, (
        "run: python tests/_support/stomp/stomp_clauses.py"
    )


def test_stomps_specifications_are_all_there() -> None:
    counts = {
        version: sum(version in c.levels for c in stomp_clauses.read_clauses().values())
        for version in stomp_clauses.VERSIONS
    }
    assert counts["1.0"] > 30
    assert counts["1.1"] > 80
    assert counts["1.2"] > 80
