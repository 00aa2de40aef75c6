package once_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
)

// TestTxRunsOnce: the second call returns the first one's result, and writes nothing. Another
// fingerprint is refused.
func TestTxRunsOnce(t *testing.T) {
	t.Parallel()
	for name, begin := range transactions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			tx := begin(f)
			first, err := f.call(tx, "k")
			wantErr(t, "first", err)
			again, err := f.call(tx, "k")
			wantErr(t, "again in the same transaction", err)
			f.commit(tx)
			tx = begin(f)
			later, err := f.call(tx, "k")
			wantErr(t, "later", err)
			_, err = once.Tx(t.Context(), tx, "k", []byte("another request"), func(context.Context) (int64, error) {
				t.Error("fn ran for another request")
				return 0, nil
			}, f.in)
			wantErr(t, "another request", err, once.ErrMismatch)
			other, err := f.call(tx, "another key")
			wantErr(t, "another key", err)
			f.commit(tx)
			tx = begin(f)
			if _, err := tx.Exec(t.Context(), "SET TRANSACTION READ ONLY"); err != nil {
				t.Fatal(err)
			}
			if again, err := f.call(tx, "k"); err != nil || again != first {
				t.Errorf("read only: %d, %v", again, err)
			}
			if _, err := f.call(tx, "new"); pgtx.SQLState(err) != "25006" {
				t.Errorf("control: a new key, read only: %v", err)
			}
			if first != again || first != later || other == first || f.effects("k") != 1 || f.effects("another key") != 1 {
				t.Errorf("%d, %d, %d and %d, with %d effects", first, again, later, other, f.effects("k"))
			}
		})
	}
}

// TestTxResults: what a call returns is what each repetition returns, whatever its type.
func TestTxResults(t *testing.T) {
	t.Parallel()
	type receipt struct {
		ID     int
		Text   string
		hidden int
	}
	f := newFixture(t)
	tx := f.begin("")
	for range 2 {
		r, err := once.Tx(t.Context(), tx, "struct", nil, func(context.Context) (receipt, error) { return receipt{1, "漢\x00", 7}, nil }, f.in)
		if err != nil || r != (receipt{ID: 1, Text: "漢\x00"}) {
			t.Errorf("%+v, %v", r, err)
		}
	}
	for i, text := range []string{"", "\x00\xff", strings.Repeat("x", once.MaxResult)} {
		for range 2 {
			b, err := once.Tx(t.Context(), tx, strconv.Itoa(i), nil, func(context.Context) ([]byte, error) { return []byte(text), nil }, f.in)
			if err != nil || string(b) != text {
				t.Errorf("%d bytes became %d, %v", len(text), len(b), err)
			}
		}
	}
	_, err := once.Tx(t.Context(), tx, "struct", nil, func(context.Context) (int, error) { return 0, nil }, f.in)
	if err == nil || !strings.Contains(err.Error(), "does not fit int") {
		t.Errorf("another type: %v", err)
	}
	f.usable(tx)
}

// TestTxUndoesWhatFails: fn's writes and the key are gone, the transaction is usable, and the next
// call runs fn.
func TestTxUndoesWhatFails(t *testing.T) {
	t.Parallel()
	failure := errors.New("declined")
	for name, begin := range transactions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			tx := begin(f)
			fail := func(err error) func(context.Context) (any, error) {
				return func(ctx context.Context) (any, error) {
					_, inner := f.effect(ctx, tx, "k")
					return math.NaN(), errors.Join(err, inner)
				}
			}
			_, err := once.Tx(t.Context(), tx, "k", nil, fail(failure), f.in)
			wantErr(t, "fn fails", err, failure)
			_, err = once.Tx(t.Context(), tx, "k", nil, fail(once.NotDone(failure)), f.in)
			wantErr(t, "fn fails with a class", err, failure)
			_, err = once.Tx(t.Context(), tx, "k", nil, fail(nil), f.in)
			if err == nil || !strings.Contains(err.Error(), "NaN") || errors.Is(err, once.ErrNoResult) {
				t.Errorf("not JSON: %v", err)
			}
			_, err = once.Tx(t.Context(), tx, "k", nil, func(ctx context.Context) ([]byte, error) {
				_, err := f.effect(ctx, tx, "k")
				return make([]byte, once.MaxResult+1), err
			}, f.in)
			wantErr(t, "too large", err, once.ErrResultTooLarge)
			_, err = once.Tx(t.Context(), tx, "k", nil, func(ctx context.Context) (int, error) {
				_, err := tx.Exec(ctx, "SELECT 1/0")
				return 0, err
			}, f.in)
			if pgtx.SQLState(err) != "22012" {
				t.Errorf("a statement of fn fails: %v", err)
			}
			func() {
				defer func() {
					if r := recover(); r != "boom" {
						t.Errorf("the panic became %v", r)
					}
				}()
				_, _ = once.Tx(t.Context(), tx, "k", nil, func(ctx context.Context) (int, error) {
					_, _ = f.effect(ctx, tx, "k")
					panic("boom")
				}, f.in)
			}()
			_, err = f.call(tx, "k")
			wantErr(t, "the next call", err)
			f.commit(tx)
			if n := f.effects("k"); n != 1 {
				t.Errorf("%d effects", n)
			}
		})
	}
}

// TestTxFnEndsTheTransaction: the error says so. What was committed without a result has an unknown
// outcome.
func TestTxFnEndsTheTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx := f.begin("")
	_, err := once.Tx(t.Context(), tx, "k", nil, func(ctx context.Context) (int, error) { return 0, tx.Commit(ctx) }, f.in)
	wantErr(t, "fn commits", err, advisory.ErrTx)
	_, err = once.Tx(t.Context(), f.begin(""), "k", nil, func(context.Context) (int, error) { return 0, nil }, f.in)
	wantErr(t, "afterwards", err, once.ErrOutcomeUnknown)
	tx = f.begin("")
	_, err = once.Tx(t.Context(), tx, "l", nil, func(ctx context.Context) (int, error) {
		_, err := once.Tx(ctx, tx, "l", nil, func(context.Context) (int, error) { return 1, nil }, f.in)
		return 0, err
	}, f.in)
	wantErr(t, "the same key inside", err, once.ErrOutcomeUnknown)
	f.usable(tx)
}

// TestTxWaitsForTheFirst: a call with the same key waits, and gets the result after a commit, or
// runs fn after a rollback.
func TestTxWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	for name, begin := range transactions {
		for _, commits := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				tx := f.begin("")
				first, err := f.call(tx, "k")
				wantErr(t, "first", err)
				second, ended := begin(f), make(chan int64)
				go func() {
					defer close(ended)
					id, err := f.call(second, "k")
					if err != nil {
						t.Error(err)
					}
					ended <- id
				}()
				f.waits()
				if commits {
					f.commit(tx)
				} else if err := tx.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				id := locktest.Receive(t, ended)
				<-ended
				f.commit(second)
				if (id == first) != commits || f.effects("k") != 1 {
					t.Errorf("first %d, which committed: %v, second %d, %d effects", first, commits, id, f.effects("k"))
				}
			})
		}
	}
}

// TestTxStopsWaiting: the transaction is usable after the wait, and its lock_timeout is unchanged.
func TestTxStopsWaiting(t *testing.T) {
	t.Parallel()
	for name, begin := range transactions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			holder := f.begin("")
			_, err := f.call(holder, "k")
			wantErr(t, "first", err)
			tx := begin(f)
			limit := func(text string) {
				if _, err := tx.Exec(t.Context(), "SET LOCAL lock_timeout = '"+text+"'"); err != nil {
					t.Fatal(err)
				}
			}
			unchanged := func(text string) {
				var got string
				if err := tx.QueryRow(t.Context(), "SHOW lock_timeout").Scan(&got); err != nil || got != text {
					t.Errorf("lock_timeout is %q, %v, want %q", got, err, text)
				}
			}
			limit("7s")
			for _, wait := range []time.Duration{0, 20 * time.Millisecond} {
				_, err = f.call(tx, "k", once.WithWait(wait))
				wantErr(t, "no or a short wait", err, once.ErrInProgress, pglock.ErrTimeout)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			defer cancel()
			for _, what := range []string{"ctx ends", "ctx has ended"} {
				_, err = once.Tx(ctx, tx, "k", []byte("request"), func(context.Context) (int64, error) { return 0, nil }, f.in)
				wantErr(t, what, err, context.DeadlineExceeded)
			}
			_, err = f.call(tx, "free", once.WithWait(20*time.Millisecond))
			wantErr(t, "a free key", err)
			unchanged("7s")
			limit("10ms")
			_, err = f.call(tx, "k", once.WithWait(time.Hour))
			wantErr(t, "the caller's lock_timeout", err, once.ErrInProgress)
			_, err = f.call(tx, "another free key", once.WithWait(time.Hour))
			wantErr(t, "another free key", err)
			unchanged("10ms")
		})
	}
}

// TestTxIsolation: at REPEATABLE READ and SERIALIZABLE a call whose snapshot is older than the
// first one's commit fails with 40001, and the repeated transaction finds the result. At READ
// COMMITTED it finds the result at once.
func TestTxIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		for _, when := range []string{"committed before the call", "committed during the call", "rolled back during the call", "expired"} {
			t.Run(string(level)+", "+when, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				if when == "expired" {
					old := f.begin("")
					_, err := f.call(old, "k", once.WithRetention(time.Millisecond))
					wantErr(t, "an old call", err)
					f.commit(old)
					f.sql("DELETE FROM pglock.effects")
					f.sql("UPDATE pglock.once_keys SET expires_at = clock_timestamp() - interval '1 s'")
				}
				late := f.begin(level)
				f.usable(late) // takes the snapshot
				tx := f.begin(level)
				first, err := f.call(tx, "k")
				wantErr(t, "first", err)
				if when == "committed before the call" || when == "expired" {
					f.commit(tx)
				}
				type answer struct {
					id  int64
					err error
				}
				ended := make(chan answer, 1)
				go func() {
					id, err := f.call(late, "k")
					ended <- answer{id, err}
				}()
				switch when {
				case "committed during the call":
					f.waits()
					f.commit(tx)
				case "rolled back during the call":
					f.waits()
					ok(t, tx.Rollback(t.Context()))
				}
				got := locktest.Receive(t, ended)
				if level == pgx.ReadCommitted || when == "rolled back during the call" {
					wantErr(t, "late", got.err)
					f.commit(late)
				} else {
					wantErr(t, "late", got.err, fencing.ErrSnapshot)
					if pgtx.SQLState(got.err) != pgtx.SerializationFailure {
						t.Errorf("the SQLSTATE is %q", pgtx.SQLState(got.err))
					}
					f.usable(late)
					ok(t, late.Rollback(t.Context()))
					late = f.begin(level)
					got.id, err = f.call(late, "k")
					wantErr(t, "the repeated transaction", err)
					f.commit(late)
				}
				if n := f.effects("k"); n != 1 || when != "rolled back during the call" && got.id != first {
					t.Errorf("%d, then %d, with %d effects", first, got.id, n)
				}
			})
		}
	}
}

// TestTxCrowd: of many concurrent transactions with one key, one runs fn. In the control, which
// looks for the key and inserts it without once, several do.
func TestTxCrowd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const keys, callers = 10, 8
	crowd := func(prefix string, call func(tx pgx.Tx, key string) (int64, error)) (effects, answers int) {
		var mu sync.Mutex
		seen := map[int64]bool{}
		for i := range keys {
			key := prefix + string(rune('a'+i))
			var all sync.WaitGroup
			for range callers {
				all.Go(func() {
					err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
						id, err := call(tx, key)
						mu.Lock()
						defer mu.Unlock()
						seen[id] = true
						return err
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		}
		return scanned[int](f, "SELECT count(*) FROM pglock.effects WHERE key LIKE $1 || '%'", prefix), len(seen)
	}
	if n, answers := crowd("once-", func(tx pgx.Tx, key string) (int64, error) { return f.call(tx, key) }); n != keys || answers != keys {
		t.Errorf("%d effects and %d answers of %d keys", n, answers, keys)
	}
	look := "SELECT count(*), pg_sleep(0.02)::text FROM " + pgx.Identifier{f.schema, "effects"}.Sanitize() + " WHERE key = $1"
	n, _ := crowd("control-", func(tx pgx.Tx, key string) (int64, error) {
		var n int
		if err := tx.QueryRow(t.Context(), look, key).Scan(&n, nil); err != nil || n > 0 { // others look meanwhile
			return 0, err
		}
		return f.effect(t.Context(), tx, key)
	})
	if n <= keys {
		t.Errorf("control: %d effects of %d keys without once", n, keys)
	}
}

// TestTxDeadlock: two transactions that use two keys in opposite orders.
func TestTxDeadlock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.begin(""), f.begin("")
	_, err := f.call(a, "1")
	wantErr(t, "a", err)
	_, err = f.call(b, "2")
	wantErr(t, "b", err)
	ended := make(chan error, 2)
	end := func(tx pgx.Tx, key string) {
		_, err := f.call(tx, key)
		_ = tx.Rollback(context.Background()) // so that the other one continues
		ended <- err
	}
	go end(a, "2")
	f.waits()
	go end(b, "1")
	first, second := locktest.Receive(t, ended), locktest.Receive(t, ended)
	if errors.Is(first, pglock.ErrDeadlock) == errors.Is(second, pglock.ErrDeadlock) {
		t.Errorf("%v and %v", first, second)
	}
}
