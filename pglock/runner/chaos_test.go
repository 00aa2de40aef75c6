package runner_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
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
	ctx, cancel := context.WithTimeout(context.Background(), locktest.Patience)
	defer cancel()
	config, err := pgxpool.ParseConfig(os.Getenv(runURLVariable))
	if err != nil {
		return err
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // there may be a pooler
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	opts := []runner.RunOption{runner.WithHolder(os.Getenv(holderVariable)), runner.WithTimeout(locktest.Patience)}
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
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { r.end <- r.cmd.Wait() }()
	return r
}

// currentHolder returns the number of the replica that holds the lock, -1 if none does.
func currentHolder(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	var name string
	err := pool.QueryRow(t.Context(), `
		SELECT holder FROM pglock.distributed_locks WHERE holder LIKE 'replica-%' AND expires_at > clock_timestamp()
		UNION ALL SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid)
		WHERE locktype = 'advisory' AND granted AND application_name LIKE 'replica-%' AND datname = current_database()`).Scan(&name)
	if err != nil {
		return -1
	}
	if _, err := fmt.Sscanf(name, "replica-%d", &n); err != nil {
		t.Fatalf("holder %q: %v", name, err)
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
	for _, form := range []string{"advisory", "lease", "lease through a pooler"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			killed := 0
			for round := range rounds {
				url := pgtest.Database(t)
				pool := pgtest.PoolOn(t, url)
				journal(t, pool)
				if err := migrations.Up(t.Context(), pool); err != nil {
					t.Fatal(err)
				}
				through := url
				if strings.Contains(form, "pooler") {
					through = pgtest.Pooler(t, url, "transaction", "default_pool_size = 10", "max_client_conn = 500")
				}
				kind, _, _ := strings.Cut(form, " ")
				all := make([]*replica, replicas)
				for i := range all {
					all[i] = startReplica(t, kind, through, fmt.Sprintf("replica-%d", i))
				}
				victim := rand.IntN(replicas)
				if round%2 == 0 {
					pgtest.Eventually(t, locktest.Patience, "a replica migrates", func() bool {
						n := currentHolder(t, pool)
						if n >= 0 {
							victim = n
						}
						return n >= 0
					})
				}
				if err := all[victim].cmd.Process.Kill(); err == nil {
					killed++
				}
				for i, r := range all {
					if err := <-r.end; err != nil && i != victim {
						t.Errorf("round %d, replica %d: %v: %s", round, i, err, r.out.String())
					}
				}
				// As an orchestrator does, start the victim again.
				again := startReplica(t, kind, through, "replica-99")
				if err := <-again.end; err != nil {
					t.Errorf("round %d, the killed one, again: %v: %s", round, err, again.out.String())
				}
				wantJournal(t, pool, len(chaosFiles()))
				wantVersion(t, pool, len(chaosFiles()), false)
				pgtest.Eventually(t, locktest.Patience, "no lock is left", func() bool { return currentHolder(t, pool) == -1 })
			}
			t.Logf("%d rounds of %d replicas, %d killed: each migration once, all at the version, no lock left", rounds, replicas, killed)
		})
	}
}
