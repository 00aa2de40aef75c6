package leader_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

// TestBadInput: each mistake has an error, and changes nothing.
func TestBadInput(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client()
	e, bad := f.on(c), f.on(c, leader.WithLease(pglock.WithTTL(-1)))
	fn := func(context.Context, *leader.Term) error { t.Error("fn runs"); return nil }
	made := func(c *pglock.Client, name string, opts ...leader.Option) error {
		_, err := leader.New(c, name, opts...)
		return err
	}
	campaign := func(e *leader.Election, payload string) error {
		_, err := e.Campaign(t.Context(), payload)
		return err
	}
	long := strings.Repeat("x", 16<<10)
	for what, err := range map[string]error{
		"no name": made(c, ""), "a long name": made(c, strings.Repeat("n", 513)), "no client": made(nil, "e"),
		"a nil option": made(c, "e", leader.WithLease(nil)), "no function": e.Run(t.Context(), nil),
		"no name, Run": leader.Run(t.Context(), c, "", fn), "TTL": campaign(bad, ""), "TTL, Run": bad.Run(t.Context(), fn),
		"a long payload": campaign(e, long), "NUL": campaign(e, "\x00"), "UTF-8": campaign(e, "\xff"),
		"a long payload, Run": f.on(c, leader.WithPayload(long)).Run(t.Context(), fn),
	} {
		if !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("%s: %v", what, err)
		}
	}
	term := elect(t, e, long[:8<<10])
	for what, payload := range map[string]string{"long": long, "NUL": "\x00"} {
		if err := term.Proclaim(t.Context(), payload); !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("proclaim, %s: %v", what, err)
		}
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
	e := f.candidate("a")
	resignedIn := func(term *leader.Term) time.Duration {
		began := time.Now()
		resign(t, term)
		if l, err, _ := o.next(); err != nil || l.Elected() {
			t.Errorf("%+v, %v", l, err)
		}
		return time.Since(began)
	}
	const n = 10
	var proclaimed, resigned time.Duration
	for i := range n + 1 {
		term := elect(t, e, fmt.Sprint("a", i))
		o.sees(fmt.Sprint("a", i))
		began := time.Now()
		ok(t, term.Proclaim(t.Context(), fmt.Sprint("b", i)))
		o.sees(fmt.Sprint("b", i))
		took := time.Since(began)
		if gone := resignedIn(term); i > 0 { // the first round opens the connections
			proclaimed += took
			resigned += gone
		}
	}
	t.Logf("seen on average %v after a proclamation, %v after a resignation", proclaimed/n, resigned/n)
	if max(proclaimed, resigned)/n > 250*time.Millisecond {
		t.Error("too late for a notification")
	}
}

// TestACampaignWritesOnce: the payload is in the grant, so a campaign changes the row once, as an acquire does.
func TestACampaignWritesOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.candidate("a")
	resign(t, elect(t, e, "x"))
	changes := func(do func()) int64 {
		before, err := f.watcher.Get(t.Context(), "e")
		ok(t, err)
		do()
		after, err := f.watcher.Get(t.Context(), "e")
		ok(t, err)
		return after.Version - before.Version
	}
	if n := changes(func() { elect(t, e, "x") }); n != 1 {
		t.Errorf("a campaign changes the row %d times", n)
	}
	if n := changes(func() { elect(t, e, "y") }); n != 1 {
		t.Errorf("control: another payload changes the row %d times", n)
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
			ok(t, term.Proclaim(t.Context(), fmt.Sprint(round, ".", i)))
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

		swallowed bool // boom is logged
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
			runs: 3, want: []error{shutdown}, not: boom, swallowed: true,
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
		"an operator asks it to resign: its work ends, then its term, and it campaigns again": {
			fn: func(ctx context.Context, end context.CancelCauseFunc, n int, term *leader.Term) error {
				if n == 2 {
					end(shutdown)
					return nil
				}
				ok(t, f.watcher.RequestRelease(ctx, term.Lease().Name(), term.Lease().Token(), "deployment"))
				<-ctx.Done()
				if why, err := context.Cause(ctx), term.Lease().Err(); !errors.Is(why, leader.ErrResignRequested) || err != nil {
					t.Errorf("the cause is %v, and the term ended before the work: %v", why, err)
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
			logged := make(chan slog.Record, 10)
			e, err := leader.New(c, what, leader.WithLogger(slog.New(locktest.Records(logged))), leader.WithLease(pglock.WithHolder(what)))
			ok(t, err)
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
			if tc.swallowed {
				if r := locktest.Receive(t, logged); r.Level != slog.LevelWarn || !errors.Is(locktest.Error(r), boom) {
					t.Errorf("logged %v", r)
				}
			}
			if k, err := c.Get(t.Context(), what); err != nil || k.Held() {
				t.Errorf("after Run: %+v, %v", k, err)
			}
		})
	}
}

// TestARotationDoesNotEndRun: the sessions of a candidate have ended, and its logins are rejected for a while
// when it campaigns again. It leads when the password has arrived.
func TestARotationDoesNotEndRun(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var logins pgtest.Logins
	logged := make(chan slog.Record, 100)
	e := f.on(locktest.ClientOn(t, pgtest.Pool(t, logins.Watch), pglock.WithSchema(f.schema), pglock.WithLogger(nil)), leader.WithLogger(slog.New(locktest.Records(logged))))
	terms, over, ended := make(chan *leader.Term), make(chan struct{}), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		ended <- e.Run(ctx, func(ctx context.Context, t *leader.Term) error {
			terms <- t
			select { // the test sends one of them
			case <-over:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	first := locktest.Receive(t, terms)
	logins.Reject(t, f.admin)
	over <- struct{}{}
	for range 2 {
		select { // one of them comes
		case r := <-logged:
			if err := locktest.Error(r); !errors.Is(err, pglock.ErrLogin) {
				t.Errorf("logged %v", err)
			}
		case err := <-ended:
			t.Fatalf("Run returned %v", err)
		}
	}
	f.expire()
	logins.Rejecting.Store(false)
	if second := locktest.Receive(t, terms); second.Lease().Token() <= first.Lease().Token() {
		t.Errorf("token %d after %d", second.Lease().Token(), first.Lease().Token())
	}
	stop()
	if err := locktest.Receive(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
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
	ok(t, c.Close(t.Context()))
	if err := locktest.Receive(t, ended); !errors.Is(err, pglock.ErrClosed) {
		t.Errorf("Run: %v", err)
	}
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
