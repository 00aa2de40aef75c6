package testserver_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows can't pause a process")
	}
	server := pgtest.Server(t, testserver.Options{})
	conn := connect(t, server.URL())
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := server.Pause(); err != nil {
		t.Errorf("pausing twice: %v", err)
	}
	answer := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT 1")
		answer <- err
	}()
	mustHang(t, server.URL())
	select {
	case err := <-answer:
		t.Fatalf("a paused server answered: %v", err)
	default:
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err != nil {
		t.Errorf("the request from before: %v", err)
	}
	connect(t, server.URL())
}

// mustHang expects that the server takes a connection and then says nothing.
func mustHang(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := pgx.Connect(ctx, url); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("connecting: %v, want silence", err)
	}
}

func TestKillAndStart(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{})
	url := server.URL()
	conn := connect(t, url)
	mustExec(t, conn, "CREATE TABLE t AS SELECT 42 AS n")
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if reachable(url) {
		t.Fatal("the server lives")
	}
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("a connection outlived the server")
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if server.URL() != url {
		t.Error("the server moved")
	}
	if n := value[int](t, connect(t, url), "SELECT n FROM t"); n != 42 {
		t.Errorf("the data is lost: %d", n)
	}
}

func TestStopAndStart(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{})
	conn := connect(t, server.URL())
	mustExec(t, conn, "CREATE TABLE t ()")
	for _, mode := range []testserver.Mode{testserver.Fast, testserver.Immediate} {
		if err := server.Stop(mode); err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		if err := server.Stop(mode); err != nil {
			t.Errorf("%s twice: %v", mode, err)
		}
		left, err := testserver.Members(filepath.Dir(server.LogFile()))
		if err != nil || len(left) != 0 {
			t.Errorf("%s: processes are left: %v, %v", mode, left, err)
		}
		if err := server.Start(); err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		if n := value[int](t, connect(t, server.URL()), "SELECT count(*) FROM t"); n != 0 {
			t.Errorf("%s: the table has %d rows", mode, n)
		}
	}
}

func TestStopWhilePaused(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows can't pause a process")
	}
	server := pgtest.Server(t, testserver.Options{})
	for _, end := range []func() error{
		func() error { return server.Stop(testserver.Fast) },
		server.Kill,
	} {
		if err := server.Pause(); err != nil {
			t.Fatal(err)
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, server)
}

func TestStandbyAndPromote(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, testserver.Options{})
	standby := pgtest.Standby(t, primary)
	conn := connect(t, primary.URL())
	mustExec(t, conn, "CREATE TABLE t AS SELECT 1 AS n")
	replica := connect(t, standby.URL())
	if !value[bool](t, replica, "SELECT pg_is_in_recovery()") {
		t.Fatal("the standby is no standby")
	}
	pgtest.Eventually(t, "the table arrives", func() bool {
		return value[bool](t, replica, "SELECT to_regclass('t') IS NOT NULL")
	})
	if mode := value[string](t, conn, "SELECT sync_state FROM pg_stat_replication"); mode != "async" {
		t.Errorf("replication is %s", mode)
	}

	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustExec(t, replica, "INSERT INTO t VALUES (2)")
	if line := value[string](t, replica, "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"); line != "00000002" {
		t.Errorf("the promoted server is on timeline %s", line)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{
		Durable:  true,
		Settings: map[string]string{"work_mem": "5MB", "cluster_name": "it's"},
	})
	conn := connect(t, server.URL())
	for name, want := range map[string]string{"work_mem": "5MB", "cluster_name": "it's", "fsync": "on", "full_page_writes": "on"} {
		if got := value[string](t, conn, "SELECT current_setting($1)", name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{})
	segment := sharedMemoryOf(t, server)
	if err := server.Kill(); err != nil { // the state that leaves most
		t.Fatal(err)
	}
	mustClose(t, server)
	if sharedMemoryExists(t, segment) {
		t.Error("shared memory is left")
	}
	if err := server.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	if err := server.Start(); !errors.Is(err, testserver.ErrClosed) {
		t.Errorf("starting a closed server: %v", err)
	}
}

func mustClose(t *testing.T, server *testserver.Server) {
	t.Helper()
	dir := filepath.Dir(server.LogFile())
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}
	left, err := testserver.Members(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("processes are left: %v, %v", left, err)
	}
}

// binDir returns where a private server of this machine has its programs.
func binDir(t *testing.T) string {
	t.Helper()
	server := pgtest.Server(t, testserver.Options{})
	conn := connect(t, server.URL())
	return value[string](t, conn, "SELECT setting FROM pg_config WHERE name = 'BINDIR'")
}

// TestStandbyNeedsItsProgram uses a server that has no pg_basebackup.
func TestStandbyNeedsItsProgram(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("links to programs don't work there")
	}
	bin := binDir(t)
	partial, err := os.MkdirTemp("", "bin-") //nolint:usetesting // the servers' account must get in
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(partial) })
	if err := os.Chmod(partial, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"initdb", "pg_ctl", "postgres"} {
		path, err := exec.LookPath(filepath.Join(bin, program))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(partial, filepath.Base(path))); err != nil {
			t.Fatal(err)
		}
	}
	server := pgtest.Server(t, testserver.Options{BinDir: partial})
	if _, err := server.Standby(t.Context()); !errors.Is(err, testserver.ErrNoProgram) || !strings.Contains(err.Error(), "pg_basebackup") {
		t.Errorf("got %v, want an error that names pg_basebackup", err)
	}
}
