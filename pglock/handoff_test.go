package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/observe"
)

// TestHandoffAfterAUsedUpRequest: a waiter whose request was used up has a new one, and the lock is
// handed off to that one. A client of another process then recognizes the lease by it.
func TestHandoffAfterAUsedUpRequest(t *testing.T) {
	t.Parallel()
	f, events := newFixture(t), &recorder{}
	c, theirs := f.open(pglock.WithObserver(events.hooks())), f.open()
	// It listens already, because a client that begins to listen would find out that the rounds end its grant for a while.
	other := try(t, theirs, "other")
	waits := f.waits(c, "other")
	pgtest.Eventually(t, "it listens", func() bool { return pglock.Listening(c) })
	release(t, other)
	release(t, next(t, waits))
	for round := range 40 { // a waiter that is just making an attempt is granted the lock without a hand-off
		name := fmt.Sprint("n", round) // the queue keeps the row of the last waiter for a name
		held := try(t, c, name)
		waiter := f.waits(c, name, pglock.WithHolder("successor"))
		request := func() string { return pglock.HeadRequest(c, name) }
		first := request()
		// The row says that the waiter's request was granted, and that its grant has ended. Another
		// waiter is ahead, so that the next request is not granted at once.
		f.sql("INSERT INTO pglock.lock_waiters (name, client, ticket, expires_at, keep_until) "+
			"SELECT name, 'ghost', ticket - 1, expires_at, expires_at FROM pglock.lock_waiters WHERE name = $1", name)
		f.sql("CREATE TABLE pglock.saved AS SELECT name, request, holder, expires_at FROM pglock.distributed_locks")
		f.sql("UPDATE pglock.distributed_locks SET request = $2::text::uuid, holder = NULL, expires_at = clock_timestamp() WHERE name = $1", name, first)
		f.sql("SELECT pg_notify(client, name) FROM pglock.lock_waiters WHERE name = $1 AND holder = 'successor'", name)
		pgtest.Eventually(t, "the waiter has a new request", func() bool { return request() != first })
		f.sql("UPDATE pglock.distributed_locks AS l SET request = s.request, holder = s.holder, expires_at = s.expires_at "+
			"FROM pglock.saved AS s WHERE l.name = $1 AND s.name = $1", name)
		f.sql("DROP TABLE pglock.saved")
		f.sql("DELETE FROM pglock.lock_waiters WHERE client = 'ghost'")
		release(t, held)
		l := next(t, waiter)
		var carried *pglock.HeldError
		if _, err := theirs.TryAcquire(l.Context(), name); !errors.As(err, &carried) {
			t.Errorf("another client does not recognize the lease: %v", err)
		}
		release(t, l)
		if acquired := await[observe.AcquireEvent](t, events, 1+2*(round+1)); acquired[len(acquired)-1].HandedOff {
			return
		}
	}
	t.Error("no hand-off in forty rounds")
}

// TestI1_I9_WaitersThatLeaveAtAnyMoment has many goroutines of two clients wait and leave at
// random, also while the lock is handed off to them: by their context, or by the end of their wait.
// Afterwards the lock is soon free, although the TTL is an hour.
func TestI1_I9_WaitersThatLeaveAtAnyMoment(t *testing.T) {
	t.Parallel()
	const clients, waiters, rounds = 2, 12, 25
	f := newFixture(t)
	var inside, overlaps, granted, left atomic.Int32
	var wg sync.WaitGroup
	for range clients {
		c := f.open(pglock.WithTTL(time.Hour))
		for i := range waiters {
			wg.Go(func() {
				for range rounds {
					ctx, cancel := context.WithCancel(t.Context())
					var opts []pglock.LeaseOption
					switch i % 3 {
					case 1:
						time.AfterFunc(rand.N(8*time.Millisecond), cancel)
					case 2:
						opts = append(opts, pglock.WithWait(1+rand.N(6*time.Millisecond)))
					}
					l, err := c.Acquire(ctx, "n", opts...)
					switch {
					case err == nil:
						if inside.Add(1) > 1 {
							overlaps.Add(1)
						}
						granted.Add(1)
						inside.Add(-1)
						release(t, l)
					case !errors.Is(err, context.Canceled) && !errors.Is(err, pglock.ErrTimeout):
						t.Error(err)
					default:
						left.Add(1)
					}
					cancel()
				}
			})
		}
	}
	wg.Wait()
	if overlaps.Load() > 0 || granted.Load() < clients*waiters/3*rounds || left.Load() == 0 {
		t.Errorf("%d grants, %d overlaps, %d left", granted.Load(), overlaps.Load(), left.Load())
	}
	pgtest.Eventually(t, "nothing is left behind", func() bool { return f.tickets("n") == 0 && value[int](f, grants) == 0 })
	release(t, held(t, f.open().Lock("n")))
}

// TestHandoffInAProcess: waiters of one process get the lock in one statement each, with their own
// tokens. A release and a grant would change the row twice.
func TestHandoffInAProcess(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		const waiters = 30
		n, far := f.proxied()
		c := far.open()
		held := try(t, c, "n")
		tokens := []fencing.Token{held.Token()}
		var wg sync.WaitGroup
		for range waiters {
			wg.Go(func() {
				l := acquire(t, c, "n")
				tokens = append(tokens, l.Token()) // only one goroutine at a time holds the lock
				release(t, l)
			})
		}
		synctest.Wait()
		if got := pglock.Waiting(c, "n"); got != waiters {
			t.Errorf("%d wait", got)
		}
		before := n.count()
		release(t, held)
		wg.Wait()
		if sent := n.count() - before; sent > waiters+3 { // the last release, and the end of the wait
			t.Errorf("%d statements for %d grants", sent, waiters)
		}
		if len(tokens) != waiters+1 || !slices.IsSorted(tokens) || len(slices.Compact(tokens)) != waiters+1 {
			t.Errorf("tokens %v", tokens)
		}
	})
}

// TestHandoffYields: a waiter of another process is next, although a local one waits for a
// hand-off.
func TestHandoffYields(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		ours, theirs := f.open(), f.open()
		for range 5 {
			held := try(t, ours, "n")
			got := make(chan string, 2)
			var wg sync.WaitGroup
			wait := func(who string, c *pglock.Client) {
				wg.Go(func() {
					l := acquire(t, c, "n")
					got <- who
					release(t, l)
				})
				synctest.Wait()
			}
			wait("theirs", theirs)
			wait("ours", ours)
			release(t, held)
			if first := <-got; first != "theirs" {
				t.Errorf("%s came first", first)
			}
			wg.Wait()
		}
	})
}

// TestI9_AHandOffToACallerThatLeaves: the caller's context ends with the hand-off to it, or the
// caller has left before that is delivered. It has the lease, or nothing is left of the grant,
// although the TTL is an hour.
func TestI9_AHandOffToACallerThatLeaves(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		bubbles(t, fmt.Sprint("gone ", gone), func(t *testing.T, f fake) {
			ctx, cancel := context.WithCancel(t.Context())
			ended, handedOff := make(chan error, 1), 0
			c := f.through(func(s backend.Store) backend.Store {
				return handOffs{s, func() error {
					handedOff++
					if cancel(); gone {
						fails(t, "the caller", <-ended, context.Canceled)
					}
					return nil
				}}
			}).open(pglock.WithTTL(time.Hour))
			held := try(t, c, "n")
			go func() {
				l, err := c.Acquire(ctx, "n")
				if err == nil {
					err = l.Release(context.Background())
				}
				ended <- err
			}()
			synctest.Wait()
			release(t, held)
			if !gone {
				if err := <-ended; err != nil {
					fails(t, "the caller", err, context.Canceled)
				}
			}
			check(t, c.Close(t.Context())) // it waits until the grants to those who have left are revoked
			if handedOff != 1 {
				t.Errorf("control: %d hand-offs", handedOff)
			}
			f.empty("n")
		})
	}
}

// TestAHandOffWhoseAnswerIsLost: the lock is the successor's, or was released, and the release has not failed. The
// successor's ticket, which a hand-off does not use up, is deleted.
func TestAHandOffWhoseAnswerIsLost(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		lost := 0
		c := f.through(func(s backend.Store) backend.Store {
			return handOffs{s, func() error { lost++; return io.ErrUnexpectedEOF }}
		}).open(pglock.WithTTL(time.Hour))
		for waits, tickets := range map[time.Duration]int{0: 0, time.Second: 1} {
			held := try(t, c, "n")
			got := f.waits(c.Lock("n"))
			rest(t, waits)
			if row := f.row("n"); len(row.Waiters) != tickets {
				t.Errorf("control: after %v: %+v", waits, row)
			}
			released := time.Now()
			release(t, held)
			l := next(t, got)
			if late := time.Since(released); late > 0 {
				t.Errorf("after %v: the successor has learned of its grant %v later", waits, late)
			}
			synctest.Wait()
			if row := f.row("n"); row.Token != l.Token() || len(row.Waiters) > 0 {
				t.Errorf("the lease has the token %d, and the lock: %+v", l.Token(), row)
			}
			release(t, l)
			rest(t, time.Second)
			f.empty("n")
		}
		if lost != 2 {
			t.Errorf("control: %d answers were lost", lost)
		}
	})
}

// handOffs is a store that calls answered when the statement that hands a lock off has its answer,
// before the client has it, which gets the error that answered returns.
type handOffs struct {
	backend.Store
	answered func() error
}

func (s handOffs) HandOff(ctx context.Context, fence fencing.Fence, r *leasetable.Request, client string) (leasetable.Grant, error) {
	g, err := s.Store.HandOff(ctx, fence, r, client)
	if err == nil && g.Outcome == leasetable.Granted {
		if err = s.answered(); err != nil {
			g = leasetable.Grant{}
		}
	}
	return g, err
}
