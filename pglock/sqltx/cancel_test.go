package sqltx_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// TestI9_CancelLocksAnywhere ends the context of each kind of lock after each of many delays. The
// network is so slow that the delays hit every round trip. The transaction remains usable, and
// holds the lock only if the call succeeded.
func TestI9_CancelLocksAnywhere(t *testing.T) {
	t.Parallel()
	const delay, steps = 4 * time.Millisecond, 20
	direct := newFixture(t)
	server := direct.pool.Config().ConnConfig
	proxy := faultproxy.New(t, net.JoinHostPort(server.Host, strconv.Itoa(int(server.Port))))
	proxy.Delay(delay)
	config, err := pgx.ParseConfig(proxy.URL(pgtest.URL(t)))
	ok(t, err)
	db := stdlib.OpenDB(*config)
	defer db.Close()
	k := []advisory.Key{advisory.NewKey(t.Name(), "a"), advisory.NewKey(t.Name(), "b")}
	for name, call := range map[string]func(ctx context.Context, tx advisory.Tx) error{
		"Lock":    func(ctx context.Context, tx advisory.Tx) error { return advisory.Lock(ctx, tx, k[0]) },
		"LockAll": func(ctx context.Context, tx advisory.Tx) error { return advisory.LockAll(ctx, tx, k) },
		"TryLock": func(ctx context.Context, tx advisory.Tx) error { return advisory.TryLock(ctx, tx, k[0]) },
	} {
		for _, busy := range []bool{false, true} {
			before := direct.pgx()
			if busy {
				ok(t, advisory.Lock(t.Context(), before, k[0]))
			}
			for step := range steps {
				tx, err := db.BeginTx(context.Background(), nil)
				ok(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				timer := time.AfterFunc(time.Duration(step)*delay, cancel)
				err = call(ctx, sqltx.Wrap(tx))
				timer.Stop()
				cancel()
				tried := name == "TryLock" && busy && errors.Is(err, advisory.ErrNotAcquired)
				if err == nil && busy || err != nil && !tried && !errors.Is(err, context.Canceled) {
					t.Errorf("%s, busy %v, step %d: %v", name, busy, step, err)
				}
				n := value[int](t, sqltx.Wrap(tx), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
				if (n > 0) != (err == nil) {
					t.Errorf("%s, busy %v, step %d: %d locks are held, the error is %v", name, busy, step, n, err)
				}
				ok(t, tx.Rollback())
			}
			ok(t, before.Rollback(t.Context()))
		}
	}
}
