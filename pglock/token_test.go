package pglock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// stall makes the grants to the holder "stalled" wait inside the statement, after its values were
// computed and just before the row is written, until the returned function is called.
func (f fixture) stall() (resume func()) {
	f.t.Helper()
	f.sql(`CREATE FUNCTION pglock.stall() RETURNS trigger LANGUAGE plpgsql AS $$
	       BEGIN IF NEW.holder = 'stalled' THEN PERFORM set_config('lock_timeout', '0', true), pg_advisory_xact_lock(hashtextextended(TG_TABLE_SCHEMA, 42)); END IF; RETURN NEW; END $$`)
	f.sql(`CREATE TRIGGER stall BEFORE INSERT OR UPDATE ON pglock.distributed_locks FOR EACH ROW EXECUTE FUNCTION pglock.stall()`)
	tx, err := f.pool.Begin(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(f.t.Context(), `SELECT pg_advisory_xact_lock(hashtextextended($1, 42))`, f.schema); err != nil {
		f.t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(context.Background()); err != nil {
			f.t.Error(err)
		}
	}
}

// awaitStalled returns when a backend waits in the trigger.
func (f fixture) awaitStalled() {
	f.t.Helper()
	pgtest.Eventually(f.t, 5*time.Second, "a backend is stalled", func() bool {
		return value[bool](f, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND (classid::bigint << 32) + objid::bigint = hashtextextended($1, 42))`, f.schema)
	})
}

// acquireStalled stalls a grant of name. It returns a function that resumes the grant, and its lease.
func (f fixture) acquireStalled(c *pglock.Client, name string) (resume func(), got <-chan *pglock.Lease) {
	f.t.Helper()
	resume = f.stall()
	granted := make(chan *pglock.Lease, 1)
	go func() {
		l, err := c.Acquire(f.t.Context(), name, pglock.WithHolder("stalled"))
		if err != nil {
			f.t.Error(err)
		}
		granted <- l
	}()
	f.awaitStalled()
	return resume, granted
}

// TestP01_AStalledAcquirerCannotWinWithAnOldToken stalls a first grant after its token was drawn.
// Another client acquires the name and releases it. Its row is pruned, unless pruning refuses.
func TestP01_AStalledAcquirerCannotWinWithAnOldToken(t *testing.T) {
	t.Parallel()
	// run returns the token of the overtaker, and the later token of the stalled acquirer.
	run := func(t *testing.T, prune func(f fixture, c *pglock.Client)) (overtaker, stalled int64) {
		t.Helper()
		f := newFixture(t)
		c := f.open()
		resume, got := f.acquireStalled(c, "n")
		quick := try(t, c, "n", pglock.WithHolder("quick"))
		release(t, quick)
		prune(f, c)
		resume()
		return int64(quick.Token()), int64((<-got).Token())
	}
	t.Run("protected", func(t *testing.T) {
		t.Parallel()
		first, second := run(t, func(_ fixture, c *pglock.Client) {
			n, err := c.Prune(t.Context(), 0)
			if n != 1 || err != nil {
				t.Errorf("during a first grant pruning deleted %d rows, and said %v", n, err)
			}
		})
		if second <= first {
			t.Errorf("token %d was granted after %d", second, first)
		}
	})
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		first, second := run(t, func(f fixture, _ *pglock.Client) {
			f.sql("DELETE FROM pglock.distributed_locks WHERE holder IS NULL")
		})
		if second > first {
			t.Errorf("control: with rows deleted at will, token %d came after %d, in order all the same", second, first)
		}
	})
}

// TestP01_ATakeoverStalledWithTheRowLocked stalls a takeover of an existing row after its token was
// drawn: no client can overtake it, and none waits for it.
func TestP01_ATakeoverStalledWithTheRowLocked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	release(t, try(t, c, "n", pglock.WithHolder("quick")))
	resume, got := f.acquireStalled(c, "n")
	if _, err := c.TryAcquire(t.Context(), "n"); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("a try while the takeover is stalled: %v", err)
	}
	resume()
	l := <-got
	release(t, l)
	if next := try(t, c, "n"); next.Token() <= l.Token() {
		t.Errorf("token %d after %d", next.Token(), l.Token())
	}
}

// TestP01_ControlATokenDrawnBeforeTheUpsert is a protocol that failed elsewhere: a separate
// statement draws the token. The slow acquirer wins with a smaller one.
func TestP01_ControlATokenDrawnBeforeTheUpsert(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	draw := func() int64 { return value[int64](f, "SELECT pglock.next_fencing_token()") }
	upsert := func(token int64) int64 {
		return value[int64](f, `INSERT INTO pglock.distributed_locks AS l (name, token, version, holder, acquired_at, expires_at)
			VALUES ('n', $1, 1, 'h', now(), clock_timestamp()) ON CONFLICT (name) DO UPDATE SET token = excluded.token
			WHERE l.expires_at <= clock_timestamp() RETURNING token`, token)
	}
	slow := draw()
	first := upsert(draw())
	if second := upsert(slow); second > first {
		t.Errorf("control: tokens %d, %d are in order", first, second)
	}
}

func TestP02_OneGrantOneToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	l := try(t, c, "n", pglock.WithTTL(600*time.Millisecond), pglock.WithRenewEvery(30*time.Millisecond))
	pgtest.Eventually(t, 10*time.Second, "five renewals", func() bool {
		return value[int64](f, "SELECT version FROM pglock.distributed_locks WHERE name = 'n'") > 5
	})
	if token := value[int64](f, "SELECT token FROM pglock.distributed_locks WHERE name = 'n'"); token != int64(l.Token()) {
		t.Errorf("after renewals the token is %d, it was granted as %d", token, l.Token())
	}
	release(t, l)
}
