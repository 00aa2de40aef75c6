package runner_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/runner"
)

// runVariable makes the test binary a replica that calls Run, under that kind of lock.
const (
	runVariable    = "PGLOCK_TEST_RUN"
	runURLVariable = "PGLOCK_TEST_RUN_URL"
	holderVariable = "PGLOCK_TEST_RUN_HOLDER"
)

// chaosFiles returns migrations that each take a moment, so that a process can be killed in one.
func chaosFiles() []string {
	var texts []string
	for i := range 6 {
		texts = append(texts, fmt.Sprintf("CREATE TABLE t%d (); INSERT INTO journal VALUES (%d); SELECT pg_sleep(0.03);", i, i+1))
	}
	return texts
}

func runReplica(form string) error {
	ctx, cancel := context.WithTimeout(context.Background(), pgtest.Patience)
	defer cancel()
	pool, err := pgxpool.New(ctx, os.Getenv(runURLVariable))
	if err != nil {
		return err
	}
	defer pool.Close()
	opts := []runner.Option{runner.WithHolder(os.Getenv(holderVariable)), runner.WithTimeout(pgtest.Patience)}
	if form == "lease" {
		client, err := pglock.Open(ctx, pool, pglock.WithTTL(2*time.Second))
		if err != nil {
			return err
		}
		defer client.Close(ctx)
		opts = append(opts, runner.WithLease(client))
	}
	return runner.Run(ctx, source(chaosFiles()...), pool, opts...)
}

// replica is a process that calls Run when it starts.
type replica struct {
	cmd *exec.Cmd
	out bytes.Buffer
	end chan error
}

func startReplica(t *testing.T, form, url, holder string) *replica {
	t.Helper()
	r := &replica{cmd: exec.Command(os.Args[0]), end: make(chan error, 1)}
	r.cmd.Env = append(os.Environ(), runVariable+"="+form, runURLVariable+"="+url, holderVariable+"="+holder)
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.out
	ok(t, r.cmd.Start())
	go func() { r.end <- r.cmd.Wait() }()
	return r
}

// currentHolder returns the number of the replica that holds the lock, -1 if none does.
func (f *fixture) currentHolder() (n int) {
	f.Helper()
	var name string
	err := f.pool.QueryRow(f.Context(), `
		SELECT holder FROM pglock.distributed_locks WHERE holder LIKE 'replica-%' AND expires_at > clock_timestamp()
		UNION ALL SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid)
		WHERE locktype = 'advisory' AND granted AND application_name LIKE 'replica-%' AND datname = current_database()`).Scan(&name)
	if err != nil {
		return -1
	}
	if _, err := fmt.Sscanf(name, "replica-%d", &n); err != nil {
		f.Fatalf("holder %q: %v", name, err)
	}
	return n
}

// TestChaosReplicasStartAtOnceAndOneIsKilled: each migration runs once, the other replicas reach
// the last version, and no lock is left. Half of the rounds kill the replica that migrates, half
// any replica. The short form has one round of 6 replicas, the long form 10 of 20.
func TestChaosReplicasStartAtOnceAndOneIsKilled(t *testing.T) {
	t.Parallel()
	rounds, replicas := 1, 6
	if os.Getenv("PGLOCK_CHAOS") != "" {
		rounds, replicas = 10, 20
	}
	for _, form := range []string{"advisory", "lease"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			for round := range rounds {
				f := newFixture(t)
				f.gate.Open()
				locktest.Client(t, f.url) // creates the tables
				all := make([]*replica, replicas)
				for i := range all {
					all[i] = startReplica(t, form, f.url, fmt.Sprintf("replica-%d", i))
				}
				victim := rand.IntN(replicas)
				if round%2 == 0 {
					pgtest.Eventually(t, "a replica migrates", func() bool {
						n := f.currentHolder()
						if n >= 0 {
							victim = n
						}
						return n >= 0
					})
				}
				_ = all[victim].cmd.Process.Kill() // it may have ended
				for i, r := range all {
					if err := <-r.end; err != nil && i != victim {
						t.Errorf("round %d, replica %d: %v: %s", round, i, err, r.out.String())
					}
				}
				// As an orchestrator does, start the victim again.
				again := startReplica(t, form, f.url, "replica-99")
				if err := <-again.end; err != nil {
					t.Errorf("round %d, the killed one, again: %v: %s", round, err, again.out.String())
				}
				f.want(len(chaosFiles()), false, len(chaosFiles()))
				pgtest.Eventually(t, "no lock is left", func() bool { return f.currentHolder() == -1 })
			}
		})
	}
}
