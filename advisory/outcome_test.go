package advisory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestDoSaysWhetherItCommitted: a transaction that did not commit is not ErrCommitUnknown, and one
// that the function has ended is ErrTx, since what came after was done without the lock. Do leaves
// the caller's connection outside a transaction, and the pool's connection in the pool.
func TestDoSaysWhetherItCommitted(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	l.exec("ALTER TABLE " + l.table + " ADD CONSTRAINT few CHECK (n < 9), ADD CONSTRAINT one UNIQUE (n) DEFERRABLE INITIALLY DEFERRED")
	key := advisory.NewKey("outcome", t.Name())
	own := errors.New("the function's")
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t))
	ok(t, err)
	defer conn.Close(context.Background())
	ok(t, advisory.Do(t.Context(), l.pool, key, noWork))
	made := l.pool.Stat().NewConnsCount()
	for what, tc := range map[string]struct {
		sql    string
		result func(err error) error // of the function
		want   error
	}{
		"an error":                  {"UPDATE " + l.table + " SET n = n + 1", func(error) error { return own }, own},
		"a fault":                   {"UPDATE " + l.table + " SET n = 9", nil, nil},
		"a fault that is swallowed": {"UPDATE " + l.table + " SET n = 9", func(error) error { return nil }, nil},
		"a fault in the commit":     {"INSERT INTO " + l.table + " VALUES (2, 0)", nil, nil},
		"COMMIT":                    {"COMMIT", nil, advisory.ErrTx},
		"ROLLBACK":                  {"ROLLBACK", nil, advisory.ErrTx},
		"ROLLBACK and an error":     {"ROLLBACK", func(error) error { return own }, own},
		"END and more":              {"END; SELECT 1", nil, advisory.ErrTx},
	} {
		for where, db := range map[string]advisory.DB{"pool": l.pool, "connection": conn} {
			for _, opts := range [][]advisory.DoOption{nil, {advisory.WithIsolation(pgx.Serializable)}} {
				err := advisory.Do(t.Context(), db, key, func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, tc.sql)
					if tc.result != nil {
						return tc.result(err)
					}
					return err
				}, opts...)
				if err == nil || errors.Is(err, advisory.ErrCommitUnknown) || errors.Is(err, advisory.ErrNotAcquired) || tc.want != nil && !errors.Is(err, tc.want) {
					t.Errorf("%s, on a %s: %v", what, where, err)
				}
			}
		}
		if s := conn.PgConn().TxStatus(); s != 'I' || conn.IsClosed() {
			t.Errorf("%s: the connection is left in state %c", what, s)
		}
	}
	// The ledger's own statements may have used two connections.
	if again := l.pool.Stat().NewConnsCount(); again > made+2 {
		t.Errorf("%d connections were made anew", again-made)
	}
	if n := count(t, l.pool, "SELECT count(*) FROM "+l.table+" WHERE n = 0"); n != 1 || l.n() != 0 {
		t.Errorf("%d rows, n is %d", n, l.n())
	}
	whole(t, l.pool)
}

// TestRetryHasATimeoutOfItsOwn: the time that the function took before does not count as a wait.
func TestRetryHasATimeoutOfItsOwn(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	key := advisory.NewKey("outcome", t.Name())
	const timeout = 2 * time.Second
	rival, runs, begun := begin(t, pool), 0, time.Now()
	inside, leave, locked, result := make(chan struct{}), make(chan struct{}), make(chan error, 1), make(chan error, 1)
	go func() {
		result <- advisory.Do(t.Context(), pool, key, func(context.Context, pgx.Tx) error {
			if runs++; runs > 1 {
				return nil
			}
			close(inside)
			<-leave
			return &pgconn.PgError{Code: "40001"}
		}, advisory.WithRetry(1), advisory.WithTimeout(timeout))
	}()
	<-inside
	go func() { locked <- advisory.Lock(t.Context(), rival, key) }()
	pgtest.Eventually(t, "the rival waits", func() bool { return waitsFor(t, pool, key) == 1 })
	locktest.WaitUntilPast(begun.Add(timeout)) // the first run has used up the timeout
	close(leave)
	ok(t, <-locked)
	pgtest.Eventually(t, "Do waits again", func() bool { return waitsFor(t, pool, key) == 1 })
	if err := errors.Join(rival.Rollback(t.Context()), <-result); err != nil || runs != 2 {
		t.Errorf("%d runs, %v", runs, err)
	}
}

// TestDoCommitUnknown: a lost answer to the commit is reported as such, not as a failure.
func TestDoCommitUnknown(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	proxy, through := proxied(t)
	key := advisory.NewKey("unknown", t.Name())
	ctx, cancel := context.WithCancel(t.Context())
	err := advisory.Do(ctx, through, key, func(ctx context.Context, tx pgx.Tx) error {
		err := l.increment(ctx, tx)
		proxy.DropReplies()
		time.AfterFunc(300*time.Millisecond, cancel)
		return err
	})
	if !errors.Is(err, advisory.ErrCommitUnknown) {
		t.Errorf("%v", err)
	}
	pgtest.Eventually(t, "the commit was carried out", func() bool { return l.n() == 1 })
	proxy.Heal()
	ctx, cancel = context.WithCancel(t.Context())
	err = advisory.Do(ctx, through, key, func(ctx context.Context, tx pgx.Tx) error {
		defer cancel()
		return l.increment(ctx, tx)
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, advisory.ErrCommitUnknown) || l.n() != 1 {
		t.Errorf("canceled before the commit: %v, n is %d", err, l.n())
	}
}
