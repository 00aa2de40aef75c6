package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/child"
)

// commandError says why the command could not be run.
type commandError struct {
	name     string
	notFound bool
	err      error
}

func (e *commandError) Error() string {
	if e.notFound {
		return fmt.Sprintf("command not found: %s", e.name)
	}
	why := e.err // without the name, which the wrappers repeat
	var lookup *exec.Error
	var start *fs.PathError
	switch {
	case errors.As(e.err, &lookup):
		why = lookup.Err
	case errors.As(e.err, &start):
		why = start.Err
	}
	return fmt.Sprintf("can't execute %s: %v", e.name, why)
}

func (e *commandError) Unwrap() error { return e.err }

func (e *commandError) status() int {
	if e.notFound {
		return statusNotFound
	}
	return statusNotExecutable
}

// run runs argv under the lock. Its error is nil if argv succeeded, an exitStatus if
// it did not, or else says why it was not run.
func (f *runFlags) run(name string, argv []string, options []pglock.Option) error {
	path, err := child.Find(argv[0])
	if err != nil {
		return &commandError{argv[0], isAny(err, exec.ErrNotFound, fs.ErrNotExist), err}
	}
	signals := listen()
	defer signals.stop()
	ctx, stop := signals.untilInterrupted()
	defer stop()
	client, closeClient, err := f.open(ctx, options)
	if err != nil {
		return interruptedOr(ctx, err)
	}
	bound := 5 * time.Second
	defer func() { closeClient(bound) }()
	lease, err := f.acquire(ctx, client, name)
	stop() // from here on signals are the command's, or delay the release
	if err = interruptedOr(ctx, err); err != nil {
		if f.quiet && statusOf(err) == statusNotAcquired {
			return exitStatus(statusNotAcquired)
		}
		return err // a lease that came with the interruption is released by closeClient
	}
	bound = time.Second // what could not be released by then frees itself
	return f.hold(lease, signals, child.Command{
		Path: path,
		Args: argv,
		Env: child.Environ(os.Environ(), map[string]string{
			"PGLOCK_NAME":   lease.Name(),
			"PGLOCK_TOKEN":  strconv.FormatInt(int64(lease.Token()), 10),
			"PGLOCK_HOLDER": lease.Holder(),
			schemaVariable:  f.schemaName(),
		}),
	})
}

// open connects. The function that it returns ends the connections, and may take
// that long to give back a lock that is on its way.
func (f *runFlags) open(ctx context.Context, options []pglock.Option) (*pglock.Client, func(time.Duration), error) {
	pool, err := f.openPool(ctx)
	if err != nil {
		return nil, nil, err
	}
	client, err := pglock.Open(ctx, pool, options...)
	if err != nil {
		pool.Close()
		return nil, nil, f.database().explainConnect(err)
	}
	return client, func(bound time.Duration) {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		_ = client.Close(ctx) // what could not be released ends by its TTL
		pool.Close()
	}, nil
}

// acquire waits for the lock as long as --wait says, and names the holder when the
// waiting begins.
func (f *runFlags) acquire(ctx context.Context, client *pglock.Client, name string) (*pglock.Lease, error) {
	if !f.waitForEver && f.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.wait)
		defer cancel()
	}
	lease, err := client.TryAcquire(ctx, name)
	var busy *pglock.BusyError
	if err == nil || !errors.As(err, &busy) || !f.waitForEver && f.wait == 0 {
		return lease, err
	}
	f.note("waiting: %s", describeBusy(busy))
	lease, err = client.Acquire(ctx, name)
	if err == nil {
		f.note("acquired the lock %q (token %d)", name, lease.Token())
	}
	return lease, err
}

// hold starts the command, sees to it, releases the lease, and returns the status
// to exit with.
func (f *runFlags) hold(lease *pglock.Lease, signals *signals, command child.Command) error {
	if err := lease.Err(); err != nil { // this process was stopped meanwhile
		return err
	}
	signals.add(stops)
	process, err := child.Start(command)
	if err != nil {
		f.release(lease, signals)
		return &commandError{name: command.Args[0], err: err}
	}
	s := &supervision{lease: lease, process: process, signals: signals, grace: f.grace, console: f.console}
	s.run()
	process.Close()
	if s.lost || f.release(lease, signals) {
		return exitStatus(statusLost)
	}
	if status := process.Status(); status != 0 {
		return exitStatus(status)
	}
	return nil
}

// release releases the lease, and reports whether it turned out to be lost. It
// takes no longer than the release statement's own bound, and no signal ends it:
// a lock that is not released stays taken until its TTL is over.
func (f *runFlags) release(lease *pglock.Lease, signals *signals) (lost bool) {
	released := make(chan error, 1)
	go func() { released <- lease.Release(context.Background()) }()
	for {
		select {
		case err := <-released:
			switch {
			case errors.Is(err, pglock.ErrLost):
				f.say("%s", describe(err))
				return true
			case err != nil:
				f.say("could not release the lock, it is free within %v: %s", f.ttl, describe(err))
			}
			return false
		case sig := <-signals.c:
			if ends(sig) {
				f.say("got %v, but the lock is still being released, which takes a few seconds at most", sig)
			}
		}
	}
}
