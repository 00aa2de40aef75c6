package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

const (
	// tryCrowd is the number of goroutines that try at once.
	tryCrowd = 64

	// manyConns is one per goroutine.
	manyConns = tryCrowd

	// settleTime is more than two rounds of autovacuum.
	settleTime = 3 * time.Second
)

// quietSettings keep the server from writing WAL of its own, so that only the WAL of the tries is
// counted. Autovacuum runs, but finds nothing to do when prepare is done.
var quietSettings = map[string]string{
	"autovacuum_naptime": "1s",
	"checkpoint_timeout": "1h",
	"max_wal_senders":    "0",
	"wal_level":          "minimal",
	"max_connections":    "300",
}

// errGranted means that the held lock was granted, so the measurement is void.
var errGranted = errors.New("bench: a held lock was granted")

// tryRow is B4: many goroutines try to acquire a held lock.
func tryRow() trial.Row {
	const upsert, read = "naive upsert", "SELECT of the row"
	r := &tryLab{}
	conns := func(what string, n int) string { return fmt.Sprintf("%s, %d connections", what, n) }
	row := trial.Row{Number: "B4", What: fmt.Sprintf("try on a held name, %d goroutines", tryCrowd), Prepare: r.prepare, Throughput: true}
	for _, c := range []struct {
		what string
		role trial.Role
		open func(n int) trial.Open
	}{
		{kindOurs, trial.Ours, r.tries},
		{upsert, trial.Peer, func(n int) trial.Open { return r.execs(n, naiveUpsert, "held", "somebody else") }},
		{read, trial.Floor, func(n int) trial.Open {
			return r.execs(n, "SELECT holder, expires_at FROM pglock.distributed_locks WHERE name = $1", "held")
		}},
	} {
		for _, n := range []int{fewConns, manyConns} {
			row.Subjects = append(row.Subjects, trial.Subject{Name: conns(c.what, n), Role: c.role, Open: c.open(n)})
			if c.role == trial.Ours {
				row.Targets = append(row.Targets, target("WAL of all failed tries", "WAL", conns(c.what, n), "", trial.AtMost(0).InEveryRound()))
			}
		}
	}
	// A client has few connections by default, while an upsert needs one for each goroutine.
	ratio := target("tries a second to those of the naive upsert", "tries", conns(kindOurs, fewConns), conns(upsert, manyConns), trial.AtLeast(40))
	floor := target("tries a second to those of a SELECT of the row", "tries", conns(kindOurs, fewConns), conns(read, fewConns), trial.Rule{})
	row.Targets = slices.Insert(row.Targets, 0, ratio, floor)
	return row
}

type tryLab struct{ lab }

// prepare acquires the name in both tables for longer than the run takes.
func (r *tryLab) prepare(ctx context.Context, s *trial.Scope) error {
	err := r.lab.prepare(quietSettings, createNaive, "INSERT INTO naive_locks VALUES ('held', 'somebody', clock_timestamp() + interval '1 day')")(ctx, s)
	if err != nil {
		return err
	}
	holder, err := r.client(ctx, s, "pglock")
	if err != nil {
		return err
	}
	// With a shorter TTL, a renewal in the middle of a turn would write WAL that is not the tries'.
	if _, err := holder.TryAcquire(ctx, "held", pglock.WithTTL(24*time.Hour)); err != nil {
		return err
	}
	if err := r.exec(ctx, "VACUUM ANALYZE"); err != nil || s.Short {
		return err
	}
	for { // until the server has written no WAL for settleTime
		bytes, err := r.written(ctx, func() error { return backoff.Sleep(ctx, settleTime) })
		if bytes == 0 || err != nil {
			return err
		}
	}
}

func (r *tryLab) tries(conns int) trial.Open {
	return func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
		client, err := r.client(ctx, s, "pglock", pglock.WithMaxConns(conns))
		return r.meter(func(ctx context.Context, _ string) error {
			_, err := client.TryAcquire(ctx, "held")
			switch {
			case errors.Is(err, pglock.ErrNotAcquired):
				return nil
			case err == nil:
				return errGranted
			}
			return err
		}), err
	}
}

// execs opens a statement that must change nothing.
func (r *tryLab) execs(conns int, statement string, args ...any) trial.Open {
	return func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
		pool, err := r.connect(ctx, s, conns)
		return r.meter(func(ctx context.Context, _ string) error {
			tag, err := pool.Exec(ctx, statement, args...)
			if err == nil && tag.Insert() && tag.RowsAffected() > 0 {
				return errGranted
			}
			return err
		}), err
	}
}

func (r *tryLab) meter(do op) trial.Meter {
	return crowd(tryCrowd, "tries", &r.lab, do)
}
