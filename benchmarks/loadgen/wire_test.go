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
		{"PUBLISH QoS 1", newMqttTemplate("a/b", 1, long).append(nil, 9, 0, 0), mqttPublish, 9, nil},
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
