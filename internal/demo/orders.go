package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// orders is what a worker was told.
type orders struct {
	begun    chan struct{}      // closed by begin
	resumed  chan struct{}      // gets one for each resume
	finished context.Context    // done by finish
	finish   context.CancelFunc // done with finished

	mu   sync.Mutex
	hold place // guarded by mu; empty if there is nowhere to hold
}

func newOrders() *orders {
	o := &orders{begun: make(chan struct{}), resumed: make(chan struct{}, 1)}
	o.finished, o.finish = context.WithCancel(context.Background())
	return o
}

// listen takes orders for the life of the process. Without a parent there is
// nothing to do: it ends the process.
func (o *orders) listen(lines *bufio.Reader) {
	decoder := json.NewDecoder(lines)
	for {
		var next order
		if err := decoder.Decode(&next); err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, "orders:", err)
			}
			os.Exit(exitFailed)
		}
		o.take(next)
	}
}

func (o *orders) take(next order) {
	switch next.Do {
	case begin:
		close(o.begun)
	case hold:
		o.mu.Lock()
		o.hold = next.Where
		o.mu.Unlock()
	case resume:
		o.resumed <- struct{}{}
	case finish:
		o.finish()
	}
}

// holdsAt reports whether the worker is to be held at that place now.
func (o *orders) holdsAt(here place) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.hold != here {
		return false
	}
	o.hold = ""
	return true
}
