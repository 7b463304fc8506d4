package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

type quantiles struct {
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	Count uint64  `json:"count"`
}

func quantilesOf(h *histogram) quantiles {
	return quantiles{h.micros(0.5), h.micros(0.99), float64(h.max) / 1e3, h.total}
}

// A report is what one run found. Times in *Micros are microseconds; rates and times are of the
// counted messages only, the counts of faults of all, warm-up included.
type report struct {
	Messages       int       `json:"messages"`
	Deliveries     int       `json:"deliveries"`
	Seconds        float64   `json:"seconds"`
	MessagesPerS   float64   `json:"messages_per_s"`
	DeliveriesPerS float64   `json:"deliveries_per_s"`
	BytesPerS      float64   `json:"bytes_per_s"`
	ConfirmMicros  quantiles `json:"confirm_us"`
	EndToEndMicros quantiles `json:"end_to_end_us"`
	SettleSeconds  float64   `json:"settle_seconds"`
	GeneratorCPU   float64   `json:"generator_cpu_s"`

	TotalSent   int      `json:"total_sent"`
	Confirmed   int      `json:"total_confirmed"`
	Lost        int      `json:"lost"`
	Duplicates  int      `json:"duplicates"`
	OutOfOrder  int      `json:"out_of_order"`
	Corrupt     int      `json:"corrupt"`
	Misrouted   int      `json:"misrouted"`
	Foreign     int      `json:"foreign"`
	Unexpected  int      `json:"unexpected_confirms"`
	LostExample []string `json:"lost_examples,omitempty"`

	TimedOut bool   `json:"timed_out"`
	Error    string `json:"error,omitempty"`

	size int
}

func (l *load) fillReport(r *report, failure error) {
	var confirms, endToEnd histogram
	var total tally
	sent := make([]int, len(l.producers))
	for number, p := range l.producers {
		confirms.merge(&p.confirms)
		sent[number] = p.next
		r.TotalSent += p.next
		r.Confirmed += p.confirmed
		r.Unexpected += p.unexpected
	}
	views := make([]*view, len(l.consumers))
	for number, c := range l.consumers {
		endToEnd.merge(&c.endToEnd)
		total.add(c.view.tally)
		views[number] = c.view
	}
	r.ConfirmMicros, r.EndToEndMicros = quantilesOf(&confirms), quantilesOf(&endToEnd)
	r.Duplicates, r.OutOfOrder = total.duplicate, total.outOfOrder
	r.Corrupt, r.Misrouted, r.Foreign = total.corrupt, total.misrouted, total.foreign
	if len(l.producers) == l.options.producers && len(views) > 0 {
		r.Lost, r.LostExample = l.check.missing(views, sent)
	}
	if failure != nil {
		r.Error = failure.Error()
		r.TimedOut = errors.Is(failure, errTimeout)
	}
}

func (r *report) rates(messages, deliveries int, seconds float64) {
	r.Messages, r.Deliveries, r.Seconds = messages, deliveries, seconds
	if seconds > 0 {
		r.MessagesPerS = float64(messages) / seconds
		r.DeliveriesPerS = float64(deliveries) / seconds
		r.BytesPerS = r.MessagesPerS * float64(r.size)
	}
}

// Exit codes; bench.py reads them.
const (
	exitFine   = 0
	exitFaults = 1 // messages lost, repeated, reordered, damaged or misrouted
	exitUsage  = 2
	exitFailed = 3 // a connection failed, or the timeout came
)

func (r *report) exitCode() int {
	switch {
	case r.Error != "":
		return exitFailed
	case r.Lost+r.Duplicates+r.OutOfOrder+r.Corrupt+r.Misrouted+r.Unexpected > 0:
		return exitFaults
	}
	return exitFine
}

func (r *report) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	_, err := fmt.Fprintf(w, `%.0f messages/s (%d in %.3f s, %.2f MB/s), %.0f deliveries/s
confirm     p50 %.0f  p99 %.0f  max %.0f us
end to end  p50 %.0f  p99 %.0f  max %.0f us
settle %.3f s, generator CPU %.3f s
lost %d, duplicates %d, out of order %d, corrupt %d, misrouted %d, foreign %d, unexpected confirms %d
`,
		r.MessagesPerS, r.Messages, r.Seconds, r.BytesPerS/1e6, r.DeliveriesPerS,
		r.ConfirmMicros.P50, r.ConfirmMicros.P99, r.ConfirmMicros.Max,
		r.EndToEndMicros.P50, r.EndToEndMicros.P99, r.EndToEndMicros.Max,
		r.SettleSeconds, r.GeneratorCPU,
		r.Lost, r.Duplicates, r.OutOfOrder, r.Corrupt, r.Misrouted, r.Foreign, r.Unexpected)
	if err == nil && r.Error != "" {
		_, err = fmt.Fprintln(w, "FAILED:", r.Error)
	}
	return err
}
