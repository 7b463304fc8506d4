"""A will is asked about when it is published, as what its client would be by then."""

from __future__ import annotations

from typing import Any

import pytest
from broker_harness import Broker, message
from walls import STORED, Wall, stored

from tidegate.spi import Action, Credentials, Identity, Principal, Verdict


async def test_a_will_is_asked_about_again_when_it_is_published() -> None:
    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        reader = await broker.client()
        reader.subscribe("topic://wills")
        for refuses in (False, True):
            will = message("topic://wills", f"{refuses}")
            client = await stored(broker, will=will, will_delay=10)
            client.connection.disconnect(graceful=False)
            wall.refused = {(Action.PUBLISH, "topic://wills")} if refuses else set()
            broker.core.rights_changed()
            await broker.kill() if refuses else None
            broker.core.wills.publish_due(1 << 60)
            await broker.settle()
            if not refuses:
                assert reader.bodies() == [b"False"]
        assert all(body != b"True" for body in broker.store.pending("topic://wills"))


async def test_a_will_of_before_the_start_is_its_client_s_with_groups_and_address() -> None:
    seen: list[Identity] = []

    class Notes:
        def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
            seen.append(identity)
            return Verdict.ALLOW

    async with Broker(extensions=[Notes()]) as broker:
        await stored(broker, will=message("topic://wills", "w"), will_delay=10)
        await broker.settle()
        before = seen[-1]
        seen.clear()
        await broker.kill()
        broker.core.wills.publish_due(1 << 60)
        assert seen == [before]
        assert before.address == "127.0.0.1"


class Staff(Wall):
    """Who is in its list is in group ``staff``, which alone may publish wills; and it knows so later."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = {*names}
        self.is_gone = False

    async def authenticate(self, credentials: Credentials) -> Principal:
        name = credentials.username or "reader"
        return Principal(name, frozenset({"staff"} if name in self.names else ()))

    def principal_now(self, principal: Principal) -> Principal | None:
        if self.is_gone and principal.name != "reader":
            return None
        groups = frozenset({"staff"} if principal.name in self.names else ())
        return Principal(principal.name, groups)

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        if destination == "topic://wills" and action is Action.PUBLISH:
            return Verdict.ALLOW if "staff" in identity.groups else Verdict.DENY
        return Verdict.ALLOW


@pytest.mark.parametrize("what", ["nothing", "the group", "the user"])
@pytest.mark.parametrize("more", [{}, {**STORED, "will_delay": 10}])
async def test_a_will_is_of_whom_its_client_would_be_by_now(
    what: str, more: dict[str, Any], logged_errors: list[str]
) -> None:
    logged_errors.append("will=lost")
    staff = Staff("ann")
    async with Broker(extensions=[staff]) as broker:
        will = message("topic://wills", "w")
        client = await broker.client("mqtt", "c", username="ann", will=will, **more)
        reader = await broker.client()
        reader.subscribe("topic://wills")
        if more:
            client.connection.disconnect(graceful=False)
        if what == "the group":
            staff.names.clear()
        staff.is_gone = what == "the user"
        broker.core.rights_changed()
        if not more and client.ended is None:
            client.connection.disconnect(graceful=False)
        broker.core.wills.publish_due(1 << 60)
        await broker.settle()
        assert reader.bodies() == ([b"w"] if what == "nothing" else [])


async def test_a_will_of_before_the_start_is_of_the_groups_that_its_client_had_at_last() -> None:
    staff = Staff("ann")
    async with Broker(extensions=[staff]) as broker:
        will = message("topic://wills", "w")
        await stored(broker, username="ann", will=will, will_delay=10)
        staff.names.clear()
        broker.core.rights_changed()
        await broker.settle()
        await broker.kill()
        reader = await broker.client()
        reader.subscribe("topic://wills")
        broker.core.wills.publish_due(1 << 60)
        await broker.settle()
        assert reader.bodies() == []
