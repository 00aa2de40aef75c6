//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/pglock"
)

const (
	lockName = "ha"
	leaseTTL = 3 * time.Second
)

// event is one line of a worker's history. Times are nanoseconds since 1970: all workers are on one
// machine.
type event struct {
	Kind   string // "grant", "write" or "end"
	Worker int
	Token  int64
	Seq    int64 `json:",omitempty"` // of a write
	Began  int64 `json:",omitempty"` // when a grant or a write was asked for
	At     int64 // when it was reported; of an end, when the holder stopped trusting its lease
}

// work acquires the lock again and again, writes to the ledger under guard, and releases it. It
// writes its history to out, until ctx ends.
func work(ctx context.Context, args []string, out io.Writer) error {
	w := worker{out: json.NewEncoder(out)}
	if len(args) != 2 {
		return errors.New("its arguments are its number and the URL of the database")
	}
	var err error
	if w.id, err = strconv.Atoi(args[0]); err != nil {
		return err
	}
	for ctx.Err() == nil {
		_ = w.serve(ctx, args[1])
		_ = backoff.Sleep(ctx, 300*time.Millisecond)
	}
	return nil
}

type worker struct {
	id  int
	seq int64

	mu  sync.Mutex
	out *json.Encoder
}

func (w *worker) record(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.Worker = w.id
	_ = w.out.Encode(e) // without its reader the experiment is over
}

// serve works with one client, until something fails that the client does not handle.
func (w *worker) serve(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := pglock.Open(ctx, pool, pglock.WithTTL(leaseTTL))
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = client.Close(ctx) // the lease expires
	}()
	for ctx.Err() == nil {
		if err := w.turn(ctx, pool, client); err != nil {
			return err
		}
	}
	return nil
}

// turn holds the lock once, for 50 ms to 200 ms or, in one of ten turns, longer than its TTL.
func (w *worker) turn(ctx context.Context, pool *pgxpool.Pool, client *pglock.Client) error {
	asked := time.Now()
	lease, err := client.Acquire(ctx, lockName, pglock.WithWait(20*time.Second))
	if errors.Is(err, pglock.ErrTimeout) {
		return nil
	}
	if err != nil {
		return err
	}
	w.record(event{Kind: "grant", Token: int64(lease.Token()), Began: asked.UnixNano(), At: time.Now().UnixNano()})
	ended := sync.OnceFunc(func() {
		w.record(event{Kind: "end", Token: int64(lease.Token()), At: time.Now().UnixNano()})
	})
	context.AfterFunc(lease.Context(), ended)
	hold := 50*time.Millisecond + rand.N(150*time.Millisecond)
	if rand.N(10) == 0 {
		hold = leaseTTL + time.Second
	}
	for until := time.Now().Add(hold); time.Now().Before(until) && lease.Err() == nil && ctx.Err() == nil; {
		w.write(lease.Context(), pool, lease)
		_ = backoff.Sleep(lease.Context(), 20*time.Millisecond)
	}
	ended()
	_ = lease.Release(ctx) // it expires
	return nil
}

// write writes one line of the ledger under guard.
func (w *worker) write(ctx context.Context, pool *pgxpool.Pool, lease *pglock.Lease) {
	w.seq++
	began, seq := time.Now(), w.seq
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := lease.Guard(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "INSERT INTO ledger (worker, seq, token) VALUES ($1, $2, $3)", w.id, seq, int64(lease.Token()))
		return err
	})
	switch {
	case err == nil:
		w.record(event{Kind: "write", Token: int64(lease.Token()), Seq: seq, Began: began.UnixNano(), At: time.Now().UnixNano()})
	case errors.Is(err, fencing.ErrStale):
		w.record(event{Kind: "refused", Token: int64(lease.Token()), Seq: seq, At: time.Now().UnixNano()})
	}
}

// describe is for the logs of a failed experiment.
func (e event) String() string {
	return fmt.Sprintf("%s of worker %d, token %d, at %s", e.Kind, e.Worker, e.Token, time.Unix(0, e.At).Format("15:04:05.000000"))
}
