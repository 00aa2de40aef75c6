package link_test

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

// interceptor sees each statement before it is sent, and makes those with one text fail.
type interceptor struct {
	sql    string
	before func(ctx context.Context) context.Context // called for this text
	sent   [][]any                                   // the arguments of each attempt with this text
	mu     sync.Mutex
}

func (i *interceptor) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	i.mu.Lock()
	defer i.mu.Unlock()
	if data.SQL != i.sql {
		return ctx
	}
	i.sent = append(i.sent, append([]any{}, data.Args...))
	return i.before(ctx)
}

func (i *interceptor) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// watch runs before at each attempt with this text, and returns the arguments of the attempts of
// op.
func (i *interceptor) watch(sql string, before func(context.Context) context.Context, op func()) [][]any {
	set := func(sql string) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.sql, i.before = sql, before
	}
	i.sent = nil
	set(sql)
	op()
	set("")
	return i.sent
}

// TestSendHeedsWhatAStatementSays: how often it is sent when its connection fails, and when the
// server refuses it, and on what connection.
func TestSendHeedsWhatAStatementSays(t *testing.T) {
	t.Parallel()
	var seen interceptor
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &seen })
	s := newStore(t, pool, pgtest.Schema(t, pool))
	none := func(ctx context.Context) context.Context { return ctx }
	lose := func(ctx context.Context) context.Context {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return ctx
	}
	for _, st := range []leasetable.Statement{
		{}, {Tries: 1}, {Tries: 2}, {Tries: 3}, {Wakes: true}, {Wakes: true, Tries: 2}, {Reserved: true}, {Reserved: true, Tries: 2},
	} {
		const good, bad = "SELECT $1::int, $2::boolean", "SELECT $1::int, $2::boolean FROM pg_temp.missing"
		send := func(sql string) [][]any {
			before := none
			if sql == good {
				before = lose
			}
			st.SQL, st.Args = sql, []any{7, true}
			var watched, stopped int
			st.Watch = func(time.Time) func() bool { watched++; return func() bool { stopped++; return true } }
			sent := seen.watch(sql, before, func() {
				if _, err := s.Send(t.Context(), st); err == nil {
					t.Errorf("%+v: it succeeded", st)
				}
			})
			if watched != len(sent) || stopped != len(sent) {
				t.Errorf("%+v: %d attempts, %d watched, %d ended", st, len(sent), watched, stopped)
			}
			return sent
		}
		args := []any{7, true}
		if st.Reserved {
			args = []any{pgx.QueryExecModeExec, 7, true}
		}
		var lost [][]any
		for range max(st.Tries, 1) {
			lost = append(lost, args)
		}
		if got := send(good); !reflect.DeepEqual(got, lost) {
			t.Errorf("%+v was sent %v while connections fail, want %v", st, got, lost)
		}
		refused := [][]any{args}
		if st.Wakes {
			refused = append(refused, []any{7, false})
		}
		if got := send(bad); !reflect.DeepEqual(got, refused) {
			t.Errorf("%+v, which the server refuses, was sent %v, want %v", st, got, refused)
		}
	}
}

// TestRenewalsDoNotWaitForOthers: a reserved statement is sent while the others that may be in
// progress are.
func TestRenewalsDoNotWaitForOthers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := newStore(t, pool, pgtest.Schema(t, pool))
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	answered, proceed := make(chan struct{}), make(chan struct{})
	var others sync.WaitGroup
	for range s.Slots() {
		others.Go(func() {
			_, err := s.Send(ctx, leasetable.Statement{SQL: "SELECT", Row: func(pgx.Rows) error {
				answered <- struct{}{}
				<-proceed
				return nil
			}})
			if err != nil {
				t.Error(err)
			}
		})
		<-answered
	}
	if _, err := s.Send(ctx, leasetable.Statement{SQL: "SELECT", Reserved: true}); err != nil {
		t.Errorf("a renewal: %v", err)
	}
	short, end := context.WithTimeout(ctx, 10*time.Millisecond)
	defer end()
	if _, err := s.Send(short, leasetable.Statement{SQL: "SELECT"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("control: another statement is sent: %v", err)
	}
	close(proceed)
	others.Wait()
}

// TestASecondAttemptForgetsTheFirst: the connection ends after some rows, and the second attempt
// returns all rows, each once.
func TestASecondAttemptForgetsTheFirst(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	schema := pgtest.Schema(t, pool)
	s := newStore(t, pool, schema)
	counter := pgx.Identifier{schema, "attempts"}.Sanitize()
	if _, err := pool.Exec(t.Context(), "CREATE SEQUENCE "+counter); err != nil {
		t.Fatal(err)
	}
	const rows = 100           // of 10 kB, so that the server sends each before the next
	attempts := map[int]bool{} // sessions
	var got int
	_, err := s.Send(t.Context(), leasetable.Statement{Tries: 2, Begin: func() { got = 0 }, Row: func(r pgx.Rows) error {
		var pid int
		if err := r.Scan(&pid, nil, nil); err != nil {
			return err
		}
		got++
		attempts[pid] = true
		return nil
	}, SQL: "SELECT pg_backend_pid(), repeat('x', 10000), CASE WHEN i = 50 AND nextval($2) = 1 THEN pg_terminate_backend(pg_backend_pid()) END " +
		"FROM generate_series(1, $1::int) i", Args: []any{rows, counter}})
	if err != nil || got != rows || len(attempts) != 2 {
		t.Errorf("%d rows in %d attempts, %v: want %d in 2", got, len(attempts), err, rows)
	}
}

// TestWhatWasNotSentHasNoEffect: a statement whose context ended before it was sent was not
// applied, whether it waited for a connection or for its turn.
func TestWhatWasNotSentHasNoEffect(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := newStore(t, pool, pgtest.Schema(t, pool))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 { // the end of ctx is seen at one of several places
		_, err := s.AcquireFast(ctx, one(request("n", "1", "h")))
		if !errors.Is(err, context.Canceled) || link.MaybeApplied(err) || !link.Transient(err) {
			t.Fatalf("told %v, maybe applied: %v", err, link.MaybeApplied(err))
		}
	}
}

// TestAChangedPlanIsPreparedAgain: after the type of a result has changed, the server refuses what a
// connection has prepared. The next attempt succeeds, which the error of the first one says, and which a
// statement that may be sent twice makes by itself.
func TestAChangedPlanIsPreparedAgain(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	schema := pgtest.Schema(t, pool)
	s := newStore(t, pool, schema)
	table := pgx.Identifier{schema, "changing"}.Sanitize()
	change := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	read := func(tries int) error {
		_, err := s.Send(t.Context(), leasetable.Statement{SQL: "SELECT * FROM " + table, Tries: tries})
		return err
	}
	change("CREATE TABLE " + table + " (a integer)")
	if err := read(1); err != nil {
		t.Fatal(err)
	}
	change("ALTER TABLE " + table + " ALTER a TYPE text")
	err := read(1)
	if !link.Transient(err) || link.MaybeApplied(err) || link.MayBeNotification(err) || !errors.Is(s.Explain("read", err), errs.ErrUnavailable) {
		t.Errorf("the first attempt: %v", err)
	}
	if err := read(1); err != nil {
		t.Errorf("the next one: %v", err)
	}
	change("ALTER TABLE " + table + " ALTER a TYPE integer USING 1")
	if err := read(2); err != nil {
		t.Errorf("two attempts: %v", err)
	}
}
