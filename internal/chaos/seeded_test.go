//go:build linux

package chaos

import (
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
)

// bugs are changes of the server's functions and tables that break a promise.
var bugs = []struct {
	name, lock string
	sql        string
	caught     func(violations) bool
}{
	{
		"a token that repeats", leaseName,
		`CREATE FUNCTION repeat_token() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.token := OLD.token; RETURN NEW; END $$;
		 CREATE TRIGGER repeat BEFORE UPDATE ON pglock.distributed_locks FOR EACH ROW
		 WHEN (OLD.token > 0 AND OLD.holder IS NULL) EXECUTE FUNCTION repeat_token()`,
		func(v violations) bool { return v.notLinearizable > 0 && v.tokensBack > 0 },
	},
	{
		// The row is free at once, whatever the holder was promised.
		"a takeover that ignores the expiry", leaseName,
		`CREATE FUNCTION forget_lease() RETURNS trigger LANGUAGE plpgsql AS $$
		 BEGIN UPDATE pglock.distributed_locks SET expires_at = '-infinity' WHERE name = NEW.name; RETURN NULL; END $$;
		 CREATE TRIGGER forget AFTER UPDATE ON pglock.distributed_locks FOR EACH ROW
		 WHEN (NEW.holder IS NOT NULL AND NEW.token <> OLD.token) EXECUTE FUNCTION forget_lease()`,
		func(v violations) bool { return v.notLinearizable > 0 },
	},
	{
		// The sum is taken with the snapshot of the start of the statement, before it waits for the gate.
		// The pause in the trigger makes others wait there.
		"permits that are counted in the statement that locks the gate", semaphoreName,
		changed("lock_gates",
			"PERFORM FROM pglock.distributed_locks AS d WHERE d.name = lock_names[i] FOR NO KEY UPDATE;",
			"PERFORM set_config('test.counted', s.counted::text, true) "+
				"FROM (SELECT (SELECT coalesce(sum(p.weight), 0) FROM pglock.lock_permits AS p WHERE p.name = d.name) AS counted "+
				"FROM pglock.distributed_locks AS d WHERE d.name = lock_names[i] FOR NO KEY UPDATE) AS s;") + ";" +
			changed("judge_slot", "d.capacity - d.in_use, 1)",
				"d.capacity - coalesce(nullif(current_setting('test.counted', true), '')::int, d.in_use), 1)") +
			`;CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.01); RETURN NULL; END';
			CREATE TRIGGER wait AFTER INSERT ON pglock.lock_permits FOR EACH ROW EXECUTE FUNCTION wait()`,
		func(v violations) bool { return v.notLinearizable > 0 && v.overlaps > 0 },
	},
	{
		"readers that do not see the writer", rwName,
		changed("judge_slot", "WHEN d.expires_at > clock_timestamp() THEN 0", "WHEN d.expires_at > clock_timestamp() AND judge_slot.wanted = d.capacity THEN 0"),
		func(v violations) bool { return v.notLinearizable > 0 },
	},
	{
		"several names of which one is held", severalNames,
		changed("judge_slots", "ELSIF v.invalid OR blocked OR", "ELSIF v.invalid OR blocked AND cardinality(lock_names) = 1 OR"),
		func(v violations) bool { return v.notLinearizable > 0 },
	},
}

// changed returns a statement that replaces parts of a function: the first of each pair by the
// second. It fails if a part is not there.
func changed(function string, pairs ...string) string {
	sql := "DO $do$ DECLARE body text; BEGIN SELECT pg_get_functiondef('pglock." + function + "'::regproc) INTO body;"
	for i := 0; i < len(pairs); i += 2 {
		sql += " IF position($p$" + pairs[i] + "$p$ IN body) = 0 THEN RAISE 'the function looks different'; END IF;" +
			" body := replace(body, $p$" + pairs[i] + "$p$, $p$" + pairs[i+1] + "$p$);"
	}
	return sql + " EXECUTE body; END $do$"
}

// TestCheckersFindSeededBugs: for each kind of lock, the checks of TestChaos find a bug that was put
// into the database.
func TestCheckersFindSeededBugs(t *testing.T) {
	t.Parallel()
	s := seed(t)
	for _, bug := range bugs {
		t.Run(bug.name, func(t *testing.T) {
			t.Parallel()
			var v verdict
			for try := range uint64(5) { // each with other workers
				a := newArena(t, assignment{Mode: protected, Seed: s + try, Actors: actors, TTL: ttl, Only: bug.lock, Barging: true}, nemesis{})
				a.exec(bug.sql)
				pgtest.Eventually(t, "grants", func() bool { return a.count(granted) > 10 })
				a.rest(time.Second)
				a.killAll() // a waiter may starve
				var err error
				if v, err = a.judge(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				if bug.caught(v.violations) {
					t.Log(v)
					return
				}
			}
			t.Errorf("not found: %v", v)
		})
	}
}
