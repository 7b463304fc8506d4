"""The OpenAPI document, built from the same types as the answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from tidegate.spi.clients.operators import Readiness
from tidegate.spi.operate import ListEvents
from tidegate_admin.server import streams
from tidegate_admin.server.answers import JSON, Problem
from tidegate_admin.server.endpoints import Endpoint
from tidegate_admin.server.history import RANGES, History

_TEMPLATE: Final = "#/components/schemas/{name}"
_PROBLEM: Final = {"$ref": _TEMPLATE.format(name=Problem.__name__)}
_ERRORS: Final[Mapping[str, str]] = {
    "400": "The request makes no sense: a wrong or unknown field, no such destination.",
    "401": "Credentials are missing, or do not count.",
    "403": "Access control, or a page of another site asks.",
    "408": "The body did not come in time.",
    "413": "The body is too large.",
    "415": "The body is not sent as application/json.",
    "421": "The host is not known here.",
    "429": "A limit of the gateway's is reached.",
    "500": "A fault; the log says more.",
    "503": "The gateway does not run yet, its store takes nothing, or too many ask.",
    "504": "The gateway did not answer in time.",
}


def document(endpoints: Iterable[Endpoint], name: str, version: str) -> bytes:
    """JSON of the document. Args: name, version: of the gateway."""
    endpoints = tuple(endpoints)
    types: list[Any] = [Problem, Readiness, History]
    for endpoint in endpoints:
        types += [endpoint.request, endpoint.answer]
    schemas, components = msgspec.json.schema_components(types, ref_template=_TEMPLATE)
    of_endpoints = zip(endpoints, schemas[3::2], schemas[4::2], strict=True)
    paths: dict[str, Any] = dict(_fixed(schemas[1], schemas[2]))
    for endpoint, request, answer in of_endpoints:
        paths[endpoint.path] = _path(endpoint, _untagged(request, components), answer)
        if endpoint.request is ListEvents:
            paths[streams.PATH] = {"get": _stream(paths[endpoint.path]["get"])}
    for request in schemas[3::2]:
        components.pop(_name_of(request))
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": f"Tidegate gateway {name}",
                "version": version,
                "description": "What operators see and do: the gateway's operator's contract.",
            },
            "security": [{"token": []}, {"user": []}],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "token": {"type": "http", "scheme": "bearer"},
                    "user": {"type": "http", "scheme": "basic"},
                },
            },
        }
    )


def _untagged(schema: Mapping[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a request without its tag: the path says which it is."""
    found = dict(components[_name_of(schema)])
    fields = found["properties"].items()
    found["properties"] = {k: _with_pattern(v) for k, v in fields if k != "type"}
    found["required"] = [name for name in found.get("required", ()) if name != "type"]
    found["additionalProperties"] = False
    return found


def _with_pattern(field: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document's patterns are ECMA-262: ``^``, ``$`` are Python's ``\\A``, ``\\Z`` there."""
    if "pattern" not in field:
        return field
    return {**field, "pattern": re.sub(r"^\\A(.*)\\Z$", r"^\1$", field["pattern"])}


def _name_of(schema: Mapping[str, Any]) -> str:
    return schema["$ref"].rpartition("/")[2]


def _path(endpoint: Endpoint, request: Mapping[str, Any], answer: Any) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.tag,
        "summary": endpoint.summary,
        "description": endpoint.description,
        "responses": _responses(answer),
    }
    if endpoint.looks:
        operation["parameters"] = [
            {
                "name": name,
                "in": "query",
                "required": name in request["required"],
                "schema": schema,
            }
            for name, schema in request["properties"].items()
        ]
        return {"get": operation}
    operation["requestBody"] = {
        "required": bool(request["required"]),
        "content": {JSON: {"schema": request}},
    }
    return {"post": operation}


def _stream(listed: Mapping[str, Any]) -> dict[str, Any]:
    """The stream for ``list-events``. Args: listed: its operation."""
    last_id = {
        "name": "Last-Event-ID",
        "in": "header",
        "required": False,
        "description": "As `after`, and before it: what a browser sends when it connects again.",
        "schema": {"type": "string", "pattern": "^[0-9]*$"},
    }
    fields = [item for item in listed["parameters"] if item["name"] in streams.FIELDS]
    responses = _responses({})
    responses["200"] = {
        "description": "`id` is the sequence, `data` the EventRow. An event `missed` says how many were, `end` why the"
        " stream ends; a comment comes when there is nothing else.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
    return {
        "operationId": "events",
        "summary": "Events as they come (server-sent events).",
        "parameters": [*fields, last_id],
        "responses": responses,
    }


def _responses(answer: Any, errors: Mapping[str, str] = _ERRORS) -> dict[str, Any]:
    found: dict[str, Any] = {
        "200": {"description": "What was asked for.", "content": {JSON: {"schema": answer}}}
    }
    for status, text in errors.items():
        found[status] = {"description": text, "content": {JSON: {"schema": _PROBLEM}}}
    return found


def _fixed(readiness: Any, history: Any) -> dict[str, Any]:
    live = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}
    ready = {
        "allOf": [readiness],
        "properties": {"status": {"type": "string"}},
        "required": ["status"],
    }
    errors = {key: _ERRORS[key] for key in ("400", "401", "403", "421")}
    return {
        "/health/live": {"get": _health("live", "Whether the process is alive.", live, errors)},
        "/health/ready": {
            "get": _health("ready", "Whether clients are let in and answered.", ready, errors)
        },
        "/metrics": {
            "get": {
                "operationId": "metrics",
                "summary": "Metrics, for Prometheus.",
                "responses": {
                    **_responses({}),
                    "200": {
                        "description": "OpenMetrics, or Prometheus's own format.",
                        "content": {
                            "text/plain": {"schema": {"type": "string"}},
                            "application/openmetrics-text": {"schema": {"type": "string"}},
                        },
                    },
                },
            }
        },
        "/history": {
            "get": {
                "operationId": "history",
                "summary": "How the gateway was: rates, waits, backlog, disk and memory of up to a week.",
                "description": "For whom show-overview is. The shorter the range, the finer the steps.",
                "parameters": [
                    {
                        "name": "range",
                        "in": "query",
                        "required": False,
                        "schema": {"enum": list(RANGES), "default": next(iter(RANGES))},
                    }
                ],
                "responses": _responses(history),
            }
        },
        "/openapi.json": {
            "get": {
                "operationId": "openapi",
                "summary": "This document.",
                "responses": _responses({"type": "object"}),
            }
        },
    }


def _health(
    name: str, summary: str, schema: Mapping[str, Any], errors: Mapping[str, str]
) -> dict[str, Any]:
    responses = _responses(schema, errors)
    responses["503"] = {"description": "It is not.", "content": {JSON: {"schema": schema}}}
    return {"operationId": name, "summary": summary, "responses": responses}
