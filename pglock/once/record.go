package once

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
)

// MaxKey is the largest size of a key in bytes.
const MaxKey = 512

func checkKey(key string) error {
	if err := errs.CheckText(key, MaxKey); err != nil {
		return errs.Errorf("%w: %.64q: it %w", ErrInvalidKey, key, err)
	}
	return nil
}

// LockName returns the name of the lock that Do holds while fn runs: "once:" and the key. If that is
// too long for a lock's name, it is "once:sha256:" and the key's SHA-256 in hex.
func LockName(key string) string {
	if name := "once:" + key; len(name) <= errs.MaxName {
		return name
	}
	digest := sha256.Sum256([]byte(key))
	return "once:sha256:" + hex.EncodeToString(digest[:])
}

// digest returns what is stored of a fingerprint.
func digest(fingerprint []byte) []byte {
	d := sha256.Sum256(fingerprint)
	return d[:]
}

// The states of a key. See migrations/0003_once.up.sql.
const (
	stateStarted = "started"
	stateDone    = "done"
	stateFailed  = "failed"
)

const (
	// claimSQL inserts the record of a key, or returns the one that is in the way.
	claimSQL = "SELECT claimed, coalesce(same, false), coalesce(state, ''), result, coalesce(token, 0), coalesce(holder, ''), started_at " +
		"FROM pglock.once_claim($1::text, $2::bytea, $3::bigint, $4::text, $5::bigint, $6::text, $7::bigint)"

	// readSQL returns the record of a key unless it has expired.
	readSQL = "SELECT false, k.fingerprint = $2::bytea, k.state, CASE WHEN k.fingerprint = $2::bytea THEN k.result END, " +
		"coalesce(k.token, 0), coalesce(k.holder, ''), k.started_at FROM pglock.once_keys AS k " +
		"WHERE k.key = $1::text AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())"

	// storeSQL ends a record that was claimed in the caller's transaction.
	storeSQL = "UPDATE pglock.once_keys AS k SET state = 'done', result = $2::bytea, " +
		"expires_at = clock_timestamp() + $3::float8 * interval '1 microsecond' " +
		"WHERE k.key = $1::text AND k.state = 'started' AND k.token IS NULL"

	// recordSQL ends the record of the attempt with token $2, as the grant $3. It matches that
	// token, so an attempt that was replaced changes nothing. It is durable when it returns.
	recordSQL = "WITH durable AS MATERIALIZED (SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') " +
		"WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)) " +
		"UPDATE pglock.once_keys AS k SET token = $3::bigint, state = $4::text, result = $5::bytea, " +
		"expires_at = clock_timestamp() + $6::float8 * interval '1 microsecond' " +
		"FROM durable WHERE k.key = $1::text AND k.state = 'started' AND k.token = $2::bigint"

	// forgetSQL deletes the record of the attempt with token $2.
	forgetSQL = "DELETE FROM pglock.once_keys AS k WHERE k.key = $1::text AND k.state = 'started' AND k.token = $2::bigint"
)

// record is the row of a key, as a call finds it.
type record struct {
	claimed bool // it is the caller's, in the state started
	same    bool // it has the caller's fingerprint
	state   string
	result  []byte // nil if there is none
	retried bool   // it replaces an attempt whose outcome is still unknown
	Started
}

// scan runs a statement that returns the record of a key.
func scan(ctx context.Context, db fencing.DB, schemaName, sql, key string, args ...any) (record, error) {
	r := record{Started: Started{Key: key}}
	err := db.QueryRow(ctx, schema.Render(sql, schemaName), append([]any{key}, args...)...).
		Scan(&r.claimed, &r.same, &r.state, &r.result, &r.Token, &r.Holder, &r.StartedAt)
	return r, err
}

// answer returns what the record says to a repeated request.
func (r record) answer() ([]byte, error) {
	switch {
	case !r.same:
		return nil, errs.Errorf("%w: key %.64q: its fingerprint differs, and the first call may have had its effect: a new key is for a new effect", ErrMismatch, r.Key)
	case r.state == stateFailed:
		return nil, &FailedError{Key: r.Key, Text: string(r.result)}
	case r.state == stateDone && r.result == nil:
		return nil, errs.Errorf("%w: key %.64q", ErrNoResult, r.Key)
	case r.state == stateDone:
		return r.result, nil
	}
	return nil, &UnknownError{Started: r.Started}
}

// Started is an effect that an earlier attempt has begun, and whose outcome is unknown.
type Started struct {
	Key       string
	Token     fencing.Token // of the attempt's lease
	Holder    string        // of the attempt's lease
	StartedAt time.Time     // by the server's clock
}

// records has the statements of a call of Do on the record of its key.
type records interface {
	// read fails with pgx.ErrNoRows if the key has none.
	read(ctx context.Context) (record, error)
	claim(ctx context.Context, l *pglock.Lease, insteadOf fencing.Token) (record, error)
	finish(ctx context.Context, owner, token fencing.Token, state string, data []byte) (changed bool, err error)
	forget(ctx context.Context, token fencing.Token) error
}

// inTable has them on the server.
type inTable struct {
	conn *pgx.Conn
	call *doCall
}

func (t inTable) read(ctx context.Context) (record, error) {
	return scan(ctx, t.conn, t.call.schema, readSQL, t.call.key, t.call.digest)
}

func (t inTable) claim(ctx context.Context, l *pglock.Lease, insteadOf fencing.Token) (record, error) {
	return scan(ctx, t.conn, t.call.schema, claimSQL, t.call.key, t.call.digest,
		nil, l.Name(), int64(l.Token()), l.Holder(), zeronull.Int8(insteadOf))
}

func (t inTable) finish(ctx context.Context, owner, token fencing.Token, state string, data []byte) (changed bool, err error) {
	tag, err := t.conn.Exec(ctx, schema.Render(recordSQL, t.call.schema),
		t.call.key, int64(owner), int64(token), state, data, t.call.retention.Microseconds())
	return tag.RowsAffected() == 1, err
}

func (t inTable) forget(ctx context.Context, token fencing.Token) error {
	_, err := t.conn.Exec(ctx, schema.Render(forgetSQL, t.call.schema), t.call.key, int64(token))
	return err
}

// inMemory does what they do on the records of a fake.
type inMemory struct {
	store backend.Local
	call  *doCall
}

func (m inMemory) change(ctx context.Context, guard fencing.Fence, change func(k *backend.Key, now time.Time)) error {
	return m.store.ChangeKey(ctx, m.call.key, guard, change)
}

func (m inMemory) record(k *backend.Key) record {
	r := record{state: k.State, same: slices.Equal(k.Fingerprint, m.call.digest)}
	r.Started = Started{Key: m.call.key, Token: k.Token, Holder: k.Holder, StartedAt: k.StartedAt}
	if r.same {
		r.result = k.Result
	}
	return r
}

func (m inMemory) read(ctx context.Context) (r record, err error) {
	err = m.change(ctx, fencing.Fence{}, func(k *backend.Key, _ time.Time) { r = m.record(k) })
	if err == nil && r.state == "" {
		err = pgx.ErrNoRows
	}
	return r, err
}

func (m inMemory) claim(ctx context.Context, l *pglock.Lease, insteadOf fencing.Token) (r record, err error) {
	err = m.change(ctx, l.Fence(), func(k *backend.Key, now time.Time) {
		r = m.record(k)
		begun := r.same && k.State == stateStarted
		if k.State == "" || begun && k.Token == insteadOf {
			*k = backend.Key{State: stateStarted, Holder: l.Holder(), Token: l.Token(), Fingerprint: m.call.digest, StartedAt: now}
			r, begun = m.record(k), true
		}
		r.claimed = begun && k.Token == l.Token()
	})
	return r, err
}

func (m inMemory) finish(ctx context.Context, owner, token fencing.Token, state string, data []byte) (changed bool, err error) {
	err = m.change(ctx, fencing.Fence{}, func(k *backend.Key, now time.Time) {
		if changed = k.State == stateStarted && k.Token == owner; changed {
			k.State, k.Token, k.Result, k.ExpiresAt = state, token, slices.Clone(data), now.Add(m.call.retention)
		}
	})
	return changed, err
}

func (m inMemory) forget(ctx context.Context, token fencing.Token) error {
	return m.change(ctx, fencing.Fence{}, func(k *backend.Key, _ time.Time) {
		if k.State == stateStarted && k.Token == token {
			*k = backend.Key{}
		}
	})
}
