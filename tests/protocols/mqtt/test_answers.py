"""What the gateway says to one client, in its version and within its limits."""

import pytest

from tidegate.spi import FrameTooLargeError
from tidegate_protocols.mqtt import (
    Auth,
    Codec,
    Connack,
    Disconnect,
    Properties,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Unsuback,
)
from tidegate_protocols.mqtt._answers import REASON_STRING_LENGTH_MAX, Answers

QUOTA = ReasonCode.QUOTA_EXCEEDED
NOT_FOUND = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND


def read(data, level=5):
    codec = Codec(1 << 20, level)
    codec.receive_data(data)
    (packet,) = codec.events()
    return packet


def why(text):
    return Properties(reason_string=text)


@pytest.mark.parametrize("with_problems", [True, False])
def test_reasons_are_told_with_and_without_words(with_problems):
    answers = Answers(5, with_problems=with_problems)
    properties = why("full") if with_problems else Properties()
    assert read(answers.puback(7, QUOTA, "full")) == Puback(7, QUOTA, properties)
    assert read(answers.pubrec(7, QUOTA, "full")) == Pubrec(7, QUOTA, properties)
    assert read(answers.suback(7, (1, 0x97), "full")) == Suback(7, (1, 0x97), properties)
    # These two have their words in any case [5.0:MQTT-3.1.2-29].
    assert read(answers.disconnect(QUOTA, "full")) == Disconnect(QUOTA, why("full"))
    refusal = Connack(
        False, ReasonCode.SERVER_MOVED, Properties(reason_string="gone", server_reference="b:1")
    )
    assert read(answers.refusal(ReasonCode.SERVER_MOVED, "gone", "b:1")) == refusal


def test_words_are_left_out_when_the_packet_would_be_too_large():
    answers = Answers(5, 10)
    assert read(answers.puback(7, QUOTA, "much too long")) == Puback(7, QUOTA)
    assert read(answers.pubrec(7, QUOTA, "much too long")) == Pubrec(7, QUOTA)
    assert read(answers.disconnect(QUOTA, "much too long")) == Disconnect(QUOTA)
    assert read(answers.refusal(QUOTA, "much too long")) == Connack(False, QUOTA)


def test_what_is_too_large_without_words_is_not_sent():
    answers = Answers(5, 8)
    assert Answers(5, 4).refusal(QUOTA, "x") == b""
    assert Answers(5, 2).disconnect(QUOTA, "x") == b""
    for make in (
        lambda: answers.connack(False, Properties(server_keep_alive=60, receive_maximum=1)),
        lambda: answers.suback(1, [0] * 10),
        lambda: answers.unsuback(1, [0] * 10),
        lambda: answers.auth(ReasonCode.CONTINUE_AUTHENTICATION, "PUZZLE", b"x"),
    ):
        with pytest.raises(FrameTooLargeError) as caught:
            make()
        assert caught.value.wire_code == ReasonCode.PACKET_TOO_LARGE


def test_before_5_0_there_are_few_words():
    answers = Answers(4)
    assert answers.disconnect(QUOTA, "full") == b""
    assert read(answers.refusal(ReasonCode.SERVER_UNAVAILABLE, "x"), 4) == Connack(False, 3)
    assert read(answers.refusal(QUOTA, "x"), 4) == Connack(False, 3)  # the nearest there is
    no_code = answers.refusal(ReasonCode.PROTOCOL_ERROR, "x")
    assert no_code == b""  # [MQTT-3.2.2-6]
    assert read(answers.suback(7, (2, 0x97, 0x8F)), 4) == Suback(7, (2, 0x80, 0x80))
    assert read(answers.unsuback(7, (0, 0x11)), 4) == Unsuback(7)
    assert read(answers.connack(True), 4) == Connack(True, 0)


@pytest.mark.parametrize("level", [4, 5])
def test_an_unknown_packet_id_has_a_reason_in_5_0(level):
    answers = Answers(level)
    reason = NOT_FOUND if level == 5 else ReasonCode.SUCCESS
    assert read(answers.pubrel(7, is_known=False), level) == Pubrel(7, reason)
    assert read(answers.pubcomp(7, is_known=False), level) == Pubcomp(7, reason)
    assert read(answers.pubrel(7, is_known=True), level) == Pubrel(7)
    assert read(answers.pubcomp(7, is_known=True), level) == Pubcomp(7)


def test_an_unsuback_has_one_reason_for_each_filter():
    assert read(Answers(5).unsuback(7, (0, 0x11))) == Unsuback(7, (0, 0x11))


def test_an_auth_names_its_method():
    data = Answers(5).auth(ReasonCode.CONTINUE_AUTHENTICATION, "PUZZLE", b"who")
    wanted = Properties(authentication_method="PUZZLE", authentication_data=b"who")
    assert read(data) == Auth(ReasonCode.CONTINUE_AUTHENTICATION, wanted)


def test_any_text_can_be_a_reason():
    packet = read(Answers(5).disconnect(QUOTA, "\0\ud800" + "x" * 70_000))
    assert isinstance(packet, Disconnect)
    text = packet.properties.reason_string
    assert text is not None
    assert text.startswith("\N{REPLACEMENT CHARACTER}?xx")
    assert len(text) == REASON_STRING_LENGTH_MAX
