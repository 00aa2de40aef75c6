package leader_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

// TestBadInput: each mistake has an error, and changes nothing.
func TestBadInput(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client()
	long := strings.Repeat("x", leader.MaxPayload-1) // with the quotes, one byte more than allowed
	for what, tc := range map[string]struct {
		err  error
		name string
		opts []leader.Option
		want error
	}{
		"name":            {name: "", want: pglock.ErrInvalidOption},
		"long name":       {name: strings.Repeat("n", 513), want: pglock.ErrInvalidOption},
		"long payload":    {name: "e", opts: []leader.Option{leader.WithPayload(long)}, want: leader.ErrPayload},
		"invalid payload": {name: "e", opts: []leader.Option{leader.WithPayload("\xff")}, want: leader.ErrPayload},
		"nil option":      {name: "e", opts: []leader.Option{leader.WithLease(nil)}, want: leader.ErrInvalidOption},
	} {
		if _, err := leader.New(c, tc.name, tc.opts...); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := leader.New(nil, "e"); !errors.Is(err, leader.ErrInvalidOption) {
		t.Errorf("no client: %v", err)
	}
	e := f.on(c)
	if err := e.Run(t.Context(), nil); !errors.Is(err, leader.ErrInvalidOption) {
		t.Errorf("no function: %v", err)
	}
	if err := leader.Run(t.Context(), c, "", func(context.Context, *leader.Term) error { return nil }); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("no name: %v", err)
	}
	for what, payload := range map[string]string{"long": long, "NUL": "\x00", "UTF-8": "\xff", "escapes": strings.Repeat("\x01", leader.MaxPayload/5)} {
		if _, err := e.Campaign(t.Context(), payload); !errors.Is(err, leader.ErrPayload) {
			t.Errorf("campaign, %s: %v", what, err)
		}
	}
	bad := f.on(c, leader.WithLease(pglock.WithTTL(-1)))
	if _, err := bad.Campaign(t.Context(), ""); !errors.Is(err, leader.ErrInvalidOption) {
		t.Errorf("TTL: %v", err)
	}
	if err := bad.Run(t.Context(), func(context.Context, *leader.Term) error { return nil }); !errors.Is(err, leader.ErrInvalidOption) {
		t.Errorf("Run, TTL: %v", err)
	}
	term := elect(t, e, long[1:])
	for what, payload := range map[string]string{"long": long, "NUL": "\x00"} {
		if err := term.Proclaim(t.Context(), payload); !errors.Is(err, leader.ErrPayload) {
			t.Errorf("proclaim, %s: %v", what, err)
		}
	}
	if err := term.Proclaim(t.Context(), long[1:]); err != nil {
		t.Errorf("the longest payload: %v", err)
	}
	if _, leads := e.Term(); !leads {
		t.Error("a mistake has ended the term")
	}
	resign(t, term)
	for _, err := range e.Observe(canceled(t)) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("observe after the end of ctx: %v", err)
		}
	}
	if _, err := e.Campaign(canceled(t), ""); !errors.Is(err, context.Canceled) || !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("campaign after the end of ctx: %v", err)
	}
	if _, err := c.Semaphore("e", 2).TryAcquire(t.Context()); !errors.Is(err, pglock.ErrKind) {
		t.Errorf("an election used as a semaphore: %v", err)
	}
}

func canceled(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// TestObserveIsPrompt: a notification tells of a new payload and of a resignation. By polling, each would
// take a second.
func TestObserveIsPrompt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	o := f.observe(t.Context(), f.candidate("observer"))
	if _, err, _ := o.next(); err != nil {
		t.Fatal(err)
	}
	e := f.candidate("a")
	elect(t, e, "warm-up")
	o.sees("warm-up")
	term, _ := e.Term()
	resign(t, term)
	const n = 10
	var elected, proclaimed, resigned time.Duration
	for i := range n {
		for l, err, _ := o.next(); l.Elected(); l, err, _ = o.next() {
			if err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		term := elect(t, e, fmt.Sprint("a", i))
		o.sees(fmt.Sprint("a", i))
		elected += time.Since(began)
		began = time.Now()
		if err := term.Proclaim(t.Context(), fmt.Sprint("b", i)); err != nil {
			t.Fatal(err)
		}
		o.sees(fmt.Sprint("b", i))
		proclaimed += time.Since(began)
		began = time.Now()
		resign(t, term)
		if l, err, _ := o.next(); err != nil || l.Elected() {
			t.Errorf("%+v, %v", l, err)
		}
		resigned += time.Since(began)
		next := elect(t, e, "between")
		o.sees("between")
		resign(t, next)
	}
	t.Logf("seen on average %v after a campaign began, %v after a proclamation, %v after a resignation", elected/n, proclaimed/n, resigned/n)
	if max(proclaimed, resigned)/n > 250*time.Millisecond {
		t.Error("too late for a notification")
	}
}

// TestObserveNeverMissesTheNewest: a slow observer collects changes, and ends with the newest state.
func TestObserveNeverMissesTheNewest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.candidate("a")
	term := elect(t, e, "0")
	o := f.observe(t.Context(), f.candidate("observer"))
	o.sees("0")
	for round := range 5 {
		for i := range 20 {
			if err := term.Proclaim(t.Context(), fmt.Sprint(round, ".", i)); err != nil {
				t.Fatal(err)
			}
		}
		o.sees(fmt.Sprint(round, ".", 19)) // one read after all of them
	}
	resign(t, term)
}

// TestRunReturns: what ends Run, and what does not.
func TestRunReturns(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	boom := errors.New("boom")
	shutdown := errors.New("shutdown")
	for what, tc := range map[string]struct {
		fn   func(ctx context.Context, end context.CancelCauseFunc, n int, term *leader.Term) error
		runs int
		want []error
		not  error
	}{
		"an error of the work": {
			fn:   func(context.Context, context.CancelCauseFunc, int, *leader.Term) error { return boom },
			runs: 1, want: []error{boom},
		},
		"nil: it campaigns again": {
			fn: func(_ context.Context, _ context.CancelCauseFunc, n int, _ *leader.Term) error {
				if n == 3 {
					return boom
				}
				return nil
			},
			runs: 3, want: []error{boom},
		},
		"the end of ctx": {
			fn: func(ctx context.Context, end context.CancelCauseFunc, _ int, _ *leader.Term) error {
				end(shutdown)
				<-ctx.Done()
				return ctx.Err()
			},
			runs: 1, want: []error{shutdown}, not: context.Canceled,
		},
		"the end of ctx, and an error": {
			fn: func(ctx context.Context, end context.CancelCauseFunc, _ int, _ *leader.Term) error {
				end(shutdown)
				<-ctx.Done()
				return boom
			},
			runs: 1, want: []error{shutdown, boom},
		},
		"a loss: it campaigns again, whatever the work says": {
			fn: func(ctx context.Context, end context.CancelCauseFunc, n int, _ *leader.Term) error {
				if n == 3 {
					end(shutdown)
					return nil
				}
				f.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity' WHERE holder = 'a loss: it campaigns again, whatever the work says'")
				<-ctx.Done()
				return []error{boom, context.Cause(ctx)}[n-1]
			},
			runs: 3, want: []error{shutdown}, not: boom,
		},
		"its own resignation": {
			fn: func(ctx context.Context, end context.CancelCauseFunc, n int, term *leader.Term) error {
				if n == 2 {
					end(shutdown)
				}
				return term.Resign(ctx)
			},
			runs: 2, want: []error{shutdown},
		},
		"the longest term": {
			fn: func(ctx context.Context, end context.CancelCauseFunc, n int, _ *leader.Term) error {
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), leader.ErrResignRequested) {
					t.Errorf("the cause is %v", context.Cause(ctx))
				}
				if n == 2 {
					end(shutdown)
				}
				return ctx.Err()
			},
			runs: 2, want: []error{shutdown},
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := f.client(pglock.WithTTL(time.Second), pglock.WithMaxHold(500*time.Millisecond))
			if what != "the longest term" {
				c = f.client(pglock.WithTTL(time.Second))
			}
			e, err := leader.New(c, what, leader.WithLogger(nil), leader.WithLease(pglock.WithHolder(what)))
			if err != nil {
				t.Fatal(err)
			}
			ctx, end := context.WithCancelCause(t.Context())
			defer end(nil)
			n := 0
			err = e.Run(ctx, func(ctx context.Context, term *leader.Term) error { n++; return tc.fn(ctx, end, n, term) })
			if n != tc.runs || err == nil || tc.not != nil && errors.Is(err, tc.not) {
				t.Errorf("%d runs, %v", n, err)
			}
			for _, want := range tc.want {
				if !errors.Is(err, want) {
					t.Errorf("%v, want %v", err, want)
				}
			}
			if k, err := c.Get(t.Context(), what); err != nil || k.Held() {
				t.Errorf("after Run: %+v, %v", k, err)
			}
		})
	}
}

// TestRunPanics: the candidate resigns, and the panic continues.
func TestRunPanics(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.candidate("a")
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_ = e.Run(t.Context(), func(context.Context, *leader.Term) error { panic("boom") })
	}()
	if _, leads := e.Term(); leads {
		t.Error("it leads after a panic")
	}
	resign(t, elect(t, f.candidate("b"), "b"))
}

// TestRunEndsWithTheClient, as the context of its function does.
func TestRunEndsWithTheClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client()
	e := f.on(c)
	led := make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- e.Run(t.Context(), func(ctx context.Context, _ *leader.Term) error {
			led <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	locktest.Receive(t, led)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := locktest.Receive(t, ended); !errors.Is(err, pglock.ErrClosed) {
		t.Errorf("Run: %v", err)
	}
}

// TestGuard: the fence of a term lets the writes of the leader pass, and none of its predecessor.
func TestGuard(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	guard := func(term *leader.Term) error {
		return pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error { return term.Lease().Guard(t.Context(), tx) })
	}
	first := elect(t, f.candidate("a"), "a")
	second := f.campaigning(t.Context(), f.candidate("b"), "b")
	if err := guard(first); err != nil {
		t.Error(err)
	}
	resign(t, first)
	if err := guard(first); !errors.Is(err, pglock.ErrStale) {
		t.Errorf("the first leader: %v", err)
	}
	next := locktest.Receive(t, second)
	if err := guard(next); err != nil {
		t.Error(err)
	}
	resign(t, next)
}

// TestCampaignsOfOneCandidate at the same time: the second one waits, or leaves with its context, or
// proclaims.
func TestCampaignsOfOneCandidate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := elect(t, f.candidate("first"), "first")
	e := f.candidate("a")
	one := f.campaigning(t.Context(), e, "a")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := e.Campaign(ctx, "b"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("a second campaign: %v", err)
	}
	two := make(chan *leader.Term, 1)
	go func() {
		term, err := e.Campaign(t.Context(), "b")
		if err != nil {
			t.Error(err)
		}
		two <- term
	}()
	resign(t, first)
	term := locktest.Receive(t, one)
	if locktest.Receive(t, two) != term {
		t.Error("two terms of one candidate")
	}
	if l, err := e.Leader(t.Context()); err != nil || l.Payload != "b" {
		t.Errorf("%+v, %v", l, err)
	}
	resign(t, term)
}

// TestRunLogsWhatItSwallows: the error of work that went on after a loss.
func TestRunLogsWhatItSwallows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	logged := make(chan slog.Record, 10)
	e := f.on(f.client(pglock.WithTTL(time.Second)), leader.WithLogger(slog.New(locktest.Records(logged))))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	boom := errors.New("boom")
	n := 0
	err := e.Run(ctx, func(ctx context.Context, _ *leader.Term) error {
		if n++; n == 2 {
			cancel()
			return nil
		}
		f.expire()
		<-ctx.Done()
		return boom
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if r := locktest.Receive(t, logged); r.Level != slog.LevelWarn || !errors.Is(locktest.Error(r), boom) {
		t.Errorf("logged %v", r)
	}
}
