package testserver_test

import (
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

func TestOneServerPerOwner(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	first, second := s.start(roleOwner), s.start(roleOwner)

	// The processes of a run come at the same moment, each without knowing of the others.
	var together sync.WaitGroup
	got := make([]*actor, 4)
	for i := range got {
		together.Go(func() {
			a, err := s.tryStart(roleUser, viaLocal, owned(first))
			if err != nil || a.word.Server == nil {
				t.Errorf("%+v, %v", a, err)
				return
			}
			got[i] = a
		})
	}
	together.Wait()
	if t.Failed() {
		t.FailNow()
	}
	url := got[0].word.Server.URL
	for _, a := range got {
		if a.word.Server.URL != url {
			t.Errorf("one run has two servers")
		}
		a.leave()
	}
	other := s.user(second)
	if other.URL == url {
		t.Fatal("two runs share a server")
	}

	first.kill()
	mustRefuse(t, url)
	if !reachable(other.URL) {
		t.Error("the end of one run ended another run's server")
	}
	second.leave()
	s.mustEmpty(url, other.URL)
}

func TestServerOutlivesTheProcessThatStartedIt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	owner := s.start(roleOwner)
	starter := s.start(roleUser, viaLocal, owned(owner))
	starter.kill()
	if again := s.user(owner); again.URL != starter.word.Server.URL {
		t.Error("the run got a second server")
	}
	if !reachable(starter.word.Server.URL) {
		t.Error("the server ended with the process that started it")
	}
	owner.kill()
	s.mustEmpty(starter.word.Server.URL)
}

func TestWithoutGoCommandTheProcessIsTheOwner(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	alone := s.start(roleUser, viaLocal)
	if alone.word.Error != "" {
		t.Fatal(alone.word.Error)
	}
	alone.kill()
	s.mustEmpty(alone.word.Server.URL)
}

func TestKilledSupervisor(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	owner := s.start(roleOwner)
	before := s.user(owner)
	killNow(t, s.supervisor())
	if runtime.GOOS == "linux" {
		mustRefuse(t, before.URL) // the kernel ended it
	}

	// The next process of the run gets a server again, and the next run removes what this one couldn't.
	after := s.user(owner)
	if after.URL == before.URL {
		t.Error("a killed server was handed out")
	}
	mustRefuse(t, before.URL)
	killNow(t, s.supervisor())
	owner.kill()
	next := s.start(roleOwner)
	s.user(next)
	pgtest.Eventually(t, 10*time.Second, "the leftovers are swept", func() bool { return len(s.states()) == 1 })
	mustRefuse(t, after.URL)
	next.leave()
	s.mustEmpty()
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no process groups that a signal reaches")
	}
	s := newStage(t)
	run := s.start(roleRun, viaLocal)
	if run.word.Error != "" {
		t.Fatal(run.word.Error)
	}
	if err := run.interruptGroup(); err != nil {
		t.Fatal(err)
	}
	if err := run.cmd.Wait(); err == nil {
		t.Error("the interrupt didn't reach the run")
	}
	s.mustEmpty(run.word.Server.URL)
}

func TestStateFileIsPrivate(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no such modes")
	}
	s := newStage(t)
	owner := s.start(roleOwner)
	s.user(owner)
	for _, path := range s.states() {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
	}
	owner.kill()
	s.mustEmpty()
}

func TestStartErrorReachesEveryProcess(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	owner := s.start(roleOwner)
	empty := testserver.BinDirVariable + "=" + s.dir
	var texts []string
	for range 2 {
		a := s.start(roleUser, viaLocal, owned(owner), empty)
		texts = append(texts, a.word.Error)
		a.leave()
	}
	for _, want := range []string{"no PostgreSQL server", "local: ", "there is no initdb", testserver.URLVariable} {
		if !strings.Contains(texts[0], want) {
			t.Errorf("the error doesn't tell %q:\n%s", want, texts[0])
		}
	}
	if texts[0] != texts[1] {
		t.Errorf("the second process was told something else:\n%s", texts[1])
	}
	owner.kill()
	s.mustEmpty()
}
