// Package records has the record of an idempotency key of package once, and the statements that
// read and change it, as migrations/0008_once.up.sql describes.
package records

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
)

// The states of a key in the table.
const (
	Started = "started"
	Done    = "done"
	Failed  = "failed"
)

// Call is a call with a key.
type Call struct {
	Key       string
	Digest    []byte        // of its fingerprint
	Retention time.Duration // of the record when it has an outcome
}

// Record is the record of a key, as a call finds it.
type Record struct {
	Key       string
	Claimed   bool // it is the caller's, in the state Started
	Same      bool // it has the caller's fingerprint
	State     string
	Result    []byte        // nil if there is none
	Token     fencing.Token // of the last attempt's lease; 0 for a key of once.Tx
	Holder    string        // of the last attempt's lease
	StartedAt time.Time     // of the last attempt, by the server's clock
}

// Records has the statements of once.Do, each of which may be repeated.
type Records interface {
	// Read returns the record of the call's key, or pgx.ErrNoRows if there is none.
	Read(ctx context.Context, c Call) (Record, error)
	// Claim records that an attempt begins, in place of the one with the token insteadOf, unless
	// the key has another record, which it returns. The attempt's grant must be the current one.
	Claim(ctx context.Context, c Call, grant fencing.Fence, holder string, insteadOf fencing.Token) (Record, error)
	// Finish records the outcome of the attempt with the token owner, as the grant with the token
	// by, and reports whether the record was still that attempt's.
	Finish(ctx context.Context, c Call, owner, by fencing.Token, state string, result []byte) (changed bool, err error)
	// Forget deletes the record of the attempt with that token.
	Forget(ctx context.Context, c Call, owner fencing.Token) error
}

// Table has the records in the table of a schema, by a connection or a transaction.
type Table struct {
	DB     fencing.DB
	Schema string
}

// readSQL returns the record of a key unless it has expired.
const readSQL = "SELECT false, k.fingerprint = $2::bytea, k.state, CASE WHEN k.fingerprint = $2::bytea THEN k.result END, " +
	"coalesce(k.token, 0), coalesce(k.holder, ''), k.started_at FROM pglock.once_keys AS k " +
	"WHERE k.key = $1::text AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())"

// Read implements the method of Records with readSQL.
func (t Table) Read(ctx context.Context, c Call) (Record, error) { return t.scan(ctx, readSQL, c) }

// claimSQL inserts the record of a key, or returns the record that exists already.
const claimSQL = "SELECT claimed, coalesce(same, false), coalesce(state, ''), result, coalesce(token, 0), coalesce(holder, ''), started_at " +
	"FROM pglock.once_claim($1::text, $2::bytea, $3::bigint, $4::text, $5::bigint, $6::text, $7::bigint)"

// Claim implements the method of Records with claimSQL.
func (t Table) Claim(ctx context.Context, c Call, grant fencing.Fence, holder string, insteadOf fencing.Token) (Record, error) {
	return t.scan(ctx, claimSQL, c, nil, grant.Name, int64(grant.Token), holder, zeronull.Int8(insteadOf))
}

// ClaimInTx inserts a record for once.Tx. It waits for a transaction that has inserted one, not
// longer than wait if that is not nil.
func (t Table) ClaimInTx(ctx context.Context, c Call, wait *time.Duration) (Record, error) {
	var ms any
	if wait != nil {
		ms = wait.Milliseconds()
	}
	return t.scan(ctx, claimSQL, c, ms, nil, nil, nil, nil)
}

// scan runs a statement that returns the record of a key.
func (t Table) scan(ctx context.Context, sql string, c Call, args ...any) (Record, error) {
	r := Record{Key: c.Key}
	err := t.DB.QueryRow(ctx, schema.Render(sql, t.Schema), append([]any{c.Key, c.Digest}, args...)...).
		Scan(&r.Claimed, &r.Same, &r.State, &r.Result, &r.Token, &r.Holder, &r.StartedAt)
	return r, err
}

// finishSQL ends the record of the attempt with token $2, as the grant $3. It matches that token,
// so an attempt that was replaced changes nothing. It is durable when it returns.
const finishSQL = "WITH durable AS MATERIALIZED (SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') " +
	"WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)) " +
	"UPDATE pglock.once_keys AS k SET token = $3::bigint, state = $4::text, result = $5::bytea, " +
	"expires_at = clock_timestamp() + $6::float8 * interval '1 microsecond' " +
	"FROM durable WHERE k.key = $1::text AND k.state = 'started' AND k.token = $2::bigint"

// Finish implements the method of Records with finishSQL.
func (t Table) Finish(ctx context.Context, c Call, owner, by fencing.Token, state string, result []byte) (changed bool, err error) {
	return t.change(ctx, finishSQL, c.Key, int64(owner), int64(by), state, result, c.Retention.Microseconds())
}

// finishInTxSQL ends a record that was claimed in the caller's transaction.
const finishInTxSQL = "UPDATE pglock.once_keys AS k SET state = 'done', result = $2::bytea, " +
	"expires_at = clock_timestamp() + $3::float8 * interval '1 microsecond' " +
	"WHERE k.key = $1::text AND k.state = 'started' AND k.token IS NULL"

// FinishInTx records the result of once.Tx, and reports whether the transaction still has the
// record.
func (t Table) FinishInTx(ctx context.Context, c Call, result []byte) (changed bool, err error) {
	return t.change(ctx, finishInTxSQL, c.Key, result, c.Retention.Microseconds())
}

// forgetSQL deletes the record of the attempt with token $2.
const forgetSQL = "DELETE FROM pglock.once_keys AS k WHERE k.key = $1::text AND k.state = 'started' AND k.token = $2::bigint"

// Forget implements the method of Records with forgetSQL.
func (t Table) Forget(ctx context.Context, c Call, owner fencing.Token) error {
	_, err := t.change(ctx, forgetSQL, c.Key, int64(owner))
	return err
}

func (t Table) change(ctx context.Context, sql string, args ...any) (changed bool, err error) {
	tag, err := t.DB.Exec(ctx, schema.Render(sql, t.Schema), args...)
	return tag.RowsAffected() == 1, err
}
