package main

import (
	"encoding/binary"
	"fmt"
)

// MQTT control packet types (section 2.2.1 of 3.1.1, 2.1.2 of 5.0), as the high four bits of the first byte.
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

// MQTT 5.0 property identifiers (section 2.2.2.2).
const (
	mqttSessionExpiry  = 0x11
	mqttReceiveMaximum = 0x21
)

// From here on a reason code is a failure (MQTT 5.0, section 2.4).
const mqttFailure = 0x80

// An mqttPacket points into the buffer it was parsed from and is valid until the next read. The
// field five, which the caller sets, says that the connection speaks 5.0.
type mqttPacket struct {
	five        bool
	kind, flags byte
	id          uint16 // 0 where the packet has none
	body        []byte // PUBLISH: the payload; CONNACK: the variable header; SUBACK: the codes;
	// others with an id: what follows it
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
	*p = mqttPacket{five: p.five, kind: data[0] & 0xf0, flags: data[0] & 0x0f, body: data[at : at+length]}
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
		return p.skipProperties()
	case mqttPuback, mqttPubrec, mqttPubrel, mqttPubcomp, mqttSuback:
		if len(p.body) < 2 {
			return p.short()
		}
		p.id = binary.BigEndian.Uint16(p.body)
		p.body = p.body[2:]
		if p.kind == mqttSuback {
			return p.skipProperties()
		}
	}
	return nil
}

// skipProperties takes the properties of 5.0 off the front of the body.
func (p *mqttPacket) skipProperties() error {
	if !p.five {
		return nil
	}
	properties, err := mqttProperties(p.body)
	if err != nil {
		return fmt.Errorf("packet type %#x: %w", p.kind, err)
	}
	p.body = p.body[properties.size:]
	return nil
}

// refused tells whether a PUBACK, PUBREC or PUBCOMP of 5.0 says that the message was not taken.
func (p *mqttPacket) refused() bool { return len(p.body) > 0 && p.body[0] >= mqttFailure }

// A propertyBlock is where the properties of 5.0 end, and of them the one that matters here.
type propertyBlock struct {
	size           int // of the block with its length
	receiveMaximum int // 65535 when the broker says nothing (section 3.2.2.3.3)
}

// mqttProperties reads the properties at the start of data (section 2.2.2).
func mqttProperties(data []byte) (propertyBlock, error) {
	block := propertyBlock{receiveMaximum: 65_535}
	length, at, err := variableInteger(data)
	if err != nil || len(data)-at < length {
		return block, fmt.Errorf("properties that are cut short")
	}
	block.size = at + length
	for rest := data[at : at+length]; len(rest) > 0; {
		size, err := propertySize(rest)
		if err != nil {
			return block, err
		}
		if rest[0] == mqttReceiveMaximum {
			block.receiveMaximum = int(binary.BigEndian.Uint16(rest[1:]))
		}
		rest = rest[size:]
	}
	return block, nil
}

// propertySize is how many bytes the property at the start of data takes, its identifier included.
func propertySize(data []byte) (int, error) {
	size := 0
	switch data[0] {
	case 0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2a: // a byte
		size = 2
	case 0x13, 0x21, 0x22, 0x23: // a two byte integer
		size = 3
	case 0x02, 0x11, 0x18, 0x27: // a four byte integer
		size = 5
	case 0x0b: // a variable byte integer
		_, digits, err := variableInteger(data[1:])
		if err != nil {
			return 0, err
		}
		size = 1 + digits
	case 0x03, 0x08, 0x09, 0x12, 0x15, 0x16, 0x1a, 0x1c, 0x1f: // text or binary data
		size = 1
		size += stringSize(data[size:])
	case 0x26: // two texts
		size = 1
		size += stringSize(data[size:])
		if size <= len(data) {
			size += stringSize(data[size:])
		}
	default:
		return 0, fmt.Errorf("property %#x, which there is not", data[0])
	}
	if size > len(data) {
		return 0, fmt.Errorf("property %#x that is cut short", data[0])
	}
	return size, nil
}

// stringSize is the size of a text with its length; one that is cut short is longer than data.
func stringSize(data []byte) int {
	if len(data) < 2 {
		return 2
	}
	return 2 + int(binary.BigEndian.Uint16(data))
}

// variableInteger reads one, and says how many bytes it took (section 1.5.5).
func variableInteger(data []byte) (value, used int, err error) {
	for shift := 0; shift <= 21 && used < len(data); shift += 7 {
		digit := data[used]
		used++
		value |= int(digit&0x7f) << shift
		if digit < 0x80 {
			return value, used, nil
		}
	}
	return 0, used, fmt.Errorf("a variable byte integer that does not end")
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

// An mqttLogin is what a CONNECT says.
type mqttLogin struct {
	client, user, pass string
	five, clean        bool
	keepAlive          int // seconds
}

func mqttConnectPacket(l mqttLogin) []byte {
	body := append(appendString(nil, "MQTT"), 4, 0)
	if l.five {
		body[6] = 5
	}
	if l.clean {
		body[7] |= 0x02
	}
	body = binary.BigEndian.AppendUint16(body, uint16(l.keepAlive))
	switch {
	case l.five && l.clean:
		body = append(body, 0)
	case l.five: // a session that never expires, as one of 3.1.1 (section 3.1.2.11.2)
		body = append(body, 5, mqttSessionExpiry, 0xff, 0xff, 0xff, 0xff)
	}
	body = appendString(body, l.client)
	if l.user != "" {
		body[7] |= 0x80
		body = appendString(body, l.user)
		if l.pass != "" {
			body[7] |= 0x40
			body = appendString(body, l.pass)
		}
	}
	return append(appendRemaining([]byte{mqttConnect}, len(body)), body...)
}

func mqttSubscribePacket(filter string, qos byte, five bool) []byte {
	body := []byte{0, 1}
	if five {
		body = append(body, 0)
	}
	body = append(appendString(body, filter), qos)
	return append(appendRemaining([]byte{mqttSubscribe | 0x02}, len(body)), body...)
}

// An mqttTemplate is one PUBLISH packet whose id and body head are patched per message; its flags are
// those of the first byte (QoS in bits 1 and 2, RETAIN in bit 0).
type mqttTemplate struct {
	packet   []byte
	id, body int // offsets in packet; id is 0 at QoS 0
	size     int
}

func newMqttTemplate(topic string, flags byte, body []byte, five bool) *mqttTemplate {
	qos := flags >> 1
	t := &mqttTemplate{size: len(body)}
	length := 2 + len(topic) + len(body)
	if qos > 0 {
		length += 2
	}
	if five {
		length++
	}
	packet := appendString(appendRemaining([]byte{mqttPublish | flags}, length), topic)
	if qos > 0 {
		t.id = len(packet)
		packet = append(packet, 0, 0)
	}
	if five {
		packet = append(packet, 0) // no properties
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
