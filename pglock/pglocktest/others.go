package pglocktest

import (
	"context"
	"errors"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// another runs act with the client of another process, which lives until the end of the test.
func (k *Locks) another(what, holder string, act func(ctx context.Context, client *pglock.Client) error) {
	k.tb.Helper()
	client, _ := k.open([]pglock.Option{pglock.WithHolder(holder)})
	k.tb.Cleanup(func() { k.close(client) })
	ctx, cancel := context.WithTimeout(k.tb.Context(), patience)
	defer cancel()
	if err := act(ctx, client); err != nil {
		k.tb.Fatalf("pglocktest: %s: %v", what, err)
	}
}

// Busy acquires a lock as another process, whose holder has that name, and returns when it is granted. The
// end of the test releases the lease if the test has not.
func (k *Locks) Busy(name, holder string) (l *pglock.Lease) {
	k.tb.Helper()
	k.another("busy", holder, func(ctx context.Context, client *pglock.Client) (err error) {
		l, err = client.Acquire(ctx, name)
		return err
	})
	return l
}

// Elect makes another process the leader of an election, with its name as the payload, and returns its term.
// The terms before it expire, also those of candidates that have waited longer. The end of the test ends the
// term if the test has not.
func (k *Locks) Elect(name, candidate string) (term *leader.Term) {
	k.tb.Helper()
	k.another("elect", candidate, func(ctx context.Context, client *pglock.Client) error {
		election, err := leader.New(client, name)
		if err != nil {
			return err
		}
		elected := make(chan error, 1)
		go func() {
			var err error
			term, err = election.Campaign(ctx, candidate)
			elected <- err
		}()
		for {
			select { // in any order: a term of the candidate is not ended
			case err := <-elected:
				return err
			case <-time.After(5 * time.Millisecond):
				if l, err := client.Get(ctx, name); err == nil && l.Held() && l.Holder != candidate {
					k.expire(name, l.Token)
				}
			}
		}
	})
	return term
}

// Tick runs a tick of a schedule as another process, with a function that does nothing: this tick
// and all before it are done. The tick may be a minute ahead of the clock at most, see Advance.
// [schedule.Job.Once] runs one in the test's own process.
func (k *Locks) Tick(job string, at time.Time) {
	k.tb.Helper()
	k.another("tick", "another process", func(ctx context.Context, client *pglock.Client) error {
		j, err := schedule.New(client, job)
		if err != nil {
			return err
		}
		return j.Once(ctx, at, func(context.Context, *pglock.Lease) error { return nil })
	})
}

// errCrash ends the effect of Crash.
var errCrash = errors.New("pglocktest: crash")

// Crash leaves an idempotency key as a process leaves it that dies during the effect of once.Do: it is
// not known whether the effect has happened, so the next call looks it up, repeats it, or fails with
// once.ErrOutcomeUnknown. The fingerprint is that of the calls.
func (k *Locks) Crash(key string, fingerprint []byte) {
	k.tb.Helper()
	k.another("crash", "crashed process", func(ctx context.Context, client *pglock.Client) error {
		_, err := once.Do(ctx, client, key, fingerprint, func(context.Context, *pglock.Lease) (string, error) { return "", errCrash })
		if errors.Is(err, errCrash) {
			return nil
		}
		return errors.Join(err, errors.New("the key has an outcome"))
	})
}
