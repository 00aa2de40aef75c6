package pglock_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/pglock"
)

// TestStatementsThatMustBeRepeated: an engine with several writers, such as YugabyteDB, ends statements with
// SQLSTATE 40001. A trigger does so here with half of all that write: no call fails, no lease is lost, and the lock
// has one holder.
func TestStatementsThatMustBeRepeated(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sql("CREATE SEQUENCE pglock.restarted")
	f.sql(`CREATE FUNCTION pglock.restart() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN
			IF random() < 0.5 THEN
				PERFORM nextval(TG_ARGV[0]::oid::regclass);
				RAISE EXCEPTION 'restart read required' USING ERRCODE = '40001';
			END IF;
			RETURN NULL;
		END $$`)
	sequence := value[uint32](f, "SELECT c.oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = 'restarted'", f.schema)
	for _, table := range []string{"distributed_locks", "lock_waiters", "lock_permits"} {
		f.sql(fmt.Sprintf("CREATE TRIGGER restart AFTER INSERT OR UPDATE OR DELETE ON pglock.%s FOR EACH STATEMENT EXECUTE FUNCTION pglock.restart(%d)", table, sequence))
	}
	var inside atomic.Int32
	var all sync.WaitGroup
	for i := range 3 {
		c := f.open()
		all.Go(func() {
			for range 10 {
				l, err := c.Acquire(t.Context(), "n", pglock.WithTTL(4*time.Second), pglock.WithRenewEvery(20*time.Millisecond))
				if err != nil {
					t.Errorf("acquire: %v", err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d holders", n)
				}
				rest(t, time.Duration(i)*50*time.Millisecond)
				inside.Add(-1)
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("release: %v", err)
				}
			}
		})
	}
	all.Wait()
	if n := value[int](f, "SELECT last_value FROM pglock.restarted"); n < 50 {
		t.Errorf("%d statements were to be repeated", n)
	}
}
