package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
)

// signals are those that pglock gets and passes on. While they are listened to,
// none of them ends pglock by itself.
type signals struct{ c chan os.Signal }

// listen begins to receive signals. One that was ignored when pglock started
// (nohup, a background job of a simple shell) stays ignored, here and in the command.
func listen() *signals {
	s := &signals{make(chan os.Signal, 16)}
	s.add(received)
	return s
}

// add receives more of them.
func (s *signals) add(more []os.Signal) {
	for _, sig := range more {
		if !signal.Ignored(sig) {
			signal.Notify(s.c, sig)
		}
	}
}

func (s *signals) stop() { signal.Stop(s.c) }

// untilInterrupted returns a context that ends with the first signal that ends
// programs; others are dropped. Until the returned function has been called,
// nobody else gets signals from s.
func (s *signals) untilInterrupted() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	quit := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case sig := <-s.c:
				if ends(sig) {
					cancel(interruption{sig})
					return
				}
			case <-quit:
				return
			}
		}
	})
	return ctx, sync.OnceFunc(func() {
		close(quit)
		watching.Wait()
		cancel(nil)
	})
}

// interruptedOr returns the interruption that ended ctx, if one did, or else err.
func interruptedOr(ctx context.Context, err error) error {
	var interrupted interruption
	if errors.As(context.Cause(ctx), &interrupted) {
		return interrupted
	}
	return err
}
