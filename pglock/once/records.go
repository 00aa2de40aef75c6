package once

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
)

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
