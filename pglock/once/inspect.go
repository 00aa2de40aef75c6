package once

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
)

var (
	//go:embed sql/resolve.sql
	resolveSQL string
	//go:embed sql/prune.sql
	pruneSQL string
)

const getSQL = "SELECT k.key, k.state, coalesce(k.token, 0), coalesce(k.holder, ''), k.created_at, k.started_at, " +
	"k.expires_at, coalesce(s.running, false) " +
	"FROM pglock.once_keys AS k LEFT JOIN pglock.once_started AS s ON s.key = k.key " +
	"WHERE k.key = $1::text AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())"

// Info describes the record of a key.
type Info struct {
	Key       string
	State     string        // "started", "done" or "failed"
	Running   bool          // started, and the attempt's lease is held
	Token     fencing.Token // of the last attempt; 0 for a key of Tx
	Holder    string        // of the last attempt; empty for a key of Tx
	CreatedAt time.Time     // of the first attempt, by the server's clock
	StartedAt time.Time     // of the last attempt
	ExpiresAt time.Time     // zero while started
}

// Get returns information about a key. The error wraps ErrNotFound if no call has used it or its
// record has expired. It needs no fingerprint and returns no result. ctx bounds the call.
func Get(ctx context.Context, db fencing.DB, key string, opts ...SchemaOption) (i Info, err error) {
	cfg, err := newConfig(opts, SchemaOption.applyTx)
	if err = cmp.Or(checkKey(key), checkDB(db), err); err != nil {
		return i, err
	}
	err = db.QueryRow(ctx, schema.Render(getSQL, cfg.schema), key).
		Scan(&i.Key, &i.State, &i.Token, &i.Holder, &i.CreatedAt, &i.StartedAt, (*zeronull.Timestamptz)(&i.ExpiresAt), &i.Running)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return i, errs.Errorf("%w: %.64q", ErrNotFound, key)
	case err != nil:
		return i, explain(ctx, "get", key, cfg.schema, err)
	}
	return i, nil
}

// Resolve ends an attempt whose outcome is unknown, after an operator has found out whether its
// effect happened. If it did, calls with the key get ErrNoResult for 24 h, as the result is not
// known here; otherwise the next call runs the effect. The token is that of the attempt, as Get and
// *UnknownError have it.
//
// The table operator_actions records it, with the reason of WithReason. If the attempt runs, or has
// an outcome, or if there is a newer one, nothing is changed, and the error wraps ErrInProgress;
// without a record it wraps ErrNotFound. ctx bounds the call.
func Resolve(ctx context.Context, db fencing.DB, key string, token fencing.Token, happened bool, opts ...ResolveOption) error {
	cfg, err := newConfig(opts, ResolveOption.applyResolve)
	if err = cmp.Or(checkKey(key), checkDB(db), err); err != nil {
		return err
	}
	var resolved bool
	err = db.QueryRow(ctx, schema.Render(resolveSQL, cfg.schema), key, int64(token), happened, defaultRetention.Milliseconds(), cfg.reason).Scan(&resolved)
	switch {
	case err != nil:
		return explain(ctx, "resolve", key, cfg.schema, err)
	case resolved:
		return nil
	}
	i, err := Get(ctx, db, key, WithSchema(cfg.schema))
	if err != nil {
		return err
	}
	what := i.State
	if i.Running {
		what = "running"
	}
	return errs.Errorf("%w, or has an outcome: key %.64q is %s, token %d", ErrInProgress, key, what, i.Token)
}

// Prune deletes the records of keys that have expired, and returns their number, also with an
// error. Calls do not need it: it only frees space. Run it from time to time, for instance with
// package schedule. It walks the table in steps of 1000 keys, each in a separate transaction if db
// is a pool, and waits for no lock. It never deletes a record without an outcome. ctx bounds the
// call.
func Prune(ctx context.Context, db fencing.DB, opts ...SchemaOption) (deleted int64, err error) {
	cfg, err := newConfig(opts, SchemaOption.applyTx)
	if err = cmp.Or(checkDB(db), err); err != nil {
		return 0, err
	}
	for last := ""; ; {
		var read, pruned int64
		err := db.QueryRow(ctx, schema.Render(pruneSQL, cfg.schema), last).Scan(&read, &last, &pruned)
		deleted += pruned
		if err != nil {
			return deleted, explain(ctx, "prune", last, cfg.schema, err)
		}
		if read == 0 {
			return deleted, nil
		}
	}
}

func checkDB(db fencing.DB) error {
	return errs.Require("once", db != nil, "the database is nil: pass a pool, a connection or a transaction")
}
