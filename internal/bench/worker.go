package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// workerVariable makes a process a worker, which serves subjects and a contender to its parent.
const workerVariable = "PGLOCK_BENCH_WORKER"

// workerHook must be the first call in main, after testserver.Hook. In a worker it does not return.
func workerHook() {
	if os.Getenv(workerVariable) == "" {
		return
	}
	// Otherwise the workers of an interrupted run end first, and it takes that for a failure.
	signal.Ignore(os.Interrupt)
	server := rpc.NewServer()
	err := errors.Join(trial.Register(server, rows()), server.RegisterName("Contender", &contender{}))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitBroken)
	}
	server.ServeConn(connection{endWith(os.Stdin), os.Stdout})
	os.Exit(0)
}

// endWith returns what comes from the parent. It ends this process when the parent has ended or has no
// more use for it, whatever it is doing then.
func endWith(stdin io.Reader) io.Reader {
	r, w := io.Pipe()
	go func() {
		_, _ = io.Copy(w, stdin)
		os.Exit(0)
	}()
	return r
}

// connection is one end of the two pipes between a parent and a worker.
type connection struct {
	io.Reader
	io.WriteCloser
}

// holding is a time at which a worker held the lock, by the machine's clock, in nanoseconds.
type holding struct{ Acquired, Freed int64 }

// contender competes for a lock with other processes.
type contender struct{ locker locker }

// Open opens a kind of lock at an address.
func (c *contender) Open(kindAndAddress [2]string, _ *bool) (err error) {
	c.locker, err = openLocker(context.Background(), kindAndAddress[0], kindAndAddress[1], 2)
	return err
}

// Contention is from when to when a contender competes, and at which pace: see hold.
type Contention struct {
	From, To time.Time
	Every    time.Duration
}

// Contend holds the lock again and again.
func (c *contender) Contend(when Contention, held *[]holding) (err error) {
	time.Sleep(time.Until(when.From))
	*held, err = hold(context.Background(), c.locker.lock, when.To, when.Every)
	return err
}

// startWorker starts a program, this one or another version of it, as a worker until the row is done.
func startWorker(s *trial.Scope, program string) (io.ReadWriteCloser, error) {
	cmd := exec.Command(program) //nolint:noctx // it ends with its stdin
	cmd.Env = append(os.Environ(), workerVariable+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.Defer(func() error { return errors.Join(stdin.Close(), cmd.Wait()) })
	return connection{stdout, stdin}, nil
}

// hire starts a contender until the row is done.
func hire(s *trial.Scope, kind, address string) (*rpc.Client, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	conn, err := startWorker(s, program)
	if err != nil {
		return nil, err
	}
	worker := rpc.NewClient(conn)
	return worker, worker.Call("Contender.Open", [2]string{kind, address}, new(bool))
}
