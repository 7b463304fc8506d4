package main

import (
	"bytes"
	"fmt"
	"strconv"
)

// A stompFrame points into the buffer it was parsed from and is valid until the next read.
// Only the headers that the generator acts on are kept; values stay as escaped on the wire, so an
// ack id can be sent back as it came.
type stompFrame struct {
	command, ack, messageID, receiptID, message, body []byte
}

const stompHeadMax = 64 << 10

// parseStomp parses one STOMP 1.2 frame at the start of data. It returns the bytes used; 0 means
// that the frame is not complete yet. A lone line end (a heart-beat) gives a frame without command.
func parseStomp(data []byte, f *stompFrame) (int, error) {
	*f = stompFrame{}
	if len(data) == 0 {
		return 0, nil
	}
	if data[0] == '\n' {
		return 1, nil
	}
	if data[0] == '\r' {
		if len(data) < 2 {
			return 0, nil
		}
		if data[1] != '\n' {
			return 0, fmt.Errorf("carriage return without line feed between frames")
		}
		return 2, nil
	}
	at := 0
	length := -1
	for first := true; ; first = false {
		end := bytes.IndexByte(data[at:], '\n')
		if end < 0 {
			if len(data) > stompHeadMax && at == 0 {
				return 0, fmt.Errorf("no STOMP command in %d bytes", len(data))
			}
			return 0, nil
		}
		line := data[at : at+end]
		at += end + 1
		if n := len(line); n > 0 && line[n-1] == '\r' {
			line = line[:n-1]
		}
		if first {
			f.command = line
			continue
		}
		if len(line) == 0 {
			break
		}
		var err error
		if length, err = f.header(line, length); err != nil {
			return 0, err
		}
	}
	if length < 0 {
		end := bytes.IndexByte(data[at:], 0)
		if end < 0 {
			return 0, nil
		}
		f.body = data[at : at+end]
		return at + end + 1, nil
	}
	if len(data)-at < length+1 {
		return 0, nil
	}
	if data[at+length] != 0 {
		return 0, fmt.Errorf("%s frame: no NUL after a body of content-length %d", f.command, length)
	}
	f.body = data[at : at+length]
	return at + length + 1, nil
}

// header keeps one header line if it matters. As STOMP 1.2 "Repeated Header Entries" says, the
// first of several wins.
func (f *stompFrame) header(line []byte, length int) (int, error) {
	keep := func(to *[]byte, name string) {
		if *to == nil && bytes.HasPrefix(line, []byte(name)) {
			*to = line[len(name):]
		}
	}
	switch line[0] {
	case 'a':
		keep(&f.ack, "ack:")
	case 'r':
		keep(&f.receiptID, "receipt-id:")
	case 'm':
		keep(&f.messageID, "message-id:")
		keep(&f.message, "message:")
	case 'c':
		if length < 0 && bytes.HasPrefix(line, []byte("content-length:")) {
			value, err := decimal(line[len("content-length:"):])
			if err != nil {
				return 0, fmt.Errorf("content-length: %w", err)
			}
			return value, nil
		}
	}
	return length, nil
}

// decimal reads an unsigned number without allocating.
func decimal(text []byte) (int, error) {
	value := 0
	for _, c := range text {
		if c < '0' || c > '9' || value > 1<<40 {
			return 0, fmt.Errorf("%q is not a number", text)
		}
		value = value*10 + int(c-'0')
	}
	if len(text) == 0 {
		return 0, fmt.Errorf("empty number")
	}
	return value, nil
}

const receiptDigits = 10

// putDigits writes value in exactly len(to) decimal digits.
func putDigits(to []byte, value int) {
	for i := len(to) - 1; i >= 0; i-- {
		to[i] = byte('0' + value%10)
		value /= 10
	}
}

// A stompTemplate is one SEND frame whose receipt number and body head are patched per message.
type stompTemplate struct {
	frame         []byte
	receipt, body int // offsets in frame
	size          int
}

func newStompTemplate(destination string, headers []string, body []byte) *stompTemplate {
	t := &stompTemplate{size: len(body)}
	var b bytes.Buffer
	b.WriteString("SEND\ndestination:" + destination + "\npersistent:true\n")
	for _, header := range headers {
		b.WriteString(header + "\n")
	}
	b.WriteString("content-length:" + strconv.Itoa(len(body)) + "\nreceipt:")
	t.receipt = b.Len()
	b.WriteString("0000000000\n\n")
	t.body = b.Len()
	b.Write(body)
	b.WriteByte(0)
	t.frame = b.Bytes()
	return t
}

func (t *stompTemplate) append(out []byte, index int, now int64) []byte {
	start := len(out)
	out = append(out, t.frame...)
	putDigits(out[start+t.receipt:start+t.receipt+receiptDigits], index)
	stampBody(out[start+t.body:start+t.body+t.size], index, now)
	return out
}
