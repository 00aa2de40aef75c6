package runner

import (
	"context"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// unusedLock is a lock that was released because it was not used.
type unusedLock struct{ heldLock }

var errUnused = errs.Errorf("%w: released unused: golang-migrate's LockTimeout was over before the lock was granted", ErrLost)

func (unusedLock) Err() error { return errUnused }

// releaseUnused releases a lock that was granted after its caller had returned.
func (d *Driver) releaseUnused(h heldLock) {
	d.mu.Lock()
	// use and Unlock may have been faster than the timer.
	unused := d.held == h && d.unusedTimer != nil
	if unused {
		d.held, d.unusedTimer = unusedLock{h}, nil
	}
	d.mu.Unlock()
	if unused {
		_ = release(d.ctx, h) // if this fails, the lock ends with its connection, or by its TTL
	}
}

// use marks the lock as used, and returns it. It returns nil if the driver is not locked:
// golang-migrate's users may call a driver without a lock.
func (d *Driver) use() heldLock {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unusedTimer != nil {
		d.unusedTimer.Stop()
		d.unusedTimer = nil
	}
	return d.held
}

// extendUnused gives the caller more time to use the lock.
func (d *Driver) extendUnused() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unusedTimer != nil {
		d.unusedTimer.Reset(d.unusedTimeout)
	}
}

// noteVersion stores what the version table says.
func (d *Driver) noteVersion(version int, dirty bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if dirty {
		d.marked = version
	} else {
		d.clean = version
	}
}

// lastClean returns the last version that was seen clean.
func (d *Driver) lastClean() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.clean
}

// clearTimeout bounds clearDirtyMark.
const clearTimeout = 10 * time.Second

// clearDirtyMark replaces the dirty mark that this driver set before it lost the lock by a clean
// version: the one that the migration led to, or the one before if it did not run. It acquires the
// lock again for that. It changes nothing if the mark is gone, because a person or another run has
// dealt with it. The run ends in each case, with a *StoppedError.
func (d *Driver) clearDirtyMark(lost heldLock, version int) error {
	d.mu.Lock()
	marked := d.marked
	d.mu.Unlock()
	stopped := &StoppedError{Lock: d.cfg.name, Version: marked, Dirty: true, Cause: lost.Err()}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), clearTimeout)
	defer cancel()
	_ = release(ctx, lost) // of two locks one may still be held
	h, err := d.lock.acquire(ctx)
	if err != nil {
		return stopped
	}
	defer func() { _ = pgtx.CleanUp(ctx, h.Release) }() // if this fails, the lock ends with its connection, or by its TTL
	found, dirty, err := d.inner.Version()
	if err != nil || !dirty || found != marked || h.Err() != nil {
		return stopped
	}
	if err := d.inner.SetVersion(version, false); err != nil {
		return stopped
	}
	d.noteVersion(version, false)
	stopped.Version, stopped.Dirty = version, false
	return stopped
}
