// Command go_stomp puts a running gateway through what a go-stomp client does.
//
// Usage: go_stomp ADDRESS VERSION SCENARIO
// It prints "ok" and exits with 0, or says on stderr what was not as it should be and exits with 1.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-stomp/stomp/v3"
	"github.com/go-stomp/stomp/v3/frame"
)

const wait = 60 * time.Second

type scenario func(address string, version stomp.Version) error

var scenarios = map[string]scenario{
	"auto":        func(a string, v stomp.Version) error { return deliver(a, v, stomp.AckAuto) },
	"client":      func(a string, v stomp.Version) error { return deliver(a, v, stomp.AckClient) },
	"individual":  func(a string, v stomp.Version) error { return deliver(a, v, stomp.AckClientIndividual) },
	"nack":        nack,
	"transaction": transaction,
	"heartbeat":   heartBeat,
	"headers":     headers,
	"error":       refused,
}

func main() {
	if len(os.Args) != 4 || scenarios[os.Args[3]] == nil {
		fmt.Fprintln(os.Stderr, "usage: go_stomp ADDRESS VERSION SCENARIO")
		os.Exit(2)
	}
	if err := scenarios[os.Args[3]](os.Args[1], stomp.Version(os.Args[2])); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ok")
}

func dial(address string, version stomp.Version, more ...func(*stomp.Conn) error) (*stomp.Conn, error) {
	options := append([]func(*stomp.Conn) error{
		stomp.ConnOpt.AcceptVersion(version),
		stomp.ConnOpt.Host("localhost"),
	}, more...)
	conn, err := stomp.Dial("tcp", address, options...)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if conn.Version() != version {
		return nil, fmt.Errorf("asked for %s, got %s", version, conn.Version())
	}
	return conn, nil
}

func queueName(what string, version stomp.Version) string {
	return fmt.Sprintf("/queue/go.%s.%s", what, version)
}

// next takes one message or says why there is none.
func next(subscription *stomp.Subscription) (*stomp.Message, error) {
	select {
	case message, open := <-subscription.C:
		if !open {
			return nil, errors.New("the subscription ended")
		}
		if message.Err != nil {
			return nil, fmt.Errorf("message: %w", message.Err)
		}
		return message, nil
	case <-time.After(wait):
		return nil, errors.New("no message came")
	}
}

func expect(subscription *stomp.Subscription, body string) (*stomp.Message, error) {
	message, err := next(subscription)
	if err == nil && string(message.Body) != body {
		err = fmt.Errorf("body %q, not %q", message.Body, body)
	}
	return message, err
}

// deliver sends ten messages with receipts, takes and acknowledges them, and shows with a second
// connection that none is left.
func deliver(address string, version stomp.Version, mode stomp.AckMode) error {
	name := queueName("deliver."+mode.String(), version)
	conn, err := dial(address, version)
	if err != nil {
		return err
	}
	for number := range 10 {
		body := []byte(fmt.Sprintf("%d\x00body", number))
		if err := conn.Send(name, "text/plain", body, stomp.SendOpt.Receipt); err != nil {
			return fmt.Errorf("send: %w", err)
		}
	}
	subscription, err := conn.Subscribe(name, mode)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	var last *stomp.Message
	for number := range 10 {
		if last, err = expect(subscription, fmt.Sprintf("%d\x00body", number)); err != nil {
			return err
		}
		if last.ContentType != "text/plain" || last.Destination != name {
			return fmt.Errorf("content-type %q, destination %q", last.ContentType, last.Destination)
		}
		if mode == stomp.AckClientIndividual {
			if err := conn.Ack(last); err != nil {
				return fmt.Errorf("ack: %w", err)
			}
		}
	}
	if mode == stomp.AckClient { // cumulative
		if err := conn.Ack(last); err != nil {
			return fmt.Errorf("ack: %w", err)
		}
	}
	if err := conn.Disconnect(); err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	again, err := dial(address, version)
	if err != nil {
		return err
	}
	if err := again.Send(name, "", []byte("last"), stomp.SendOpt.Receipt); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if subscription, err = again.Subscribe(name, stomp.AckAuto); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	if _, err = expect(subscription, "last"); err != nil {
		return fmt.Errorf("something was delivered twice: %w", err)
	}
	return again.Disconnect()
}

// nack gives a message back and takes it again, marked as redelivered.
func nack(address string, version stomp.Version) error {
	name := queueName("nack", version)
	conn, err := dial(address, version)
	if err != nil {
		return err
	}
	if err := conn.Send(name, "", []byte("again"), stomp.SendOpt.Receipt); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	subscription, err := conn.Subscribe(name, stomp.AckClientIndividual)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	message, err := expect(subscription, "again")
	if err != nil {
		return err
	}
	err = conn.Nack(message)
	if !version.SupportsNack() {
		if err == nil {
			return errors.New("NACK in 1.0 was not refused")
		}
		return conn.Disconnect()
	}
	if err != nil {
		return fmt.Errorf("nack: %w", err)
	}
	if message, err = expect(subscription, "again"); err != nil {
		return err
	}
	if message.Header.Get("redelivered") != "true" {
		return errors.New("it is not marked as redelivered")
	}
	if err := conn.Ack(message); err != nil {
		return fmt.Errorf("ack: %w", err)
	}
	return conn.Disconnect()
}

// transaction commits one transaction with SEND and ACK in it and aborts another.
func transaction(address string, version stomp.Version) error {
	from, to := queueName("from", version), queueName("to", version)
	conn, err := dial(address, version)
	if err != nil {
		return err
	}
	if err := conn.Send(from, "", []byte("in"), stomp.SendOpt.Receipt); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	source, err := conn.Subscribe(from, stomp.AckClientIndividual)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	target, err := conn.Subscribe(to, stomp.AckAuto)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	message, err := expect(source, "in")
	if err != nil {
		return err
	}
	kept, dropped := conn.Begin(), conn.Begin()
	if err := dropped.Send(to, "", []byte("dropped")); err != nil {
		return fmt.Errorf("send in transaction: %w", err)
	}
	if err := kept.Send(to, "", []byte("kept")); err != nil {
		return fmt.Errorf("send in transaction: %w", err)
	}
	if err := kept.Ack(message); err != nil {
		return fmt.Errorf("ack in transaction: %w", err)
	}
	if err := conn.Send(to, "", []byte("outside"), stomp.SendOpt.Receipt); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if _, err := expect(target, "outside"); err != nil {
		return fmt.Errorf("before commit: %w", err)
	}
	if err := dropped.AbortWithReceipt(); err != nil {
		return fmt.Errorf("abort: %w", err)
	}
	if err := kept.CommitWithReceipt(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if _, err := expect(target, "kept"); err != nil {
		return err
	}
	if err := conn.Disconnect(); err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	again, err := dial(address, version)
	if err != nil {
		return err
	}
	if err := again.Send(from, "", []byte("next"), stomp.SendOpt.Receipt); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if source, err = again.Subscribe(from, stomp.AckAuto); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	if _, err := expect(source, "next"); err != nil {
		return fmt.Errorf("the ack was not part of the transaction: %w", err)
	}
	return again.Disconnect()
}

// heartBeat stays idle for longer than both sides' grace, then still gets a message. 1.0 has none.
// A machine that stalls for longer than the beats are apart ends the connection rightly: then it is
// tried once more.
func heartBeat(address string, version stomp.Version) error {
	var err error
	for range 3 {
		if err = idle(address, version); err == nil {
			return nil
		}
	}
	return err
}

func idle(address string, version stomp.Version) error {
	conn, err := dial(address, version,
		stomp.ConnOpt.HeartBeat(time.Second, time.Second),
		stomp.ConnOpt.HeartBeatError(500*time.Millisecond))
	if err != nil {
		return err
	}
	name := queueName("beat", version)
	subscription, err := conn.Subscribe(name, stomp.AckAuto)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	select {
	case message := <-subscription.C:
		return fmt.Errorf("an idle connection ended: %v", message.Err)
	case <-time.After(4 * time.Second):
	}
	if err := conn.Send(name, "", []byte("alive"), stomp.SendOpt.Receipt); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if _, err := expect(subscription, "alive"); err != nil {
		return err
	}
	return conn.Disconnect()
}

// headers shows that names and values with what has to be escaped arrive as they were.
func headers(address string, version stomp.Version) error {
	name := queueName("headers", version)
	conn, err := dial(address, version)
	if err != nil {
		return err
	}
	subscription, err := conn.Subscribe(name, stomp.AckAuto)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	wanted := map[string]string{"plain": "a b  c", "ünï": "žluť", "empty": ""}
	if version != stomp.V10 {
		wanted["odd"] = "colon:newline\nbackslash\\"
	}
	var options []func(*frame.Frame) error
	for key, value := range wanted {
		options = append(options, stomp.SendOpt.Header(key, value))
	}
	if err := conn.Send(name, "text/x-test", []byte("x"), options...); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	message, err := expect(subscription, "x")
	if err != nil {
		return err
	}
	for key, value := range wanted {
		if got, found := message.Header.Contains(key); !found || got != value {
			return fmt.Errorf("header %q: %q, not %q", key, got, value)
		}
	}
	return conn.Disconnect()
}

// refused sends where there is nothing and has to be told so.
func refused(address string, version stomp.Version) error {
	conn, err := dial(address, version)
	if err != nil {
		return err
	}
	err = conn.Send("/nowhere/at-all", "", []byte("x"), stomp.SendOpt.Receipt)
	if err == nil {
		return errors.New("the send was not refused")
	}
	if !strings.Contains(err.Error(), "/queue/NAME") {
		return fmt.Errorf("the error does not say what to write: %w", err)
	}
	return nil
}
