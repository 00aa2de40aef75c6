package testserver_test

import (
	"bytes"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

func TestOneServerPerRun(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	first, second := s.user(), s.user()
	if first.Server.URL == second.Server.URL {
		t.Fatal("two runs share a server")
	}
	var together sync.WaitGroup
	run := handed(t, first)
	for range 4 {
		together.Go(func() {
			a, err := s.tryStart(roleUser, viaLocal, run)
			if err != nil || a.Server == nil || a.Server.URL != first.Server.URL {
				t.Errorf("one run has two servers: %+v, %v", a, err)
				return
			}
			a.leave()
		})
	}
	together.Wait()

	first.kill()
	mustRefuse(t, first.Server.URL)
	if !reachable(second.Server.URL) {
		t.Error("the end of one run ended another run's server")
	}
	second.leave()
	s.mustEmpty(first.Server.URL, second.Server.URL)
}

func TestServerOutlivesTheTestsThatUseIt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	run := s.user()
	s.user(handed(t, run)).leave()
	s.user(handed(t, run)).kill()
	if !reachable(run.Server.URL) {
		t.Error("the server ended with a process that used it")
	}
	run.kill()
	s.mustEmpty(run.Server.URL)
}

// TestNothingIsLeftOfAKilledProcess, whatever it has started. Without its keeper the next process
// removes the leftovers, also of a paused server, which handles no signal but SIGKILL.
func TestNothingIsLeftOfAKilledProcess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		role       string
		keeperDies bool
	}{
		"private server":                {role: rolePrivate},
		"paused server":                 {role: rolePaused},
		"another program":               {role: roleProgram},
		"shared server, without keeper": {role: roleUser, keeperDies: true},
		"paused server, without keeper": {role: rolePaused, keeperDies: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if runtime.GOOS == "windows" && (c.role != rolePrivate || c.keeperDies) {
				t.Skip("Windows has no keeper and can't pause a process")
			}
			s := newStage(t)
			a := s.start(c.role, viaLocal)
			if a.Error != "" {
				t.Fatal(a.Error)
			}
			urls := []string{a.URL}
			switch c.role {
			case roleUser:
				urls[0] = a.Server.URL
			case roleProgram:
				urls = nil
				pgtest.Eventually(t, "the shell and its child run", func() bool {
					found, err := testserver.Members(s.dir)
					return err == nil && len(found) == 2
				})
			}
			if c.keeperDies {
				a.killKeepers(t)
			}
			a.kill()
			if c.keeperDies {
				s.sweep() // it fails without leftovers
			}
			s.mustEmpty(urls...)
		})
	}
}

// TestRunHandsTheServerDown ends a run by itself, with the status of its command, and by an interrupt.
func TestRunHandsTheServerDown(t *testing.T) {
	t.Parallel()
	for _, interrupted := range []bool{false, runtime.GOOS != "windows"} { // which has no process groups
		s := newStage(t)
		run := s.start(roleRun, viaLocal)
		if run.Server == nil || !reachable(run.Server.URL) {
			t.Fatalf("got %+v", run.report)
		}
		if interrupted {
			if err := run.interruptGroup(); err != nil {
				t.Fatal(err)
			}
		} else {
			run.stdin.Close()
		}
		if err := run.cmd.Wait(); (err != nil) != interrupted {
			t.Errorf("interrupted %t: %v", interrupted, err)
		}
		s.mustEmpty(run.Server.URL)
	}
}

func TestFilesWithPasswordsArePrivate(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no such modes")
	}
	s := newStage(t)
	a := s.user()
	address, err := url.Parse(a.Server.URL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := address.User.Password()
	found := false
	err = filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil //nolint:nilerr // the server's files come and go
		}
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte(password)) {
			return nil //nolint:nilerr // as above
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		found = true
		return err
	})
	if err != nil || !found {
		t.Errorf("a file with the password was found: %v, %v", found, err)
	}
	a.leave()
	s.mustEmpty()
}

// TestStartErrorReachesTheRun names a directory without programs.
func TestStartErrorReachesTheRun(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	empty := testserver.BinDirVariable + "=" + s.dir
	a := s.start(roleUser, viaLocal, empty)
	for _, want := range []string{"no PostgreSQL server", "local: ", "there is no initdb", testserver.URLVariable} {
		if !strings.Contains(a.Error, want) {
			t.Errorf("the error does not contain %q:\n%s", want, a.Error)
		}
	}
	a.leave()
	if run, err := s.tryStart(roleRun, viaLocal, empty); err == nil {
		t.Errorf("the command was started: %+v", run.report)
	}
	s.mustEmpty()
}

// TestUnreachableDirectory puts the files where the servers' account can't get. As another user
// than root the server runs as the caller, who can.
func TestUnreachableDirectory(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	closed := filepath.Join(s.dir, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	a := s.start(rolePrivate, "TMPDIR="+closed, "TMP="+closed)
	if os.Geteuid() == 0 && !strings.Contains(a.Error, "set TMPDIR") || os.Geteuid() != 0 && a.Error != "" {
		t.Errorf("got %q, want advice about TMPDIR", a.Error)
	}
	a.leave()
	if err := os.Remove(closed); err != nil {
		t.Error(err)
	}
	s.mustEmpty()
}
