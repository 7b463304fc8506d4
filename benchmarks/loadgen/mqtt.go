package main

import "fmt"

type mqttProtocol struct{ options *options }

// connect opens a session and returns how many QoS 1 and 2 messages the broker takes unanswered.
func (m mqttProtocol) connect(link *link, client string, clean bool, keepAlive int) (int, error) {
	login := mqttLogin{client, m.options.user, m.options.pass, m.options.five, clean, keepAlive}
	if err := link.write(mqttConnectPacket(login)); err != nil {
		return 0, err
	}
	body, err := link.mqttAnswer(mqttConnack, false)
	if err != nil {
		return 0, err
	}
	if len(body) < 2 || body[1] != 0 || (len(body) > 2) != m.options.five {
		return 0, fmt.Errorf("CONNECT of client %s refused: CONNACK % x", client, body)
	}
	if !m.options.five {
		return 65_535, nil
	}
	properties, err := mqttProperties(body[2:])
	if err != nil {
		return 0, fmt.Errorf("CONNACK: %w", err)
	}
	return properties.receiveMaximum, nil
}

func (m mqttProtocol) client(role string, number int) string {
	return fmt.Sprintf("load%08x%s%d", uint32(m.options.run), role, number)
}

func (m mqttProtocol) openSender(link *link, producer int, destination string) (sender, error) {
	limit, err := m.connect(link, m.client("p", producer), true, 0)
	if err != nil {
		return nil, err
	}
	body := newBody(m.options.size, producer, m.options.run)
	qos := byte(m.options.qos)
	s := &mqttSender{qos: qos, limit: limit, template: newMqttTemplate(destination, qos<<1, body, m.options.five)}
	s.packet.five = m.options.five
	return s, nil
}

func (m mqttProtocol) openReceiver(link *link, consumer int, destination string) (receiver, error) {
	if _, err := m.connect(link, m.client("c", consumer), m.options.clean, 0); err != nil {
		return nil, err
	}
	if err := link.write(mqttSubscribePacket(destination, byte(m.options.qos), m.options.five)); err != nil {
		return nil, err
	}
	granted, err := link.mqttAnswer(mqttSuback, m.options.five)
	if err != nil {
		return nil, err
	}
	if len(granted) != 1 || int(granted[0]) != m.options.qos {
		return nil, fmt.Errorf("SUBSCRIBE at QoS %d was granted % x (SUBACK)", m.options.qos, granted)
	}
	return &mqttReceiver{packet: mqttPacket{five: m.options.five}}, nil
}

func (mqttProtocol) farewell() []byte { return []byte{mqttDisconnect, 0} }

// forget connects once more with a clean session, which ends a persistent one (section 3.1.2.4).
func (m mqttProtocol) forget(dial func() (*link, error), consumer int) error {
	if m.options.clean {
		return nil
	}
	link, err := dial()
	if err != nil {
		return err
	}
	defer link.close()
	if _, err := m.connect(link, m.client("c", consumer), true, 0); err != nil {
		return err
	}
	return link.write(m.farewell())
}

func unexpectedPacket(p *mqttPacket) error {
	if p.kind == mqttDisconnect && len(p.body) > 0 {
		return fmt.Errorf("the broker ended the connection: DISCONNECT, reason %#x", p.body[0])
	}
	return fmt.Errorf("unexpected packet type %#x", p.kind)
}

type mqttSender struct {
	qos      byte
	limit    int // messages that the broker takes unanswered
	inFlight int
	template *mqttTemplate
	packet   mqttPacket
	pending  [1 << 16]int32 // by packet id: index + 1 of the unconfirmed message, 0 when free
}

func (s *mqttSender) confirms() bool { return s.qos > 0 }

func (s *mqttSender) send(out []byte, index int, now int64) ([]byte, bool) {
	id := uint16(1 + index%65535)
	if s.qos > 0 {
		if s.pending[id] != 0 || s.inFlight >= s.limit {
			return out, false
		}
		s.pending[id] = int32(index + 1)
		s.inFlight++
	}
	return s.template.append(out, id, index, now), true
}

func (s *mqttSender) feed(data, out []byte, confirmed func(int)) (int, []byte, error) {
	at := 0
	for {
		used, err := parseMqtt(data[at:], &s.packet)
		if err != nil || used == 0 {
			return at, out, err
		}
		at += used
		id := s.packet.id
		switch {
		case s.packet.kind != mqttPublish && s.packet.id != 0 && s.packet.refused():
			return at, out, fmt.Errorf("message refused: packet type %#x, reason %#x", s.packet.kind, s.packet.body[0])
		case s.packet.kind == mqttPuback && s.qos == 1, s.packet.kind == mqttPubcomp && s.qos == 2:
			if s.pending[id] == 0 {
				return at, out, fmt.Errorf("packet id %d confirmed, which was not in flight", id)
			}
			confirmed(int(s.pending[id] - 1))
			s.pending[id] = 0
			s.inFlight--
		case s.packet.kind == mqttPubrec && s.qos == 2:
			out = appendReply(out, mqttPubrel, id)
		default:
			return at, out, unexpectedPacket(&s.packet)
		}
	}
}

type mqttReceiver struct {
	packet mqttPacket
	held   [1 << 16]bool // by packet id: received at QoS 2 and not released (section 4.3.3)
	gone   bool
}

func (*mqttReceiver) goodbye() []byte { return []byte{mqttPingreq, 0} }
func (r *mqttReceiver) left() bool    { return r.gone }

func (r *mqttReceiver) feed(data, out []byte, message func([]byte)) (int, []byte, error) {
	at := 0
	for {
		used, err := parseMqtt(data[at:], &r.packet)
		if err != nil || used == 0 {
			return at, out, err
		}
		at += used
		id := r.packet.id
		switch r.packet.kind {
		case mqttPublish:
			switch r.packet.flags & 0x06 {
			case 0x02:
				out = appendReply(out, mqttPuback, id)
			case 0x04:
				out = appendReply(out, mqttPubrec, id)
				if r.held[id] {
					continue // a repeat of one that was handed over
				}
				r.held[id] = true
			}
			message(r.packet.body)
		case mqttPubrel:
			r.held[id] = false
			out = appendReply(out, mqttPubcomp, id)
		case mqttPingresp:
			r.gone = true
		default:
			return at, out, unexpectedPacket(&r.packet)
		}
	}
}
