"""A plugin's object that lacks a member, or has it wrongly, is refused at start and named."""

from __future__ import annotations

import inspect

import pytest

from tidegate.members import problem_of, product_of
from tidegate.spi import (
    AcknowledgedLog,
    CursorFactory,
    ExtensionFactory,
    FrontEndFactory,
    LargeWriter,
    MessageStore,
    MessageStoreFactory,
    PendingCursor,
    Service,
    SinkFactory,
    StoreCapabilities,
)
from tidegate.testing.memory_store import MemoryStore


class Minimal:
    capabilities = StoreCapabilities(durable=False)

    async def open(self): ...
    async def write(self, batch): ...
    async def page_in(self, pending_list, after, limit, bytes_max): ...
    def statistics(self): ...
    async def close(self): ...


EXTENSION = product_of(ExtensionFactory)


def test_what_a_factory_makes_is_read_from_its_protocol() -> None:
    assert product_of(MessageStoreFactory) == (MessageStore,)
    assert product_of(CursorFactory) == (PendingCursor,)
    assert [kind.__name__ for kind in EXTENSION] == [
        "Authenticator",
        "EnhancedAuthenticator",
        "Authorizer",
        "Auditor",
        "Interceptor",
        "Observer",
        "Resident",
    ]
    assert product_of(FrontEndFactory)[0].__name__ == "FrontEnd"
    assert product_of(SinkFactory)[0].__name__ == "Sink"


def test_a_minimal_store_and_the_reference_are_whole() -> None:
    assert problem_of(Minimal(), (MessageStore,)) == ""
    for protocol in (MessageStore, AcknowledgedLog):
        whole = {name for name, _ in inspect.getmembers(protocol) if not name.startswith("_")}
        assert whole <= set(dir(MemoryStore))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"page_in": None}, "a `page_in` that cannot be called: None"),
        ({"write": lambda self, batch: None}, "a `write` that must be async def"),
        ({"statistics": Minimal.close}, "a `statistics` that must be def and not async"),
        ({"write": Minimal.close}, "a `write` that cannot be called with (batch)"),
        ({"write": Minimal.page_in}, "a `write` that cannot be called with (batch)"),
        ({"capabilities": True}, "a `capabilities` that is True, not StoreCapabilities"),
        (
            {"capabilities": StoreCapabilities(True, acknowledged_log=object())},  # type: ignore[arg-type]
            "in its `capabilities.acknowledged_log` no `acknowledged`",
        ),
        (
            {"capabilities": property(lambda self: 1 / 0)},
            "a `capabilities` that cannot be read: ZeroDivisionError",
        ),
    ],
)
def test_a_member_that_is_not_as_declared_is_told(changes: dict[str, object], problem: str) -> None:
    made = type("Changed", (Minimal,), changes)()
    assert problem_of(made, (MessageStore,)).startswith(problem)


def test_a_missing_member_is_told_and_a_near_name_with_it() -> None:
    class Misspelt:
        capabilities = StoreCapabilities(durable=False)
        open, write, page_inn = Minimal.open, Minimal.write, Minimal.page_in
        statistics, close = Minimal.statistics, Minimal.close

    class OnlyTwo:
        open, write = Minimal.open, Minimal.write

    assert problem_of(Misspelt(), (MessageStore,)) == (
        "a method `page_inn`: did you mean `page_in`?"
    )
    assert problem_of(OnlyTwo(), (MessageStore,)) == "no `capabilities` (MessageStore)"


def test_an_extension_is_held_to_what_it_implements() -> None:
    class Authorizes:
        def authorize(self, principal, action, destination):
            return True

    class Misspelt(Authorizes):
        def authorise(self, principal, action, destination):
            return False

    class OnlyMisspelt:
        authorise = Misspelt.authorise

        async def authenticate(self, credentials):
            return "me"

    class Nothing:
        def hello(self): ...

    class OnlyRuns:
        async def start(self, changed): ...
        async def stop(self): ...

    class Runs(Authorizes, OnlyRuns): ...

    class NeverStops(Authorizes):
        start = OnlyRuns.start

    class NearlyRuns(Authorizes):
        stops, start = OnlyRuns.stop, OnlyRuns.start

    assert problem_of(Runs(), EXTENSION, (Service,)) == ""
    assert problem_of(OnlyRuns(), EXTENSION, (Service,)).startswith("none of the methods")
    assert problem_of(NeverStops(), EXTENSION, (Service,)) == "no `stop` (Service)"
    assert "did you mean `stop`?" in problem_of(NearlyRuns(), EXTENSION, (Service,))

    class Half:
        methods = ("SCRAM",)

    assert problem_of(Authorizes(), EXTENSION) == ""
    assert problem_of(OnlyMisspelt(), EXTENSION) == (
        "a method `authorise`: did you mean `authorize`?"
    )
    assert problem_of(Misspelt(), EXTENSION) == ""  # a method of its own beside the right one
    assert problem_of(Nothing(), EXTENSION).startswith("none of the methods")
    assert problem_of(Half(), EXTENSION) == "no `begin` (EnhancedAuthenticator)"


def test_arguments_of_any_number_and_by_name_are_tried() -> None:
    class Writer:
        async def write(self, *pieces): ...
        async def finish(self, piece=b""): ...
        def abandon(self): ...

    problem = problem_of(Writer(), (LargeWriter,))
    assert problem.startswith("a `finish` that cannot be called with (pieces)")
