package pglock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

const epoch = int64(1) << 44 // the tokens of one timeline

// TestI2_TokensOutliveAnUpgrade: pg_upgrade and a restored dump keep the sequence, but begin with
// timeline 1 again. Here the tokens come from timeline 6.
func TestI2_TokensOutliveAnUpgrade(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	old := 5*epoch + 17
	f.sql(`INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at) VALUES ('old', $1, 1, now(), '-infinity')`, old)
	f.setSequence(17)
	f.sql(`INSERT INTO pglock.fencing_epoch (system, timeline, epoch) VALUES (1, 6, 5)`)
	// The control: the bare sequence.
	if drawn := value[int64](f, "SELECT pglock.next_fencing_token()"); drawn > old {
		t.Fatalf("control: the sequence gives %d by itself", drawn)
	}
	c := f.open()
	first := try(t, c, "another name")
	if int64(first.Token()) <= old || int64(first.Token()) > 6*epoch {
		t.Errorf("token %d after %d", first.Token(), old)
	}
	// An upgrade of the upgraded cluster: now the upper bits are in the sequence.
	f.sql(`UPDATE pglock.fencing_epoch SET system = 2`)
	if next := try(t, f.open(), "a third name"); next.Token() <= first.Token() || int64(next.Token()) > 6*epoch {
		t.Errorf("token %d after %d", next.Token(), first.Token())
	}
}

// TestI2_TokensStartAtOne: a fresh schema has small tokens, also after its first client has
// connected. Another connection changes nothing.
func TestI2_TokensStartAtOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for want := range 3 {
		if l := try(t, f.open(), fmt.Sprint("n", want)); int(l.Token()) != want+1 {
			t.Errorf("token %d, want %d", l.Token(), want+1)
		}
	}
}

// TestARestoreOfDataLeavesTwoEpochs restores data into a schema that has been migrated and used.
// The clients find two rows in fencing_epoch and merge them.
func TestARestoreOfDataLeavesTwoEpochs(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		restore string
		above   int64
	}{
		"of another cluster": {"INSERT INTO pglock.fencing_epoch (system, timeline, epoch, pruned) VALUES (1, 3, 2, 2 * 17592186044416 + 5)", 2*epoch + 5},
		"of the same one":    {"INSERT INTO pglock.fencing_epoch SELECT system, timeline, epoch, pruned FROM pglock.fencing_epoch", 40},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.open()
			for range 40 {
				release(t, try(t, c, "n"))
			}
			f.sql(tc.restore)
			f.setSequence(17) // as it was when the data was saved
			if l := try(t, f.open(), "m"); int64(l.Token()) <= tc.above {
				t.Errorf("token %d, and one up to %d was granted or restored", l.Token(), tc.above)
			}
			is(f, "rows in fencing_epoch", 1, "SELECT count(*) FROM pglock.fencing_epoch")
		})
	}
}

// TestI2_WhereTheServerDoesNotTellItsTimeline: an undetected failover that loses commits sets the
// sequence back. Each new connection raises it to the clock.
func TestI2_WhereTheServerDoesNotTellItsTimeline(t *testing.T) {
	t.Parallel()
	f := on(t, pgtest.Database(t)) // the functions are those of the database
	f.sql("REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC")
	owner := `"owner of ` + strings.ReplaceAll(f.schema, `"`, `""`) + `"`
	f.sql("CREATE ROLE " + owner + " LOGIN PASSWORD 'poor'")
	t.Cleanup(func() {
		_, _ = f.pool.Exec(context.Background(), "DROP OWNED BY "+owner+" CASCADE")
		_, _ = f.pool.Exec(context.Background(), "DROP ROLE "+owner)
	})
	f.sql("GRANT CREATE ON DATABASE " + pgx.Identifier{f.pool.Config().ConnConfig.Database}.Sanitize() + " TO " + owner)
	config := f.pool.Config()
	config.ConnConfig.User, config.ConnConfig.Password = "owner of "+f.schema, "poor"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	g := fixture{t, pool, "managed"}
	must(t, migrations.Up(t.Context(), pool, migrations.WithSchema(g.schema)))
	c := g.openOn(pool)
	var last int64
	for range 30 {
		l := try(t, c, "n")
		last = int64(l.Token())
		release(t, l)
	}
	g.sql("DELETE FROM pglock.distributed_locks WHERE name = 'n'")
	release(t, try(t, c, "another"))
	g.setSequence(3)
	if l := try(t, g.openOn(pool), "n"); int64(l.Token()) <= last {
		t.Errorf("token %d after %d", l.Token(), last)
	}
}

// TestManyClientsConnectAfterAFailover connects them at once, as a role with the strictest default
// isolation. Each waits for the one that lifts the tokens.
func TestManyClientsConnectAfterAFailover(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	release(t, try(t, f.open(), "n"))
	user := pgtest.UserPool(t, f.pool, f.schema)
	f.sql(`ALTER ROLE "` + pgtest.RoleOf(user) + `" SET default_transaction_isolation = 'serializable'`)
	for range 5 {
		f.sql("UPDATE pglock.fencing_epoch SET system = 1")
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				c, err := pglock.Open(t.Context(), user, pglock.WithSchema(f.schema))
				if err != nil {
					t.Errorf("Open: %v", err)
					return
				}
				check(t, c.Close(t.Context()))
			})
		}
		all.Wait()
	}
	f.open()
	is(f, "rows in fencing_epoch", 1, "SELECT count(*) FROM pglock.fencing_epoch")
}

// TestTheEvidenceOfEachKind: a client that meets a sequence behind its own grants names a row that shows it, whatever
// the grant was for, and so lifts the sequence.
func TestTheEvidenceOfEachKind(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]func(c *pglock.Client) pglock.Lock{
		"one name":      func(c *pglock.Client) pglock.Lock { return c.Lock("n") },
		"several names": func(c *pglock.Client) pglock.Lock { return c.All(c.Lock("m"), c.Lock("n")) },
		"semaphore":     func(c *pglock.Client) pglock.Lock { return c.Semaphore("s", 2) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.open()
			l := lock(c)
			for range 2 { // the first grant makes the rows
				release(t, tried(t, l))
			}
			last := tried(t, l)
			f.setSequence(1)
			role := pgtest.RoleOf(pgtest.UserPool(t, f.pool, f.schema)) // of the client alone, whatever its sessions ran last
			pgtest.Eventually(t, "the client's sessions end", func() bool {
				return value[int](f, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = $1", role) == 0
			})
			if next := acquire(t, c, "another"); next.Token() <= last.Token() {
				t.Errorf("token %d after %d", next.Token(), last.Token())
			}
		})
	}
}

// TestTicketsCountAfterLogicalReplication copies the rows of a cluster whose sequence was far ahead
// into one on a higher timeline, before its first client connects. A ticket drawn here must be
// above the used tickets of that cluster.
func TestTicketsCountAfterLogicalReplication(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		before func(f fixture)
	}{
		"rows arrive first": {before: func(f fixture) {
			f.sql(`INSERT INTO pglock.distributed_locks (name, token, version, ticket, acquired_at, expires_at) VALUES ('n', 1000000, 1, 999999, now(), '-infinity')`)
		}},
		"a client has been there before": {before: func(f fixture) {
			release(t, try(t, f.open(), "n"))
			f.sql(`UPDATE pglock.distributed_locks SET token = 1000000, ticket = 999999`)
			c := f.open() // its first connection has no evidence
			release(t, try(t, c, "n"))
			if _, err := c.Prune(t.Context(), time.Hour); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			tc.before(f)
			c := f.open()
			held := try(t, c, "n")
			if held.Token() <= 1000000 {
				t.Errorf("token %d", held.Token())
			}
			waiter := f.open()
			got := async(t, waiter.Lock("n"))
			for f.tickets("n") == 0 {
				rest(t, 10*time.Millisecond)
			}
			if ticket := value[int64](f, "SELECT ticket FROM pglock.lock_waiters WHERE name = 'n'"); ticket <= 999999 {
				t.Errorf("ticket %d is invalid, tickets up to 999999 are used up", ticket)
			}
			release(t, held)
			release(t, next(t, got))
		})
	}
}

// TestAStepCostsTheSame for any number of names, wherever in the table it begins: of pruning, of
// listing, and of the lifting of tokens, for which Open waits. The controls read every row, as former
// versions did.
func TestAStepCostsTheSame(t *testing.T) {
	t.Parallel()
	const names, limit = 200_000, 2000
	pruning := int64(limit)
	f := newFixture(t)
	f.sql(`INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at, labels)
	       SELECT md5(i::text), i, 1, now(), '-infinity', jsonb_build_object('n', i) FROM generate_series(1, $1::int) AS i`, names)
	f.sql("VACUUM ANALYZE pglock.distributed_locks")
	f.sql(`INSERT INTO pglock.fencing_epoch (system, timeline, epoch) VALUES (1, 1, 0)`)
	cost := func(what string, limit int64, control, step string, args ...any) {
		t.Helper()
		n, whole := pages(f, step, args...), pages(f, control)
		t.Logf("%s touches %d pages, the control %d", what, n, whole)
		if n == 0 || n > limit || whole < 3000 {
			t.Errorf("%s touches %d pages, the control %d", what, n, whole)
		}
	}
	cost("lifting", limit, "SELECT max(token) FROM pglock.distributed_locks", "SELECT pglock.lift_fencing_tokens('n1')")
	if value[bool](f, "SELECT current_setting('server_version_num')::int < 140000") {
		pruning += 64 * 291 // PruneSQL looks for each possible row of the 64 pages there
	}
	for page, after := range []string{"", "8", "f"} {
		cost("pruning", pruning, "SELECT name FROM pglock.distributed_locks WHERE expires_at <= clock_timestamp() AND acquired_at < clock_timestamp() - interval '1 day'",
			pglock.PruneSQL, int64(24*time.Hour/time.Microsecond), 1000*page, 1000*page+64, pgx.Identifier{f.schema, "distributed_locks"}.Sanitize())
		cost("listing", limit, "SELECT name FROM pglock.distributed_locks WHERE expires_at > clock_timestamp()",
			pglock.ListSQL, after, true, "", "", "", "{}", false, false, false, "", 500, 0)
	}
}

// setSequence sets the sequence back, or forth.
func (f fixture) setSequence(value int64) {
	f.t.Helper()
	if _, err := f.pool.Exec(f.t.Context(), "SELECT setval($1::text::regclass, $2)", pgx.Identifier{f.schema, "fencing_tokens"}.Sanitize(), value); err != nil {
		f.t.Fatal(err)
	}
}

// pages returns the number of pages that a statement touches. Its changes are rolled back.
func pages(f fixture, statement string, args ...any) int64 {
	f.t.Helper()
	tx := begin(f.t, f)
	defer func() { _ = tx.Rollback(f.t.Context()) }()
	rows, err := tx.Query(f.t.Context(), "EXPLAIN (ANALYZE, BUFFERS) "+f.named(statement), args...)
	must(f.t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(f.t, err)
	for _, line := range lines { // the first is of the whole plan
		if at := strings.Index(line, "shared hit="); at >= 0 {
			var hit, read int64
			_, _ = fmt.Sscanf(line[at:], "shared hit=%d read=%d", &hit, &read)
			return hit + read
		}
	}
	f.t.Fatalf("no pages in %q", lines)
	return 0
}

// TestRowsOfALaterTimelineWithoutTheSequence: a role can forge a row of a later range of tokens, so such a row lifts
// nothing by itself. The owner says that it is genuine, by the statement of the documents.
func TestRowsOfALaterTimelineWithoutTheSequence(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	old := 3*epoch + 17
	f.sql(`INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at) VALUES ('old', $1, 1, now(), '-infinity')`, old)
	f.sql("SELECT pglock.lift_fencing_tokens('old')")
	if drawn := value[int64](f, "SELECT pglock.next_fencing_token()"); drawn > old {
		t.Fatalf("control: the row alone lifts the tokens to %d", drawn)
	}
	f.sql(`INSERT INTO pglock.fencing_epoch (timeline, epoch) SELECT 1, max(token) / 17592186044416 FROM pglock.distributed_locks HAVING count(*) > 0`)
	f.sql(`SELECT pglock.lift_fencing_tokens(name) FROM pglock.distributed_locks ORDER BY token DESC LIMIT 1`)
	if l := try(t, f.open(), "another name"); int64(l.Token()) <= old || int64(l.Token()) > 4*epoch {
		t.Errorf("token %d after %d", l.Token(), old)
	}
}
