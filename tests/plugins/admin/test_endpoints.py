"""Which requests there are, and what is made of queries and bodies."""

import json
import typing

import pytest

from tidegate.spi import operate
from tidegate_admin.server.endpoints import Endpoint, ParameterError, endpoints
from tidegate_admin.server.openapi import document

ALL = {item.tag: item for item in endpoints()}


def test_every_request_of_the_contract_is_an_endpoint() -> None:
    requests = typing.get_args(operate.Request)
    assert [item.request for item in endpoints()] == list(requests)
    assert len(ALL) == len(requests) >= 17


def test_what_only_looks_is_got_and_what_does_is_posted() -> None:
    assert {tag for tag, item in ALL.items() if item.looks} >= {
        *("list-destinations", "show-destination", "list-sinks", "show-sink", "read-log"),
    }
    acts = {"create", "delete", "pause", "resume", "purge", "move", "copy", "compact", "publish"}
    for tag, item in ALL.items():
        if tag.partition("-")[0] in acts:
            assert not item.looks, tag


def test_the_answer_is_that_of_the_operators_method() -> None:
    assert ALL["list-destinations"].answer is operate.DestinationPage
    assert ALL["purge-destination"].answer is operate.Done
    assert all(typing.get_args(operate.Answer).count(item.answer) <= 1 for item in ALL.values())


def query(tag: str, *pairs: tuple[str, str]) -> dict[str, object]:
    return json.loads(ALL[tag].of_query(list(pairs)))


def test_a_query_has_the_types_of_the_fields() -> None:
    assert query(
        "list-destinations", ("sort", "pending"), ("limit", "7"), ("dead_letters", "true")
    ) == {
        "type": "list-destinations",
        "match": "",
        "sort": "pending",
        "after": "",
        "limit": 7,
        "with_totals": False,
        "contains": "",
        "dead_letters": True,
    }


def test_a_field_with_many_values_is_given_several_times() -> None:
    item = ALL["pause-destination"]
    assert item.many == {"sides"}
    pairs = [("destination", "queue://a"), ("sides", "producers"), ("sides", "consumers")]
    assert json.loads(item.of_query(pairs))["sides"] == ["producers", "consumers"]


@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        ([("limit", "0")], "limit"),
        ([("limit", "1001")], "limit"),
        ([("limit", "many")], "limit"),
        ([("limit", "1"), ("limit", "2")], "given twice"),
        ([("sort", "size")], "sort"),
        ([("limits", "1")], "'limits' is no field of list-destinations; there are: match, sort"),
        ([("type", "purge-destination")], "'type' is no field"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(pairs: list[tuple[str, str]], problem: str) -> None:
    with pytest.raises(ParameterError, match=problem):
        query("list-destinations", *pairs)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "destination"),
        (b"[]", "no JSON object"),
        (b"{", "no JSON"),
        (b'{"destination":"a","selectors":"x"}', "'selectors' is no field of purge-destination"),
        (b'{"destination":1}', "destination"),
        (b'{"destination":"a","count_max":"7"}', "count_max"),
        (b'{"destination":"a","count_max":-1}', "count_max"),
        (b'{"destination":"\xff"}', "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"selector":' + b'{"a":' * 100_000, "no JSON"),
    ],
)
def test_a_body_that_makes_no_sense_is_refused(body: bytes, problem: str) -> None:
    with pytest.raises(ParameterError, match=problem):
        ALL["purge-destination"].of_body(body)


def test_the_document_describes_each_endpoint_and_refers_to_what_is_there() -> None:
    text = document(endpoints(), "gw", "1.2").decode()
    found = json.loads(text)
    assert found["openapi"].startswith("3.1")
    for item in ALL.values():
        (method,) = found["paths"][item.path]
        assert method == ("get" if item.looks else "post")
        operation = found["paths"][item.path][method]
        assert operation["summary"]
        assert names_of(operation, item) == set(item.request.__struct_fields__)
    refs = set(json_refs(found))
    assert refs
    for ref in refs:
        node = found
        for part in ref.removeprefix("#/").split("/"):
            node = node[part]


def names_of(operation: dict[str, typing.Any], item: Endpoint) -> set[str]:
    if item.looks:
        return {parameter["name"] for parameter in operation["parameters"]}
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["additionalProperties"] is False
    return set(schema["properties"])


def json_refs(node: object) -> typing.Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "$ref":
                yield value
            yield from json_refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from json_refs(value)


def test_a_number_that_no_store_can_keep_is_refused() -> None:
    """One in a message made the store read-only."""
    body = b'{"destination":"queue://a","expires_at":%d}'
    assert str(2**63 - 1).encode() in ALL["publish-message"].of_body(body % (2**63 - 1))
    with pytest.raises(ParameterError, match="expires_at"):
        ALL["publish-message"].of_body(body % 2**63)
    with pytest.raises(ParameterError, match="after"):
        ALL["browse-messages"].of_query([("destination", "queue://a"), ("after", str(2**64))])
    replayed = b'{"replay":"r","after":"","through":"1","messages":[["1","queue://a","",[],%d]]}'
    ALL["publish-replayed"].of_body(replayed % (2**63 - 1))
    with pytest.raises(ParameterError, match="messages"):
        ALL["publish-replayed"].of_body(replayed % 2**63)


def test_patterns_of_the_document_are_those_of_every_language() -> None:
    """JSON Schema's are of ECMA-262, which has no ``\\A``."""
    found = json.loads(document(endpoints(), "gw", "1"))
    body = found["paths"]["/api/v1/begin-replay"]["post"]["requestBody"]["content"]
    fields = body["application/json"]["schema"]["properties"]
    assert fields["replay"]["pattern"] == "^[A-Za-z0-9_-]+$"
    assert b"\\A" not in document(endpoints(), "gw", "1")
