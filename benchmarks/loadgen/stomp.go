package main

import (
	"fmt"
	"strings"
)

type stompProtocol struct{ options *options }

// connect opens a STOMP 1.2 session. heartBeatMs is offered in both directions; 0 is none.
func (s stompProtocol) connect(link *link, heartBeatMs int) error {
	o := s.options
	var b strings.Builder
	fmt.Fprintf(&b, "CONNECT\naccept-version:1.2\nhost:%s\nheart-beat:%d,%d\n", o.host, heartBeatMs, heartBeatMs)
	if o.user != "" {
		fmt.Fprintf(&b, "login:%s\npasscode:%s\n", o.user, o.pass)
	}
	b.WriteString("\n\x00")
	if err := link.write([]byte(b.String())); err != nil {
		return err
	}
	return link.stompAnswer("CONNECTED")
}

func (s stompProtocol) openSender(link *link, producer int, destination string) (sender, error) {
	if err := s.connect(link, 0); err != nil {
		return nil, err
	}
	body := newBody(s.options.size, producer, s.options.run)
	return &stompSender{template: newStompTemplate(destination, s.options.sendHeaders, body)}, nil
}

func (s stompProtocol) openReceiver(link *link, _ int, destination string) (receiver, error) {
	if err := s.connect(link, 0); err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "SUBSCRIBE\nid:0\ndestination:%s\nack:%s\n", destination, s.options.ack)
	if !s.options.drain { // what waits in the queue may come before the receipt
		b.WriteString("receipt:subscribed\n")
	}
	for _, header := range s.options.subscribeHeaders {
		b.WriteString(header + "\n")
	}
	b.WriteString("\n\x00")
	if err := link.write([]byte(b.String())); err != nil {
		return nil, err
	}
	if !s.options.drain {
		if err := link.stompAnswer("RECEIPT"); err != nil {
			return nil, err
		}
	}
	return &stompReceiver{ack: s.options.ack}, nil
}

func (stompProtocol) farewell() []byte { return []byte("DISCONNECT\n\n\x00") }

func (stompProtocol) forget(func() (*link, error), int) error { return nil }

type stompSender struct {
	template *stompTemplate
	frame    stompFrame
}

func (*stompSender) confirms() bool { return true }

func (s *stompSender) send(out []byte, index int, now int64) ([]byte, bool) {
	return s.template.append(out, index, now), true
}

func (s *stompSender) feed(data, out []byte, confirmed func(int)) (int, []byte, error) {
	at := 0
	for {
		used, err := parseStomp(data[at:], &s.frame)
		if err != nil || used == 0 {
			return at, out, err
		}
		at += used
		if len(s.frame.command) == 0 {
			continue
		}
		if string(s.frame.command) != "RECEIPT" {
			return at, out, stompUnexpected(&s.frame, "RECEIPT")
		}
		index, err := decimal(s.frame.receiptID)
		if err != nil {
			return at, out, fmt.Errorf("receipt-id: %w", err)
		}
		confirmed(index)
	}
}

type stompReceiver struct {
	ack   string
	frame stompFrame
	gone  bool
}

func (*stompReceiver) goodbye() []byte { return []byte("DISCONNECT\nreceipt:bye\n\n\x00") }
func (r *stompReceiver) left() bool    { return r.gone }

func (r *stompReceiver) feed(data, out []byte, message func([]byte)) (int, []byte, error) {
	at := 0
	var last []byte // the newest ack id, for the cumulative mode
	for {
		used, err := parseStomp(data[at:], &r.frame)
		if err != nil {
			return at, out, err
		}
		if used == 0 {
			if last != nil {
				out = appendAck(out, last)
			}
			return at, out, nil
		}
		at += used
		switch string(r.frame.command) {
		case "":
		case "MESSAGE":
			message(r.frame.body)
			if r.ack == "auto" {
				break
			}
			if r.frame.ack == nil {
				return at, out, fmt.Errorf("MESSAGE without ack header in ack mode %s", r.ack)
			}
			if r.ack == "client" {
				last = r.frame.ack
			} else {
				out = appendAck(out, r.frame.ack)
			}
		case "RECEIPT":
			r.gone = true
		default:
			return at, out, stompUnexpected(&r.frame, "MESSAGE")
		}
	}
}

func appendAck(out, id []byte) []byte {
	out = append(out, "ACK\nid:"...)
	out = append(out, id...)
	return append(out, "\n\n\x00"...)
}
