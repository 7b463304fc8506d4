"""Keep-alive and PINGREQ (sections 3.1.2.10, 3.12 and 3.13)."""

import time

import pytest
from mqtt_clauses import both, proves
from mqtt_raw import DISCONNECT, PING, V5, disconnect, read_packet


@both("3.12.4-1", "3.12.4-1")
def test_each_pingreq_is_answered_with_pingresp(dial, name, version):
    client = dial(version, connect=name).send(PING, PING, PING)
    assert [client.receive_raw() for _ in range(3)] == [b"\xd0\x00"] * 3


@both("3.1.2-23 3.1.2-24", "3.1.2-20 3.1.2-22 3.2.2-22 3.14.2-1")
def test_a_silent_client_is_disconnected_as_if_the_network_had_failed(dial, name, version):
    observer = dial(connect=f"{name}o")
    observer.subscribe(f"{name}/will")
    patient = dial(version, connect=f"{name}p", keep_alive=0)  # may be silent for ever
    pinging = dial(version, connect=f"{name}s", keep_alive=3)
    silent = dial(version)
    began = time.monotonic()  # the gateway begins to count after this
    silent.connect(name, keep_alive=3, will=(f"{name}/will", b"gone"))
    silent.socket.settimeout(0.4)
    while True:
        assert pinging.is_quiet()
        try:
            last = silent.receive_raw()
        except TimeoutError:
            continue
        break
    if version == V5:
        assert read_packet(last, V5).code == 0x8D
        assert silent.is_closed()
    else:
        assert last == b""
    assert time.monotonic() - began >= 4.45
    assert observer.message().body == b"gone"
    assert pinging.is_quiet()  # connected for longer than the other
    assert patient.is_quiet()


@proves("5.0", "3.1.2-21 3.2.2-21")
def test_the_gateway_counts_by_the_keep_alive_it_told(dial, name, start_gateway):
    gateway = start_gateway(
        '[[listeners]]\nprotocol = "mqtt"\nbind = "127.0.0.1:0"\nkeep_alive_max = "1s"\n'
    )
    client = dial(V5, gateway=gateway)
    assert client.connect(name, keep_alive=1000).props["server_keep_alive"] == 1
    assert client.receive(DISCONNECT).code == 0x8D
    assert client.is_closed()


@proves("5.0", "3.2.2-22")
def test_without_need_there_is_no_server_keep_alive(dial, name):
    assert "server_keep_alive" not in dial(V5).connect(name, keep_alive=100).props


@pytest.mark.parametrize("body", [b"\x00", b"\x00\x01"])
@both("4.8.0-1", "4.13.1-1")
def test_a_pingreq_with_a_body_ends_the_connection(dial, name, version, body):
    client = dial(version, connect=name).send(b"\xc0" + bytes([len(body)]) + body)
    if version == V5:
        assert client.receive(DISCONNECT).code == 0x81
    assert client.is_closed()


# ------------------------------------------------------------------------------------ DISCONNECT


@both("3.14.4-1", "3.14.4-2")
def test_the_gateway_closes_after_disconnect(dial, name, version):
    client = dial(version, connect=name).send(disconnect())
    assert client.is_closed()


@both("3.14.4-2", "3.14.4-1")
def test_what_follows_disconnect_is_not_handled(dial, name, version):
    observer = dial(connect=f"{name}o")
    observer.subscribe(name)
    client = dial(version, connect=name)
    client.send(disconnect()).publish(name, b"x")
    client.publish(name, b"x", qos=1, packet_id=1)
    assert client.is_closed()  # and nothing was answered
    assert observer.is_passed_over(dial(connect=f"{name}p"))
