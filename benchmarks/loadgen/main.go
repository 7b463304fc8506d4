// Command loadgen loads a STOMP 1.2, MQTT 3.1.1 or MQTT 5.0 broker and checks, message by message, what
// comes out. It is built to cost far less than the broker: frames are made once and patched,
// everything that one read brings is answered by one write, nothing is allocated per message, and
// one thread serves all connections with an epoll loop of its own. It needs Linux.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"
)

func main() {
	o, err := parseOptions(os.Args[1:], flag.NewFlagSet("loadgen", flag.ContinueOnError))
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(exitFine)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "loadgen:", err)
		os.Exit(exitUsage)
	}
	// One thread does everything, as its own event loop (see loop.go). The second, idle processor
	// keeps Go's monitor from taking the first one away during each epoll_wait.
	runtime.GOMAXPROCS(2)
	runtime.LockOSThread()
	debug.SetGCPercent(1000)
	if o.run == 0 {
		o.run = uint64(time.Now().UnixNano()) ^ uint64(os.Getpid())<<48
	}
	if o.idle > 0 {
		r := runIdle(o)
		if o.json {
			json.NewEncoder(os.Stdout).Encode(r)
		} else {
			fmt.Printf("%d of %d opened in %.3f s (%.0f/s), %d open at the end %s\n",
				r.Opened, o.idle, r.OpenSeconds, r.ConnectsPerS, r.Survived, r.Error)
		}
		if r.Survived < o.idle {
			os.Exit(exitFailed)
		}
		return
	}
	if o.retained > 0 {
		r := runRetained(o)
		if o.json {
			json.NewEncoder(os.Stdout).Encode(r)
		} else {
			fmt.Printf("%d retained in %.3f s, subscribed to in %.3f s %s\n",
				r.Published, r.PublishSeconds, r.SubscribeSeconds, r.Error)
		}
		if r.Error != "" {
			os.Exit(exitFailed)
		}
		return
	}
	if o.drain {
		r := runDrain(o)
		if o.json {
			json.NewEncoder(os.Stdout).Encode(r)
		} else {
			fmt.Printf("%d drained in %.3f s (%.0f/s), %d faults %s\n",
				r.Received, r.Seconds, r.PerS, r.faults(), r.Error)
		}
		switch {
		case r.Error != "":
			os.Exit(exitFailed)
		case r.faults() > 0:
			os.Exit(exitFaults)
		}
		return
	}
	load, err := newLoad(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "loadgen:", err)
		os.Exit(exitFailed)
	}
	r := load.run()
	if err := r.print(os.Stdout, o.json); err != nil {
		fmt.Fprintln(os.Stderr, "loadgen:", err)
		os.Exit(exitFailed)
	}
	os.Exit(r.exitCode())
}
