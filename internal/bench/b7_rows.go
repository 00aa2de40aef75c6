//go:build !base

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/bench/trial"
)

// The kinds of tables that B7 compares.
const (
	unprotected = "unprotected"
	protected   = "protected"
	named       = "protected, named" // each row tells its lock
)

// rowMeter times statements that write n rows, divided by n. They share a transaction that
// has bound the grant; neither that nor the commit is part of it.
type rowMeter struct {
	lab   *guardLab
	kind  string
	table string
	n     int
	took  map[string]*trial.Latencies
}

// The statements. The first UPDATE of a holder meets rows that an earlier grant has written, and
// gives them a new stamp; an UPDATE again finds the stamp there.
var rowWrites = []string{"INSERT", "UPDATE again", "UPDATE first", "DELETE"}

// tables makes a table for one meter.
func (r *guardLab) tables(kind string, n int) func(context.Context, *trial.Scope) (trial.Meter, error) {
	return func(ctx context.Context, _ *trial.Scope) (trial.Meter, error) {
		m := &rowMeter{lab: r, kind: kind, n: n, table: fmt.Sprintf("%s_%d", strings.ReplaceAll(kind, ", ", "_"), n), took: map[string]*trial.Latencies{}}
		for _, write := range rowWrites {
			m.took[write] = trial.NewLatencies()
		}
		err := r.exec(ctx, fmt.Sprintf("CREATE TABLE %s (id bigint PRIMARY KEY, account int NOT NULL, v bigint NOT NULL) WITH (autovacuum_enabled = off)", m.table))
		switch {
		case err != nil:
		case kind == protected:
			err = fencing.Protect(ctx, r.pool, m.table)
		case kind == named:
			err = fencing.Protect(ctx, r.pool, m.table, fencing.NamedBy("account:{account}"))
		default: // so that the rows are as long
			err = r.exec(ctx, fmt.Sprintf("ALTER TABLE %s ADD COLUMN fence_token bigint DEFAULT 1", m.table))
		}
		return m, err
	}
}

func (m *rowMeter) Turn(ctx context.Context, d time.Duration) error {
	if err := m.lab.exec(ctx, "VACUUM "+m.table); err != nil {
		return err
	}
	_, err := trial.Repeat(ctx, d, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, m.lab.pool, func(tx pgx.Tx) error { return m.writeAll(ctx, tx) })
	})
	return err
}

// writeAll inserts rows, changes them twice and deletes them.
func (m *rowMeter) writeAll(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, "SET LOCAL synchronous_commit = off"); err != nil {
		return err
	}
	if err := m.lab.lease.Bind(ctx, tx); err != nil {
		return err
	}
	for i, sql := range []string{
		fmt.Sprintf("INSERT INTO %s (id, account, v) SELECT i, 1, 0 FROM generate_series(1, %d) AS i", m.table, m.n),
		fmt.Sprintf("UPDATE %s SET v = v + 1", m.table),
		fmt.Sprintf("UPDATE %s SET v = v + 1, account = 2", m.table),
		fmt.Sprintf("DELETE FROM %s", m.table),
	} {
		if i == 2 {
			if err := m.lab.later.Bind(ctx, tx); err != nil {
				return err
			}
		}
		began := time.Now()
		if _, err := tx.Exec(ctx, sql); err != nil {
			return err
		}
		m.took[rowWrites[i]].Record(time.Since(began) / time.Duration(m.n))
	}
	return nil
}

func (m *rowMeter) Figures() []trial.Figure {
	var all []trial.Figure
	for _, write := range rowWrites {
		all = append(all, m.took[write].Figures(write + " per row")[0]) // p50
	}
	return all
}

// rowUpdates are what a holder's UPDATE meets: rows with its own token, or rows that it must stamp. The
// second is what the first write of a grant does; giving the column another value does it each time.
var rowUpdates = map[string]string{"again": "", "stamped": ", fence_token = 0"}

// statement measures whole writes: an UPDATE of n rows that commits, fenced or not.
func (r *guardLab) statement(kind string, n int, column string) func(context.Context, *trial.Scope) (trial.Meter, error) {
	return func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
		table := strings.NewReplacer(" ", "_", ",", "", "=", "").Replace(fmt.Sprintf("whole %s %d %s", kind, n, column))
		if err := r.exec(ctx,
			fmt.Sprintf("CREATE TABLE %s (id bigint PRIMARY KEY, account int NOT NULL, v bigint NOT NULL, fence_token bigint) WITH (fillfactor = 50)", table),
			fmt.Sprintf("INSERT INTO %s SELECT i, 1, 0, %d FROM generate_series(1, %d) AS i", table, r.lease.Token(), n)); err != nil {
			return nil, err
		}
		update := fmt.Sprintf("UPDATE %s SET v = v + 1%s", table, column)
		how := func(r *guardLab, ctx context.Context, _ string) error {
			_, err := r.pool.Exec(ctx, update)
			return err
		}
		if kind == protected {
			if err := fencing.Protect(ctx, r.pool, table); err != nil {
				return nil, err
			}
			how = func(r *guardLab, ctx context.Context, _ string) error {
				b := &pgx.Batch{}
				b.Queue(update)
				return fencing.Batch(ctx, r.pool, r.lease.Fence(), b)
			}
		}
		return r.writes(how)(ctx, s)
	}
}
