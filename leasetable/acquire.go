package leasetable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Acquire waits until name is granted to this caller. While it waits it holds
// no connection and no transaction, and writes nothing.
//
// On success the lease is held, and renewed until it is released, lost, or the
// client is closed; ctx has no more part in it (its values are in the lease's
// Context).
//
// When ctx ends first it returns a *WaitError, in which errors.Is finds
// ErrNotAcquired and ctx's error and cause; the lock is not held, and a grant on
// its way is given back (one that a broken network delivers to the server much
// later ends by its TTL). The same error wraps ErrUnavailable after
// the server could not be reached for 30 s, and ErrClosed when the client is
// closed. ErrInvalidName and ErrInvalidOption are returned at once.
func (c *Client) Acquire(ctx context.Context, name string, opts ...LeaseOption) (*Lease, error) {
	return c.acquire(ctx, name, opts, (*acquisition).wait)
}

// TryAcquire asks once. If the lock is held it returns a *BusyError (errors.Is
// ErrNotAcquired) that tells the holder and what remains of its lease; nothing
// was written. A lock whose lease has expired is granted.
//
// ctx bounds the asking, not the lease. If the server does not answer, the error
// wraps ErrUnavailable; a grant that was made all the same is given back.
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...LeaseOption) (*Lease, error) {
	return c.acquire(ctx, name, opts, (*acquisition).once)
}

// acquisition is one call of Acquire or TryAcquire.
type acquisition struct {
	client  *Client
	name    string
	cfg     leaseConfig
	begun   time.Time
	request string // the same for all attempts that may have been applied

	// uncertain: an attempt's answer was lost, so that the grant may be ours
	// without our knowing.
	uncertain bool
}

func (c *Client) acquire(ctx context.Context, name string, opts []LeaseOption, how func(*acquisition, context.Context) (grant, error)) (*Lease, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	cfg, err := c.cfg.lease.with(opts)
	if err != nil {
		return nil, err
	}
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	a := &acquisition{client: c, name: name, cfg: cfg, begun: time.Now(), request: newRequest()}
	g, err := how(a, ctx)
	if err != nil {
		if a.uncertain {
			a.withdraw(a.request)
		}
		return nil, err
	}
	return c.newLease(ctx, a, g)
}

// once asks until there is an answer, at most a few times.
func (a *acquisition) once(ctx context.Context) (grant, error) {
	const (
		tries    = 5 // when others are at it
		failures = 2 // the first may have met a connection that died long ago
	)
	var g grant
	var err error
	for failed := 0; failed < failures; {
		for range tries {
			if g, err = a.ask(ctx, a.ticket(0), false); err != nil || g.outcome == granted || g.outcome == busy {
				break
			}
		}
		switch {
		case err == nil && g.outcome == granted:
			return g, nil
		case err == nil:
			return g, a.busy(g)
		case ctx.Err() != nil || errors.Is(err, ErrClosed):
			return g, a.gaveUp(ctx, err)
		case !errors.Is(err, ErrUnavailable), errors.Is(err, errLate):
			return g, err
		}
		failed++
	}
	return g, err
}

// ticket returns what is asked with: the process's ticket if it has one that counts.
func (a *acquisition) ticket(ours int64) int64 {
	if a.cfg.barging {
		return bargeIn
	}
	return cmp.Or(ours, newcomer)
}

func (a *acquisition) busy(g grant) *BusyError {
	return &BusyError{Name: a.name, Holder: g.holder, Token: g.token, Remaining: g.remaining}
}

// gaveUp says why the waiting ended, and what had stood in the way.
func (a *acquisition) gaveUp(ctx context.Context, last error) error {
	cause := ErrClosed
	if err := ctx.Err(); err != nil {
		cause = err
		if why := context.Cause(ctx); !errors.Is(why, err) {
			cause = fmt.Errorf("%w: %w", err, why)
		}
	}
	if errors.Is(last, cause) || errors.Is(last, ErrClosed) {
		last = nil
	}
	return &WaitError{Name: a.name, Waited: time.Since(a.begun), Cause: cause, Last: last}
}

// ask asks the server once and sees to the request.
//
// The question goes out apart from the caller, whose context must not cut it off:
// a cancelled query closes its connection, and leaves unknown whether the lock was, or will yet be,
// taken. What a caller is granted who has left is given back. Only who can't leave asks himself.
func (a *acquisition) ask(ctx context.Context, ticket int64, doubtful bool) (grant, error) {
	if ctx.Err() != nil {
		return grant{}, ctx.Err()
	}
	q := &ask{acquisition: a, request: a.request, ticket: ticket, doubtful: doubtful}
	if ctx.Done() == nil && a.client.lanes.enter() {
		got := q.here()
		a.client.lanes.exit()
		return a.settle(q.request, got)
	}
	q.answers = make(chan answer, 1)
	a.client.calls.Add(1) // until it is delivered
	a.client.lanes.ask(q)
	var got answer
	left := error(nil)
	// Two may be ready: an answer that came with the end of ctx is taken or given
	// back, and either is right.
	select {
	case got = <-q.answers:
	case <-ctx.Done():
		left = ctx.Err()
	case <-a.client.closing:
		left = ErrClosed
	}
	if left != nil {
		answered := false
		if got, answered = q.leave(); !answered {
			return grant{}, left
		}
	}
	return a.settle(q.request, got)
}

// settle looks whether what was answered can be used.
func (a *acquisition) settle(request string, got answer) (grant, error) {
	a.uncertain = a.uncertain || applied(got.err)
	switch {
	case got.err != nil:
	case got.grant.outcome == spent:
		a.request, a.uncertain = newRequest(), false
	case got.grant.outcome == granted && !time.Now().Before(a.cfg.deadline(got.grant.sent, got.grant.remaining, a.cfg.ttl)):
		a.withdraw(request)
		a.request, a.uncertain = newRequest(), false
		got.err = errLate
	}
	if got.err == nil {
		return got.grant, nil
	}
	return got.grant, explain(a.client.cfg.schema, fmt.Sprintf("acquire %q", a.name), got.err)
}

// withdraw frees the lock in the background if the request has won it. The
// caller must be counted in. Where the server can't be reached for as long as
// the lease would last, the lease has ended by itself.
//
// A statement that was cut off may still be on its way, or past the point where it can be cancelled: where
// nothing was found to be freed it is looked for again.
func (a *acquisition) withdraw(request string) {
	c := a.client
	c.background(min(a.cfg.ttl, outagePatience), func(ctx context.Context) {
		for _, pause := range []time.Duration{time.Second, 4 * time.Second, 10 * time.Second, 0} {
			freed := false
			err := c.retry(ctx, func(ctx context.Context) error {
				_, err := c.conns.send(ctx, statement{sql: c.sql.withdraw, args: []any{a.name, request},
					row: func(pgx.Rows) error { freed = true; return nil }})
				return err
			})
			if err != nil {
				c.cfg.logger.Warn("pglock: could not give back a lock whose caller left; it ends by its TTL",
					"name", a.name, "ttl", a.cfg.ttl, "error", err)
			}
			if err != nil || freed || pause == 0 {
				return
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			case <-c.closing: // Close does not wait for what is unlikely
				return
			}
		}
	})
}
