package child

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestDeadlines: when the deadlines are reached, the supervisor sends TERM to each process of the
// tree, also in another session, and KILL to those that are left.
func TestDeadlines(t *testing.T) {
	p, dir := startScript(t, daemon+`trap "echo TERM >> log" TERM; echo > ready; while :; do sleep 0.02; done`)
	pid := pidIn(t, dir, "daemon")
	p.heartbeat.move(time.Now().Add(time.Hour), time.Now().Add(2*time.Hour))
	if p.Expired() || !runs(p.pid) {
		t.Error("the deadline is an hour away, and counts as reached")
	}
	p.heartbeat.move(time.Now(), time.Now().Add(time.Hour))
	if !p.Expired() {
		t.Error("the deadline is now, and does not count as reached")
	}
	log := func() string {
		text, err := os.ReadFile(filepath.Join(dir, "log"))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(text)
	}
	pgtest.Eventually(t, "the command gets TERM", func() bool { return log() != "" })
	if !runs(p.pid) || !runs(pid) || !p.Expired() {
		t.Error("TERM has ended them, or the deadline does not count as reached any more")
	}
	setTimer(p.heartbeat.kill, time.Now())
	waitFor(t, "the command ends", p.Done)
	waitFor(t, "the last process ends", p.treeEnded)
	if p.Status != 128+int(syscall.SIGKILL) || runs(pid) || strings.Count(log(), "TERM") != 1 {
		t.Errorf("status %d, the daemon runs: %v, TERM: %q", p.Status, runs(pid), log())
	}
}

// TestBeatTakesNoReachedDeadlineBack: a beat moves a deadline that the supervisor, which is stopped,
// has not noticed yet. If the deadline was reached before, the command still gets TERM; if it was
// not, the command runs on.
func TestBeatTakesNoReachedDeadlineBack(t *testing.T) {
	for name, reached := range map[string]bool{"reached": true, "in time": false} {
		t.Run(name, func(t *testing.T) {
			p, dir := startScript(t, `echo > ready; until test -e go; do sleep 0.02; done; exit 3`)
			locktest.OK(t, p.supervisor.Signal(syscall.SIGSTOP))
			pgtest.Eventually(t, "the supervisor is stopped", func() bool {
				text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.supervisor.Pid), "stat"))
				return err == nil && strings.Contains(string(text), ") T ")
			})
			first, want := time.Now().Add(time.Minute), 3
			if reached {
				first, want = time.Now(), 128+int(syscall.SIGTERM)
			}
			p.heartbeat.move(first, time.Now().Add(time.Hour))
			if got := p.heartbeat.move(time.Now().Add(time.Hour), time.Now().Add(time.Hour)); got != reached || p.Expired() != reached {
				t.Errorf("the beat reports %v, expired %v", got, p.Expired())
			}
			locktest.OK(t, p.supervisor.Signal(syscall.SIGCONT))
			if !reached {
				touch(t, dir, "go")
			}
			waitFor(t, "the command ends", p.Done)
			if p.Status != want {
				t.Errorf("status %d, want %d", p.Status, want)
			}
		})
	}
}

// TestEndInTimeRemovesTheDeadline: a deadline that passes after the end of the tree, but before
// this process notices that end, must not count as reached.
func TestEndInTimeRemovesTheDeadline(t *testing.T) {
	p, dir := startScript(t, `echo > ready; until test -e go; do sleep 0.02; done`)
	p.heartbeat.move(time.Now().Add(time.Hour), time.Now().Add(time.Hour))
	touch(t, dir, "go")
	pgtest.Eventually(t, "the deadline is removed", func() bool { return left(p.heartbeat.term) > never/2 })
}

// TestDeadlineBeforeTheStart: a command that starts after its deadline ends at once.
func TestDeadlineBeforeTheStart(t *testing.T) {
	past := time.Now().Add(-time.Second)
	p, err := Start(Command{Path: "/bin/sleep", Args: []string{"sleep", "60"}, Env: os.Environ(), Deadlines: func() (term, kill time.Time) {
		return past, past.Add(time.Hour)
	}})
	locktest.OK(t, err)
	waitFor(t, "the command ends", p.Done)
	if p.Status != 128+int(syscall.SIGTERM) || !p.Expired() {
		t.Errorf("status %d, expired %v", p.Status, p.Expired())
	}
	p.Close()
}

// TestHeartbeatMovesTheDeadline: a beat moves the deadline before it is reached. After the last
// beat, which is the control, it stays.
func TestHeartbeatMovesTheDeadline(t *testing.T) {
	for name, beats := range map[string]bool{"beats": true, "control": false} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int32
			h, err := newHeartbeat(func() (term, kill time.Time) {
				term = time.Now().Add(16 * time.Second) // the next beat is after 2 s
				if calls.Add(1) > 2 {
					term = term.Add(time.Hour)
				}
				return term, term
			})
			locktest.OK(t, err)
			defer h.end()
			if !beats {
				h.halt()
				h.halt()
			}
			pgtest.Eventually(t, "the deadline has moved", func() bool { return !beats || left(h.term) > time.Minute })
			if !beats && left(h.term) > time.Minute || h.termReached() {
				t.Errorf("the deadline is %v away", left(h.term))
			}
		})
	}
}

// left returns the time until a timer is reached.
func left(timer int) time.Duration {
	var now unix.ItimerSpec
	_ = unix.TimerfdGettime(timer, &now) // 0
	return time.Duration(now.Value.Nano())
}
