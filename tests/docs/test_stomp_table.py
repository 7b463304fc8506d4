"""docs/stomp.md: every normative sentence of the three specifications has a test that proves it."""

import stomp_clauses


def test_every_clause_is_proved_for_every_version_that_has_it() -> None:
    proofs = stomp_clauses.read_proofs()
    wanted = {
        (version, clause.name)
        for clause in stomp_clauses.read_clauses().values()
        for version in clause.levels
    }
    assert sorted(wanted - set(proofs)) == [], "these have no test"
    assert sorted(set(proofs) - wanted) == [], "these marks name no clause"


def test_the_table_is_that_of_the_clauses_and_marks() -> None:
    text = stomp_clauses.DOCUMENT.read_text()
    assert stomp_clauses.with_table(text) == text, (
        "run: python tests/_support/stomp/stomp_clauses.py"
    )


def test_the_specifications_are_all_there() -> None:
    counts = {
        version: sum(version in c.levels for c in stomp_clauses.read_clauses().values())
        for version in stomp_clauses.VERSIONS
    }
    assert counts["1.0"] > 30
    assert counts["1.1"] > 80
    assert counts["1.2"] > 80
