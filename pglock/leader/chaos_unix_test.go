//go:build unix

package leader_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

// process is a candidate in a process of its own.
type process struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr *bytes.Buffer
}

func (f fixture) start(j job) *process {
	f.t.Helper()
	text, err := json.Marshal(j)
	ok(f.t, err)
	p := &process{cmd: exec.CommandContext(f.t.Context(), os.Args[0]), stderr: &bytes.Buffer{}}
	p.cmd.Env = append(os.Environ(), workerVariable+"="+string(text))
	p.cmd.Stderr = p.stderr
	if p.stdin, err = p.cmd.StdinPipe(); err == nil {
		err = p.cmd.Start()
	}
	ok(f.t, err)
	return p
}

// stop ends a process, which may be paused, and reports what it printed.
func (p *process) stop(t *testing.T) {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	_ = p.stdin.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("a candidate ended with %v: %s", err, p.stderr)
	}
}

// TestChaosLeader: five candidates are processes. Again and again the leader is killed, or paused for
// longer than its TTL. It writes its token into a table all the time. With the guard, no write has an
// older token than the write before it: there were never two leaders. In the control, without the
// guard, a leader that wakes writes after its successor.
func TestChaosLeader(t *testing.T) {
	t.Parallel()
	for _, guarded := range []bool{true, false} {
		t.Run(fmt.Sprint("guarded ", guarded), func(t *testing.T) {
			t.Parallel()
			rounds, long := 6, os.Getenv("PGLOCK_CHAOS") != ""
			switch {
			case long:
				rounds = 50
			case !guarded:
				rounds = 20 // until a late write
			}
			f := newFixture(t)
			f.sql("CREATE TABLE pglock.writes (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, token bigint NOT NULL)")
			f.sql("GRANT SELECT, INSERT ON pglock.writes TO " + schema.Quote(pgtest.RoleOf(f.pool)))
			config := f.pool.Config()
			j := job{
				URL: config.ConnString(), Role: config.ConnConfig.User, Password: config.ConnConfig.Password,
				Schema: f.schema, Guarded: guarded, TTL: 600 * time.Millisecond,
			}
			all := map[string]*process{} // by the payload, the process ID
			n := 0
			start := func() {
				n++
				j.Name = fmt.Sprint("candidate ", n)
				p := f.start(j)
				all[strconv.Itoa(p.cmd.Process.Pid)] = p
			}
			for range 5 {
				start()
			}
			observer := f.observe(t.Context(), f.candidate("observer"))
			killed, paused := 0, 0
			last, lastPID := leader.Leader{}, ""
			lateWrites := func() int {
				return locktest.Scan[int](t, f.admin, schema.Render(
					"SELECT count(*) FROM (SELECT token, max(token) OVER (ORDER BY id) AS newest FROM pglock.writes) AS w WHERE w.token < w.newest", f.schema))
			}
			wrote := func(token pglock.Token, what string) {
				t.Helper()
				pgtest.Eventually(t, locktest.Patience, what, func() bool {
					return locktest.Scan[bool](t, f.admin, schema.Render("SELECT EXISTS (SELECT FROM pglock.writes WHERE token >= $1)", f.schema), int64(token))
				})
			}
			struckTimes := 0
			for round := range rounds {
				if !guarded && !long && lateWrites() > 0 {
					break
				}
				struckTimes++
				// A leader that was struck is not struck again before another one leads and has written.
				for last.Payload == lastPID || !last.Elected() {
					l, err, _ := observer.next()
					ok(t, err)
					last = l
				}
				token := last.Token
				wrote(token, "the leader writes")
				lastPID = last.Payload
				p := all[lastPID]
				pause := round%2 == 1 || !guarded && !long
				if !pause {
					killed++
					_ = p.cmd.Process.Kill()
					_ = p.cmd.Wait()
					delete(all, lastPID)
					start()
				} else {
					paused++
					ok(t, p.cmd.Process.Signal(syscall.SIGSTOP))
				}
				wrote(token+1, "the next leader writes")
				if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil && pause {
					t.Fatal(err)
				}
			}
			for _, p := range all {
				p.stop(t)
			}
			late := lateWrites()
			writes := locktest.Scan[int](t, f.admin, schema.Render("SELECT count(*) FROM pglock.writes", f.schema))
			terms := locktest.Scan[int](t, f.admin, schema.Render("SELECT count(DISTINCT token) FROM pglock.writes", f.schema))
			t.Logf("guarded %v: %d killed, %d paused; %d terms, %d writes, %d late", guarded, killed, paused, terms, writes, late)
			switch {
			case guarded && late > 0:
				t.Errorf("%d writes of a leader after those of its successor", late)
			case !guarded && late == 0:
				t.Error("control: no late write without the guard")
			case terms < struckTimes:
				t.Errorf("%d terms in %d rounds", terms, struckTimes)
			}
		})
	}
}
