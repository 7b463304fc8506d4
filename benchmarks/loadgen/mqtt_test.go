package main

import (
	"bytes"
	"flag"
	"net"
	"strings"
	"sync"
	"testing"
)

// A mqttBroker keeps retained messages and passes every message on to all who have subscribed. What it
// sends goes through spoil, which may change a PUBLISH (its first byte and what follows the topic).
type mqttBroker struct {
	five    bool
	spoil   func(number int, packet []byte) [][]byte
	mutex   sync.Mutex
	heard   [][]byte // subscribers' packets of retained messages
	clients []net.Conn
	sent    int
	hold    int // pass messages on only when so many have come
	held    [][]byte
	excess  int // bytes that had come beyond those
}

func (b *mqttBroker) serve(conn net.Conn) {
	defer conn.Close()
	p := mqttPacket{five: b.five}
	var data []byte
	for {
		used, err := parseMqtt(data, &p)
		if err != nil {
			return
		}
		if used == 0 {
			chunk := make([]byte, 65536)
			n, err := conn.Read(chunk)
			if err != nil {
				return
			}
			data = append(data, chunk[:n]...)
			continue
		}
		packet := bytes.Clone(data[:used])
		data = data[used:]
		b.mutex.Lock()
		b.packet(conn, &p, packet, len(data))
		b.mutex.Unlock()
	}
}

func (b *mqttBroker) packet(conn net.Conn, p *mqttPacket, packet []byte, unparsed int) {
	switch p.kind {
	case mqttConnect:
		if b.five {
			conn.Write([]byte{mqttConnack, 6, 0, 0, 3, mqttReceiveMaximum, 0, 10})
		} else {
			conn.Write([]byte{mqttConnack, 2, 0, 0})
		}
	case mqttPublish:
		if p.flags&0x01 != 0 {
			b.heard = append(b.heard, packet)
		}
		if b.held = append(b.held, packet); len(b.held) >= b.hold {
			b.excess = max(b.excess, unparsed)
			for _, held := range b.held {
				for _, client := range b.clients {
					for _, out := range b.spoil(b.sent, held) {
						client.Write(out)
					}
				}
				b.sent++
			}
			b.held = nil
		}
		if p.flags&0x06 == 0x02 {
			conn.Write(appendReply(nil, mqttPuback, p.id))
		}
	case mqttSubscribe:
		b.clients = append(b.clients, conn)
		if b.five {
			conn.Write([]byte{mqttSuback, 4, 0, 1, 0, packet[len(packet)-1]})
		} else {
			conn.Write([]byte{mqttSuback, 3, 0, 1, packet[len(packet)-1]})
		}
		for number, kept := range b.heard {
			for _, out := range b.spoil(number, kept) {
				conn.Write(out)
			}
		}
	case mqttPingreq:
		conn.Write([]byte{mqttPingresp, 0})
	}
}

func (b *mqttBroker) options(t *testing.T, arguments ...string) *options {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go b.serve(conn)
		}
	}()
	arguments = append([]string{"-addr", listener.Addr().String(), "-size", "64", "-linger", "20ms",
		"-timeout", "20s"}, arguments...)
	o, err := parseOptions(arguments, flag.NewFlagSet("test", flag.ContinueOnError))
	if err != nil {
		t.Fatal(err)
	}
	o.run = 7
	return o
}

func asItIs(_ int, packet []byte) [][]byte { return [][]byte{packet} }

func TestEveryRetainedMessageIsWaitedForAndCountedOnce(t *testing.T) {
	for _, name := range []string{"mqtt", "mqtt5"} {
		t.Run(name, func(t *testing.T) {
			b := &mqttBroker{five: name == "mqtt5", spoil: asItIs}
			r := runRetained(b.options(t, "-protocol", name, "-retained", "2500", "-subscribes", "2"))
			if r.Error != "" || r.Published != 2500 || len(r.SubscribeSeconds) != 2 || r.PublishSeconds <= 0 {
				t.Errorf("%+v", r)
			}
			for n, seconds := range r.SubscribeSeconds {
				if seconds < r.FirstSeconds[n] || r.FirstSeconds[n] <= 0 {
					t.Errorf("first %v, last %v", r.FirstSeconds[n], seconds)
				}
			}
		})
	}
}

func TestARetainedMessageThatIsWrongIsNamed(t *testing.T) {
	for _, c := range []struct {
		say   string
		spoil func(number int, packet []byte) [][]byte
	}{
		{"came twice", func(_ int, packet []byte) [][]byte { return [][]byte{packet, packet} }},
		{"without RETAIN", func(_ int, packet []byte) [][]byte {
			live := bytes.Clone(packet)
			live[0] &^= 1
			return [][]byte{live}
		}},
		{"that is not ours", func(_ int, packet []byte) [][]byte {
			return [][]byte{bytes.Replace(packet, []byte(magic), []byte("xxxx"), 1)}
		}},
		{"9 of 10 retained", func(number int, packet []byte) [][]byte {
			if number == 5 {
				return nil
			}
			return [][]byte{packet}
		}},
	} {
		b := &mqttBroker{spoil: c.spoil}
		r := runRetained(b.options(t, "-protocol", "mqtt", "-retained", "10", "-timeout", "1s"))
		if !strings.Contains(r.Error, c.say) {
			t.Errorf("%q does not say %q", r.Error, c.say)
		}
	}
}

func TestQos1OfMqtt5KeepsToTheBrokersReceiveMaximum(t *testing.T) {
	b := &mqttBroker{five: true, spoil: asItIs}
	o := b.options(t, "-protocol", "mqtt5", "-messages", "200", "-window", "100", "-destination", "a")
	load, err := newLoad(o)
	if err != nil {
		t.Fatal(err)
	}
	r := load.run()
	if r.exitCode() != exitFine || r.Messages != 200 || r.Confirmed != 200 {
		t.Errorf("%+v", r)
	}
	sender := load.producers[0].sender.(*mqttSender)
	if sender.limit != 10 || sender.inFlight != 0 {
		t.Errorf("limit %d, in flight %d", sender.limit, sender.inFlight)
	}
}

func TestQos0ToManyIsPacedByItsArrival(t *testing.T) {
	b := &mqttBroker{spoil: asItIs, hold: 6}
	o := b.options(t, "-protocol", "mqtt", "-messages", "600", "-window", "8", "-qos", "0", "-clean",
		"-consumers", "3", "-destination", "a")
	load, err := newLoad(o)
	if err != nil {
		t.Fatal(err)
	}
	// The broker passes messages on by six. Eight may be on their way; 256 would come at once without a limit.
	r := load.run()
	if r.exitCode() != exitFine || r.Messages != 600 || r.Deliveries != 1800 { // 600 is 100 times six
		t.Errorf("%+v", r)
	}
	if packet := len(newMqttTemplate("a", 0, make([]byte, 64), false).packet); b.excess > 2*packet {
		t.Errorf("%d messages were on their way at once", 6+b.excess/packet)
	}
}
