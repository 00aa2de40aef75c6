package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/internal/testserver"
)

// workerVariable makes a process a worker: with a kind of lock, or of another kind.
const workerVariable = "PGLOCK_BENCH_WORKER"

// The other kinds of workers.
const (
	kindBurner = "burner" // burns a core
	kindBase   = "base"   // measures another version of the module
)

// holding is a time at which a worker held the lock, by the machine's clock, in nanoseconds.
type holding struct{ Acquired, Freed int64 }

// workerHook must be the first call in main, after testserver.Hook. In a worker it does not return.
func workerHook() {
	kind := os.Getenv(workerVariable)
	if kind == "" {
		return
	}
	// Otherwise the workers of an interrupted run end first, and it takes that for a failure.
	signal.Ignore(os.Interrupt)
	var err error
	switch kind {
	case kindBurner:
		endWith(os.Stdin)
		burn()
	case kindBase:
		if err = trial.Serve(context.Background(), rows(), os.Stdin, os.Stdout); errors.Is(err, trial.ErrAbandoned) {
			err = testserver.Close()
		}
	default:
		err = work(endWith(os.Stdin), kind, os.Getenv(workerVariable+"_ADDRESS"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitBroken)
	}
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

// burn keeps one core busy until the process ends.
func burn() {
	runtime.GOMAXPROCS(1)
	for n := uint64(1); n != 0; n += 2 { // it stays odd
	}
}

// work reads lines with two moments each from stdin. From the first to the second it locks and unlocks
// one name, and then it writes the times at which it held the lock.
func work(stdin io.Reader, kind, address string) error {
	ctx := context.Background()
	l, err := openLocker(ctx, kind, address, 2)
	if err != nil {
		return err
	}
	defer l.close()
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode("ready"); err != nil {
		return err
	}
	for lines := bufio.NewScanner(stdin); lines.Scan(); {
		var from, to int64
		if _, err := fmt.Sscan(lines.Text(), &from, &to); err != nil {
			return err
		}
		held := []holding{}
		time.Sleep(time.Until(time.Unix(0, from)))
		for end := time.Unix(0, to); time.Now().Before(end); {
			unlock, err := l.lock(ctx, "hot")
			if err != nil {
				return err
			}
			h := holding{Acquired: time.Now().UnixNano()}
			h.Freed = time.Now().UnixNano()
			if err := unlock(ctx); err != nil {
				return err
			}
			held = append(held, h)
		}
		if err := out.Encode(held); err != nil {
			return err
		}
	}
	return nil
}

// worker is a worker process with a kind of lock, as its parent sees it.
type worker struct {
	in  io.WriteCloser
	out *json.Decoder
}

// child is a worker process of any kind, as its parent sees it.
type child struct {
	stdin  io.WriteCloser
	stdout io.Reader
	cmd    *exec.Cmd
}

// startWorker starts a program, this one or another version of it, as a worker.
func startWorker(program, kind string, env ...string) (*child, error) {
	cmd := exec.Command(program) //nolint:noctx // it ends with its stdin
	cmd.Env = append(append(os.Environ(), workerVariable+"="+kind), env...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &child{stdin, stdout, cmd}, cmd.Start()
}

// end ends the worker and waits for its end.
func (p *child) end() error { return errors.Join(p.stdin.Close(), p.cmd.Wait()) }

// hire starts a worker with a kind of lock until the row is done.
func hire(s *trial.Scope, kind, address string) (*worker, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := startWorker(program, kind, workerVariable+"_ADDRESS="+address)
	if err != nil {
		return nil, err
	}
	s.Defer(p.end)
	w := &worker{in: p.stdin, out: json.NewDecoder(p.stdout)}
	var ready string
	return w, w.out.Decode(&ready)
}

// start lets the worker work from one moment to another.
func (w *worker) start(from, to time.Time) error {
	_, err := io.WriteString(w.in, strconv.FormatInt(from.UnixNano(), 10)+" "+strconv.FormatInt(to.UnixNano(), 10)+"\n")
	return err
}

// held waits until the worker is done and returns the times at which it held the lock.
func (w *worker) held() (all []holding, err error) {
	err = w.out.Decode(&all)
	return all, err
}
