package main

import (
	"fmt"
	"time"
)

// A drainReport is what -drain found: consumers alone, of what an earlier run with the same -run-id,
// -messages, -producers and -destination left in the broker.
type drainReport struct {
	// Unix time in seconds: when the broker first took a connection, and when the first message came.
	AcceptedAt float64 `json:"accepted_at"`
	FirstAt    float64 `json:"first_at"`

	Received     int     `json:"received"`
	Seconds      float64 `json:"seconds"` // from the first message to the last
	PerS         float64 `json:"messages_per_s"`
	GeneratorCPU float64 `json:"generator_cpu_s"`

	Lost       int    `json:"lost"`
	Duplicates int    `json:"duplicates"`
	OutOfOrder int    `json:"out_of_order"`
	Corrupt    int    `json:"corrupt"`
	Misrouted  int    `json:"misrouted"`
	Foreign    int    `json:"foreign"`
	Error      string `json:"error,omitempty"`
}

// How often -drain asks whether the broker takes connections yet.
const drainRetry = 5 * time.Millisecond

func runDrain(o *options) *drainReport {
	r := &drainReport{}
	if err := r.drain(o); err != nil {
		r.Error = err.Error()
	}
	return r
}

func (r *drainReport) drain(o *options) error {
	l, err := newLoad(o)
	if err != nil {
		return err
	}
	if err := r.waitAccepting(o, l.deadline); err != nil {
		return err
	}
	cpu := cpuSeconds()
	var first int64
	for number := range o.consumers {
		c, err := l.openConsumer(number)
		if err != nil {
			return err
		}
		each := c.onMessage
		c.onMessage = func(body []byte) {
			if first == 0 {
				r.FirstAt = unixSeconds()
				first = l.now()
			}
			each(body)
		}
		if err := c.ready(); err != nil { // what came together with the answer to the subscription
			return err
		}
		// The others do not wait for all connections to be open.
		if err := l.loop.turn(0); err != nil {
			return err
		}
		if number == 0 {
			if err := l.loop.runUntil(func() bool { return first != 0 }, l.deadline); err != nil {
				return fmt.Errorf("no message came: %w", err)
			}
		}
	}
	err = l.loop.runUntil(func() bool { return l.received >= o.messages }, l.deadline)
	r.count(l, first)
	r.GeneratorCPU = cpuSeconds() - cpu
	if err != nil {
		return fmt.Errorf("%d of %d messages came: %w", l.received, o.messages, err)
	}
	return l.leave(&report{})
}

func (r *drainReport) waitAccepting(o *options, deadline time.Time) error {
	for {
		link, err := dialLink(o.address, deadline, nil, 4096)
		if err == nil {
			link.close()
			r.AcceptedAt = unixSeconds()
			return nil
		}
		if !time.Now().Before(deadline) {
			return err
		}
		time.Sleep(drainRetry)
	}
}

func (r *drainReport) count(l *load, first int64) {
	o := l.options
	last := first
	var total tally
	var views []*view
	for _, c := range l.consumers {
		last = max(last, c.lastFresh)
		total.add(c.view.tally)
		views = append(views, c.view)
	}
	sent := make([]int, o.producers)
	for producer := range sent {
		sent[producer] = o.share(o.messages, producer)
	}
	r.Lost, _ = l.check.missing(views, sent)
	r.Received, r.Seconds = l.received, float64(last-first)/1e9
	if r.Seconds > 0 {
		r.PerS = float64(r.Received) / r.Seconds
	}
	r.Duplicates, r.OutOfOrder, r.Corrupt = total.duplicate, total.outOfOrder, total.corrupt
	r.Misrouted, r.Foreign = total.misrouted, total.foreign
}

func (r *drainReport) faults() int {
	return r.Lost + r.Duplicates + r.OutOfOrder + r.Corrupt + r.Misrouted + r.Foreign
}

func unixSeconds() float64 { return float64(time.Now().UnixNano()) / 1e9 }
