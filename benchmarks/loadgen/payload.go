package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Every body starts with a head that names the message, so that a consumer can tell a lost, a
// repeated, a reordered, a damaged and a foreign one from a good one:
//
//	0  4  "TGLG"
//	4  4  producer, unsigned little endian
//	8  8  run, a number drawn for each run: what an earlier run left behind is counted as foreign
//	16 8  index of the message within its producer, from 0
//	24 8  time of sending, nanoseconds since the run began
//	32 .. a fixed pattern up to the size asked for
const headBytes = 32

const magic = "TGLG"

func newBody(size int, producer int, run uint64) []byte {
	body := make([]byte, size)
	copy(body, magic)
	binary.LittleEndian.PutUint32(body[4:], uint32(producer))
	binary.LittleEndian.PutUint64(body[8:], run)
	for i := headBytes; i < size; i++ {
		body[i] = byte('a' + i%26)
	}
	return body
}

// stampBody makes the body that of one message.
func stampBody(body []byte, index int, now int64) {
	binary.LittleEndian.PutUint64(body[16:], uint64(index))
	binary.LittleEndian.PutUint64(body[24:], uint64(now))
}

// A checker knows which messages have arrived. In queue mode all consumers share one set of bits
// (each message belongs to exactly one of them); in fan-out mode each consumer has a set of its own.
type checker struct {
	run       uint64
	tail      []byte // what follows the head in every body
	producers int
	limit     int // most messages one producer may send
	fanout    bool
	seen      [][]uint32 // [set*producers+producer] -> bits by index
}

func newChecker(run uint64, size, producers, consumers, limit int, fanout bool) *checker {
	sets := 1
	if fanout {
		sets = consumers
	}
	c := &checker{run: run, producers: producers, limit: limit, fanout: fanout}
	c.tail = newBody(size, 0, run)[headBytes:]
	c.seen = make([][]uint32, sets*producers)
	for i := range c.seen {
		c.seen[i] = make([]uint32, (limit+31)/32)
	}
	return c
}

// A tally is what one consumer counted. Only unique messages move a run forward.
type tally struct {
	unique, duplicate, outOfOrder, corrupt, foreign, misrouted int
}

func (t *tally) add(o tally) {
	t.unique += o.unique
	t.duplicate += o.duplicate
	t.outOfOrder += o.outOfOrder
	t.corrupt += o.corrupt
	t.foreign += o.foreign
	t.misrouted += o.misrouted
}

// A view is one consumer's side of the checker.
type view struct {
	check  *checker
	set    int
	accept []bool  // by producer: does this consumer's destination get its messages?
	last   []int64 // by producer: highest index seen by this consumer
	tally  tally
}

func (c *checker) newView(consumer int, accept []bool) *view {
	v := &view{check: c, accept: accept, last: make([]int64, c.producers)}
	if c.fanout {
		v.set = consumer
	}
	for i := range v.last {
		v.last[i] = -1
	}
	return v
}

// see checks one body. It returns the message's time of sending and whether it is good and new.
func (v *view) see(body []byte) (sent int64, fresh bool) {
	c := v.check
	if len(body) != headBytes+len(c.tail) || string(body[:4]) != magic {
		v.tally.corrupt++
		return 0, false
	}
	if binary.LittleEndian.Uint64(body[8:]) != c.run {
		v.tally.foreign++
		return 0, false
	}
	producer := int(binary.LittleEndian.Uint32(body[4:]))
	position := binary.LittleEndian.Uint64(body[16:])
	if producer >= c.producers || position >= uint64(c.limit) || !bytes.Equal(body[headBytes:], c.tail) {
		v.tally.corrupt++
		return 0, false
	}
	index := int(position)
	if !v.accept[producer] {
		v.tally.misrouted++
		return 0, false
	}
	bit := uint32(1) << (index & 31)
	word := &c.seen[v.set*c.producers+producer][index>>5]
	if *word&bit != 0 {
		v.tally.duplicate++
		return 0, false
	}
	*word |= bit
	if int64(index) < v.last[producer] {
		v.tally.outOfOrder++
	} else {
		v.last[producer] = int64(index)
	}
	v.tally.unique++
	return int64(binary.LittleEndian.Uint64(body[24:])), true
}

// missing counts the messages below sent[producer] that a set which should have them lacks, and
// names the first few.
func (c *checker) missing(views []*view, sent []int) (count int, first []string) {
	expected := func(set, producer int) bool {
		for _, v := range views {
			if v.set == set && v.accept[producer] {
				return true
			}
		}
		return false
	}
	for i, bits := range c.seen {
		set, producer := i/c.producers, i%c.producers
		if !expected(set, producer) {
			continue
		}
		for index := 0; index < sent[producer]; index++ {
			if bits[index>>5]&(1<<(index&31)) == 0 {
				count++
				if len(first) < 5 {
					first = append(first, fmt.Sprintf("producer %d index %d", producer, index))
				}
			}
		}
	}
	return count, first
}
