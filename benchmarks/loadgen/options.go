package main

import (
	"flag"
	"fmt"
	"strings"
	"time"
)

type options struct {
	protocol, address, user, pass, host string
	producers, consumers, window, size  int
	messages, warmup                    int
	destinations                        []string
	ack                                 string
	sendHeaders, subscribeHeaders       []string
	qos                                 int
	five                                bool // MQTT 5.0
	clean, fanout                       bool
	duration, timeout, linger           time.Duration
	json                                bool
	idle                                int
	retained, subscribes                int
	hold, heartBeat                     time.Duration
	run                                 uint64
	drain                               bool
}

// headerList takes repeated -flag key:value options.
type headerList []string

func (h *headerList) String() string { return strings.Join(*h, " ") }

func (h *headerList) Set(value string) error {
	if key, _, found := strings.Cut(value, ":"); !found || key == "" || strings.ContainsAny(value, "\n\r\x00") {
		return fmt.Errorf("%q is not key:value", value)
	}
	*h = append(*h, value)
	return nil
}

func parseOptions(arguments []string, output *flag.FlagSet) (*options, error) {
	o := &options{}
	f := output
	var destinations string
	f.StringVar(&o.protocol, "protocol", "stomp", "stomp (1.2), mqtt (3.1.1) or mqtt5 (5.0)")
	f.StringVar(&o.address, "addr", "127.0.0.1:61613", "broker's HOST:PORT")
	f.StringVar(&o.user, "user", "", "login; none when empty")
	f.StringVar(&o.pass, "pass", "", "passcode or password")
	f.StringVar(&o.host, "host", "/", "STOMP host header (virtual host)")
	f.IntVar(&o.producers, "producers", 1, "connections that send")
	f.IntVar(&o.consumers, "consumers", 1, "connections that receive")
	f.IntVar(&o.window, "window", 256, "unconfirmed sends per producer; 1 is one at a time; MQTT QoS 0: messages that have not reached all consumers")
	f.IntVar(&o.size, "size", 256, "bytes in a body, at least 32")
	f.IntVar(&o.messages, "messages", 100_000, "counted messages over all producers, at most")
	f.IntVar(&o.warmup, "warmup", 0, "messages sent and received before counting begins")
	f.StringVar(&destinations, "destination", "/queue/bench",
		"queue or topic; several with commas: producer and consumer N use number N modulo the list")
	f.StringVar(&o.ack, "ack", "client-individual", "STOMP ack mode: auto, client or client-individual")
	f.Var((*headerList)(&o.sendHeaders), "send-header", "STOMP header key:value for each SEND; repeatable")
	f.Var((*headerList)(&o.subscribeHeaders), "subscribe-header", "STOMP header key:value for SUBSCRIBE; repeatable")
	f.IntVar(&o.qos, "qos", 1, "MQTT quality of service of sends and subscriptions: 0, 1 or 2")
	f.BoolVar(&o.clean, "clean", false, "MQTT: consumers use clean sessions (nothing kept for them when away)")
	f.BoolVar(&o.fanout, "fanout", false, "each consumer of a destination gets every message (always so for mqtt)")
	f.DurationVar(&o.duration, "duration", 0, "stop sending counted messages after this time (0: only -messages counts)")
	f.DurationVar(&o.timeout, "timeout", 2*time.Minute, "give up after this time, whatever happens")
	f.DurationVar(&o.linger, "linger", 100*time.Millisecond, "keep consumers listening this long for repeats after the last message")
	f.BoolVar(&o.json, "json", false, "print the report as one JSON object")
	f.IntVar(&o.idle, "idle", 0, "instead of sending, hold this many idle connections")
	f.IntVar(&o.retained, "retained", 0, "instead: publish this many retained MQTT messages, then time wildcard subscriptions")
	f.IntVar(&o.subscribes, "subscribes", 3, "how many subscriptions -retained times, one after the other")
	f.DurationVar(&o.hold, "hold", 10*time.Second, "how long -idle holds them")
	f.DurationVar(&o.heartBeat, "heart-beat", 10*time.Second, "heart-beat or keep-alive of -idle connections")
	f.BoolVar(&o.drain, "drain", false, "instead of sending: wait until the broker accepts, then receive what a run with the same -run-id, -messages, -producers and -destination and no consumers left behind")
	f.Uint64Var(&o.run, "run-id", 0, "the number that marks this run's messages (0: draws one)")
	if err := f.Parse(arguments); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	o.destinations = strings.Split(destinations, ",")
	if o.protocol == "mqtt5" {
		o.protocol, o.five = "mqtt", true
	}
	if o.protocol == "mqtt" {
		o.fanout = true
	}
	return o, o.check()
}

func (o *options) check() error {
	used := map[string]bool{}
	for consumer := range o.consumers {
		used[o.destination(consumer)] = true
	}
	for _, rule := range []struct {
		bad bool
		say string
	}{
		{o.protocol != "stomp" && o.protocol != "mqtt", "-protocol must be stomp, mqtt or mqtt5"},
		{o.ack != "auto" && o.ack != "client" && o.ack != "client-individual", "-ack must be auto, client or client-individual"},
		{o.qos < 0 || o.qos > 2, "-qos must be 0, 1 or 2"},
		{o.producers < 1 || o.producers > 10_000, "-producers must be 1 to 10000"},
		{o.consumers < 0 || o.consumers > 10_000, "-consumers must be 0 to 10000"},
		{o.window < 1 || o.window > 65_535, "-window must be 1 to 65535"},
		{o.size < headBytes || o.size > 64<<20, "-size must be 32 to 67108864"},
		{o.messages < o.producers || o.messages > 100_000_000, "-messages must be at least one a producer and at most 100000000"},
		{o.warmup < 0 || o.warmup > 100_000_000, "-warmup must be 0 to 100000000"},
		{o.timeout <= 0 || o.duration < 0 || o.linger < 0, "times must not be negative, and -timeout must be above 0"},
		{o.idle < 0 || o.idle > 1_000_000, "-idle must be 0 to 1000000"},
		{o.retained < 0 || o.retained > 10_000_000, "-retained must be 0 to 10000000"},
		{o.retained > 0 && o.protocol != "mqtt", "-retained is for mqtt and mqtt5"},
		{o.retained > 0 && (o.subscribes < 1 || o.subscribes > 1000), "-subscribes must be 1 to 1000"},
		{o.idle > 0 && (o.heartBeat < time.Second || o.hold <= 0), "-heart-beat must be at least 1s and -hold above 0"},
		{o.drain && (o.run == 0 || o.consumers == 0 || o.protocol != "stomp"), "-drain is for stomp, and needs -run-id and consumers"},
		{o.protocol == "mqtt" && o.qos == 0 && o.consumers == 0, "QoS 0 without consumers measures nothing: no one answers"},
	} {
		if rule.bad {
			return fmt.Errorf("%s", rule.say)
		}
	}
	if o.consumers > 0 {
		for producer := range o.producers {
			if !used[o.destination(producer)] {
				return fmt.Errorf("no consumer for %s", o.destination(producer))
			}
		}
	}
	return nil
}

func (o *options) destination(number int) string { return o.destinations[number%len(o.destinations)] }

// share is how many of total messages one producer sends; the first ones take what is left over.
func (o *options) share(total, producer int) int {
	each := total / o.producers
	if producer < total%o.producers {
		each++
	}
	return each
}
