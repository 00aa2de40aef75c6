package main

import (
	"context"
	"errors"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// toldSettings are the server's settings that figures depend on.
var toldSettings = []string{"fsync", "full_page_writes", "shared_buffers", "synchronous_commit", "wal_level", "wal_sync_method"}

// describe describes the machine and a server like the ones that the rows start.
func describe(ctx context.Context) (m trial.Machine, err error) {
	m = trial.Machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version(),
		Module: moduleVersion(ctx), Driver: driverVersion(), Settings: map[string]string{},
	}
	var l lab
	if err := l.open(ctx, nil); err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := l.pool.QueryRow(ctx, "SELECT current_setting('server_version')").Scan(&m.Server); err != nil {
		return m, err
	}
	for _, name := range toldSettings {
		var value string
		if err := l.pool.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value); err != nil {
			return m, err
		}
		m.Settings[name] = value
	}
	return m, nil
}

// moduleVersion names the measured commit, with a mark for uncommitted changes.
func moduleVersion(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--tags", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// driverVersion returns the version of pgx in this program.
func driverVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "github.com/jackc/pgx/v5" {
				return m.Version
			}
		}
	}
	return "unknown"
}
