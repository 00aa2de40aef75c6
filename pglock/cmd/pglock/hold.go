package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/child"
	"github.com/pglock/pglock-go/pglock/schedule"
)

func cantExecute(name string, err error) *failure {
	if inner := errors.Unwrap(err); inner != nil { // err repeats the name
		err = inner
	}
	return &failure{statusNotExecutable, fmt.Errorf("can't execute %s: %w", name, err)}
}

const (
	// exitTimeout bounds the time from the end of the command, or from an interruption, to the end
	// of pglock, also if the server hangs. The documentation promises 5 s. A lock that could not be
	// released by then expires by its TTL.
	exitTimeout = 4 * time.Second

	// releaseTimeout is the part of exitTimeout for the release. The rest is for closing
	// connections.
	releaseTimeout = 3500 * time.Millisecond
)

// run runs argv under the lock, or only holds it if there is none. It returns nil if argv
// succeeded, an exitStatus if argv failed, and another error if argv did not run.
func (f *runFlags) run(names, argv []string, options []pglock.Option) error {
	var path string
	var err error
	if len(argv) > 0 {
		path, err = exec.LookPath(argv[0])
	}
	switch {
	case isAny(err, exec.ErrNotFound, fs.ErrNotExist):
		return &failure{statusNotFound, fmt.Errorf("command not found: %s", argv[0])}
	case err != nil:
		return cantExecute(argv[0], err)
	}
	signals := listenSignals()
	defer signals.stop()
	ctx, stop := signals.untilInterrupted()
	defer func() { stop() }()
	client, closeClient, err := f.open(ctx, options)
	if err != nil {
		return interruptedOr(ctx, err)
	}
	bound := exitTimeout
	defer func() { closeClient(bound) }()
	stopServer, err := f.serveLeader(client, names[0])
	if err != nil {
		return err
	}
	defer stopServer()
	for {
		g, err := f.acquire(ctx, client, names)
		stop() // from here on, signals are for the command, and do not end the release
		if err = interruptedOr(ctx, err); err != nil {
			return f.notRun(err) // closeClient releases a lease that was granted with the interruption
		}
		bound = exitTimeout - releaseTimeout // hold needs the rest for the release
		if len(argv) == 0 {
			err = f.holdOnly(g, signals)
		} else {
			err = f.hold(g, signals, child.Command{Path: path, Args: argv, Env: f.environ(g)})
		}
		switch {
		case g.again.Load() && g.stop != nil:
			return interruption(g.stop)
		case g.again.Load():
			f.infof("the command failed, and is repeated: %s", err)
		case !errors.Is(err, errLeadershipLost):
			return err
		}
		bound = exitTimeout
		ctx, stop = signals.untilInterrupted()
	}
}

// notRun returns the error of a command that does not run, because the lock was not granted.
func (f *runFlags) notRun(err error) error {
	switch {
	case errors.Is(err, schedule.ErrDone):
		f.infof("nothing to do: %s", describe(err))
		return nil
	case exitStatusOf(err) == statusSuperseded:
		f.infof("%s", describe(err))
		return exitStatus(statusSuperseded)
	case exitStatusOf(err) == statusNotAcquired:
		f.infof("%s", describe(err))
		return exitStatus(f.busyStatus)
	}
	return f.explainPrivilege(err)
}

type grant struct {
	lease *pglock.Lease
	tick  string // with --tick, RFC 3339
	// end ends the grant after the command has ended with that exit status.
	end         func(ctx context.Context, status int) error
	interrupted bool        // the command was, from outside, and has not failed
	again       atomic.Bool // end has found that the command is repeated
	stop        os.Signal   // that has come during end
}

// environ returns the environment of the command. It has each variable once, with its last value.
func (f *runFlags) environ(g *grant) []string {
	held, _ := json.Marshal(append(heldAround(), heldLease{f.schema, g.lease.Names(), g.lease.Token(), g.lease.Holder()})) // can't fail
	env := append(os.Environ(),
		heldVariable+"="+string(held),
		"PGLOCK_NAME="+strings.Join(g.lease.Names(), "\n"),
		fmt.Sprintf("PGLOCK_TOKEN=%d", g.lease.Token()),
		"PGLOCK_HOLDER="+g.lease.Holder(),
		schemaVariable+"="+f.schema)
	if g.tick != "" {
		env = append(env, "PGLOCK_TICK="+g.tick)
	}
	return (&exec.Cmd{Env: env}).Environ()
}

// open connects, and returns a function that closes the connections, and revokes a grant whose
// reply has not arrived, within the given time.
func (g *globals) open(ctx context.Context, options []pglock.Option) (*pglock.Client, func(time.Duration), error) {
	pool, err := g.openPool(ctx)
	if err != nil {
		return nil, nil, err
	}
	// Without a logger: this command reports a loss itself, in its own form.
	client, err := pglock.Open(ctx, pool, append([]pglock.Option{pglock.WithLogger(nil)}, options...)...)
	if err != nil {
		pool.Close()
		return nil, nil, g.explainPrivilege(g.database().explainConnect(err))
	}
	return client, func(bound time.Duration) {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		_ = client.Close(ctx) // a lock that could not be released expires by its TTL
		closed := make(chan struct{})
		go func() { pool.Close(); close(closed) }() // waits for statements that record a run
		select {                                    // in any order: the process ends
		case <-closed:
		case <-ctx.Done():
		}
	}, nil
}

// acquire waits for the lock for the time of --wait. If it has to wait, it prints the holder first.
func (f *runFlags) acquire(ctx context.Context, client *pglock.Client, names []string) (*grant, error) {
	ctx, err := f.nested(ctx, client, names)
	switch {
	case err != nil:
		return nil, err
	case f.election:
		return f.campaign(ctx, client, names[0])
	case f.supersede: // two attempts would be two calls, of which the second one supersedes newer runs
		return f.attempt(ctx, client, names, f.wait)
	}
	g, err := f.attempt(ctx, client, names, 0)
	var busy *pglock.BusyError
	if errors.As(err, &busy) && f.wait > 0 {
		f.infof("waiting: %s", describe(busy))
		if g, err = f.attempt(ctx, client, names, f.wait); err == nil {
			f.infof("acquired lock %q (token %d)", g.lease.Name(), g.lease.Token())
		}
	}
	return g, err
}

// attempt waits for the kind of lock that the flags name.
func (f *runFlags) attempt(ctx context.Context, client *pglock.Client, names []string, wait time.Duration) (*grant, error) {
	if f.given() {
		return f.beginOnce(ctx, client, names[0], wait)
	}
	lease, err := f.lock(client, names).Acquire(ctx, pglock.WithWait(wait))
	if err != nil {
		return nil, err
	}
	return &grant{lease: lease, end: func(ctx context.Context, _ int) error { return lease.Release(ctx) }}, nil
}

func (f *runFlags) lock(client *pglock.Client, names []string) pglock.Lock {
	switch {
	case f.read:
		return client.Reader(names[0])
	case f.write:
		return client.Writer(names[0])
	case f.permits > 0:
		return client.Semaphore(names[0], f.permits).Weight(f.weight)
	}
	locks := make([]pglock.Lock, len(names))
	for i, name := range names {
		locks[i] = client.Lock(name)
	}
	return client.All(locks...)
}

// hold runs the command, ends the grant, and returns the exit status as an error.
func (f *runFlags) hold(g *grant, signals *signals, command child.Command) error {
	if err := g.lease.Err(); err != nil { // this process was suspended since the grant
		if f.election {
			return errLeadershipLost
		}
		return err
	}
	signals.add(stopSignals)
	s := &supervision{lease: g.lease, signals: signals, grace: f.grace, spare: f.spare(), obeys: f.obeys, console: f.console}
	command.Deadlines = s.deadlines
	process, err := child.Start(command)
	if err != nil {
		_ = f.end(g, statusNotExecutable, signals) // prints its error
		return cantExecute(command.Args[0], err)
	}
	s.process = process
	s.run()
	process.Close()
	switch {
	case s.lost && f.election && !s.interrupted:
		return errLeadershipLost
	case s.lost:
		return exitStatus(statusLost)
	}
	g.interrupted = s.interrupted
	status := process.Status
	if endStatus := f.end(g, status, signals); status == 0 || endStatus == statusLost {
		status = endStatus
	}
	if status != 0 {
		return exitStatus(status)
	}
	return nil
}

// errNoReply is the cause of a release that took longer than releaseTimeout.
var errNoReply = errors.New("the server does not answer")

// end ends the grant of a command that has ended with that status. It returns 0 unless the lock was
// lost before or a run could not be recorded, and prints why. It takes at most releaseTimeout, and
// signals do not end it, since a lock that is not released stays held until its TTL has passed.
func (f *runFlags) end(g *grant, status int, signals *signals) int {
	ctx, cancel := context.WithTimeoutCause(context.Background(), releaseTimeout, errNoReply)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- g.end(ctx, status) }()
	for {
		// In any order: a signal only prints a message, and a release that ends at the last moment
		// is as good as one that does not.
		select {
		case err := <-ended:
			return f.ended(err, status)
		case <-ctx.Done(): // g.end may still be running
			return f.ended(errNoReply, status)
		case sig := <-signals.c:
			if isTermination(sig) {
				g.stop = sig
				f.errorf("got %v: still releasing the lock, for at most a few seconds", sig)
			}
		}
	}
}

// ended prints the error of a grant that could not be ended, and returns the exit status for it.
func (f *runFlags) ended(err error, status int) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, pglock.ErrLost):
		f.errorf("%s", describe(err))
		return statusLost
	case f.given() && (status == 0 || f.countFailed):
		f.errorf("can't record the run or release the lock: another host may run the command again: %s", describe(err))
		return statusUnavailable
	}
	f.errorf("can't release the lock: it expires within %v: %s", f.ttl, describe(err))
	return 0
}
