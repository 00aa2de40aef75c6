package examples_test

import (
	"bufio"
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/pglock/pglocktest"
)

// programs are the folders, with arguments for those that end by themselves.
var programs = map[string][]string{
	"inventory": {"cart-1", "apple=1", "pear=2"},
	"transfer":  {"transfer-1", "alice", "bob", "500"},
	"gormguard": {"alice", "500"},

	"gocron": nil, "idempotent": nil, "leader": nil, "migrateatstart": nil, "nightlyjob": nil, "payment": nil, "tenantlimit": nil,
}

// TestProgramsRun as two replicas that start at the same time, on a new database. Those that serve log a line
// when they are ready, and end without an error after a signal.
func TestProgramsRun(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a process can't be interrupted on Windows")
	}
	bin, database := t.TempDir(), newDatabase(t)
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./...").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	for name, args := range programs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var replicas sync.WaitGroup
			for range 2 {
				replicas.Go(func() {
					if log, err := start(t.Context(), database, filepath.Join(bin, name), args); err != nil {
						t.Errorf("%v: %s", err, log)
					}
				})
			}
			replicas.Wait()
		})
	}
}

// start runs a replica, and returns what it logs. One without arguments is interrupted when it is ready.
func start(ctx context.Context, database, program string, args []string) (log string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+database, "ADDR=127.0.0.1:0")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ready := false
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		log += lines.Text() + "\n"
		if args == nil && strings.Contains(lines.Text(), " ready: ") {
			ready = true
			err = errors.Join(err, cmd.Process.Signal(os.Interrupt))
		}
	}
	err = errors.Join(err, cmd.Wait())
	switch {
	case args == nil && !ready:
		err = errors.Join(err, errors.New("it was never ready"))
	case strings.Contains(log, "try again"): // the other replica orders the same cart at this moment
		err = nil
	}
	return log, err
}

// TestFoldersAreComplete: each program is run above, and has a test.
func TestFoldersAreComplete(t *testing.T) {
	t.Parallel()
	tests, err := filepath.Glob("*/main_test.go")
	if err != nil || len(tests) != len(programs) {
		t.Errorf("%d programs, %d of them with a test, %v", len(programs), len(tests), err)
	}
	for _, test := range tests {
		if _, ok := programs[filepath.Dir(test)]; !ok {
			t.Errorf("%s is not run", filepath.Dir(test))
		}
	}
	copies, err := filepath.Glob("*/tables_test.go")
	if err != nil || len(copies) == 0 {
		t.Fatal("no copies of tables_test.go", err)
	}
	for _, path := range copies {
		if read(t, path) != read(t, copies[0]) {
			t.Errorf("%s differs from %s", path, copies[0])
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// newDatabase creates a database for this test and returns its URL.
func newDatabase(t *testing.T) string {
	t.Helper()
	name := "examples_" + pglocktest.New(t, nil).Schema() // no other test has this schema at the same time
	server := os.Getenv("PGLOCK_TEST_DATABASE_URL")
	conn, err := pgx.Connect(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	drop := func(ctx context.Context) {
		if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	}
	drop(t.Context())
	t.Cleanup(func() {
		drop(context.Background())
		_ = conn.Close(context.Background())
	})
	if _, err := conn.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(server)
	if err != nil || u.Scheme == "" {
		t.Fatalf("PGLOCK_TEST_DATABASE_URL must be a URL: %v", err)
	}
	u.Path = "/" + name
	return u.String()
}
