package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// measure measures the rows one after the other, with a line for each on progress, and prints the table.
// When ctx is done, it prints the rows that are complete, leaves the rest to the end of the process and
// returns errInterrupted.
func measure(ctx context.Context, chosen []trial.Row, scale trial.Scale, out, progress io.Writer) (results trial.Results, err error) {
	began := time.Now()
	var m trial.Machine
	if err := await(ctx, func() (err error) { m, err = describe(ctx); return err }); err != nil {
		return results, err
	}
	fmt.Fprintf(out, "PostgreSQL %s, %v\n%s/%s, %d cores, %s, pgx %s, pglock %s\n", m.Server, m.Settings,
		m.OS, m.Arch, m.Cores, m.Go, m.Driver, m.Module)
	fmt.Fprintf(out, "clients of peers: %v\n", m.Clients)
	for _, p := range []*peer{&redisPeer, &etcdPeer} {
		if _, err := p.find(); err != nil {
			fmt.Fprintf(out, "left out is what needs %s: %v\n", p.program, err)
		}
	}
	fmt.Fprintf(out, "%d rounds of %d turns of %v; of throughput one turn of %v\n", scale.Rounds, scale.Turns, scale.Turn, scale.LongTurn)
	if scale.Quick {
		fmt.Fprintln(out, "quick: an indication, with less of everything; nothing is kept")
	}
	fmt.Fprintln(out)
	for i, row := range chosen {
		fmt.Fprintf(progress, "%-3s  row %d of %d, after %v: %s\n", row.Number, i+1, len(chosen), time.Since(began).Round(time.Second), row.What)
		var o *trial.Outcome
		if err = await(ctx, func() (err error) { o, err = steadily(ctx, row, scale, progress); return err }); err != nil {
			break
		}
		o.Measured = &trial.Conditions{
			Time: began.UTC().Truncate(time.Second), Machine: m,
			Rounds: o.Scale.Rounds, Turns: o.Scale.Turns, TurnMS: o.Scale.Turn.Milliseconds(), Servers: o.Servers,
		}
		results.Rows = append(results.Rows, o)
		if err = o.WriteFigures(out); err != nil {
			break
		}
		fmt.Fprintln(out)
	}
	return results, errors.Join(err, trial.WriteTable(out, results.Rows))
}

// steadily measures a row, and once more if that was unsteady.
func steadily(ctx context.Context, row trial.Row, scale trial.Scale, progress io.Writer) (*trial.Outcome, error) {
	first, err := trial.Run(ctx, row, scale)
	if err != nil || scale.Quick || scale.Short || !unsteady(first) {
		return first, err
	}
	fmt.Fprintf(progress, "%-3s  once more: it was unsteady\n", row.Number)
	second, err := trial.Run(ctx, row, scale)
	if err == nil && unsteady(second) {
		return first, nil
	}
	return second, err
}

func unsteady(o *trial.Outcome) bool {
	return slices.ContainsFunc(o.Verdicts, func(v trial.Verdict) bool { return v.Unsteady })
}

// await runs what. When ctx is done it returns errInterrupted at once, whatever state what is in: the
// process ends then.
func await(ctx context.Context, what func() error) error {
	done := make(chan error, 1)
	go func() { done <- what() }()
	select { // an error that the interrupt has caused is an interrupt, so either may come first
	case err := <-done:
		if err != nil && ctx.Err() != nil {
			return errInterrupted
		}
		return err
	case <-ctx.Done():
		return errInterrupted
	}
}

// toldSettings are the server's settings that figures depend on.
var toldSettings = []string{"fsync", "full_page_writes", "shared_buffers", "synchronous_commit", "wal_level", "wal_sync_method"}

// peerClients are the modules of peers' client libraries.
var peerClients = []string{"github.com/bsm/redislock", "github.com/redis/go-redis/v9", "go.etcd.io/etcd/client/v3"}

// describe describes the machine and a server like the ones that the rows start.
func describe(ctx context.Context) (m trial.Machine, err error) {
	m = trial.Machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version(),
		Module: "unknown", Driver: "unknown", Clients: map[string]string{},
	}
	if out, err := exec.CommandContext(ctx, "git", "describe", "--tags", "--always", "--dirty").Output(); err == nil {
		m.Module = strings.TrimSpace(string(out))
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			switch {
			case module.Path == "github.com/jackc/pgx/v5":
				m.Driver = module.Version
			case slices.Contains(peerClients, module.Path):
				m.Clients[module.Path] = module.Version
			}
		}
	}
	var l lab
	if err := l.open(ctx, nil); err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	const read = "SELECT current_setting('server_version'), jsonb_object_agg(name, current_setting(name)) FROM unnest($1::text[]) AS name"
	return m, l.pool.QueryRow(ctx, read, toldSettings).Scan(&m.Server, &m.Settings)
}
