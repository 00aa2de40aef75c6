package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/random"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock/internal/backend"
)

// Prune deletes the rows of names that have been idle for the given time since the release or the
// expiry of the last grant, except those of jobs of package schedule that have a next tick, and those
// in whose queue a ticket is still valid, perhaps of a waiter that has had the lock since. Tokens stay
// in order: the next grant of such a name gets a larger one. Prune returns the number of deleted rows,
// also with an error.
//
// Pruning walks the table in short steps, which skip rows in use, so it delays no grant, and rests as
// long after each. ctx and Close end Prune early.
func (c *Client) Prune(ctx context.Context, idle time.Duration) (int64, error) {
	if idle < 0 {
		return 0, invalidOption("prune: idle time %v is negative: must be 0 or more", idle)
	}
	if err := c.beginCall(); err != nil {
		return 0, err
	}
	defer c.endCall()
	deleted, highest, err := c.pruneAll(ctx, idle)
	if err == nil && highest.Token > 0 {
		// Restored or replicated rows may have tokens above the sequence.
		err = c.store.LiftTokens(ctx, highest.Name)
	}
	if err != nil {
		return deleted, c.explainIn(ctx, fmt.Sprintf("prune rows idle for %v", idle), err)
	}
	return deleted, nil
}

// pruneAll walks the table once, and also returns the highest token that it saw, with its name.
func (c *Client) pruneAll(ctx context.Context, idle time.Duration) (deleted int64, highest fencing.Fence, err error) {
	for page := int64(0); ; {
		if c.hasClosed() {
			return deleted, highest, ErrClosed
		}
		began := time.Now()
		step, err := c.store.Prune(ctx, idle, page)
		page = step.Next
		deleted += step.Deleted
		if step.Highest.Token > highest.Token {
			highest = step.Highest
		}
		if err != nil || step.Done {
			return deleted, highest, err
		}
		if err := backoff.Sleep(ctx, time.Since(began)); err != nil {
			return deleted, highest, err
		}
	}
}

// pruner deletes the rows of names that have been idle for the retention, and the queue rows of
// dead clients. Each client has one, which usually finds that another client has just pruned.
type pruner struct {
	client  *Client
	every   time.Duration
	lease   *leaseConfig // of backend.PruneLock
	running sync.WaitGroup
}

func newPruner(c *Client) *pruner {
	// Dead queue rows are deleted even without pruning.
	j := &pruner{client: c, every: cmp.Or(c.cfg.pruneEvery, min(c.cfg.retention/4, timing.MaxPruneEvery), timing.MaxPruneEvery)}
	// Of the application's options only the holder's name applies, as the others may not fit this
	// TTL.
	j.lease = &leaseConfig{ttl: timing.PruneTTL, margin: timing.MaxMargin, renewEvery: timing.PruneTTL / 3, labels: "{}", holder: c.cfg.lease.holder}
	if !c.cfg.standby {
		j.running.Go(j.run)
	}
	return j
}

// stop waits for run, which ends when the client is closing.
func (j *pruner) stop() { j.running.Wait() }

func (j *pruner) run() {
	ctx, cancel := context.WithCancel(j.client.life)
	defer cancel()
	for {
		timer := time.NewTimer(j.every/2 + random.N(j.every))
		// More than one case may be ready. Any order is safe, because a round that begins while the
		// client closes is refused and ends at once.
		select {
		case <-timer.C:
		case <-j.client.closing:
			timer.Stop()
			return
		}
		// This is one short statement, which needs no lock.
		j.logFailure("could not delete the queue rows of dead clients, trying again later", j.client.store.DeleteDeadRows(ctx))
		if j.client.cfg.retention > 0 {
			j.logFailure("could not prune, trying again later", j.prune(ctx))
		}
	}
}

// logFailure logs err, unless another client is pruning or this client is closing.
func (j *pruner) logFailure(what string, err error) {
	if err != nil && !errors.Is(err, ErrNotAcquired) && !j.client.hasClosed() { // which interrupts the round
		j.client.cfg.logger.Warn("pglock: "+what, "schema", j.client.cfg.schema, "error", err)
	}
}

// prune prunes once, unless another client is pruning or has done so lately.
func (j *pruner) prune(ctx context.Context) error {
	c := j.client
	switch last, found, err := c.store.Get(ctx, backend.PruneLock); {
	case err != nil:
		return c.store.Explain("prune", err)
	case found && (last.Held() || last.Age < j.every/2):
		return nil
	}
	l, err := c.acquire(ctx, backend.PruneLock, j.lease, (*acquisition).tryOnce)
	if err != nil {
		return err
	}
	_, err = c.Prune(l.Context(), c.cfg.retention)
	return errs.Join(err, l.Release(ctx))
}
