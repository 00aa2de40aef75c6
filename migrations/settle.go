package migrations

import (
	"context"
	"time"

	"github.com/pglock/pglock-go/internal/await"
)

// settleBound is how long a driver tries to record the end of a migration whose lock was lost.
const settleBound = 10 * time.Second

// settle records a clean version for the mark that this driver left before the lock was lost:
// the version that it has reached, or the one before if the migration was not begun. It
// takes the lock again for it, and leaves the mark alone if it is not there any more:
// somebody has looked into it. Either way the run ends, with a *StoppedError.
func (d *Driver) settle(lost hold, version int) error {
	d.mu.Lock()
	marked := d.marked
	d.mu.Unlock()
	stopped := &StoppedError{Lock: d.cfg.name, Version: marked, Dirty: true, Cause: lost.Err()}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), settleBound)
	defer cancel()
	h, err := d.lock.acquire(ctx)
	if err != nil {
		return stopped
	}
	defer func() { _ = await.CleanUp(ctx, h.Release) }() // it ends with its connection, or by its TTL
	found, dirty, err := d.inner.Version()
	if err != nil || !dirty || found != marked || h.Err() != nil {
		return stopped
	}
	if err := d.inner.SetVersion(version, false); err != nil {
		return stopped
	}
	d.saw(version, false)
	stopped.Version, stopped.Dirty = version, false
	return stopped
}
