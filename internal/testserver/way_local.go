package testserver

import (
	"context"
	"errors"
	"path/filepath"
)

// sharedSettings fit a server that the tests of all packages use at once, and that may live in memory.
var sharedSettings = map[string]string{"max_connections": "500", "max_wal_size": "256MB"}

// startLocal starts this machine's PostgreSQL.
func startLocal(ctx context.Context, dir string) (*running, error) {
	bin, err := findBinaries()
	if err != nil {
		return nil, err
	}
	return startFrom(ctx, bin, dir)
}

// startFrom starts a server from a directory of programs.
func startFrom(ctx context.Context, bin, dir string) (*running, error) {
	version, err := serverVersion(ctx, bin)
	if err != nil {
		return nil, err
	}
	server, err := newServer(ctx, filepath.Join(dir, "server"), Options{BinDir: bin, Settings: sharedSettings})
	if err != nil {
		return nil, err
	}
	return &running{
		Shared: Shared{URL: server.URL(), Detail: version + ", " + bin},
		exited: server.run.exited,
		said:   server.logTail,
		stop:   func() error { return errors.Join(server.Stop(Immediate), server.Close()) },
	}, nil
}
