package memory

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock/internal/records"
)

// key is the row of an idempotency key, or that there is none if the state is empty. An effect that
// is started does not expire.
type key struct {
	records.Record
	digest  []byte
	expires time.Time
}

// keys has the statements of package records.
type keys struct{ *Store }

// Records runs op on the records of package once.
func (c *Store) Records(ctx context.Context, op func(ctx context.Context, all records.Records) error) error {
	return op(ctx, keys{c})
}

// change runs a statement on the row of a key, and returns the row as the call sees it, and what
// change returns.
func (s keys) change(
	ctx context.Context, op string, c records.Call, change func(k *key, now time.Time) (changed bool, err error),
) (records.Record, bool, error) {
	type answer struct {
		records.Record
		changed bool
	}
	a, err := run(ctx, s.Store, Message{Op: op, About: c.Key}, func() (a answer, err error) {
		k, now := s.server.keys[c.Key], time.Now()
		if k == nil || k.State != records.Started && !k.expires.After(now) {
			k = &key{}
			s.server.keys[c.Key] = k
		}
		a.changed, err = change(k, now)
		if a.Record = k.Record; !slices.Equal(k.digest, c.Digest) {
			a.Same, a.Result = false, nil
		}
		return a, err
	})
	return a.Record, a.changed, err
}

func (s keys) Read(ctx context.Context, c records.Call) (records.Record, error) {
	r, _, err := s.change(ctx, "read_record", c, func(k *key, _ time.Time) (bool, error) {
		if k.State == "" {
			return false, pgx.ErrNoRows
		}
		return false, nil
	})
	return r, err
}

func (s keys) Claim(ctx context.Context, c records.Call, grant fencing.Fence, holder string, insteadOf fencing.Token) (records.Record, error) {
	r, _, err := s.change(ctx, "claim", c, func(k *key, now time.Time) (bool, error) {
		if err := s.guard(grant); err != nil {
			return false, err
		}
		if k.State == "" || k.started(insteadOf) && slices.Equal(k.digest, c.Digest) {
			k.Record = records.Record{Key: c.Key, Same: true, State: records.Started, Token: grant.Token, Holder: holder, StartedAt: now}
			k.digest = c.Digest
		}
		return true, nil
	})
	r.Claimed = err == nil && r.Same && r.State == records.Started && r.Token == grant.Token
	return r, err
}

// started reports whether the attempt with that token has no outcome.
func (k *key) started(token fencing.Token) bool {
	return k.State == records.Started && k.Token == token
}

func (s keys) Finish(ctx context.Context, c records.Call, owner, by fencing.Token, state string, result []byte) (changed bool, err error) {
	result = slices.Clone(result)
	_, changed, err = s.change(ctx, "finish", c, func(k *key, now time.Time) (changed bool, err error) {
		if changed = k.started(owner); changed {
			k.State, k.Token, k.Result, k.expires = state, by, result, now.Add(c.Retention)
		}
		return changed, nil
	})
	return changed, err
}

func (s keys) Forget(ctx context.Context, c records.Call, owner fencing.Token) error {
	_, _, err := s.change(ctx, "forget", c, func(k *key, _ time.Time) (changed bool, err error) {
		if changed = k.started(owner); changed {
			*k = key{}
		}
		return changed, nil
	})
	return err
}
