package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
)

// signals receives the signals that pglock handles and forwards. While it does, none of them ends
// pglock by itself.
type signals struct{ c chan os.Signal }

// listenSignals begins to receive handledSignals. A signal that was ignored when pglock started, as
// under nohup, stays ignored, here and in the command.
func listenSignals() *signals {
	s := &signals{make(chan os.Signal, 16)}
	s.add(handledSignals)
	return s
}

func (s *signals) add(more []os.Signal) {
	for _, sig := range more {
		if !signal.Ignored(sig) {
			signal.Notify(s.c, sig)
		}
	}
}

func (s *signals) stop() { signal.Stop(s.c) }

// untilInterrupted returns a context that is cancelled by the first signal that ends programs. It
// drops other signals, and no other goroutine may receive from s before the returned function is
// called.
func (s *signals) untilInterrupted() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	quit := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select { // in any order: a signal after the returned function was called has no effect
			case sig := <-s.c:
				if isTermination(sig) {
					cancel(interruption(sig))
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

// interruptible calls fn with a context that a signal cancels, and then returns the interruption.
func interruptible(fn func(context.Context) error) error {
	signals := listenSignals()
	defer signals.stop()
	ctx, stop := signals.untilInterrupted()
	defer stop()
	if err := fn(ctx); err != nil {
		return interruptedOr(ctx, err)
	}
	return nil
}

// interruptedOr returns the interruption if one cancelled ctx, and err otherwise.
func interruptedOr(ctx context.Context, err error) error {
	var interrupted *failure
	if errors.As(context.Cause(ctx), &interrupted) {
		return interrupted
	}
	return err
}
