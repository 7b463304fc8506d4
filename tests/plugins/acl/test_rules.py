"""The file of rules: what it may say, and what it means."""

from __future__ import annotations

import os

import pytest

from tidegate.spi import Action, ConfigError, Verdict
from tidegate_acl._reading import FILE_BYTES_MAX, parse_rules, read_rules

ALLOW, DENY, FILTER = Verdict.ALLOW, Verdict.DENY, Verdict.FILTER


def verdict(text, identity, action, destination):
    return parse_rules(text).decide(identity, Action(action), destination).verdict


def test_the_first_rule_that_fits_decides_and_what_none_fits_is_refused(somebody) -> None:
    text = """
    [[rules]]
    deny = "publish"
    destinations = "topic://a.secret"
    [[rules]]
    allow = ["publish", "subscribe"]
    destinations = ["topic://a.*", "queue://q"]
    """
    ann = somebody()
    assert verdict(text, ann, "publish", "topic://a.secret") is DENY
    assert verdict(text, ann, "subscribe", "topic://a.secret") is ALLOW
    assert verdict(text, ann, "publish", "topic://a.b") is ALLOW
    assert verdict(text, ann, "publish", "queue://a.b") is DENY
    assert verdict(text, ann, "publish", "queue://q") is ALLOW
    assert verdict(text, ann, "consume", "queue://q") is DENY
    assert verdict(text, ann, "connect", "") is DENY
    assert verdict(text, ann, "subscribe", "topic://>") is FILTER


@pytest.mark.parametrize(
    ("condition", "who", "fits"),
    [
        ('principals = ["ann", "bob"]', {}, True),
        ('principals = "bob"', {}, False),
        ('groups = "ops"', {"groups": ("ops", "x")}, True),
        ('groups = "ops"', {}, False),
        ('client_ids = ["c"]', {}, True),
        ('client_ids = ["d"]', {}, False),
        ('addresses = "192.0.2.0/24"', {}, True),
        ('addresses = ["10.0.0.0/8", "::/0"]', {}, False),
        ('addresses = "192.0.2.1"', {"address": "::ffff:192.0.2.1"}, True),
        ('addresses = "fe80::/10"', {"address": "fe80::1%eth0"}, True),
        ('addresses = "0.0.0.0/0"', {"address": ""}, False),
        ('principals = "ann"\ngroups = "ops"', {}, False),  # each of them
    ],
)
def test_a_rule_is_for_those_who_meet_each_condition(condition, who, fits, somebody) -> None:
    text = f'[[rules]]\nallow = "connect"\n{condition}\n'
    assert verdict(text, somebody(**who), "connect", "") is (ALLOW if fits else DENY)


def test_all_is_everything_but_to_administer(somebody) -> None:
    ann = somebody()
    for action in Action:
        where = "" if action in (Action.CONNECT, Action.ADMIN) else "topic://$SYS.x"
        wanted = DENY if action is Action.ADMIN else ALLOW
        assert verdict('[[rules]]\nallow = "all"', ann, action.value, where) is wanted
    assert verdict('[[rules]]\nallow = "all"', ann, "subscribe", "topic://$SYS.>") is ALLOW
    text = '[[rules]]\nallow = "all"\ndestinations = ">"'
    assert verdict(text, ann, "connect", "") is DENY
    assert verdict(text, ann, "subscribe", "topic://$SYS.x") is DENY  # as no wildcard covers it


OWN = '[[rules]]\nallow = "subscribe"\ndestinations = ["topic://of.{client_id}.>", "topic://{principal}.in"]'


def test_names_in_patterns_are_the_client_s_own(somebody) -> None:
    ann = somebody("ann", "c1")
    assert verdict(OWN, ann, "subscribe", "topic://of.c1.x") is ALLOW
    assert verdict(OWN, ann, "subscribe", "topic://of.c1.>") is ALLOW
    assert verdict(OWN, ann, "subscribe", "topic://of.*.>") is FILTER
    assert verdict(OWN, ann, "subscribe", "topic://of.c2.x") is DENY
    assert verdict(OWN, ann, "subscribe", "topic://ann.in") is ALLOW


@pytest.mark.parametrize("name", ["*", ">", "a.b", "a/b", "+", "#", "", "a.>", "x\0", "$SYS"])
def test_a_name_never_widens_a_pattern(name, somebody) -> None:
    for identity in (somebody(name, name), somebody("ann", name), somebody(name, "c")):
        decided = parse_rules(OWN).decide(identity, Action.SUBSCRIBE, "topic://>")
        for destination in ("topic://of.c2.x", "topic://of.a.b", "topic://of.a", "topic://$SYS.in"):
            assert verdict(OWN, identity, "subscribe", destination) is DENY
        assert decided.verdict is not ALLOW


def test_a_name_that_could_widen_does_not_get_around_a_refusal(somebody) -> None:
    text = (
        '[[rules]]\ndeny = "publish"\ndestinations = "topic://log.{principal}"\n'
        '[[rules]]\nallow = "publish"\ndestinations = "topic://>"'
    )
    assert verdict(text, somebody("ann"), "publish", "topic://log.ann") is DENY
    assert verdict(text, somebody("ann"), "publish", "topic://log.bob") is ALLOW
    assert verdict(text, somebody("a.b"), "publish", "topic://log.bob") is DENY


def test_topics_may_be_written_as_mqtt_writes_them(somebody) -> None:
    text = '[[rules]]\nallow = "subscribe"\ndestinations = "mqtt:home.one/+/{client_id}/#"'
    assert verdict(text, somebody(), "subscribe", "topic://home/one.k.c.x.y") is ALLOW
    assert verdict(text, somebody(), "subscribe", "topic://home/one.k.d.x") is DENY


def test_a_queue_as_mqtt_writes_it_is_the_queue(somebody) -> None:
    text = """
    [[rules]]
    deny = ["publish", "consume"]
    destinations = "mqtt:$queue/secret/#"
    [[rules]]
    allow = "all"
    """
    assert verdict(text, somebody(), "publish", "queue://secret.plan") is DENY
    assert verdict(text, somebody(), "consume", "queue://>") is FILTER
    assert verdict(text, somebody(), "publish", "topic://secret.plan") is ALLOW


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        ("allow = 'all'", []),
        ("allow = ['connect', 'admin']", []),
        ("deny = ['delete', 'publish']\ndestinations = 'a'", []),
        (
            """allow = 'all'
            principals = 'a'
            [[rules]]
            deny = ['publish', 'connect']
            [[rules]]
            allow = 'connect'
            addresses = '10.0.0.0/8'
            [[rules]]
            allow = 'consume'""",
            [
                "rule 3 (line 6) has no effect: rule 2 (line 4) already decides everything that it matches"
            ],
        ),
    ],
)
def test_what_has_no_effect_is_told(text, warnings) -> None:
    found = parse_rules(f"[[rules]]\n{text}").warnings
    assert len(found) == len(warnings)
    for one, beginning in zip(found, warnings, strict=True):
        assert one.startswith(beginning)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no"),
        ("[[rules]]\nallow='subscribe'\ndestinations='queue://a'", "applies to topics only"),
        (
            "[[rules]]\ndeny=['publish', 'create']\ndestinations='mqtt:a/b'",
            "applies to queues only",
        ),
        ("[[rules]]\ndeny='publish'\ndestinations='mqtt:$share/g/a'", "after the group's name"),
        ("[[rules]]\ndeny='publish'\ndestinations='topic://$queue.a'", "no topic has such a name"),
        ("[[rules]]\ndeny='publish'\ndestinations='$share.g.a'", "no topic has such a name"),
        ("[[rules]]\ndeny='publish'\ndestinations='queue://$temporary.>'", "is not checked"),
        ("[[rules]]\nallow='connect'\naddresses='::ffff:10.0.0.0/104'", "as an IPv4 address"),
        ("rules = 1", "there is no"),
        ("[[rule]]\nallow='all'", "did you mean 'rules'"),
        ("[[rules]", "line 1"),
        ("[[rules]]\n", "either `allow` or `deny`"),
        ("[[rules]]\nallow='all'\ndeny='all'", "either `allow` or `deny`"),
        ("[[rules]]\nallow='publsh'", "there is no action 'publsh'"),
        ("[[rules]]\nallow=[]", "at least one"),
        ("[[rules]]\nallow='all'\nprincipal='a'", "did you mean 'principals'"),
        ("[[rules]]\nallow='all'\nprincipals=[1]", "list of strings"),
        ("[[rules]]\nallow='connect'\ndestinations='a'", "does not apply to destinations"),
        ("[[rules]]\nallow='publish'\ndestinations='topics://a'", "neither queue"),
        ("[[rules]]\nallow='publish'\ndestinations='a/#'", "'mqtt:a/#'"),
        ("[[rules]]\nallow='publish'\ndestinations='a.>.b'", "must be the last level"),
        ("[[rules]]\nallow='publish'\ndestinations='a.{user}'", "not {user}"),
        ("[[rules]]\nallow='publish'\naddresses='10.0.0.1/8'", "host bits set"),
        ("rules = ['x']", "is not a table"),
    ],
)
def test_what_is_wrong_is_told(text, problem) -> None:
    with pytest.raises(ConfigError, match=problem.replace("(", r"\(")):
        parse_rules(text)


def test_an_error_says_where(rules_file) -> None:
    path = rules_file("# rules\n[[rules]]\nallow = 'all'\n\n  [[ rules ]]\nallow = 'nothing'\n")
    with pytest.raises(
        ConfigError, match=r"acl.toml: rule 2 \(line 5\), allow: there is no action"
    ):
        read_rules(path)
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_rules(path.parent)
    os.mkfifo(path.parent / "pipe")
    with pytest.raises(ConfigError, match="pipe is not a regular file"):  # and not waited for
        read_rules(path.parent / "pipe")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_rules(path.parent / "none")
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_rules(path)
    path.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="larger than"):
        read_rules(path)


def test_which_rules_decided_is_told(somebody) -> None:
    rules = parse_rules(
        '[[rules]]\nallow = "connect"\n[[rules]]\nallow = "subscribe"\ndestinations = "topic://a.*"\n'
    )
    connect, first, second = somebody(), rules.rules[0], rules.rules[1]
    assert rules.decide(connect, Action.CONNECT, "").rules == (first,)
    assert rules.decide(connect, Action.SUBSCRIBE, "topic://a.b").rules == (second,)
    assert rules.decide(connect, Action.SUBSCRIBE, "topic://a.>").rules == (second, None)
    assert (second.text(), second.line) == ("rule 2 (line 3)", 3)


def test_what_is_decided_once_for_all_is_nobody_s_own(somebody) -> None:
    text = """
    [[rules]]
    deny = "subscribe"
    destinations = "own.{client_id}.secret"
    [[rules]]
    allow = "subscribe"
    destinations = ["own.{client_id}.>", "x.>"]
    [[rules]]
    allow = "subscribe"
    destinations = "y.>"
    principals = "bob"
    """
    rules = parse_rules(text)
    for _ in range(2):
        for name, client_id, other in (
            ("ann", "c1", "c2"),
            ("ann", "c2", "c1"),
            ("bob", "c1", "c2"),
        ):
            for wanted, verdict in (
                ("x.>", ALLOW),
                ("x.*.b", ALLOW),
                (f"own.{client_id}.a.>", ALLOW),
                (f"own.{client_id}.>", FILTER),
                (f"own.{other}.>", DENY),
                ("own.*.a", FILTER),
                (">", FILTER),
                ("y.>", ALLOW if name == "bob" else DENY),
                ("z.>", DENY),
            ):
                identity = somebody(name, client_id)
                decided = rules.decide(identity, Action.SUBSCRIBE, f"topic://{wanted}")
                assert decided.verdict is verdict, (name, client_id, wanted)
                if verdict is ALLOW:
                    assert decided.rules == (rules.rules[2 if wanted == "y.>" else 1],)
    # Thousands of identities do not make it forget who is who, nor keep them all.
    for number in range(3000):
        identity = somebody("ann", f"n{number}")
        decided = rules.decide(identity, Action.SUBSCRIBE, f"topic://own.n{number}.a.>")
        assert decided.verdict is ALLOW
    assert len(rules._ready) <= 1000
