package migrations

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

// checkServer returns an error that wraps schema.ErrSchema if locks are not safe on the server. A role
// that may not call the function learns it from pglock.Open. With probe, it also makes a sequence to try.
func checkServer(ctx context.Context, own *pgxpool.Pool, cfg config, probe bool) error {
	var why *string
	err := own.QueryRow(ctx, "SELECT "+schema.Quote(cfg.schema)+".unsafe_server()").Scan(&why)
	switch {
	case pgtx.SQLState(err) == pgtx.InsufficientPrivilege:
		return nil
	case err != nil:
		return cfg.explain(err)
	case why != nil:
		return cfg.explain(schema.Unsafe(*why))
	case !probe:
		return nil
	}
	return cfg.explain(checkSequence(ctx, own, cfg))
}

// checkSequence draws values from a sequence in two sessions by turns, because a server may cache values
// although its catalog does not say so. The sequence is another one than that of the tokens, and is
// removed again.
func checkSequence(ctx context.Context, own *pgxpool.Pool, cfg config) error {
	probe := schema.Quote(cfg.schema) + "." + schema.Quote("pglock_probe_"+rand.Text())
	if _, err := own.Exec(ctx, "CREATE SEQUENCE "+probe+" CACHE 1"); err != nil {
		return err
	}
	var drawn [3]int64
	err := own.AcquireFunc(ctx, func(first *pgxpool.Conn) error {
		return own.AcquireFunc(ctx, func(second *pgxpool.Conn) error {
			for i, conn := range []*pgxpool.Conn{first, second, first} {
				if err := conn.QueryRow(ctx, "SELECT pg_catalog.nextval($1::pg_catalog.text::pg_catalog.regclass)", probe).Scan(&drawn[i]); err != nil {
					return err
				}
			}
			return nil
		})
	})
	err = errs.Join(err, pgtx.CleanUp(ctx, func(ctx context.Context) error {
		_, err := own.Exec(ctx, "DROP SEQUENCE "+probe)
		return err
	}))
	if err != nil || drawn[0] < drawn[1] && drawn[1] < drawn[2] {
		return err
	}
	return schema.Unsafe(fmt.Sprintf("two sessions by turns drew %d from a sequence, so that a later holder could get a smaller token: "+
		"use a server that caches no values of a sequence", drawn))
}
