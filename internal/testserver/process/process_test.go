package process_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

func TestMain(m *testing.M) {
	if os.Getenv("PROCESS_TEST_WAIT") != "" {
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the test closes it
		return
	}
	os.Exit(m.Run())
}

// child starts this program again, as a process that waits.
func child(t *testing.T) (*exec.Cmd, process.Info, func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PROCESS_TEST_WAIT=1", "GORACE=atexit_sleep_ms=0")
	cmd.Dir = t.TempDir()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() {
		stdin.Close()
		_ = cmd.Wait()
	}
	t.Cleanup(end)
	info, err := process.Find(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, info, end
}

func TestSelf(t *testing.T) {
	t.Parallel()
	self, err := process.Self()
	if err != nil || self.PID != os.Getpid() || !self.Alive() {
		t.Errorf("got %v, %v", self, err)
	}
}

func TestChildLivesAndEnds(t *testing.T) {
	t.Parallel()
	_, info, end := child(t)
	if info.Parent != os.Getpid() || !info.Alive() {
		t.Errorf("got %+v", info)
	}
	children, err := process.Children(os.Getpid())
	if err != nil || !contains(children, info.ID) {
		t.Errorf("the children are %v, %v", children, err)
	}
	end()
	if info.Alive() {
		t.Error("it lives")
	}
	if _, err := process.Find(info.PID); !errors.Is(err, process.ErrGone) {
		t.Errorf("got %v", err)
	}
}

func contains(infos []process.Info, id process.ID) bool {
	for _, info := range infos {
		if info.ID == id {
			return true
		}
	}
	return false
}

func TestReusedNumberIsAnotherProcess(t *testing.T) {
	t.Parallel()
	self, err := process.Self()
	if err != nil {
		t.Fatal(err)
	}
	self.Start--
	if self.Alive() {
		t.Error("a process that started at another time passes for this one")
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	id := process.ID{PID: 12, Start: 345}
	if got, err := process.Parse(id.String()); err != nil || got != id {
		t.Errorf("got %v, %v", got, err)
	}
	for _, text := range []string{"", "12", "12-", "-5", "x-1", "0-1", "1-2-3"} {
		if got, err := process.Parse(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

// TestNameWithParentheses starts a program whose name looks like the end of the field that holds it.
func TestNameWithParentheses(t *testing.T) {
	t.Parallel()
	odd := filepath.Join(t.TempDir(), "a) Z (b")
	if err := os.Link(os.Args[0], odd); err != nil {
		t.Skipf("this system can't link a program: %v", err)
	}
	cmd := exec.Command(odd)
	cmd.Env = append(os.Environ(), "PROCESS_TEST_WAIT=1", "GORACE=atexit_sleep_ms=0")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer stdin.Close()
	if info, err := process.Find(cmd.Process.Pid); err != nil || info.Parent != os.Getpid() {
		t.Errorf("got %+v, %v", info, err)
	}
}
