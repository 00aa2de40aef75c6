package testserver

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

const (
	supervisorLog = "supervisor.log"
	keeperLog     = "keeper.log"

	// lookInterval is how often the owner's life is checked.
	lookInterval = 100 * time.Millisecond
)

// supervise runs the shared server until the owner is gone, and leaves nothing. A server that can't be started is a
// result too: it is reported to every process of the run, without trying again.
func supervise(ctx context.Context, j job) error {
	self, err := process.Self()
	if err != nil {
		return err
	}
	if err := (state{Supervisor: self}).write(j.Dir); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := untilGone(ctx, j.Owner)
	defer cancel()

	swept := make(chan struct{})
	go func() {
		defer close(swept)
		sweep(ctx)
	}()
	server := superviseServer(ctx, j.Dir, self)
	<-ctx.Done()
	if server != nil {
		if err := server.stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	<-swept
	return cleanUp(j.Dir)
}

// superviseServer starts the server, reports how that went, and watches the server until ctx is done.
func superviseServer(ctx context.Context, dir string, self process.ID) *running {
	report := func(s state) {
		s.Supervisor = self
		if err := s.write(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	config, err := readConfig()
	var server *running
	if err == nil {
		server, err = config.start(ctx, dir)
	}
	if err != nil {
		report(state{Error: err.Error()})
		return nil
	}
	report(state{Server: &server.Shared})
	select {
	case <-ctx.Done():
	case <-server.exited:
		report(state{Error: ": the server ended in the middle of the run: " + server.said()})
	}
	return server
}

// keep removes the private servers of its owner when that is gone. A process that can, closes them itself.
func keep(ctx context.Context, j job) error {
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	ctx, cancel := untilGone(ctx, j.Owner)
	defer cancel()
	<-ctx.Done()
	return cleanUp(j.Dir)
}

// untilGone returns a context that is done when the process is.
func untilGone(ctx context.Context, id process.ID) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		look := time.NewTicker(lookInterval)
		defer look.Stop()
		for id.Alive() {
			select {
			case <-look.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, cancel
}

// cleanUp removes a directory and all that still runs in it.
func cleanUp(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	lock, err := base(filepath.Dir(dir)).lock(ctx)
	if err != nil {
		return err
	}
	defer lock.release()
	return removeLeftovers(dir)
}
