package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
)

// A fakeBroker is a STOMP queue that passes each body through spoil before it delivers: what spoil
// returns is what the consumer gets.
type fakeBroker struct {
	spoil    func(number int, body []byte) [][]byte
	mutex    sync.Mutex
	consumer net.Conn
	number   int
	acks     int
}

func (b *fakeBroker) serve(conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	var data []byte
	var f stompFrame
	for {
		used, err := parseStomp(data, &f)
		if err != nil {
			return
		}
		if used == 0 {
			chunk := make([]byte, 4096)
			n, err := reader.Read(chunk)
			if err != nil {
				return
			}
			data = append(data, chunk[:n]...)
			continue
		}
		frame := string(data[:used])
		b.mutex.Lock()
		b.frame(conn, string(f.command), frame, append([]byte(nil), f.body...))
		b.mutex.Unlock()
		data = data[used:]
	}
}

func (b *fakeBroker) frame(conn net.Conn, command, frame string, body []byte) {
	switch command {
	case "CONNECT":
		fmt.Fprint(conn, "CONNECTED\nversion:1.2\n\n\x00")
	case "SUBSCRIBE":
		b.consumer = conn
	case "ACK":
		b.acks++
	case "SEND":
		for _, out := range b.spoil(b.number, body) {
			fmt.Fprintf(b.consumer, "MESSAGE\nack:%d\ncontent-length:%d\n\n%s\x00", b.number, len(out), out)
		}
		b.number++
	}
	if _, after, found := strings.Cut(frame, "\nreceipt:"); found {
		receipt, _, _ := strings.Cut(after, "\n")
		fmt.Fprintf(conn, "RECEIPT\nreceipt-id:%s\n\n\x00", receipt)
	}
}

func runAgainst(t *testing.T, b *fakeBroker, arguments ...string) *report {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go b.serve(conn)
		}
	}()
	arguments = append([]string{"-addr", listener.Addr().String(), "-messages", "200", "-warmup", "20",
		"-window", "16", "-size", "64", "-linger", "20ms", "-timeout", "20s"}, arguments...)
	o, err := parseOptions(arguments, flag.NewFlagSet("test", flag.ContinueOnError))
	if err != nil {
		t.Fatal(err)
	}
	o.run = 7
	load, err := newLoad(o)
	if err != nil {
		t.Fatal(err)
	}
	return load.run()
}

func deliver(_ int, body []byte) [][]byte { return [][]byte{body} }

func TestAHonestBrokerPassesAndEveryMessageIsCountedOnce(t *testing.T) {
	b := &fakeBroker{spoil: deliver}
	r := runAgainst(t, b, "-producers", "2")
	if r.exitCode() != exitFine || r.Messages != 200 || r.Deliveries != 200 || r.TotalSent != 220 {
		t.Errorf("%+v", r)
	}
	if r.ConfirmMicros.Count != 200 || r.EndToEndMicros.Count != 200 || b.acks != 220 {
		t.Errorf("confirms %d, end to end %d, acks %d", r.ConfirmMicros.Count, r.EndToEndMicros.Count, b.acks)
	}
}

func TestADroppedMessageIsNamedWhenTheTimeIsOver(t *testing.T) {
	r := runAgainst(t, &fakeBroker{spoil: func(number int, body []byte) [][]byte {
		if number == 50 {
			return nil
		}
		return [][]byte{body}
	}}, "-timeout", "1s")
	if r.exitCode() != exitFailed || !r.TimedOut || r.Lost != 1 || r.LostExample[0] != "producer 0 index 50" {
		t.Errorf("%+v", r)
	}
}

func TestFaultsAreCountedByKind(t *testing.T) {
	var held []byte
	for _, c := range []struct {
		name  string
		spoil func(number int, body []byte) [][]byte
		count func(*report) int
	}{
		{"duplicate", func(number int, body []byte) [][]byte {
			if number == 60 {
				return [][]byte{body, body}
			}
			return [][]byte{body}
		}, func(r *report) int { return r.Duplicates }},
		{"out of order", func(number int, body []byte) [][]byte {
			if number == 60 {
				held = body
				return nil
			}
			if number == 61 {
				return [][]byte{body, held}
			}
			return [][]byte{body}
		}, func(r *report) int { return r.OutOfOrder }},
		{"corrupt", func(number int, body []byte) [][]byte {
			if number == 60 {
				damaged := bytes.Clone(body)
				damaged[40] ^= 1
				return [][]byte{damaged, body}
			}
			return [][]byte{body}
		}, func(r *report) int { return r.Corrupt }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := runAgainst(t, &fakeBroker{spoil: c.spoil})
			if c.count(r) != 1 || r.exitCode() != exitFaults {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestWhatAnEarlierRunLeftIsForeignAndNoFault(t *testing.T) {
	old := newBody(64, 0, 6)
	r := runAgainst(t, &fakeBroker{spoil: func(number int, body []byte) [][]byte {
		if number == 0 {
			return [][]byte{old, body}
		}
		return [][]byte{body}
	}})
	if r.Foreign != 1 || r.exitCode() != exitFine {
		t.Errorf("%+v", r)
	}
}

func TestARefusalIsReportedWithTheBrokersWords(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		if conn, err := listener.Accept(); err == nil {
			fmt.Fprint(conn, "ERROR\nmessage:not you\n\n\x00")
		}
	}()
	o, err := parseOptions([]string{"-addr", listener.Addr().String(), "-timeout", "5s"},
		flag.NewFlagSet("test", flag.ContinueOnError))
	if err != nil {
		t.Fatal(err)
	}
	load, err := newLoad(o)
	if err != nil {
		t.Fatal(err)
	}
	if r := load.run(); r.exitCode() != exitFailed || !strings.Contains(r.Error, "not you") {
		t.Errorf("%+v", r)
	}
}
