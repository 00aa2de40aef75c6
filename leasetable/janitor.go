package leasetable

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// pruneLock is the lock of the client that prunes: one at a time, however many there are.
	pruneLock = "pglock:prune"

	maxPruneEvery = time.Hour
)

// janitor deletes the rows of names that nobody has held for the retention, and what dead
// clients have left in the queue. Each client has one, most of which find that another
// has just been at it.
type janitor struct {
	client  *Client
	every   time.Duration
	running sync.WaitGroup
}

func newJanitor(c *Client) *janitor {
	j := &janitor{client: c, every: min(c.cfg.retention/4, maxPruneEvery)}
	if c.cfg.pruneEvery > 0 {
		j.every = c.cfg.pruneEvery
	}
	if j.every > 0 {
		j.running.Go(j.run)
	}
	return j
}

// stop waits for the end of run, which sees by itself that the client is closing.
func (j *janitor) stop() { j.running.Wait() }

func (j *janitor) run() {
	ctx, cancel := context.WithCancel(j.client.life)
	defer cancel()
	for {
		timer := time.NewTimer(j.every/2 + rand.N(j.every))
		select {
		case <-timer.C:
		case <-j.client.closing:
			timer.Stop()
			return
		}
		if err := j.round(ctx); err != nil && !errors.Is(err, ErrNotAcquired) && !errors.Is(err, ErrClosed) {
			j.client.cfg.logger.Warn("pglock: could not prune, trying again later", "error", err)
		}
	}
}

// round prunes once, unless somebody else does or has done lately.
func (j *janitor) round(ctx context.Context) error {
	c := j.client
	switch last, err := c.Get(ctx, pruneLock); {
	case errors.Is(err, ErrNotFound):
	case err != nil:
		return err
	case last.Held() || last.age < j.every/2:
		return nil
	}
	l, err := c.TryAcquire(ctx, pruneLock, WithTTL(time.Minute))
	if err != nil {
		return err
	}
	_, err = c.Prune(l.Context(), c.cfg.retention)
	if err == nil {
		err = c.askTwice(l.Context(), statement{sql: c.sql.deadRows})
	}
	return errors.Join(err, l.Release(ctx))
}
