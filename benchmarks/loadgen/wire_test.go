package main

import (
	"bytes"
	"testing"
)

// Every frame must parse the same whole, with more behind it, and must ask for more at each cut.
func TestStompFramesParseWholeAndAskForMoreAtEveryCut(t *testing.T) {
	for _, c := range []struct {
		name, wire, command, ack, receipt, body string
	}{
		{"receipt", "RECEIPT\nreceipt-id:0000000042\n\n\x00", "RECEIPT", "", "0000000042", ""},
		{"body with NUL", "MESSAGE\nack:a\\c1\ncontent-length:3\n\na\x00b\x00", "MESSAGE", "a\\c1", "", "a\x00b"},
		{"no content-length", "MESSAGE\r\nack:7\r\n\r\nabc\x00", "MESSAGE", "7", "", "abc"},
		{"repeated header", "MESSAGE\nack:first\nack:second\n\n\x00", "MESSAGE", "first", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var f stompFrame
			used, err := parseStomp([]byte(c.wire+"\nRECEIPT\n"), &f)
			if err != nil || used != len(c.wire) {
				t.Fatalf("used %d of %d, %v", used, len(c.wire), err)
			}
			got := [4]string{string(f.command), string(f.ack), string(f.receiptID), string(f.body)}
			if got != [4]string{c.command, c.ack, c.receipt, c.body} {
				t.Errorf("parsed %q", got)
			}
			for cut := range len(c.wire) {
				if used, err := parseStomp([]byte(c.wire[:cut]), &f); used != 0 || err != nil {
					t.Errorf("cut at %d: used %d, %v", cut, used, err)
				}
			}
		})
	}
}

func TestStompRefusesABodyWithoutItsNul(t *testing.T) {
	var f stompFrame
	if _, err := parseStomp([]byte("MESSAGE\ncontent-length:2\n\nabc"), &f); err == nil {
		t.Error("accepted")
	}
}

func TestMqttPacketsParseWholeAndAskForMoreAtEveryCut(t *testing.T) {
	long := bytes.Repeat([]byte{'x'}, 200) // a remaining length of two bytes
	for _, c := range []struct {
		name string
		wire []byte
		kind byte
		id   uint16
		body []byte
	}{
		{"PUBACK", []byte{0x40, 2, 0x12, 0x34}, mqttPuback, 0x1234, []byte{}},
		{"PUBLISH QoS 1", newMqttTemplate("a/b", 1<<1, long, false).append(nil, 9, 0, 0), mqttPublish, 9, nil},
		{"PUBLISH QoS 0", []byte{0x30, 5, 0, 1, 'a', 'h', 'i'}, mqttPublish, 0, []byte("hi")},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p mqttPacket
			used, err := parseMqtt(append(c.wire[:len(c.wire):len(c.wire)], 0xd0), &p)
			if err != nil || used != len(c.wire) || p.kind != c.kind || p.id != c.id {
				t.Fatalf("used %d of %d, kind %#x, id %d, %v", used, len(c.wire), p.kind, p.id, err)
			}
			if c.body != nil && !bytes.Equal(p.body, c.body) {
				t.Errorf("body %q", p.body)
			}
			for cut := range len(c.wire) {
				if used, err := parseMqtt(c.wire[:cut], &p); used != 0 || err != nil {
					t.Errorf("cut at %d: used %d, %v", cut, used, err)
				}
			}
		})
	}
}

func TestMqttRefusesALengthOfFiveBytes(t *testing.T) {
	var p mqttPacket
	if _, err := parseMqtt([]byte{0x30, 0xff, 0xff, 0xff, 0xff, 1}, &p); err == nil {
		t.Error("accepted")
	}
}

func TestMqtt5PacketsParseWholeAndAskForMoreAtEveryCut(t *testing.T) {
	properties := []byte{
		0x1c,             // 28 bytes of them
		0x21, 0x00, 0x14, // Receive Maximum 20
		0x26, 0, 1, 'k', 0, 2, 'v', 'v', // User Property k: vv
		0x12, 0, 3, 'i', 'd', '1', // Assigned Client Identifier
		0x0b, 0x80, 0x01, // Subscription Identifier 128
		0x11, 0, 0, 0, 9, // Session Expiry Interval
		0x01, 0, // Payload Format Indicator
		0x24, // Maximum QoS, whose byte follows
	}
	properties[0]++ // ... and that byte
	properties = append(properties, 1)
	block, err := mqttProperties(properties)
	if err != nil || block.size != len(properties) || block.receiveMaximum != 20 {
		t.Fatalf("%+v, %v", block, err)
	}
	publish := append([]byte{0x32, byte(5 + len(properties) + 2), 0, 1, 'a', 0, 9}, append(properties, "hi"...)...)
	for _, c := range []struct {
		name string
		wire []byte
		kind byte
		id   uint16
		body string
	}{
		{"PUBLISH", publish, mqttPublish, 9, "hi"},
		{"PUBLISH as we make it", newMqttTemplate("a", 2<<1|1, make([]byte, 32), true).append(nil, 7, 0, 0), mqttPublish, 7, ""},
		{"PUBACK without reason", []byte{0x40, 2, 0, 9}, mqttPuback, 9, ""},
		{"PUBACK with reason", []byte{0x40, 3, 0, 9, 0x97}, mqttPuback, 9, "\x97"},
		{"SUBACK", []byte{0x90, 4, 0, 1, 0, 2}, mqttSuback, 1, "\x02"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := mqttPacket{five: true}
			used, err := parseMqtt(append(c.wire[:len(c.wire):len(c.wire)], 0xd0), &p)
			if err != nil || used != len(c.wire) || p.kind != c.kind || p.id != c.id {
				t.Fatalf("used %d of %d, kind %#x, id %d, %v", used, len(c.wire), p.kind, p.id, err)
			}
			if c.body != "" && string(p.body) != c.body {
				t.Errorf("body %q", p.body)
			}
			if p.kind == mqttPuback && p.refused() != (c.body != "") {
				t.Errorf("refused %v", p.refused())
			}
			for cut := range len(c.wire) {
				if used, err := parseMqtt(c.wire[:cut], &p); used != 0 || err != nil {
					t.Errorf("cut at %d: used %d, %v", cut, used, err)
				}
			}
		})
	}
}

func TestMqtt5PropertiesThatAreCutShortAreRefused(t *testing.T) {
	for _, wire := range [][]byte{
		{}, {0x80}, {2, 0x21}, {2, 0x21, 0}, {3, 0x26, 0, 1}, {3, 0x1f, 0, 9}, {1, 0x99}, {2, 0x0b, 0x80},
		{0xff, 0xff, 0xff, 0xff, 1},
	} {
		if block, err := mqttProperties(wire); err == nil {
			t.Errorf("% x accepted: %+v", wire, block)
		}
	}
}

func TestMqttConnectSaysItsVersionAndHowLongTheSessionIsKept(t *testing.T) {
	for _, c := range []struct {
		login mqttLogin
		wire  string
	}{
		{mqttLogin{client: "c", clean: true, keepAlive: 10}, "\x10\x0d\x00\x04MQTT\x04\x02\x00\x0a\x00\x01c"},
		{mqttLogin{client: "c", clean: true, five: true}, "\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01c"},
		{mqttLogin{client: "c", five: true}, "\x10\x13\x00\x04MQTT\x05\x00\x00\x00\x05\x11\xff\xff\xff\xff\x00\x01c"},
	} {
		if got := string(mqttConnectPacket(c.login)); got != c.wire {
			t.Errorf("%+v: %q", c.login, got)
		}
	}
}
