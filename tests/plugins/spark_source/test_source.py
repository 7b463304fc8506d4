"""The Spark side without Java: options, offsets, and a gateway that comes and goes."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from pyspark_tidegate import Client, DefaultSource, Gone
from pyspark_tidegate._options import Options
from pyspark_tidegate._readers import BatchReader, Part, StreamReader

SCHEMA = pa.schema([("ack_seq", pa.int64()), ("body", pa.binary())])
#: A call of a server that is down fails at once, and is tried again this often.
TRIES = "30"


class _Handshake(fl.ServerAuthHandler):
    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """The headers say everything."""

    def is_valid(self, token: Any) -> str:
        return ""


class _Middleware(fl.ServerMiddleware):
    def __init__(self, header: str, token: str) -> None:
        self.header, self.token = header, token

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": self.token} if self.token else {}


class _Factory(fl.ServerMiddlewareFactory):
    def __init__(self) -> None:
        self.logins = 0
        self.shown = ""

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Middleware:
        header = headers.get("authorization", [""])[0]
        token = ""
        if info.method == fl.FlightMethod.HANDSHAKE:
            self.logins += 1
            self.shown = header.removeprefix("Basic ")
            token = f"Bearer {self.logins}"
        return _Middleware(header, token)


class Server(fl.FlightServerBase):
    """Rows 1 to 100, of which only odd ones may be seen. failures: raised, one for each call."""

    def __init__(self) -> None:
        self.factory = _Factory()
        self.failures: list[Exception] = []
        self.tickets: list[dict[str, Any]] = []
        self.actions: list[tuple[str, dict[str, Any]]] = []
        self.view = {"epoch": "e", "first": 1, "last": 100, "committed": 10, "planned": 60}
        super().__init__(
            "grpc://127.0.0.1:0", auth_handler=_Handshake(), middleware={"m": self.factory}
        )

    def do_get(self, context: Any, ticket: Any) -> Any:
        asked = json.loads(ticket.ticket)
        self.tickets.append(asked)
        return fl.GeneratorStream(SCHEMA, self.rows(asked["after"], asked["through"]))

    def rows(self, after: int, through: int) -> Iterator[Any]:
        numbers = [n for n in range(after + 1, through + 1) if n % 2]
        for begin in range(0, len(numbers), 10):
            if begin and self.failures:
                raise self.failures.pop()
            some = numbers[begin : begin + 10]
            yield pa.record_batch([some, [b"%d" % n for n in some]], schema=SCHEMA)

    def do_action(self, context: Any, action: Any) -> Any:
        if self.failures:
            raise self.failures.pop()
        self.actions.append((action.type, json.loads(action.body.to_pybytes())))
        return [json.dumps({**self.view, "generation": 7}).encode()]

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        return fl.SchemaResult(SCHEMA)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


@pytest.fixture(autouse=True)
def own_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "_made", {})


def options(server: Server, **more: str) -> Options:
    return Options.of({"uri": f"grpc://127.0.0.1:{server.port}", "timeout": TRIES, **more})


def numbers(batches: Iterator[Any]) -> list[int]:
    return [number for batch in batches for number in batch.column("ack_seq").to_pylist()]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "'uri' is required"),
        ({"uri": "x", "urj": "y"}, "no option 'urj'"),
        ({"uri": "x", "rows_per_partition": "0"}, "rows_per_partition"),
        ({"uri": "x", "max_rows_per_batch": "many"}, "max_rows_per_batch = 'many'"),
        ({"uri": "x", "fail_on_data_loss": "perhaps"}, "fail_on_data_loss"),
        ({"uri": "x", "password": "a", "password_file": "b"}, "not both"),
    ],
)
def test_an_option_that_cannot_be_is_named(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        DefaultSource(given)


def test_options_know_no_case_and_show_no_password(tmp_path: Path) -> None:
    made = Options.of({"URI": "x", "From": "5", "Fail_On_Data_Loss": "FALSE", "password": "hush"})
    assert (made.start, made.fail_on_data_loss, made.secret()) == ("5", False, "hush")
    assert "hush" not in repr(made)
    (tmp_path / "secret").write_text("quiet\n")
    assert Options.of({"uri": "x", "password_file": str(tmp_path / "secret")}).secret() == "quiet"


def test_what_has_no_effect_is_refused(server: Server) -> None:
    with pytest.raises(ValueError, match="a stream wants the option 'reader'"):
        StreamReader(options(server))
    with pytest.raises(ValueError, match="from has effect on a batch alone"):
        StreamReader(options(server, reader="etl", **{"from": "5"}))
    with pytest.raises(ValueError, match="max_rows_per_batch has effect on a stream alone"):
        BatchReader(options(server, max_rows_per_batch="5"))


def test_the_schema_is_the_gateways(server: Server) -> None:
    source = DefaultSource({"uri": f"grpc://127.0.0.1:{server.port}"})
    assert source.schema().simpleString() == "struct<ack_seq:bigint,body:binary>"
    assert source.name() == "tidegate"


def test_offsets_of_a_fresh_query_come_from_the_gateway(server: Server) -> None:
    reader = StreamReader(options(server, reader="etl", max_rows_per_batch="50"))
    # In this order: Spark asks for the latest one first.
    latest, initial = reader.latestOffset(), reader.initialOffset()
    assert latest == {"epoch": "e", "ack_seq": 60}
    assert initial == {"epoch": "e", "ack_seq": 10}
    reader.commit(latest)
    assert server.actions == [
        ("open", {"reader": "etl"}),
        ("plan", {"reader": "etl", "generation": 7, "rows_max": 50}),
        ("look", {"reader": "etl"}),
        ("commit", {"reader": "etl", "generation": 7, "epoch": "e", "ack_seq": 60}),
    ]


def test_a_batch_is_split_without_gap_and_an_empty_one_is_nothing(server: Server) -> None:
    reader = StreamReader(options(server, reader="etl", rows_per_partition="20"))
    parts = reader.partitions({"epoch": "e", "ack_seq": 10}, {"epoch": "e", "ack_seq": 65})
    tickets = [part.ticket for part in parts if isinstance(part, Part)]
    assert [(t["after"], t["through"]) for t in tickets] == [(10, 30), (30, 50), (50, 65)]
    assert [n for part in parts for n in numbers(reader.read(part))] == list(range(11, 66, 2))
    same = {"epoch": "e", "ack_seq": 65}
    assert reader.partitions(same, same) == []
    assert list(reader.read(None)) == []


def test_a_checkpoint_of_another_store_or_ahead_of_the_gateway_is_refused(server: Server) -> None:
    reader = StreamReader(options(server, reader="etl"))
    with pytest.raises(Gone, match="another store"):
        reader.partitions({"epoch": "old", "ack_seq": 10}, {"epoch": "e", "ack_seq": 65})
    with pytest.raises(Gone, match="at row 70"):
        reader.partitions({"epoch": "e", "ack_seq": 70}, {"epoch": "e", "ack_seq": 65})


def test_a_read_goes_on_behind_the_last_row_when_the_gateway_was_away(server: Server) -> None:
    server.failures = [fl.FlightUnavailableError("away"), fl.FlightUnavailableError("away")]
    rows = Client.of(options(server)).rows({"epoch": "e", "after": 0, "through": 100})
    assert numbers(rows) == list(range(1, 101, 2))
    assert [ticket["after"] for ticket in server.tickets] == [0, 19, 39]


def test_a_session_that_has_ended_is_begun_anew_once(server: Server) -> None:
    client = Client.of(options(server, user="ann", password="one"))
    client.act("look")
    server.failures = [fl.FlightUnauthenticatedError("ended")]
    client.act("look")
    assert server.factory.logins == 2
    rows = client.rows({"epoch": "e", "after": 0, "through": 100})
    server.failures = [fl.FlightUnauthenticatedError("ended")]
    assert numbers(rows) == list(range(1, 101, 2))
    assert server.factory.logins == 3


def test_a_token_without_a_user_name_is_shown(server: Server) -> None:
    Client.of(options(server, password="ey.ey.x")).act("look")
    assert server.factory.shown == base64.b64encode(b":ey.ey.x").decode()


def test_a_wrong_password_is_not_tried_again_and_again(server: Server) -> None:
    client = Client.of(options(server, user="ann", password="wrong"))
    server.failures = [fl.FlightUnauthenticatedError("not you") for _ in range(10)]
    with pytest.raises(Gone, match="not you"):
        client.act("look")
    assert server.factory.logins == 2


def test_a_refusal_is_told_in_the_gateways_words(server: Server) -> None:
    client = Client.of(options(server))
    for error in (
        fl.FlightServerError("rows 1 to 5 are not in the log any more", b"invalid"),
        fl.FlightUnauthorizedError("no reader 'x' belongs to you", b"denied"),
        fl.FlightUnauthenticatedError("user name and password are required"),
    ):
        server.failures = [error]
        with pytest.raises(Gone) as raised:
            client.act("look")
        assert str(error).partition(". Detail")[0] in str(raised.value)
        assert "gRPC" not in str(raised.value)


def test_a_gateway_that_stays_away_is_given_up(server: Server) -> None:
    client = Client.of(options(server, timeout="0"))
    server.failures = [fl.FlightUnavailableError("away")]
    with pytest.raises(fl.FlightUnavailableError):
        client.act("look")
