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
	"strconv"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// workerVariable makes a process a worker with a kind of lock.
const workerVariable = "PGLOCK_BENCH_WORKER"

// holding is a time at which a worker held the lock, by the machine's clock, in nanoseconds.
type holding struct{ Acquired, Freed int64 }

// workerHook must be the first call in main. In a worker it does not return.
func workerHook() {
	kind := os.Getenv(workerVariable)
	if kind == "" {
		return
	}
	if err := work(kind, os.Getenv(workerVariable+"_ADDRESS")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitBroken)
	}
	os.Exit(0)
}

// work reads lines with two moments each from stdin. From the first to the second it locks and unlocks
// one name, and then it writes the times at which it held the lock.
func work(kind, address string) error {
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
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
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

// worker is a worker process, as its parent sees it.
type worker struct {
	in  io.WriteCloser
	out *json.Decoder
}

// hire starts a worker until the row is done.
func hire(s *trial.Scope, kind, address string) (*worker, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe) //nolint:noctx // it ends with its stdin
	cmd.Env = append(os.Environ(), workerVariable+"="+kind, workerVariable+"_ADDRESS="+address)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.Defer(func() error { return errors.Join(in.Close(), cmd.Wait()) })
	w := &worker{in: in, out: json.NewDecoder(out)}
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
