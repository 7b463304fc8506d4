"""`tidegate acl test`: which rule decides, and why."""

from __future__ import annotations

import json

import pytest

from tidegate.cli import main

RULES = """
[[rules]]
allow = "connect"
groups = "users"

[[rules]]
deny = "subscribe"
destinations = "topic://secret.>"
addresses = "10.0.0.0/8"

[[rules]]
allow = ["subscribe"]
destinations = "topic://*.plan"
"""


@pytest.fixture
def ask(rules_file, capsys):
    path = rules_file(RULES)

    def run(*arguments: str, rules: bool = True) -> tuple[int, str, str]:
        more = ["--rules", str(path)] if rules else []
        code = main(["acl", "test", *arguments, *more])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def test_the_rule_is_named_with_its_line(ask) -> None:
    code, out, _ = ask("ann", "subscribe", "topic://x.plan")
    assert code == 0
    assert out.splitlines() == [
        "ann: subscribe topic://x.plan: allowed",
        "  rule 3 (line 11): allows, by destinations topic://*.plan",
    ]
    code, out, _ = ask("ann", "subscribe", "topic://*.plan", "--address", "10.1.1.1")
    assert code == 0
    assert "allowed in part" in out
    assert "rule 2 (line 6): denies, by addresses 10.0.0.0/8; destinations topic://secret.>" in out


def test_what_no_rule_fits_is_refused_with_exit_code_1(ask) -> None:
    assert ask("ann", "connect", "--group", "users")[0] == 0
    code, out, _ = ask("ann", "connect")
    assert (code, out.splitlines()[1]) == (1, "  none of the 3 rules matches, so it is refused")


def test_machines_are_told_in_json(ask) -> None:
    _, out, _ = ask("ann", "subscribe", "topic://x.plan", "--json")
    assert json.loads(out) == [{"verdict": "allow", "rules": [{"number": 3, "line": 11}]}]
    _, out, _ = ask("ann", "connect", "--json")
    assert json.loads(out) == [{"verdict": "deny", "rules": [None]}]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("ann", "connect", "topic://t"), "leave the name out"),
        (("ann", "publish", "t"), "neither queue://NAME nor topic://NAME"),
        (("ann", "publish", "topic://*"), "contains a wildcard"),
        (("ann", "subscribe", "topic://a.>.b"), "last level"),
    ],
)
def test_a_question_that_makes_no_sense_is_an_error(ask, arguments, problem) -> None:
    code, _, err = ask(*arguments)
    assert code not in (0, 1)
    assert problem in err


def test_the_file_is_that_of_the_configuration(ask, rules_file, tmp_path) -> None:
    config = tmp_path / "tidegate.toml"
    config.write_text(f'[[extensions]]\nplugin = "acl"\nrules = "{rules_file(RULES)}"\n')
    code, out, _ = ask("ann", "subscribe", "topic://x.plan", "--config", str(config), rules=False)
    assert (code, "rule 3" in out) == (0, True)
    config.write_text("")
    code, _, err = ask("ann", "connect", "--config", str(config), rules=False)
    assert code not in (0, 1)
    assert "--rules" in err


def test_the_file_is_beside_the_configuration_for_the_command_as_for_the_gateway(
    ask, tmp_path, monkeypatch
) -> None:
    (tmp_path / "gw.toml").write_text('[[extensions]]\nplugin = "acl"\nrules = "acl.toml"\n')
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    code, out, err = ask(
        "ann", "subscribe", "topic://x.plan", "--config", str(tmp_path / "gw.toml"), rules=False
    )
    assert (code, err) == (0, ""), err
    assert "rule 3" in out
    assert main(["check-config", str(tmp_path / "gw.toml")]) == 0


def test_what_has_no_effect_is_told(rules_file, capsys) -> None:
    path = rules_file("[[rules]]\ndeny = 'connect'\n[[rules]]\nallow = 'connect'\n")
    assert main(["acl", "test", "ann", "connect", "--rules", str(path)]) == 1
    assert "rule 2 (line 3) has no effect" in capsys.readouterr().err
