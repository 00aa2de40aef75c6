package testserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

// Roles of a process that a test starts. Each prints one line of JSON and ends when its standard
// input does.
const (
	roleVariable = "PGLOCK_TESTSERVER_TEST_ROLE"

	roleUser    = "user"    // gets the shared server
	roleRun     = "run"     // runs a user as its command
	rolePrivate = "private" // starts a private server
	rolePaused  = "paused"  // starts a private server and pauses it
	roleProgram = "program" // starts another program in a directory
)

// report is what a role prints.
type report struct {
	Server *testserver.Shared
	URL    string
	Error  string
}

func play(role string) int {
	if role == roleRun {
		os.Setenv(roleVariable, roleUser)
		return testserver.Run([]string{os.Args[0]})
	}
	said, err := perform(context.Background(), role) // only the flag -timeout bounds a slow machine
	if err != nil {
		said.Error = err.Error()
	}
	line, err := json.Marshal(said)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line)) //nolint:forbidigo // this is how a role reports
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := testserver.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func perform(ctx context.Context, role string) (report, error) {
	switch role {
	case roleUser:
		server, err := testserver.Get(ctx)
		return report{Server: server}, err
	case rolePrivate, rolePaused:
		server, err := testserver.Start(ctx, testserver.Options{})
		if err == nil && role == rolePaused {
			err = server.Pause()
		}
		if err != nil {
			return report{}, err
		}
		return report{URL: server.URL()}, nil
	}
	if role == roleProgram {
		dir, err := testserver.Dir()
		if err != nil {
			return report{}, err
		}
		return report{}, exec.Command("sh", "-c", "sleep 600; true", filepath.Join(dir, "program")).Start()
	}
	return report{}, fmt.Errorf("unknown role %q", role)
}

// stage is a place for one test's processes: a directory for temporary files that no other test
// uses, so what is left in it at the end was left by this test.
type stage struct {
	t   *testing.T
	dir string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	dir, err := os.MkdirTemp("", "stage-") //nolint:usetesting // the servers' account must get in
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { // the servers' account passes through
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &stage{t: t, dir: dir}
}

// actor is a process in a role.
type actor struct {
	report
	cmd   *exec.Cmd
	stdin io.Closer
}

// start starts a process and returns its report.
func (s *stage) start(role string, env ...string) *actor {
	s.t.Helper()
	a, err := s.tryStart(role, env...)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

// compileRemote fills the go command's cache with the program in the directory remote. That takes
// minutes of computing, because the modules for Docker are large, and parallel "go run" commands would
// each do all of it.
var compileRemote = sync.OnceValue(func() error {
	build := exec.Command("go", "build", "-o", os.DevNull, ".")
	build.Dir, build.Env = "remote", append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	return nil
})

// startRemote starts a user of the shared server, for which it needs the program in the directory remote.
func (s *stage) startRemote(env ...string) *actor {
	s.t.Helper()
	if err := compileRemote(); err != nil {
		s.t.Fatal(err)
	}
	return s.start(roleUser, env...)
}

// tryStart is start for goroutines of a test, which may not end it.
func (s *stage) tryStart(role string, env ...string) (*actor, error) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(cleanEnviron(), "TMPDIR="+s.dir, "TMP="+s.dir, roleVariable+"="+role)
	cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=0") // the race detector takes a second to exit otherwise
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	ownGroup(cmd)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	a := &actor{cmd: cmd, stdin: stdin}
	s.t.Cleanup(a.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("%s printed nothing: %w", role, err)
	}
	return a, json.Unmarshal([]byte(line), &a.report)
}

// cleanEnviron is ours without what steers this package. Tests set what they need.
func cleanEnviron() []string {
	var kept []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PGLOCK_TEST") && !strings.HasPrefix(entry, "TESTCONTAINERS_") {
			kept = append(kept, entry)
		}
	}
	return kept
}

// kill sends SIGKILL. It may be called twice.
func (a *actor) kill() {
	a.stdin.Close()
	_ = a.cmd.Process.Kill() // it may have ended
	_ = a.cmd.Wait()
}

// leave lets the process end by itself.
func (a *actor) leave() {
	a.stdin.Close()
	_ = a.cmd.Wait()
}

// killKeepers kills the process's keepers, and the program that has its container with the keeper
// of that one: a process has no other descendants.
func (a *actor) killKeepers(t *testing.T) {
	t.Helper()
	keepers, err := testserver.Descendants(a.cmd.Process.Pid)
	if err != nil || len(keepers) == 0 {
		t.Fatalf("there are %d keepers, %v", len(keepers), err)
	}
	for _, pid := range keepers {
		keeper, err := os.FindProcess(pid)
		if err == nil {
			err = keeper.Kill()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// handed makes a process a member of a's run.
func handed(t *testing.T, a *actor) string {
	t.Helper()
	text, err := json.Marshal(a.Server)
	if err != nil {
		t.Fatal(err)
	}
	return testserver.HandedVariable + "=" + string(text)
}

// viaLocal makes a test independent of Docker.
const viaLocal = testserver.ServerVariable + "=local"

// user starts a process that has got the shared server.
func (s *stage) user(env ...string) *actor {
	s.t.Helper()
	a := s.start(roleUser, append([]string{viaLocal}, env...)...)
	if a.Error != "" {
		s.t.Fatal(a.Error)
	}
	return a
}

// sweep starts processes until one of them has removed what is left in the directory. Usually that is
// the first one, but a killed keeper may hold its lock for another moment.
func (s *stage) sweep(env ...string) {
	s.t.Helper()
	leftovers, err := os.ReadDir(s.dir)
	if err != nil || len(leftovers) == 0 {
		s.t.Fatalf("there are no leftovers: %v", err)
	}
	pgtest.Eventually(s.t, "a new process removes the leftovers", func() bool {
		s.user(env...).leave()
		return !slices.ContainsFunc(leftovers, func(e os.DirEntry) bool {
			_, err := os.Stat(filepath.Join(s.dir, e.Name()))
			return err == nil
		})
	})
}

// mustEmpty expects that soon nothing is left: no file, no process, no answer at the addresses.
func (s *stage) mustEmpty(urls ...string) {
	s.t.Helper()
	pgtest.Eventually(s.t, "no file is left in "+s.dir, func() bool {
		entries, err := os.ReadDir(s.dir)
		return err == nil && (len(entries) == 0 || runtime.GOOS == "windows")
	})
	pgtest.Eventually(s.t, "no process is left in "+s.dir, func() bool {
		left, err := testserver.Members(s.dir)
		return err == nil && len(left) == 0
	})
	for _, url := range urls {
		mustRefuse(s.t, url)
	}
}
