package main

import (
	"fmt"
	"net"
	"time"
)

// An idleReport is what -idle found: how many connections opened, and how many were still open at
// the end.
type idleReport struct {
	Opened       int     `json:"opened"`
	Survived     int     `json:"survived"`
	OpenSeconds  float64 `json:"open_seconds"`
	ConnectsPerS float64 `json:"connects_per_s"`
	Error        string  `json:"error,omitempty"`
}

const (
	// One loopback source address has some 28,000 ports to offer; beyond this many connections the
	// next address (127.0.0.2, .3, ...) is used.
	connectionsPerSource = 20_000
	idleBufferBytes      = 256 // handshake answers and heart-beats
)

// runIdle opens the connections, keeps them alive for the hold time and counts those that last.
func runIdle(o *options) *idleReport {
	r := &idleReport{}
	if err := r.hold(o); err != nil {
		r.Error = err.Error()
	}
	return r
}

func (r *idleReport) hold(o *options) error {
	loop, err := newLoop()
	if err != nil {
		return err
	}
	defer func() {
		r.Survived = len(loop.links)
		for _, link := range loop.links {
			link.close()
		}
	}()
	start := time.Now()
	deadline := start.Add(o.timeout)
	beat := []byte{'\n'}
	if o.protocol == "mqtt" {
		beat = []byte{mqttPingreq, 0}
	}
	// Half the agreed interval leaves room for a slow broker (STOMP 1.2 "Heart-beating").
	pulse := start.Add(o.heartBeat / 2)
	serve := func(until time.Time) error {
		for time.Now().Before(until) {
			next := until
			if pulse.Before(next) {
				next = pulse
			}
			if err := loop.runUntil(func() bool { return false }, next); err != errTimeout {
				return err
			}
			if !time.Now().Before(pulse) {
				pulse = time.Now().Add(o.heartBeat / 2)
				for _, link := range loop.links {
					link.post(beat) // a failure shows as a closed connection
				}
			}
		}
		return nil
	}
	for number := range o.idle {
		link, err := openIdle(o, number, deadline)
		if err != nil {
			return fmt.Errorf("connection %d: %w", number, err)
		}
		link.ready = func() error { link.used(len(link.pending())); return nil }
		link.closed = func() error { loop.remove(link); return nil }
		if err := loop.add(link); err != nil {
			return err
		}
		r.Opened++
		r.OpenSeconds = time.Since(start).Seconds()
		r.ConnectsPerS = float64(r.Opened) / r.OpenSeconds
		if !time.Now().Before(pulse) {
			if err := serve(pulse.Add(time.Millisecond)); err != nil {
				return err
			}
		}
	}
	end := time.Now().Add(o.hold)
	if end.After(deadline) {
		end = deadline
	}
	return serve(end)
}

func openIdle(o *options, number int, deadline time.Time) (*link, error) {
	var local net.Addr
	host, _, err := net.SplitHostPort(o.address)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() && number >= connectionsPerSource {
		local = &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+number/connectionsPerSource))}
	}
	link, err := dialLink(o.address, deadline, local, idleBufferBytes)
	if err != nil {
		return nil, err
	}
	if o.protocol == "mqtt" {
		m := mqttProtocol{o}
		_, err := m.connect(link, m.client("i", number), true, int(o.heartBeat/time.Second))
		return link, err
	}
	return link, stompProtocol{o}.connect(link, int(o.heartBeat/time.Millisecond))
}
