package main

import (
	"encoding/binary"
	"fmt"
)

// MQTT 3.1.1 control packet types (section 2.2.1), as the high four bits of the first byte.
const (
	mqttConnect    = 0x10
	mqttConnack    = 0x20
	mqttPublish    = 0x30
	mqttPuback     = 0x40
	mqttPubrec     = 0x50
	mqttPubrel     = 0x60
	mqttPubcomp    = 0x70
	mqttSubscribe  = 0x80
	mqttSuback     = 0x90
	mqttPingreq    = 0xc0
	mqttPingresp   = 0xd0
	mqttDisconnect = 0xe0
)

// An mqttPacket points into the buffer it was parsed from and is valid until the next read.
type mqttPacket struct {
	kind, flags byte
	id          uint16 // 0 where the packet has none
	body        []byte // PUBLISH: the payload; CONNACK, SUBACK: the variable header and payload
}

// parseMqtt parses one packet at the start of data. It returns the bytes used; 0 means that the
// packet is not complete yet.
func parseMqtt(data []byte, p *mqttPacket) (int, error) {
	length, at := 0, 1
	for shift := 0; ; shift += 7 {
		if at >= len(data) {
			return 0, nil
		}
		if shift > 21 {
			return 0, fmt.Errorf("remaining length of more than four bytes")
		}
		digit := data[at]
		at++
		length |= int(digit&0x7f) << shift
		if digit < 0x80 {
			break
		}
	}
	if len(data)-at < length {
		return 0, nil
	}
	*p = mqttPacket{kind: data[0] & 0xf0, flags: data[0] & 0x0f, body: data[at : at+length]}
	return at + length, p.split()
}

func (p *mqttPacket) split() error {
	switch p.kind {
	case mqttPublish:
		if len(p.body) < 2 {
			return p.short()
		}
		at := 2 + int(binary.BigEndian.Uint16(p.body))
		if p.flags&0x06 != 0 {
			if len(p.body) < at+2 {
				return p.short()
			}
			p.id = binary.BigEndian.Uint16(p.body[at:])
			at += 2
		}
		if len(p.body) < at {
			return p.short()
		}
		p.body = p.body[at:]
	case mqttPuback, mqttPubrec, mqttPubrel, mqttPubcomp, mqttSuback:
		if len(p.body) < 2 {
			return p.short()
		}
		p.id = binary.BigEndian.Uint16(p.body)
		p.body = p.body[2:]
	}
	return nil
}

func (p *mqttPacket) short() error {
	return fmt.Errorf("packet type %#x: %d bytes are too few", p.kind, len(p.body))
}

func appendRemaining(out []byte, length int) []byte {
	for length >= 0x80 {
		out = append(out, byte(length)|0x80)
		length >>= 7
	}
	return append(out, byte(length))
}

func appendString(out []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint16(out, uint16(len(text))), text...)
}

// appendReply appends PUBACK, PUBREC, PUBREL or PUBCOMP (sections 3.4 to 3.7).
func appendReply(out []byte, kind byte, id uint16) []byte {
	if kind == mqttPubrel {
		kind |= 0x02
	}
	return append(out, kind, 2, byte(id>>8), byte(id))
}

func mqttConnectPacket(client, user, pass string, clean bool, keepAlive int) []byte {
	body := append(appendString(nil, "MQTT"), 4, 0)
	if clean {
		body[7] |= 0x02
	}
	body = binary.BigEndian.AppendUint16(body, uint16(keepAlive))
	body = appendString(body, client)
	if user != "" {
		body[7] |= 0x80
		body = appendString(body, user)
		if pass != "" {
			body[7] |= 0x40
			body = appendString(body, pass)
		}
	}
	return append(appendRemaining([]byte{mqttConnect}, len(body)), body...)
}

func mqttSubscribePacket(filter string, qos byte) []byte {
	body := append(appendString([]byte{0, 1}, filter), qos)
	return append(appendRemaining([]byte{mqttSubscribe | 0x02}, len(body)), body...)
}

// An mqttTemplate is one PUBLISH packet whose id and body head are patched per message.
type mqttTemplate struct {
	packet   []byte
	id, body int // offsets in packet; id is 0 at QoS 0
	size     int
}

func newMqttTemplate(topic string, qos byte, body []byte) *mqttTemplate {
	t := &mqttTemplate{size: len(body)}
	length := 2 + len(topic) + len(body)
	if qos > 0 {
		length += 2
	}
	packet := appendString(appendRemaining([]byte{mqttPublish | qos<<1}, length), topic)
	if qos > 0 {
		t.id = len(packet)
		packet = append(packet, 0, 0)
	}
	t.body = len(packet)
	t.packet = append(packet, body...)
	return t
}

func (t *mqttTemplate) append(out []byte, id uint16, index int, now int64) []byte {
	start := len(out)
	out = append(out, t.packet...)
	if t.id > 0 {
		binary.BigEndian.PutUint16(out[start+t.id:], id)
	}
	stampBody(out[start+t.body:start+t.body+t.size], index, now)
	return out
}
