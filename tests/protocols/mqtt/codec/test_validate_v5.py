"""MQTT 5.0 packets that can be read and still break a rule."""

import mqtt_cases
import mqtt_cases_v5
import mqtt_wrong_v5
import pytest
from mqtt_cases import assert_refused

from tidegate_protocols.mqtt import PacketViolationError, Pingreq, Publish
from tidegate_protocols.mqtt.codec.packets import Auth
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES, Properties
from tidegate_protocols.mqtt.codec.validate_v5 import (
    payload_matches_format,
    validate_publish_from_client,
    validate_sender,
    validate_v5,
)

ON_THE_WIRE = mqtt_cases.params(mqtt_wrong_v5.VIOLATIONS_ON_THE_WIRE)


@pytest.mark.parametrize("case", mqtt_cases.params(mqtt_wrong_v5.VIOLATIONS))
def test_a_violation_is_named_with_its_clause_and_reason(case):
    with pytest.raises(PacketViolationError) as caught:
        validate_v5(case.packet)
    assert caught.value.clause == case.clause
    assert caught.value.wire_code == case.reason


@pytest.mark.parametrize("step", [1, 1000], ids=["byte by byte", "whole"])
@pytest.mark.parametrize("case", ON_THE_WIRE)
def test_a_violation_on_the_wire_is_not_called_malformed(case, step):
    assert_refused(case, step)


@pytest.mark.parametrize("case", ON_THE_WIRE)
def test_a_violation_is_refused_with_others_behind_it(case):
    assert_refused(case, 1000, b"\xc0\x00")


@pytest.mark.parametrize("case", mqtt_cases.params(mqtt_cases_v5.CASES))
def test_every_good_packet_is_valid(case):
    validate_v5(case.packet)


def test_what_has_no_rules_is_valid_whoever_sends_it():
    for from_client in (True, False):
        validate_sender(Pingreq(), from_client=from_client)
        validate_sender(Publish("t", b""), from_client=from_client)
    validate_publish_from_client(Publish("t", b"", properties=Properties(content_type="c")))


@pytest.mark.parametrize(
    ("properties", "body", "is_right"),
    [
        (NO_PROPERTIES, b"\xff", True),
        (Properties(payload_format_indicator=0), b"\xff", True),
        (Properties(payload_format_indicator=1), "€".encode(), True),
        (Properties(payload_format_indicator=1), b"\xff", False),
    ],
)
def test_a_payload_that_is_said_to_be_text_is_text(properties, body, is_right):
    assert payload_matches_format(properties, body) is is_right


def test_auth_may_leave_everything_out_only_when_it_succeeded():
    validate_v5(Auth())
