package testserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

const (
	sharedPrefix  = "shared-"
	privatePrefix = "private-"
)

// sweep removes what earlier runs left that couldn't clean up after themselves, because their supervisor was killed.
// What can't be removed is told in the log and stays for the next run.
func sweep(ctx context.Context) {
	containers := false
	for _, b := range bases() {
		if !b.exists() {
			continue
		}
		some, err := b.sweep(ctx)
		containers = containers || some
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	if !containers {
		return
	}
	if err := sweepContainers(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// sweep removes directories that nobody needs, and reports whether there is a container to remove too.
func (b base) sweep(ctx context.Context) (containers bool, err error) {
	lock, err := b.lock(ctx)
	if err != nil {
		return false, err
	}
	defer lock.release()
	entries, err := os.ReadDir(string(b))
	if err != nil {
		return false, fmt.Errorf("testserver: %w", err)
	}
	var failed []error
	for _, entry := range entries {
		dir := b.path(entry.Name())
		if !stale(dir) {
			continue
		}
		s, err := readState(dir)
		containers = containers || err == nil && s.Server != nil && s.Server.Way == WayDocker
		failed = append(failed, removeLeftovers(dir))
	}
	return containers, errors.Join(failed...)
}

// stale reports whether nobody needs the directory any more. The caller holds the lock, so no directory is being made
// at this moment.
func stale(dir string) bool {
	name := filepath.Base(dir)
	if text, found := strings.CutPrefix(name, privatePrefix); found {
		id, err := process.Parse(text)
		return err == nil && !id.Alive()
	}
	text, found := strings.CutPrefix(name, sharedPrefix)
	if !found {
		return false
	}
	if s, err := readState(dir); err == nil {
		return !s.Supervisor.Alive()
	}
	id, err := process.Parse(text)
	return err == nil && !id.Alive()
}

// removeLeftovers ends what runs in the directory and removes it. The caller holds the lock.
func removeLeftovers(dir string) error {
	if _, err := os.Stat(dir); os.IsNotExist(err) {
		return nil
	}
	left, err := process.Under(dir)
	if err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	ids := appendNew(nil, left)
	for _, data := range dataDirs(dir) {
		ids = appendNew(ids, postmasterOf(data))
	}
	if err := errors.Join(signalAll(ids, sigKill), waitGone(ids)); err != nil {
		return err
	}
	for _, data := range dataDirs(dir) {
		removeSharedMemoryOf(data)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	return nil
}

// dataDirs returns the clusters below dir.
func dataDirs(dir string) []string {
	var found []string
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil //nolint:nilerr // it goes on with what can be read
		}
		if entry.Name() == dataName {
			found = append(found, path)
			return fs.SkipDir
		}
		return nil
	})
	return found
}

// postmasterOf returns the processes that postmaster.pid of a cluster speaks of, with their children. The number in
// it may have been reused, so only a process that is called like a server counts.
func postmasterOf(data string) []process.Info {
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return nil
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		return nil
	}
	postmaster, err := process.Find(pid)
	if err != nil || !strings.HasPrefix(postmaster.Name, "postgres") {
		return nil
	}
	children, _ := process.Children(pid) // without them it is the postmaster alone, whose end they notice
	return append([]process.Info{postmaster}, children...)
}
