package main

import (
	"fmt"
	"math"
	"syscall"
	"time"
)

// A load is one run: its connections, what they counted, and the phases they go through together.
type load struct {
	options  *options
	protocol protocol
	loop     *loop
	began    time.Time // the zero of all times below, which are nanoseconds
	deadline time.Time
	check    *checker

	producers []*producer
	consumers []*consumer

	countFrom int64 // messages sent from here on count for the end-to-end times
	stopAt    int64 // no message is sent from here on
	received  int   // unique messages over all consumers

	unanswered []*producer // those whose messages no one confirms (MQTT QoS 0)
	fanout     []int       // by producer: consumers that get each of its messages
}

func newLoad(o *options) (*load, error) {
	loop, err := newLoop()
	if err != nil {
		return nil, err
	}
	l := &load{options: o, loop: loop, began: time.Now(), countFrom: math.MaxInt64, stopAt: math.MaxInt64}
	l.deadline = l.began.Add(o.timeout)
	l.protocol = stompProtocol{o}
	if o.protocol == "mqtt" {
		l.protocol = mqttProtocol{o}
	}
	limit := o.share(o.messages, 0) + o.share(o.warmup, 0)
	l.check = newChecker(o.run, o.size, o.producers, o.consumers, limit, o.fanout)
	return l, nil
}

func (l *load) now() int64 { return int64(time.Since(l.began)) }

func (l *load) dial() (*link, error) {
	return dialLink(l.options.address, l.deadline, nil, readBufferBytes)
}

// openConsumer connects one consumer, which sees nothing before its ready is called.
func (l *load) openConsumer(number int) (*consumer, error) {
	o := l.options
	link, err := l.dial()
	if err != nil {
		return nil, fmt.Errorf("consumer %d: %w", number, err)
	}
	accept := make([]bool, o.producers)
	for producer := range accept {
		accept[producer] = o.destination(producer) == o.destination(number)
	}
	c := &consumer{load: l, number: number, link: link, view: l.check.newView(number, accept)}
	l.consumers = append(l.consumers, c)
	if c.receiver, err = l.protocol.openReceiver(link, number, o.destination(number)); err != nil {
		return nil, fmt.Errorf("consumer %d: %w", number, err)
	}
	c.onMessage, link.ready = c.message, c.ready
	return c, l.loop.add(link)
}

// open connects the consumers, then the producers: what is sent to a topic that no one has
// subscribed to yet is gone.
func (l *load) open() error {
	o := l.options
	for number := range o.consumers {
		if _, err := l.openConsumer(number); err != nil {
			return err
		}
	}
	for number := range o.producers {
		link, err := l.dial()
		if err != nil {
			return fmt.Errorf("producer %d: %w", number, err)
		}
		p := &producer{load: l, number: number, link: link}
		p.times = make([]int64, o.share(o.messages, number)+o.share(o.warmup, number))
		l.producers = append(l.producers, p)
		if p.sender, err = l.protocol.openSender(link, number, o.destination(number)); err != nil {
			return fmt.Errorf("producer %d: %w", number, err)
		}
		p.onConfirm, p.answered = p.confirm, p.sender.confirms()
		if !p.answered {
			l.unanswered = append(l.unanswered, p)
		}
		link.ready, link.roomy = p.ready, p.pump
		if err := l.loop.add(link); err != nil {
			return err
		}
	}
	for number := range l.producers {
		l.fanout = append(l.fanout, l.copies(number))
	}
	// What arrived together with the last answer of a handshake is still to be looked at.
	for _, c := range l.consumers {
		if err := c.ready(); err != nil {
			return err
		}
	}
	return nil
}

// copies is how many consumers get each of a producer's messages.
func (l *load) copies(producer int) int {
	copies := 0
	for _, c := range l.consumers {
		if c.view.accept[producer] {
			copies++
		}
	}
	if !l.options.fanout {
		copies = min(copies, 1)
	}
	return copies
}

// phase lets every producer send up to its limit, or until stopAt, and waits until all of it is
// confirmed and received.
func (l *load) phase(limit func(producer int) int) error {
	for _, p := range l.producers {
		p.limit = limit(p.number)
		if err := p.pump(); err != nil {
			return err
		}
	}
	sending := func() bool {
		for _, p := range l.producers {
			if !p.finished() {
				return true
			}
		}
		return false
	}
	if err := l.loop.runUntil(func() bool { return !sending() }, l.deadline); err != nil {
		return err
	}
	target := 0
	for number, p := range l.producers {
		target += p.next * l.copies(number)
	}
	return l.loop.runUntil(func() bool { return l.received >= target }, l.deadline)
}

func (l *load) sent() (messages int) {
	for _, p := range l.producers {
		messages += p.next
	}
	return messages
}

func (l *load) run() *report {
	r := &report{size: l.options.size}
	l.fillReport(r, l.measure(r))
	for _, link := range l.loop.links {
		link.close()
	}
	return r
}

func (l *load) measure(r *report) error {
	o := l.options
	if err := l.open(); err != nil {
		return err
	}
	if err := l.phase(func(producer int) int { return o.share(o.warmup, producer) }); err != nil {
		return err
	}
	for _, p := range l.producers {
		p.confirms = histogram{}
	}
	sent, received, cpu, start := l.sent(), l.received, cpuSeconds(), l.now()
	l.countFrom = start
	if o.duration > 0 {
		l.stopAt = start + int64(o.duration)
	}
	err := l.phase(func(producer int) int { return len(l.producers[producer].times) })
	r.GeneratorCPU = cpuSeconds() - cpu
	end := start
	for _, p := range l.producers {
		if o.consumers == 0 {
			end = max(end, p.lastConfirm)
		}
	}
	for _, c := range l.consumers {
		end = max(end, c.lastFresh)
	}
	r.rates(l.sent()-sent, l.received-received, float64(end-start)/1e9)
	if err != nil {
		return err
	}
	return l.leave(r)
}

// leave listens for repeats a little longer, then says goodbye on every connection. A consumer's
// goodbye is answered only after its last acknowledgement, so the time it takes shows work that
// the broker had put off.
func (l *load) leave(r *report) error {
	quiet := time.Now().Add(l.options.linger)
	if len(l.consumers) > 0 && quiet.Before(l.deadline) {
		if err := l.loop.runUntil(func() bool { return false }, quiet); err != errTimeout {
			return err
		}
	}
	start := l.now()
	for _, c := range l.consumers {
		c.link.closed = func() error { // a STOMP broker may close as soon as it has answered
			if !c.receiver.left() {
				return fmt.Errorf("consumer %d: closed before the answer to DISCONNECT", c.number)
			}
			l.loop.remove(c.link)
			return nil
		}
		if err := c.link.post(c.receiver.goodbye()); err != nil {
			return fmt.Errorf("consumer %d: %w", c.number, err)
		}
	}
	left := func() bool {
		for _, c := range l.consumers {
			if !c.receiver.left() {
				return false
			}
		}
		return true
	}
	if err := l.loop.runUntil(left, l.deadline); err != nil {
		return fmt.Errorf("waiting for the answer to the consumers' last acknowledgements: %w", err)
	}
	r.SettleSeconds = float64(l.now()-start) / 1e9
	for _, p := range l.producers {
		p.link.post(l.protocol.farewell()) // only politeness: nothing depends on its arrival
		l.loop.remove(p.link)
	}
	for _, c := range l.consumers {
		if l.options.protocol == "mqtt" {
			c.link.post(l.protocol.farewell())
		}
		l.loop.remove(c.link)
		if err := l.protocol.forget(l.dial, c.number); err != nil {
			return fmt.Errorf("ending the session of consumer %d: %w", c.number, err)
		}
	}
	return nil
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

// A producer keeps up to window messages unconfirmed on one connection. The confirmations that one
// read brings are answered by one write of as many new messages.
type producer struct {
	load        *load
	number      int
	link        *link
	sender      sender
	answered    bool    // by confirmations
	times       []int64 // by index: when sent; 0 not sent, -1 confirmed
	limit       int     // of this phase
	next        int
	inFlight    int
	confirmed   int
	unexpected  int // confirmations of what was not in flight
	lastConfirm int64
	confirms    histogram
	now         int64
	out         []byte
	onConfirm   func(index int)
}

const (
	writeBytes = 256 << 10
	// Without confirmations (QoS 0) this many messages go before the consumers get a turn.
	unansweredBurst = 256
)

func (p *producer) finished() bool {
	return p.next >= p.limit && p.inFlight == 0 && !p.link.waiting
}

func (p *producer) confirm(index int) {
	if index >= p.next || p.times[index] <= 0 {
		p.unexpected++
		return
	}
	p.confirms.record(p.now - p.times[index])
	p.times[index] = -1
	p.inFlight--
	p.confirmed++
	p.lastConfirm = p.now
}

// pump sends as much as window, limit and the kernel's buffer allow.
func (p *producer) pump() error {
	if p.link.waiting {
		return nil
	}
	p.now = p.load.now()
	if p.now >= p.load.stopAt {
		p.limit = p.next
	}
	room := p.load.options.window - p.inFlight
	if !p.answered {
		room = min(p.load.unansweredRoom(), unansweredBurst)
	}
	for ; room > 0 && p.next < p.limit; room-- {
		var sent bool
		if p.out, sent = p.sender.send(p.out, p.next, p.now); !sent {
			break
		}
		p.times[p.next] = max(p.now, 1)
		p.next++
		if p.answered {
			p.inFlight++
		}
		if len(p.out) >= writeBytes {
			if err := p.write(); err != nil {
				return err
			}
			p.now = p.load.now()
		}
	}
	if err := p.write(); err != nil {
		return err
	}
	if !p.answered && p.next < p.limit && !p.link.waiting && p.load.unansweredRoom() > 0 {
		return p.link.loop.watch(p.link, true) // comes back in the next turn
	}
	return nil
}

// unansweredRoom is how many more messages may be sent that no one confirms. What paces them is
// their arrival: a broker may drop QoS 0 messages of a consumer that cannot keep up, and then the run
// would measure how fast messages are thrown away.
func (l *load) unansweredRoom() int {
	due := -l.received
	for number, p := range l.producers {
		due += p.next * l.fanout[number]
	}
	copies := max(1, l.fanout[0])
	return l.options.window*len(l.producers) - (due+copies-1)/copies
}

func (p *producer) write() error {
	if len(p.out) == 0 {
		return nil
	}
	err := p.link.post(p.out)
	p.out = p.out[:0]
	if err != nil {
		return fmt.Errorf("producer %d: %w", p.number, err)
	}
	return nil
}

func (p *producer) ready() error {
	p.now = p.load.now()
	used, out, err := p.sender.feed(p.link.pending(), p.out, p.onConfirm)
	p.link.used(used)
	p.out = out
	if err != nil {
		return fmt.Errorf("producer %d: %w", p.number, err)
	}
	return p.pump()
}

// A consumer checks and acknowledges every message; all acknowledgements of one read go in one write.
type consumer struct {
	load      *load
	number    int
	link      *link
	receiver  receiver
	view      *view
	endToEnd  histogram
	lastFresh int64
	now       int64
	out       []byte
	onMessage func(body []byte)
}

func (c *consumer) message(body []byte) {
	sent, fresh := c.view.see(body)
	if !fresh {
		return
	}
	c.lastFresh = c.now
	c.load.received++
	if sent >= c.load.countFrom {
		c.endToEnd.record(c.now - sent)
	}
}

func (c *consumer) ready() error {
	c.now = c.load.now()
	used, out, err := c.receiver.feed(c.link.pending(), c.out[:0], c.onMessage)
	c.link.used(used)
	c.out = out
	if err == nil && len(out) > 0 {
		err = c.link.post(out)
	}
	if err != nil {
		return fmt.Errorf("consumer %d: %w", c.number, err)
	}
	if len(c.load.unanswered) == 0 || c.load.unansweredRoom() < max(1, c.load.options.window/4) {
		return nil // not for each message that arrives: a write has a price, too
	}
	for _, p := range c.load.unanswered {
		if err := p.pump(); err != nil {
			return err
		}
	}
	return nil
}
