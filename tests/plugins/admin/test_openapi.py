"""Requests made of the OpenAPI document, right ones and wrong ones, to the listener of a gateway that runs.

Whatever is asked: the answer comes, it is one that the document describes, what is wrong is told as a problem
with a status of 4xx, and nobody without credentials or rights gets one.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from free_ports import free_port
from gateway_process import GatewayProcess
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire import MqttClient, StompClient

from tidegate_admin.server.endpoints import PREFIX, endpoints
from tidegate_admin.server.openapi import document
from tidegate_auth_file._hashes import make_hash

#: One gateway for all of them: they share the worker, too.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("openapi")]

#: With `make fuzz`: many, others each time.
IS_FUZZ: Final = settings().max_examples > 100
#: Longer than any request may take (70 s); one that takes so long has hung.
TIMEOUT_S: Final = 90.0

CONFIG = """
[[extensions]]
plugin = "auth-file"
users = "{directory}/users"

[[extensions]]
plugin = "acl"
rules = "{directory}/acl.toml"
audit_log = "{directory}/audit.log"

[[destinations]]
match = "queue://>"
messages_max = 100000
dead_letter = "dead"

[[listeners]]
protocol = "admin"
bind = "127.0.0.1:{port}"
"""
ANYBODY = "allow_anonymous = true"
RULES = """
[[rules]]
deny = "admin"
principals = "eve"

[[rules]]
allow = ["all", "admin"]
"""

#: What is there, so that right requests are about something: values of fields, beside all others of their types.
KNOWN: Final[dict[str, list[Any]]] = {
    "destination": ["queue://a", "queue://b", "queue://dead", "topic://t", "queue://new"],
    "target": ["queue://a", "queue://b", "topic://t"],
    "selector": ["n > 1", "n = '1' AND", "n LIKE 'x%'"],
    "match": ["queue://>", "a", "*"],
    "user": ["eve", "anonymous"],
    "session": ["mqtt s"],
    "connection": [1, 2, 3],
    "subscription": [1, 2, 3, 4, 5],
    "replay": ["r"],
    "after": ["0 queue://a", "0 "],
}


@dataclass(frozen=True)
class Served:
    """A gateway that runs. Attributes: url; session: what its operator asks with."""

    url: str
    session: requests.Session


async def furnish(gateway: GatewayProcess, until: threading.Event) -> None:
    """Queues with messages, and clients; they are there until *until* is set, or an operator ends them."""
    stomp = await StompClient.connect(gateway.stomp_port)
    for number in range(20):
        for queue in ("a", "b", "dead"):
            last = {"receipt": queue} if number == 19 else {}
            stomp.send("SEND", b"%d" % number, destination=f"/queue/{queue}", n=str(number), **last)
    for queue in ("a", "b", "dead"):
        await stomp.receipt(queue)
    stomp.send("SUBSCRIBE", id="1", destination="/queue/a", ack="client", receipt="s")
    mqtt = await MqttClient.connect(gateway.mqtt_port, "s", clean=False)
    await mqtt.subscribe("t", 1)
    while not until.is_set():
        await asyncio.sleep(0.1)
    stomp.close()
    mqtt.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("openapi")
    for name, text in (
        ("users", f"eve:{make_hash('pw', memory_kib=64, time_cost=1).written()}\n"),
        ("acl.toml", RULES),
    ):
        (directory / name).write_text(text)
        (directory / name).chmod(0o600)
    port, ended = free_port(), threading.Event()
    extra = CONFIG.format(directory=directory, port=port)
    gateway = GatewayProcess(directory, extra=extra, stomp=ANYBODY, mqtt=ANYBODY)
    with gateway, requests.Session() as session:
        clients = threading.Thread(target=lambda: asyncio.run(furnish(gateway, ended)))
        clients.start()
        try:
            token = (directory / "data" / "admin.token").read_text().strip()
            session.headers["Authorization"] = f"Bearer {token}"
            yield Served(f"http://127.0.0.1:{port}", session)
            assert gateway.stop() == 0
        finally:
            ended.set()
            clients.join()


DOCUMENT: Final[dict[str, Any]] = json.loads(document(endpoints(), "under-test", "1"))
EVERYTHING: Final = [
    (path, method) for path, found in DOCUMENT["paths"].items() for method in found
]


def is_stream(operation: tuple[str, str]) -> bool:
    """Its answer does not end."""
    path, method = operation
    return "text/event-stream" in DOCUMENT["paths"][path][method]["responses"]["200"]["content"]


OPERATIONS: Final = [operation for operation in EVERYTHING if not is_stream(operation)]


@functools.cache
def schema() -> Any:
    """The document, with hints of what there is: they add nothing to what it says is right."""
    import schemathesis  # only where it is used: all workers read this file

    hinted = copy.deepcopy(DOCUMENT)
    # The session says who it is, whatever was generated for that: it would be no wrong request.
    for part in (
        hinted,
        hinted["components"],
        *(hinted["paths"][path][method] for path, method in OPERATIONS),
    ):
        part.pop("security", None)
        part.pop("securitySchemes", None)
    for path, method in OPERATIONS:
        operation = hinted["paths"][path][method]
        for parameter in operation.get("parameters", ()):
            parameter["schema"] = with_hint(parameter["name"], parameter["schema"])
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None:
            fields = body["schema"]["properties"]
            body["schema"]["properties"] = {k: with_hint(k, v) for k, v in fields.items()}
    return schemathesis.openapi.from_dict(hinted)


def with_hint(name: str, field: dict[str, Any]) -> dict[str, Any]:
    if name == "wait_s":
        return {"enum": [0]}  # what waits is tested where nobody waits for it
    known = [item for item in KNOWN.get(name, ()) if is_of_type(item, field.get("type"))]
    return {"anyOf": [{"enum": known}, field]} if known else field


def is_of_type(value: object, name: str | None) -> bool:
    return name == ("integer" if isinstance(value, int) else "string")


def each(operation: tuple[str, str]) -> str:
    return f"{operation[1]} {operation[0]}"


@pytest.mark.parametrize("operation", OPERATIONS, ids=each)
@pytest.mark.parametrize("is_right", [True, False], ids=["right", "wrong"])
@settings(
    max_examples=100 if IS_FUZZ else 4,
    derandomize=not IS_FUZZ,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
)
@given(data=st.data())
def test_an_answer_is_what_the_document_says(
    served: Served, operation: tuple[str, str], is_right: bool, data: st.DataObject
) -> None:
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi import checks

    path, method = operation
    mode = GenerationMode.POSITIVE if is_right else GenerationMode.NEGATIVE
    if not is_right and not takes_something(operation):
        mode = GenerationMode.POSITIVE
    case = data.draw(schema()[path][method].as_strategy(mode))
    answer = case.call(served.url, session=served.session, timeout=TIMEOUT_S)
    assert answer.status_code < 500, answer.text
    assert answer.status_code not in (401, 403), answer.text
    wanted = [
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    sent = parse_qs(urlsplit(answer.request.url).query, keep_blank_values=True)
    # A list or object without anything in it is not sent, and null goes as the word.
    is_sent = set(case.query or ()) <= set(sent)
    if is_sent and not any("null" in values for values in sent.values()):
        wanted.append(checks.negative_data_rejection)
    case.validate_response(answer, checks=wanted)
    if path.endswith("/drain"):
        served.session.post(f"{served.url}{PREFIX}undrain", json={}, timeout=TIMEOUT_S)


def takes_something(operation: tuple[str, str]) -> bool:
    path, method = operation
    found = DOCUMENT["paths"][path][method]
    return bool(found.get("parameters") or found.get("requestBody"))


def test_the_gateway_serves_that_document(served: Served) -> None:
    answer = served.session.get(f"{served.url}/openapi.json", timeout=TIMEOUT_S)
    found = answer.json()
    found["info"]["version"] = "1"
    assert found == DOCUMENT
    assert len(OPERATIONS) > 40


def test_nobody_gets_in_without_credentials_or_rights(served: Served) -> None:
    for path, method in EVERYTHING:
        body = {"json": {"no such": "field"}} if method == "post" else {}
        ask = functools.partial(
            requests.request, method, served.url + path, timeout=TIMEOUT_S, **body
        )
        expected = [("LoginError", 401), ("AccessError", 403)]
        if path.startswith("/health/"):  # public on loopback
            expected = [(None, 200), (None, 200)]
        answers = [ask(), ask(auth=("eve", "pw"))]
        found = [(answer.json().get("kind"), answer.status_code) for answer in answers]
        assert found == expected, path
    guess = requests.get(
        f"{served.url}{PREFIX}list-sinks", headers={"Authorization": "Bearer x"}, timeout=TIMEOUT_S
    )
    assert guess.status_code == 401
