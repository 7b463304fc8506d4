package main

import (
	"encoding/binary"
	"fmt"
	"time"
)

// A retainedReport is what -retained found. Times are seconds; of each subscription from before the
// SUBSCRIBE is written to the first and to the last retained message.
type retainedReport struct {
	Published        int       `json:"published"`
	PublishSeconds   float64   `json:"publish_seconds"`
	FirstSeconds     []float64 `json:"first_seconds"`
	SubscribeSeconds []float64 `json:"subscribe_seconds"`
	GeneratorCPU     float64   `json:"generator_cpu_s"`
	Error            string    `json:"error,omitempty"`
}

const (
	retainedPrefix = "bench/retained"
	// Topics of one level of the tree: a/N/M, as a fleet of devices with some values each has.
	retainedSiblings = 1000
	// Published before the first of them has to be confirmed.
	retainedWindow = 1000
)

// runRetained publishes retained messages, each to a topic of its own, and times how long a new
// subscriber to all of them takes to have them.
func runRetained(o *options) *retainedReport {
	r := &retainedReport{}
	m := mqttProtocol{o}
	deadline := time.Now().Add(o.timeout)
	if err := r.publish(m, deadline); err != nil {
		r.Error = "publishing: " + err.Error()
		return r
	}
	cpu := cpuSeconds()
	for number := range o.subscribes {
		if err := r.subscribe(m, number, deadline); err != nil {
			r.Error = fmt.Sprintf("subscription %d: %v", number+1, err)
			break
		}
	}
	r.GeneratorCPU = cpuSeconds() - cpu
	return r
}

func retainedTopic(index int) string {
	return fmt.Sprintf("%s/%d/%d", retainedPrefix, index/retainedSiblings, index%retainedSiblings)
}

func (r *retainedReport) publish(m mqttProtocol, deadline time.Time) error {
	link, err := dialLink(m.options.address, deadline, nil, readBufferBytes)
	if err != nil {
		return err
	}
	defer link.close()
	limit, err := m.connect(link, m.client("p", 0), true, 0)
	if err != nil {
		return err
	}
	window := min(limit, retainedWindow)
	body := newBody(m.options.size, 0, m.options.run)
	start := time.Now()
	for r.Published < m.options.retained {
		count := min(window, m.options.retained-r.Published)
		var out []byte
		for n := range count {
			index := r.Published + n
			// QoS 1 and RETAIN.
			template := newMqttTemplate(retainedTopic(index), 1<<1|1, body, m.options.five)
			out = template.append(out, uint16(1+n), index, 0)
		}
		if err := link.write(out); err != nil {
			return err
		}
		if err := r.confirmed(link, m.options.five, count); err != nil {
			return err
		}
		r.Published += count
	}
	r.PublishSeconds = time.Since(start).Seconds()
	return link.write(m.farewell())
}

// confirmed waits for the PUBACK of the packet ids 1 to count.
func (r *retainedReport) confirmed(link *link, five bool, count int) error {
	seen := make([]bool, count+1)
	packet := mqttPacket{five: five}
	for left := count; left > 0; {
		used, err := parseMqtt(link.pending(), &packet)
		if err != nil {
			return err
		}
		if used == 0 {
			if err := link.fill(); err != nil {
				return err
			}
			continue
		}
		id := int(packet.id)
		switch {
		case packet.kind != mqttPuback:
			return unexpectedPacket(&packet)
		case packet.refused():
			return fmt.Errorf("message refused: reason %#x", packet.body[0])
		case id == 0 || id > count || seen[id]:
			return fmt.Errorf("packet id %d confirmed, which was not in flight", id)
		}
		seen[id] = true
		left--
		link.used(used)
	}
	return nil
}

func (r *retainedReport) subscribe(m mqttProtocol, number int, deadline time.Time) error {
	o := m.options
	link, err := dialLink(o.address, deadline, nil, readBufferBytes)
	if err != nil {
		return err
	}
	defer link.close()
	if _, err := m.connect(link, m.client("s", number), true, 0); err != nil {
		return err
	}
	seen := make([]bool, o.retained)
	packet := mqttPacket{five: o.five}
	var out []byte
	start := time.Now()
	first := 0.0
	if err := link.write(mqttSubscribePacket(retainedPrefix+"/#", byte(o.qos), o.five)); err != nil {
		return err
	}
	for left := o.retained; left > 0; {
		used, err := parseMqtt(link.pending(), &packet)
		if err != nil {
			return err
		}
		if used == 0 {
			if len(out) > 0 { // the answers to all of one read, in one write
				if err := link.write(out); err != nil {
					return err
				}
				out = out[:0]
			}
			if err := link.fill(); err != nil {
				return fmt.Errorf("%d of %d retained messages came: %w", o.retained-left, o.retained, err)
			}
			continue
		}
		switch packet.kind {
		case mqttSuback:
			if len(packet.body) != 1 || packet.body[0] != byte(o.qos) {
				return fmt.Errorf("SUBSCRIBE at QoS %d was granted % x", o.qos, packet.body)
			}
		case mqttPublish:
			if err := seeRetained(&packet, o, seen); err != nil {
				return err
			}
			if left == o.retained {
				first = time.Since(start).Seconds()
			}
			left--
			switch packet.flags & 0x06 {
			case 0x02:
				out = appendReply(out, mqttPuback, packet.id)
			case 0x04:
				out = appendReply(out, mqttPubrec, packet.id)
			}
		case mqttPubrel:
			out = appendReply(out, mqttPubcomp, packet.id)
		default:
			return unexpectedPacket(&packet)
		}
		link.used(used)
	}
	r.SubscribeSeconds = append(r.SubscribeSeconds, time.Since(start).Seconds())
	r.FirstSeconds = append(r.FirstSeconds, first)
	return link.write(append(out, m.farewell()...))
}

// seeRetained checks one retained message: it is marked as one, whole, of this run, and came once.
func seeRetained(p *mqttPacket, o *options, seen []bool) error {
	if p.flags&0x01 == 0 {
		return fmt.Errorf("a message without RETAIN")
	}
	if len(p.body) != o.size || string(p.body[:4]) != magic {
		return fmt.Errorf("a body of %d bytes that is not ours", len(p.body))
	}
	if binary.LittleEndian.Uint64(p.body[8:]) != o.run {
		return fmt.Errorf("a retained message of another run: the broker was not empty")
	}
	index := binary.LittleEndian.Uint64(p.body[16:])
	if index >= uint64(len(seen)) || seen[index] {
		return fmt.Errorf("message %d came twice, or was never sent", index)
	}
	seen[index] = true
	return nil
}
