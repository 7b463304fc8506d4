package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// Go's own network poller costs several system calls and thread switches for each small read. With
// a broker that writes one message at a time that was half a core at 30,000 messages/s. Here a
// turn is one epoll_wait and, for each ready connection, one recv and one send.

var errTimeout = errors.New("the time of -timeout is over")

const readBufferBytes = 256 << 10

// A link is one TCP connection with what has arrived and not been parsed, and what the kernel has
// not taken yet. During the handshake it blocks; in the loop it never does.
type link struct {
	file       *os.File
	fd         int
	buffer     []byte
	start, end int
	unsent     []byte
	waiting    bool // for room to send
	loop       *loop
	ready      func() error // called after bytes arrived
	roomy      func() error // called when everything was sent after a wait; may be nil
	closed     func() error // called when the broker closed the connection
}

// dialLink connects. No call on the link waits beyond the deadline.
func dialLink(address string, deadline time.Time, local net.Addr, bufferBytes int) (*link, error) {
	dialer := net.Dialer{Deadline: deadline, KeepAlive: -1, LocalAddr: local}
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	file, err := conn.(*net.TCPConn).File() // a duplicate, which Go's poller does not know
	if err != nil {
		return nil, err
	}
	l := &link{file: file, fd: int(file.Fd()), buffer: make([]byte, bufferBytes)}
	left := syscall.NsecToTimeval(int64(max(time.Until(deadline), time.Millisecond)))
	for _, option := range []int{syscall.SO_RCVTIMEO, syscall.SO_SNDTIMEO} {
		if err := syscall.SetsockoptTimeval(l.fd, syscall.SOL_SOCKET, option, &left); err != nil {
			file.Close()
			return nil, err
		}
	}
	return l, nil
}

func (l *link) close() { l.file.Close() }

func (l *link) pending() []byte { return l.buffer[l.start:l.end] }

func (l *link) used(n int) {
	l.start += n
	if l.start == l.end {
		l.start, l.end = 0, 0
	}
}

// transfer makes one recvfrom or sendto. A call that may block must tell Go's scheduler, which
// costs a little; one that never does need not.
func transfer(trap uintptr, fd int, data []byte, flags int) (int, syscall.Errno) {
	var n uintptr
	var errno syscall.Errno
	if flags&syscall.MSG_DONTWAIT != 0 {
		n, _, errno = syscall.RawSyscall6(trap, uintptr(fd),
			uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)), uintptr(flags), 0, 0)
	} else {
		n, _, errno = syscall.Syscall6(trap, uintptr(fd),
			uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)), uintptr(flags), 0, 0)
	}
	return int(n), errno
}

// fill waits for more bytes, or for the deadline: errTimeout.
func (l *link) fill() error { return l.receive(0) }

// receive reads once. What is not parsed yet moves to the front; a frame larger than the buffer
// makes it grow.
func (l *link) receive(flags int) error {
	if l.start > 0 {
		l.end = copy(l.buffer, l.buffer[l.start:l.end])
		l.start = 0
	}
	if l.end == len(l.buffer) {
		l.buffer = append(l.buffer, make([]byte, len(l.buffer))...)
	}
	for {
		n, errno := transfer(syscall.SYS_RECVFROM, l.fd, l.buffer[l.end:], flags)
		switch {
		case errno == syscall.EINTR:
		case errno == syscall.EAGAIN:
			return errTimeout
		case errno != 0:
			return errno
		case n == 0:
			return io.EOF
		default:
			l.end += n
			return nil
		}
	}
}

// transmit sends data and returns how many bytes the kernel took.
func (l *link) transmit(data []byte, flags int) (int, error) {
	sent := 0
	for sent < len(data) {
		n, errno := transfer(syscall.SYS_SENDTO, l.fd, data[sent:], flags|syscall.MSG_NOSIGNAL)
		switch {
		case errno == syscall.EINTR:
		case errno == syscall.EAGAIN:
			return sent, errTimeout
		case errno != 0:
			return sent, errno
		default:
			sent += n
		}
	}
	return sent, nil
}

// write sends everything and waits as long as that takes, or for the deadline.
func (l *link) write(data []byte) error {
	_, err := l.transmit(data, 0)
	return err
}

// post sends what the kernel takes now and keeps the rest for when there is room.
func (l *link) post(data []byte) error {
	if l.waiting {
		l.unsent = append(l.unsent, data...)
		return nil
	}
	sent, err := l.transmit(data, syscall.MSG_DONTWAIT)
	if err == errTimeout {
		l.unsent = append(l.unsent[:0], data[sent:]...)
		return l.loop.watch(l, true)
	}
	return err
}

func (l *link) flush() error {
	sent, err := l.transmit(l.unsent, syscall.MSG_DONTWAIT)
	if err == errTimeout {
		l.unsent = l.unsent[:copy(l.unsent, l.unsent[sent:])]
		return nil
	}
	if err != nil {
		return err
	}
	l.unsent = l.unsent[:0]
	if err := l.loop.watch(l, false); err != nil {
		return err
	}
	if l.roomy != nil {
		return l.roomy()
	}
	return nil
}

// A loop serves many links from one thread.
type loop struct {
	epoll  int
	links  map[int]*link
	dense  []*link // by file descriptor, so that an event finds its link without hashing
	events [256]syscall.EpollEvent
}

func newLoop() (*loop, error) {
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create: %w", err)
	}
	return &loop{epoll: epoll, links: map[int]*link{}}, nil
}

func (o *loop) add(l *link) error {
	l.loop = o
	o.links[l.fd] = l
	for len(o.dense) <= l.fd {
		o.dense = append(o.dense, nil)
	}
	o.dense[l.fd] = l
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(l.fd)}
	return syscall.EpollCtl(o.epoll, syscall.EPOLL_CTL_ADD, l.fd, &event)
}

func (o *loop) watch(l *link, room bool) error {
	l.waiting = room
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(l.fd)}
	if room {
		event.Events |= syscall.EPOLLOUT
	}
	return syscall.EpollCtl(o.epoll, syscall.EPOLL_CTL_MOD, l.fd, &event)
}

// remove closes the link, once.
func (o *loop) remove(l *link) {
	if o.dense[l.fd] != l {
		return
	}
	delete(o.links, l.fd)
	o.dense[l.fd] = nil
	l.close()
}

// runUntil serves the links until done is true or the time has come: errTimeout.
func (o *loop) runUntil(done func() bool, deadline time.Time) error {
	for !done() {
		left := time.Until(deadline)
		if left <= 0 {
			return errTimeout
		}
		if err := o.turn(min(left/time.Millisecond+1, 1000)); err != nil {
			return err
		}
	}
	return nil
}

// turn waits at most so many milliseconds and serves the links that are ready.
func (o *loop) turn(milliseconds time.Duration) error {
	n, _, errno := syscall.Syscall6(syscall.SYS_EPOLL_PWAIT, uintptr(o.epoll),
		uintptr(unsafe.Pointer(&o.events[0])), uintptr(len(o.events)), uintptr(milliseconds), 0, 0)
	if errno == syscall.EINTR {
		return nil
	}
	if errno != 0 {
		return fmt.Errorf("epoll_wait: %w", errno)
	}
	for i := range int(n) {
		event := &o.events[i]
		l := o.dense[event.Fd]
		if l == nil {
			continue // removed earlier in this turn
		}
		if err := o.serve(l, event.Events); err != nil {
			return err
		}
	}
	return nil
}

func (o *loop) serve(l *link, events uint32) error {
	if events&syscall.EPOLLOUT != 0 {
		if err := l.flush(); err != nil {
			return l.lost(err)
		}
	}
	if events&^syscall.EPOLLOUT == 0 {
		return nil
	}
	if err := l.receive(syscall.MSG_DONTWAIT); err == errTimeout {
		return nil
	} else if err != nil {
		return l.lost(err)
	}
	return l.ready()
}

func (l *link) lost(err error) error {
	if l.closed != nil {
		return l.closed()
	}
	return fmt.Errorf("the broker closed the connection: %w", err)
}
