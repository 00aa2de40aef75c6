package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

// Way is how a server was come by.
type Way string

// The ways, in the order in which they are tried.
const (
	WayURL      Way = "url"      // one that was named
	WayDocker   Way = "docker"   // a container
	WayLocal    Way = "local"    // this machine's PostgreSQL
	WayEmbedded Way = "embedded" // a downloaded PostgreSQL
)

// Shared is the server that all processes of one run use.
type Shared struct {
	URL    string   // superuser, database postgres
	Way    Way      // how it was come by
	Detail string   // what it is, for people
	Passed []string // the ways tried before, each with why it failed
}

// String says where the server came from, without its password.
func (s *Shared) String() string { return fmt.Sprintf("%s: %s", s.Way, s.Detail) }

// ErrNoServer is returned by Get when no way leads to a server. The error's text tells each way and why it failed.
var ErrNoServer = errors.New("testserver: no PostgreSQL server for the tests")

// got is what Get found, for the process's life. Failures are kept too, so that a thousand tests fail at once rather
// than one after the other.
var got struct {
	sync.Mutex
	server *Shared
	err    error
}

// Get returns the shared server, and starts it if this is the first process that asks. ctx bounds only the waiting:
// a server that starts too late is still there for who asks next.
func Get(ctx context.Context) (*Shared, error) {
	got.Lock()
	defer got.Unlock()
	if got.server != nil || got.err != nil {
		return got.server, got.err
	}
	server, err := get(ctx)
	if err == nil || ctx.Err() == nil {
		got.server, got.err = server, err
	}
	return server, err
}

func get(ctx context.Context) (*Shared, error) {
	config, err := readConfig()
	if err != nil {
		return nil, err
	}
	if config.ways[0] == WayURL {
		return named(ctx, config)
	}
	dir, err := ensureSupervisor(ctx)
	if err != nil {
		return nil, err
	}
	return awaitServer(ctx, dir)
}

// ensureSupervisor returns the owner's directory, in which a supervisor lives or has told why it couldn't.
func ensureSupervisor(ctx context.Context) (string, error) {
	id, err := owner()
	if err != nil {
		return "", err
	}
	name := sharedPrefix + id.String()
	home := baseWith(name)
	lock, err := home.lock(ctx)
	if err != nil {
		return "", err
	}
	defer lock.release()

	dir := home.path(name)
	if s, err := readState(dir); err == nil && s.Supervisor.Alive() {
		return dir, nil
	}
	if err := removeLeftovers(dir); err != nil { // a supervisor was killed
		return "", err
	}
	if dir, err = home.make(name); err != nil {
		return "", err
	}
	supervisor, err := job{Task: taskSupervise, Dir: dir, Owner: id}.detach(supervisorLog)
	if err != nil {
		return "", err
	}
	return dir, awaitSupervisor(ctx, dir, supervisor)
}

// awaitSupervisor returns when the supervisor has written its first state, and thereby taken over the directory. The
// lock is held meanwhile, so the next process finds that state.
func awaitSupervisor(ctx context.Context, dir string, supervisor process.ID) error {
	for {
		alive := supervisor.Alive()
		if _, err := readState(dir); err == nil {
			return nil
		}
		if !alive {
			return fmt.Errorf("testserver: the supervisor ended: %s", supervisorSaid(dir))
		}
		retry := time.NewTimer(2 * time.Millisecond)
		select {
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			return fmt.Errorf("testserver: the supervisor doesn't start: %w", ctx.Err())
		}
	}
}

// awaitServer returns what the supervisor reports.
func awaitServer(ctx context.Context, dir string) (*Shared, error) {
	for {
		s, err := readState(dir)
		switch {
		case err != nil:
			return nil, fmt.Errorf("testserver: the supervisor is gone: %w", err)
		case s.Error != "":
			return nil, fmt.Errorf("%w%s", ErrNoServer, s.Error)
		case !s.Supervisor.Alive():
			return nil, fmt.Errorf("testserver: the supervisor was killed: %s", supervisorSaid(dir))
		case s.Server != nil:
			return s.Server, nil
		}
		retry := time.NewTimer(10 * time.Millisecond)
		select {
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			return nil, fmt.Errorf("testserver: the server doesn't start: %w: %s", ctx.Err(), supervisorSaid(dir))
		}
	}
}

func supervisorSaid(dir string) string {
	text, err := os.ReadFile(filepath.Join(dir, supervisorLog))
	if err != nil {
		return err.Error()
	}
	return lastLines(string(text))
}
