"""What client and gateway settle with a CONNECT."""

import pytest

from tidegate.spi import SESSION_NEVER_EXPIRES
from tidegate_protocols.mqtt import Connect, MqttOptions, Properties, ReasonCode, Will
from tidegate_protocols.mqtt._answers import PACKET_BYTES_MAX
from tidegate_protocols.mqtt._reasons import RefusedError
from tidegate_protocols.mqtt.session.connect import (
    Origin,
    answers_to,
    common_name,
    read_connect,
    response_information,
)

NOW_US = 1_000_000_000
ANNOUNCED = Properties(maximum_packet_size=16 << 20, topic_alias_maximum=16)


def settle(properties=None, *, subject="", options=None, **connect):
    """(terms, request) of a CONNECT of MQTT 5.0; *options*: of the listener."""
    connect.setdefault("client_id", "dev")
    connect.setdefault("level", 5)
    packet = Connect(properties=properties or Properties(), **connect)
    origin = Origin("192.0.2.1:5000", "mqtts://gateway:8883", subject, anonymous_allowed=False)
    return read_connect(packet, MqttOptions(**(options or {})), origin, NOW_US)


def refusal(**values):
    with pytest.raises(RefusedError) as caught:
        settle(**values)
    return caught.value.reason


def changes(terms, **left_out):
    """What the CONNACK says beyond the listener's own limits."""
    found = {
        name: value
        for name in Properties.__struct_fields__
        if (value := getattr(terms.changes, name)) not in (None, ())
    }
    for name in ("maximum_packet_size", "topic_alias_maximum"):
        found.pop(name, None)
    return found


def test_a_connect_that_asks_for_nothing_is_told_the_limits():
    terms, request = settle()
    assert terms.changes == ANNOUNCED
    assert (terms.window, terms.topic_alias_max) == (1000, 0)
    assert terms.authentication_method is None
    assert (request.version, request.protocol, request.client_id) == ("5.0", "mqtt", "dev")
    assert (request.session_expiry, request.clean_start) == (0, True)
    assert request.tls_subject == ""


def test_before_5_0_nothing_is_told():
    terms, _ = settle(level=4)
    assert terms.changes == Properties()


def test_the_listeners_own_limits_are_told_when_they_differ_from_the_default():
    options = {"receive_maximum": 20, "packet_bytes_max": 4096, "topic_alias_max": 0}
    terms, _ = settle(options=options)
    assert terms.changes == Properties(receive_maximum=20, maximum_packet_size=4096)


# --------------------------------------------------------------------------------- the session


@pytest.mark.parametrize(
    ("asked", "longest", "expiry", "told"),
    [
        (None, 0.0, 0, None),
        (60, 0.0, 60, None),
        (SESSION_NEVER_EXPIRES, 0.0, SESSION_NEVER_EXPIRES, None),
        (60, 3600.0, 60, None),
        (7200, 3600.0, 3600, 3600),
        (SESSION_NEVER_EXPIRES, 3600.0, 3600, 3600),
    ],
)
def test_a_session_is_kept_as_long_as_asked_but_not_longer_than_allowed(
    asked, longest, expiry, told
):
    terms, request = settle(
        Properties(session_expiry_interval=asked), options={"session_expiry": longest}
    )
    assert terms.session_expiry == request.session_expiry == expiry
    assert changes(terms) == ({"session_expiry_interval": told} if told else {})


def test_in_5_0_clean_start_says_nothing_of_the_end():
    terms, request = settle(Properties(session_expiry_interval=60), clean_session=True)
    assert (request.clean_start, request.session_expiry, terms.is_clean) == (True, 60, True)


@pytest.mark.parametrize("clean", [True, False])
def test_a_client_without_an_id_is_told_its_own(clean):
    terms, request = settle(client_id="", clean_session=clean)  # 5.0:MQTT-3.2.2-16
    assert request.client_id.startswith("auto-")
    assert changes(terms) == {"assigned_client_identifier": request.client_id}


# -------------------------------------------------------------------------- what the client takes


@pytest.mark.parametrize(("asked", "window"), [(None, 1000), (10, 10), (65_535, 1000)])
def test_the_window_is_the_smaller_of_two(asked, window):
    terms, request = settle(Properties(receive_maximum=asked))
    assert terms.window == request.prefetch_count == window


@pytest.mark.parametrize(("asked", "most"), [(None, 0), (3, 3), (300, 20)])
def test_aliases_are_as_many_as_both_allow(asked, most):
    terms, _ = settle(Properties(topic_alias_maximum=asked), options={"topic_alias_max_out": 20})
    assert terms.topic_alias_max == most


@pytest.mark.parametrize(
    ("properties", "packet_bytes", "with_problems"),
    [
        (Properties(), PACKET_BYTES_MAX, True),
        (Properties(maximum_packet_size=100, request_problem_information=0), 100, False),
        (Properties(request_problem_information=1), PACKET_BYTES_MAX, True),
    ],
)
def test_a_client_is_answered_as_it_can_be(properties, packet_bytes, with_problems):
    answers = answers_to(Connect(client_id="dev", level=5, properties=properties))
    assert (answers.level, answers.packet_bytes_max) == (5, packet_bytes)
    assert answers.with_problems is with_problems


@pytest.mark.parametrize(
    ("asked", "prefix", "told"),
    [(1, "answers", True), (1, "", False), (0, "answers", False), (None, "answers", False)],
)
def test_response_information_is_given_to_those_who_ask(asked, prefix, told):
    terms, _ = settle(
        Properties(request_response_information=asked), options={"response_topic_prefix": prefix}
    )
    assert bool(terms.response_prefix) is told
    if told:
        assert response_information(terms, "ann") == "answers/ann/dev"
        assert response_information(terms, "a/b+#%") == "answers/a%2Fb%2B%23%25/dev"


def test_response_information_can_be_a_topic_name_whatever_the_client_id():
    terms, _ = settle(
        Properties(request_response_information=1),
        client_id="a/b+#%",
        options={"response_topic_prefix": "answers"},
    )
    assert response_information(terms, "ann") == "answers/ann/a/b%2B%23%25"


# ----------------------------------------------------------------------------------- keep-alive


@pytest.mark.parametrize(
    ("asked", "options", "keep_alive", "told"),
    [
        (60, {}, 60, None),
        (0, {}, 0, None),
        (60, {"keep_alive_max": 60.0}, 60, None),
        (61, {"keep_alive_max": 60.0}, 60, 60),
        (0, {"keep_alive_max": 60.0}, 60, 60),
        (0, {"keep_alive_default": 30.0}, 30, 30),
        (60, {"keep_alive_default": 30.0}, 60, None),
    ],
)
def test_a_client_is_told_a_keep_alive_that_it_did_not_ask_for(asked, options, keep_alive, told):
    terms, _ = settle(keep_alive=asked, options=options)
    assert terms.keep_alive == keep_alive
    assert terms.changes.server_keep_alive == told  # 5.0:MQTT-3.1.2-21


# ----------------------------------------------------------------------------------------- wills


def test_a_will_has_its_properties_and_its_delay():
    properties = Properties(
        will_delay_interval=30,
        message_expiry_interval=10,
        content_type="text/plain",
        response_topic="a/b",
        correlation_data=b"c",
        payload_format_indicator=1,
        user_properties=(("k", "v"),),
    )
    _, request = settle(will=Will("gone/dev", b"bye", 1, True, properties))
    will = request.will
    assert will is not None
    assert request.will_delay == 30
    assert (will.destination, will.body, will.qos, will.retain) == (
        "topic://gone.dev",
        b"bye",
        1,
        1,
    )
    assert will.expires_at - will.received_at == 10_000_000
    assert (will.content_type, will.reply_to) == ("text/plain", "topic://a.b")
    assert (will.correlation_data, will.payload_format) == (b"c", 1)
    assert will.headers == (("k", "v"),)
    assert (will.protocol, will.client_id) == ("mqtt", "dev")


def test_a_will_to_a_queue_is_not_retained():
    _, request = settle(will=Will("$queue/q", b"bye", 1, True))
    assert request.will is not None
    assert (request.will.destination, request.will.retain) == ("queue://q", False)


@pytest.mark.parametrize(("topic", "reason"), [("$SYS/x", 0x87), ("$queue/", 0x90)])
def test_a_will_that_could_not_be_published_is_refused(topic, reason):
    assert refusal(will=Will(topic, b"")) == reason


@pytest.mark.parametrize("is_checked", [True, False])
def test_the_payload_of_a_will_is_checked_as_any_other(is_checked):
    will = Will("a", b"\xff", properties=Properties(payload_format_indicator=1))
    options = {"payload_format_check": is_checked}
    if is_checked:
        assert refusal(will=will, options=options) == 0x99
    else:
        _, request = settle(will=will, options=options)
        assert request.will is not None
        assert request.will.body == b"\xff"


# --------------------------------------------------------------------------------- redirection


@pytest.mark.parametrize(("redirect", "reason"), [("use_another", 0x9C), ("moved", 0x9D)])
def test_a_listener_can_send_everybody_elsewhere(redirect, reason):
    options = {"server_redirect": redirect, "server_reference": "other:1883"}
    assert refusal(options=options) == reason


# -------------------------------------------------------------------------------- certificates

FROM_CERTIFICATE = {"client_id_from_certificate": True}


@pytest.mark.parametrize("asked", ["", "somebody-else"])
def test_the_client_id_can_be_the_certificates(asked):
    _, request = settle(client_id=asked, subject="CN=dev-7,O=Acme", options=FROM_CERTIFICATE)
    assert request.client_id == "dev-7"
    assert request.tls_subject == "CN=dev-7,O=Acme"


@pytest.mark.parametrize("subject", ["", "O=Acme"])
def test_without_a_common_name_there_is_no_client_id(subject):
    reason = refusal(client_id="dev", subject=subject, options=FROM_CERTIFICATE)
    assert reason is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


def test_a_common_name_is_limited_as_any_client_id():
    options = FROM_CERTIFICATE | {"client_id_bytes_max": 23}
    assert refusal(subject="CN=" + "x" * 24, options=options) == 0x85


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=a", "a"),
        ("O=Acme,CN=a,CN=b", "a"),
        ("O=CN\\=x\\,y,cn=a", "a"),
        ("SERIALNUMBER=1+CN=a b", "a b"),
        ("CN=a\\,b\\+c\\\\", "a,b+c\\"),
        ("CN=\\C3\\BCber", "über"),
        ("CN=\\ff", "\N{REPLACEMENT CHARACTER}"),
        ("CN=x\\", "x\\"),
        ("CN=", ""),
        ("", ""),
    ],
)
def test_a_common_name_is_read_as_rfc_4514_writes_it(subject, name):
    assert common_name(subject) == name
