package main

import "fmt"

// A sender is the protocol's side of a producer; it does no I/O of its own.
type sender interface {
	// send appends one message. It returns false, and appends nothing, when no packet id is free.
	send(out []byte, index int, now int64) ([]byte, bool)
	// feed consumes whole frames of what the broker sent, reports the indexes that it confirmed and
	// appends the replies that the protocol asks for.
	feed(data, out []byte, confirmed func(index int)) (used int, reply []byte, err error)
	// confirms tells whether the broker answers each message at all (MQTT QoS 0 does not).
	confirms() bool
}

// A receiver is the protocol's side of a consumer; it does no I/O of its own.
type receiver interface {
	// feed consumes whole frames, hands over each message's body and appends the acknowledgements.
	feed(data, out []byte, message func(body []byte)) (used int, reply []byte, err error)
	// goodbye asks for an answer that follows everything sent before; left reports that it came.
	goodbye() []byte
	left() bool
}

// A protocol opens connections and makes the two roles.
type protocol interface {
	openSender(link *link, producer int, destination string) (sender, error)
	openReceiver(link *link, consumer int, destination string) (receiver, error)
	// farewell ends a session properly; no answer is awaited.
	farewell() []byte
	// forget removes what the broker would keep for a consumer that does not come back.
	forget(dial func() (*link, error), consumer int) error
}

// stompAnswer waits for one frame of the wanted command; heart-beats in between are passed over.
func (l *link) stompAnswer(want string) error {
	var frame stompFrame
	for {
		used, err := parseStomp(l.pending(), &frame)
		if err != nil {
			return err
		}
		if used == 0 {
			if err := l.fill(); err != nil {
				return fmt.Errorf("waiting for %s: %w", want, err)
			}
			continue
		}
		command := string(frame.command)
		if command == "" {
			l.used(used)
			continue
		}
		if command != want {
			return stompUnexpected(&frame, want)
		}
		l.used(used)
		return nil
	}
}

func stompUnexpected(frame *stompFrame, want string) error {
	body := frame.body
	if len(body) > 300 {
		body = body[:300]
	}
	return fmt.Errorf("%s frame where %s was expected: %s %s", frame.command, want, frame.message, body)
}

// mqttAnswer waits for one packet of the wanted kind, which must be the next one, and returns its body.
func (l *link) mqttAnswer(want byte, five bool) ([]byte, error) {
	packet := mqttPacket{five: five}
	for {
		used, err := parseMqtt(l.pending(), &packet)
		if err != nil {
			return nil, err
		}
		if used == 0 {
			if err := l.fill(); err != nil {
				return nil, fmt.Errorf("waiting for packet type %#x: %w", want, err)
			}
			continue
		}
		if packet.kind != want {
			return nil, fmt.Errorf("packet type %#x where %#x was expected", packet.kind, want)
		}
		body := append([]byte(nil), packet.body...)
		l.used(used)
		return body, nil
	}
}
