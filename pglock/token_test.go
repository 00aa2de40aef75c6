package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
)

// stall makes the grants to the holder "stalled" wait inside the statement, after its values were
// computed and just before the row is written, until the returned function is called.
func (f fixture) stall() (resume func()) {
	f.t.Helper()
	f.sql(`CREATE FUNCTION pglock.stall() RETURNS trigger LANGUAGE plpgsql AS $$
	       BEGIN IF NEW.holder = 'stalled' THEN PERFORM set_config('lock_timeout', '0', true), pg_advisory_xact_lock(hashtextextended(TG_TABLE_SCHEMA, 42)); END IF; RETURN NEW; END $$`)
	f.sql(`CREATE TRIGGER stall BEFORE INSERT OR UPDATE ON pglock.distributed_locks FOR EACH ROW EXECUTE FUNCTION pglock.stall()`)
	tx := begin(f.t, f)
	f.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(f.t.Context(), `SELECT pg_advisory_xact_lock(hashtextextended($1, 42))`, f.schema); err != nil {
		f.t.Fatal(err)
	}
	return func() {
		check(f.t, tx.Rollback(context.Background()))
	}
}

// weaken replaces a part of a function's text, for a control.
func (f fixture) weaken(function, before, after string) {
	f.t.Helper()
	text := value[string](f, "SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p WHERE p.proname = $1 AND p.pronamespace = $2::regnamespace",
		function, schema.Quote(f.schema))
	if !strings.Contains(text, before) {
		f.t.Fatalf("%s has no %q", function, before)
	}
	f.sql(strings.ReplaceAll(text, before, after))
}

// awaitStalled returns when a backend waits in the trigger.
func (f fixture) awaitStalled() {
	f.t.Helper()
	pgtest.Eventually(f.t, "a backend is stalled", func() bool {
		return value[bool](f, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND (classid::bigint << 32) + objid::bigint = hashtextextended($1, 42))`, f.schema)
	})
}

// acquireStalled stalls a grant of name. It returns a function that resumes the grant, and its lease.
func (f fixture) acquireStalled(c *pglock.Client, name string) (resume func(), got <-chan *pglock.Lease) {
	f.t.Helper()
	resume = f.stall()
	granted := async(f.t, c.Lock(name), pglock.WithHolder("stalled"))
	f.awaitStalled()
	return resume, granted
}

// TestP01_AStalledGrant stalls a grant after its token was drawn. Of a known name, no client can
// overtake it, and none waits for it for long. Of a new name, the one that overtakes it has the row, and
// the stalled one gets a later token. So says the schedule stalled_new_name, also of pruned rows.
func TestP01_AStalledGrant(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprint("known ", known), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.open()
			if known {
				release(t, try(t, c, "n", pglock.WithHolder("quick")))
			}
			resume, got := f.acquireStalled(c, "n")
			var before fencing.Token
			if known {
				isBusy(t, "a try while the grant is stalled", c.Lock("n"))
				resume()
			} else {
				first := try(t, c, "n")
				before = first.Token()
				resume()
				release(t, first)
			}
			l := next(t, got)
			if l.Token() <= before {
				t.Errorf("token %d after %d", l.Token(), before)
			}
			release(t, l)
			if later := try(t, c, "n"); later.Token() <= l.Token() {
				t.Errorf("token %d after %d", later.Token(), l.Token())
			}
		})
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

// TestI11_P69_GuardedGatesCostNoConnection: eight names with permits are released, and guarded
// transactions of their last holders go on. Callers that wait for these names let no statement wait for
// a row, so another lock of the client is granted at once. The control is a statement that waits.
func TestI11_P69_GuardedGatesCostNoConnection(t *testing.T) {
	t.Parallel()
	const names, pairs = 8, 100
	f := on(t, pgtest.Database(t))
	f.pool = pgtest.PoolOn(t, f.pool.Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = names + 4 })
	holder, c := f.open(), f.open()
	const blocked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waiting sync.WaitGroup
	for i := range names {
		name := "rw" + strconv.Itoa(i)
		l := tried(t, rwlock(holder, name).write)
		must(t, l.Guard(t.Context(), begin(t, f)))
		release(t, l)
		waiting.Go(func() {
			fails(t, "beside a guarded transaction", second(rwlock(c, name).read.Acquire(ctx)), context.Canceled)
		})
	}
	f.waiters(names)
	stalled := 0
	times := make([]time.Duration, pairs)
	for i := range times {
		began := time.Now()
		release(t, acquire(t, c, "other"))
		times[i] = time.Since(began)
		stalled += value[int](f, blocked)
	}
	slices.Sort(times)
	t.Logf("a pair of another lock took %v (p50), %v (longest)", times[pairs/2], times[pairs-1])
	if stalled > pairs/4 { // some wait for a moment: for the lock of NOTIFY, or for another statement of the same name
		t.Errorf("%d times a statement of the client waited for a row", stalled)
	}
	cancel()
	waiting.Wait()

	control := begin(t, f)
	if _, err := control.Exec(t.Context(), f.named("SELECT FROM pglock.distributed_locks WHERE name = 'rw0' FOR NO KEY UPDATE")); err != nil {
		t.Fatal(err)
	}
	other := begin(t, f)
	ended := make(chan error)
	go func() {
		_, err := other.Exec(t.Context(), f.named("UPDATE pglock.distributed_locks SET version = version WHERE name = 'rw0'"))
		ended <- err
	}()
	until(f, "the control waits", 1, blocked)
	check(t, errors.Join(control.Rollback(t.Context()), <-ended))
}
