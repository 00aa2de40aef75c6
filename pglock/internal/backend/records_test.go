package backend_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock/internal/memory"
	"github.com/pglock/pglock-go/pglock/internal/records"
)

// recordCall is a call about the record of a key. Its grants are indexes into those of a recorder.
type recordCall struct {
	op            string
	key, digest   string
	owner, by     int
	state, result string
	kept          bool
}

// recorder makes such calls on the records of a driver.
type recorder struct {
	*world
	records func(ctx context.Context, op func(ctx context.Context, all records.Records) error) error
	grants  []fencing.Fence // no grant at all, two that are current, and one that is not
}

func newRecorder(t *testing.T, tables tables) recorder {
	t.Helper()
	r := recorder{newWorld(tables), nil, []fencing.Fence{{}}}
	if fake, ok := tables.table.(*memory.Store); ok {
		r.records = fake.Records
	} else {
		r.records = func(ctx context.Context, op func(ctx context.Context, all records.Records) error) error {
			return pgx.BeginFunc(ctx, beginner(tables.begin), func(tx pgx.Tx) error {
				return op(ctx, records.Table{DB: slowDB{tx, slowClock(tables.schema)}, Schema: tables.schema})
			})
		}
	}
	for _, line := range []string{"c1 acquire a ttl 1h", "c2 acquire b ttl 1h", "c3 acquire c ttl 1h", "c3 release c"} {
		s, err := parseStep(line)
		locktest.OK(t, err)
		if answer := r.say(t.Context(), s); !strings.HasPrefix(answer, "granted") && answer != "released" {
			t.Fatalf("%s: %s", line, answer)
		}
	}
	for i, name := range []string{"a", "b", "c"} {
		r.grants = append(r.grants, r.grantOf(fmt.Sprint("c", i+1), name).fence)
	}
	return r
}

// beginner begins transactions.
type beginner func(ctx context.Context) (pgx.Tx, error)

func (b beginner) Begin(ctx context.Context) (pgx.Tx, error) { return b(ctx) }

// slowDB sends statements for which the time hardly passes.
type slowDB struct {
	fencing.DB
	clock *strings.Replacer
}

func (s slowDB) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return s.DB.QueryRow(ctx, s.clock.Replace(sql), args...)
}

func (s slowDB) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return s.DB.Exec(ctx, s.clock.Replace(sql), args...)
}

// answer returns that to a call in words.
func (r recorder) answer(ctx context.Context, c recordCall) (text string) {
	digest := sha256.Sum256([]byte(c.digest))
	call := records.Call{Key: c.key, Digest: digest[:]}
	if c.kept {
		call.Retention = time.Hour
	}
	var result []byte // nil: none
	if c.result != "" {
		result = []byte(c.result)
	}
	err := r.records(ctx, func(ctx context.Context, all records.Records) error {
		var found records.Record
		var changed bool
		var err error
		owner := r.grants[c.owner].Token
		switch c.op {
		case "read":
			found, err = all.Read(ctx, call)
		case "claim":
			found, err = all.Claim(ctx, call, r.grants[c.by], fmt.Sprint("c", c.by), owner)
		case "finish":
			changed, err = all.Finish(ctx, call, owner, r.grants[c.by].Token, c.state, result)
		case "forget":
			err = all.Forget(ctx, call, owner)
		}
		token := slices.IndexFunc(r.grants, func(f fencing.Fence) bool { return f.Token == found.Token })
		text = fmt.Sprintf("%t: %s, claimed %t, same %t, %q (none: %t) by %d %q, started %t", changed, found.State, found.Claimed, found.Same,
			found.Result, found.Result == nil, token, found.Holder, !found.StartedAt.IsZero())
		return err
	})
	switch err = fencing.Explain(err); {
	case errors.Is(err, pgx.ErrNoRows):
		return "no record"
	case errors.Is(err, fencing.ErrStale):
		return "stale"
	case err != nil:
		return "error: " + err.Error()
	}
	return text
}

// TestTheRecordsOfTheFakeAreThoseOfTheServer: both are given the same random calls of package once, and answer the same.
func TestTheRecordsOfTheFakeAreThoseOfTheServer(t *testing.T) {
	t.Parallel()
	const seed = 1
	r := &story{Rand: rand.New(rand.NewPCG(seed, 0))}
	server, fake := newRecorder(t, drivers[0].empty(t)()), newRecorder(t, drivers[2].empty(t)())
	seen := map[string]bool{}
	for n := range 800 {
		c := recordCall{
			op: pick(r, "read", "claim", "claim", "claim", "finish", "forget"), key: fmt.Sprint(pick(r, "k", "other"), n/20), digest: pick(r, "x", "x", "x", "y"),
			owner: pick(r, 0, 1, 1, 2, 2, 3), by: pick(r, 1, 1, 2, 2, 3), state: pick(r, records.Done, records.Failed), result: pick(r, "", "r"),
			kept: pick(r, true, false, false),
		}
		want, got := server.answer(t.Context(), c), fake.answer(t.Context(), c)
		if got != want || strings.HasPrefix(want, "error") {
			t.Fatalf("call %d, %+v:\nthe server: %s\nthe fake:   %s", n, c, want, got)
		}
		seen[c.op+": "+want] = true
	}
	if len(seen) < 25 {
		t.Errorf("only %d different answers:\n%v", len(seen), seen)
	}
}
