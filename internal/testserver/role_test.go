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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/internal/testserver/process"
)

// Roles of a process that a test starts. Each says one line of JSON, and ends when its standard input does.
const (
	roleVariable = "PGLOCK_TESTSERVER_TEST_ROLE"

	roleOwner   = "owner"   // what the go command is in a run
	roleUser    = "user"    // asks for the shared server
	rolePrivate = "private" // starts a private server
	rolePaused  = "paused"  // starts a private server and pauses it
	roleRun     = "run"     // an owner that starts a user, and hands on what that says
)

// word is what a role says.
type word struct {
	Server *testserver.Shared
	URL    string
	Error  string
}

func play(role string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	said, err := perform(ctx, role)
	if err != nil {
		said.Error = err.Error()
	}
	line, err := json.Marshal(said)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line)) //nolint:forbidigo // this is how a role answers
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func perform(ctx context.Context, role string) (word, error) {
	switch role {
	case roleOwner:
		return word{}, nil
	case roleUser:
		server, err := testserver.Get(ctx)
		return word{Server: server}, err
	case rolePrivate, rolePaused:
		server, err := testserver.Start(ctx, testserver.Options{})
		if err == nil && role == rolePaused {
			err = server.Pause()
		}
		if err != nil {
			return word{}, err
		}
		return word{URL: server.URL()}, nil
	case roleRun:
		return performRun()
	}
	return word{}, fmt.Errorf("unknown role %q", role)
}

// performRun starts a user in the same process group, as the go command starts a test.
func performRun() (word, error) {
	self, err := process.Self()
	if err != nil {
		return word{}, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+roleUser, ownerVariable+"="+self.String())
	cmd.Stdin = os.Stdin
	out, err := cmd.StdoutPipe()
	if err != nil {
		return word{}, err
	}
	if err := cmd.Start(); err != nil {
		return word{}, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return word{}, err
	}
	var said word
	return said, json.Unmarshal([]byte(line), &said)
}

const ownerVariable = "PGLOCK_TESTSERVER_OWNER"

// stage is a place for one test's processes: a directory for temporary files that nobody else uses, so what is left
// in it in the end was left by this test.
type stage struct {
	t   *testing.T
	dir string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	base := ownBase(t)
	dir, err := os.MkdirTemp(filepath.Dir(base), "stage-") //nolint:usetesting // the servers' account must get in
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { // the servers' account goes through
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &stage{t: t, dir: dir}
	s.lendTemplates(base)
	return s
}

// ownBase returns where this process's private servers lie, with a template, which stay as long as the process.
func ownBase(t *testing.T) string {
	t.Helper()
	firstServer.Do(func() {
		log := pgtest.Server(t, testserver.Options{}).LogFile()
		ownBasePath = filepath.Dir(filepath.Dir(filepath.Dir(log)))
	})
	return ownBasePath
}

var (
	firstServer sync.Once
	ownBasePath string
)

// lendTemplates saves the stage's servers their initdb.
func (s *stage) lendTemplates(base string) {
	s.t.Helper()
	templates, err := filepath.Glob(filepath.Join(base, "template-*"))
	if err != nil || len(templates) == 0 {
		s.t.Fatalf("no template: %v", err)
	}
	borrowed := filepath.Join(s.dir, filepath.Base(base))
	if err := os.Mkdir(borrowed, 0o711); err != nil {
		s.t.Fatal(err)
	}
	for _, template := range templates {
		if err := os.Symlink(template, filepath.Join(borrowed, filepath.Base(template))); err != nil {
			s.t.Fatal(err)
		}
	}
}

// actor is a process in a role.
type actor struct {
	process.ID
	word  word
	cmd   *exec.Cmd
	stdin io.Closer
}

// start starts a process, and returns when it has said its word.
func (s *stage) start(role string, env ...string) *actor {
	s.t.Helper()
	a, err := s.tryStart(role, env...)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

// tryStart is for goroutines of a test, which may not end it.
func (s *stage) tryStart(role string, env ...string) (*actor, error) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(cleanEnviron(), "TMPDIR="+s.dir, "TMP="+s.dir, roleVariable+"="+role)
	cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=0") // the race detector's own end takes a second otherwise
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
	info, err := process.Find(cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	a.ID = info.ID
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("%s said nothing: %w", role, err)
	}
	return a, json.Unmarshal([]byte(line), &a.word)
}

// cleanEnviron is ours without what steers this package. Tests set what they want.
func cleanEnviron() []string {
	var kept []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PGLOCK_TEST") && !strings.HasPrefix(entry, "TESTCONTAINERS_") {
			kept = append(kept, entry)
		}
	}
	return kept
}

// kill is kill -9, and may be called twice.
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

// owned makes a process a member of the owner's run.
func owned(by *actor) string { return ownerVariable + "=" + by.String() }

// viaLocal makes the tests of this file independent of Docker.
const viaLocal = testserver.ServerVariable + "=local"

// user starts a process of the owner's run and returns the server that it got.
func (s *stage) user(by *actor, env ...string) *testserver.Shared {
	s.t.Helper()
	a := s.start(roleUser, append([]string{viaLocal, owned(by)}, env...)...)
	if a.word.Error != "" {
		s.t.Fatal(a.word.Error)
	}
	a.leave()
	return a.word.Server
}

// states returns the state files of all supervisors.
func (s *stage) states() []string {
	found, err := filepath.Glob(filepath.Join(s.dir, "pglock-test-*", "shared-*", "state.json"))
	if err != nil {
		s.t.Fatal(err)
	}
	return found
}

// supervisor returns the only supervisor.
func (s *stage) supervisor() process.ID {
	s.t.Helper()
	states := s.states()
	if len(states) != 1 {
		s.t.Fatalf("there are %d supervisors: %q", len(states), states)
	}
	text, err := os.ReadFile(states[0])
	if err != nil {
		s.t.Fatal(err)
	}
	var state struct{ Supervisor process.ID }
	if err := json.Unmarshal(text, &state); err != nil {
		s.t.Fatal(err)
	}
	return state.Supervisor
}

// mustEmpty expects that soon nothing is left: no file, no process, no answer at the addresses.
func (s *stage) mustEmpty(urls ...string) {
	s.t.Helper()
	pgtest.Eventually(s.t, 15*time.Second, "no file is left in "+s.dir, func() bool {
		entries, err := os.ReadDir(s.dir)
		return err == nil && (len(entries) == 0 || runtime.GOOS == "windows")
	})
	pgtest.Eventually(s.t, 15*time.Second, "no process is left in "+s.dir, func() bool {
		left, err := process.Under(s.dir)
		return err == nil && len(left) == 0
	})
	for _, url := range urls {
		mustRefuse(s.t, url)
	}
}
