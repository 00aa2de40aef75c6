package testserver

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// baseLock is held by one process of a user at a time, while it starts a supervisor or removes what others left.
type baseLock struct {
	base base
	file *os.File
}

// lock waits for the lock until ctx is done. The system gives it back when the process dies.
func (b base) lock(ctx context.Context) (*baseLock, error) {
	for {
		lock, err := b.tryLock()
		if lock != nil || err != nil {
			return lock, err
		}
		retry := time.NewTimer(5 * time.Millisecond)
		select {
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			return nil, fmt.Errorf("testserver: waiting for %s: %w", b.lockPath(), ctx.Err())
		}
	}
}

func (b base) lockPath() string { return b.path("lock") }

// tryLock returns nil without an error when somebody else holds the lock.
func (b base) tryLock() (*baseLock, error) {
	if err := b.prepare(); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(b.lockPath(), os.O_CREATE|os.O_RDWR, 0o600)
	if os.IsNotExist(err) {
		return nil, nil // the last one out removed the directory just now
	}
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	held, err := lockFile(file)
	if err != nil || !held {
		file.Close()
		return nil, err
	}
	// The last one out removes the file while it holds the lock. Who waited on that file holds a lock that nobody
	// else will ever see, and has to begin again.
	ours, err := file.Stat()
	theirs, err2 := os.Stat(b.lockPath())
	if err != nil || err2 != nil || !os.SameFile(ours, theirs) {
		file.Close()
		return nil, nil //nolint:nilerr // a file that is gone is no failure: try again
	}
	return &baseLock{base: b, file: file}, nil
}

// release gives the lock back. Who finds nobody else's directory removes everything, the lock included.
func (l *baseLock) release() {
	defer l.file.Close()
	entries, err := os.ReadDir(string(l.base))
	if err != nil || slices.ContainsFunc(entries, inUse) {
		return
	}
	l.base.removeTemplates(entries)
	if os.Remove(l.base.lockPath()) == nil { // fails where open files can't be removed, and then both just stay
		_ = os.Remove(string(l.base))
	}
}

// inUse reports whether an entry of the base directory belongs to somebody.
func inUse(entry fs.DirEntry) bool {
	return strings.HasPrefix(entry.Name(), sharedPrefix) || strings.HasPrefix(entry.Name(), privatePrefix)
}
