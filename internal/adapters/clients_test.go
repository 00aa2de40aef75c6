//go:build linux

package adapters_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
)

const (
	shortTTL   = 3  // seconds: the shortest of pglock.sh
	renewedTTL = 12 // is renewed in the course of a test, and outlasts the stalls of a loaded machine
	longTTL    = 60 // outlasts what a test does
)

// TestClientsReplayTheProtocol replays the fixtures of the SQL protocol in Python, as TestProtocol
// does in Go.
func TestClientsReplayTheProtocol(t *testing.T) {
	t.Parallel()
	program := python(t)
	files, err := filepath.Glob("../../testdata/protocol/*.txt")
	if err != nil || len(files) < 7 {
		t.Fatalf("%d fixtures, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			locktest.OK(t, err)
			pool := pgtest.Pool(t)
			cmd := exec.Command(program, clientHelper+"replay.py", pool.Config().ConnString())
			cmd.Stdin = strings.NewReader(schema.Render(string(text), pgtest.Schema(t, pool)))
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.HasSuffix(string(out), "steps, 0 failures\n") || strings.HasPrefix(string(out), "0 ") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// fixture is a database with a client in Go.
type clientFixture struct {
	t      *testing.T
	url    string
	pool   *pgxpool.Pool
	client *pglock.Client
}

// eachClient runs a test with each kind of client.
func eachClient(t *testing.T, test func(f clientFixture, kind string)) {
	t.Helper()
	for kind := range clientKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := clientFixture{t: t, url: pgtest.Database(t)}
			f.client = locktest.Client(t, f.url)
			f.pool = pgtest.PoolOn(t, f.url)
			locktest.Exec(t, f.pool, "CREATE TABLE writes (name text, token bigint)")
			test(f, kind)
		})
	}
}

func (f clientFixture) address() string {
	c := f.pool.Config().ConnConfig
	return net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
}

// acquire acquires the lock in Go.
func (f clientFixture) acquire() *pglock.Lease {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 2*pgtest.Patience)
	defer cancel()
	l, err := f.client.Lock("n").Acquire(ctx)
	locktest.OK(f.t, err)
	return l
}

func (f clientFixture) release(l *pglock.Lease) {
	f.t.Helper()
	locktest.OK(f.t, l.Release(f.t.Context()))
}

// waiting waits until n clients have tickets.
func (f clientFixture) waiting(n int) {
	f.t.Helper()
	pgtest.Eventually(f.t, "tickets in the queue", func() bool {
		return locktest.Scan[int](f.t, f.pool, "SELECT count(*) FROM pglock.locks_waiting") == n
	})
}

// nobodyWaits fails unless all tickets have been given up. They would expire later.
func (f clientFixture) nobodyWaits() {
	f.t.Helper()
	if n := locktest.Scan[int](f.t, f.pool, "SELECT count(*) FROM pglock.locks_waiting"); n != 0 {
		f.t.Errorf("%d tickets are left in the queue", n)
	}
}

// expire ends the grant as if its time had passed.
func (f clientFixture) expire() {
	f.t.Helper()
	locktest.Exec(f.t, f.pool, "UPDATE pglock.distributed_locks SET expires_at = clock_timestamp() - interval '1 s'")
}

// written returns the number of writes with the token.
func (f clientFixture) written(token int64) int {
	f.t.Helper()
	return locktest.Scan[int](f.t, f.pool, "SELECT count(*) FROM writes WHERE token = $1", token)
}

func TestClientsExcludeHoldersInGo(t *testing.T) {
	t.Parallel()
	eachClient(t, func(f clientFixture, kind string) {
		p := startHolder(f.t, kind, f.url, "n", renewedTTL)
		token := p.held()
		pgtest.Eventually(f.t, "a renewal", func() bool {
			return locktest.Scan[bool](f.t, f.pool, "SELECT expires_at > acquired_at + make_interval(secs => $1) FROM pglock.distributed_locks", renewedTTL+1)
		})
		if _, err := f.client.Lock("n").TryAcquire(f.t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
			f.t.Errorf("a try of a held lock: %v", err)
		}
		if got := p.write(func() {}); got != "written" || f.written(token) != 1 {
			f.t.Errorf("a guarded write: %q", got)
		}
		p.send("end")
		l := f.acquire()
		if now := int64(l.Token()); now <= token {
			f.t.Errorf("token %d after %d", now, token)
		}
		next := startHolder(f.t, kind, f.url, "n", renewedTTL)
		f.waiting(1)
		f.release(l)
		if now := next.held(); now <= int64(l.Token()) {
			f.t.Errorf("token %d after %d", now, l.Token())
		}
	})
}

// TestClientsAreServedInOrder has clients of all kinds wait among waiters in Go. A machine that
// stands still for a second costs a waiter its place, so the test has three attempts.
func TestClientsAreServedInOrder(t *testing.T) {
	t.Parallel()
	bash(t)
	python(t)
	f := clientFixture{t: t, url: pgtest.Database(t)}
	f.client = locktest.Client(t, f.url)
	f.pool = pgtest.PoolOn(t, f.url)
	order := []string{"shell", "go", "python", "shell", "python listening", "go", "python"}
	for range 3 {
		l := f.acquire()
		var mu sync.Mutex
		var served, want []int
		var all sync.WaitGroup
		for i, kind := range order {
			serve := func() {
				mu.Lock()
				defer mu.Unlock()
				served = append(served, i)
			}
			if kind == "go" {
				client := locktest.ClientOn(t, f.pool)
				all.Go(func() {
					if l, err := client.Lock("n").Acquire(t.Context()); err == nil {
						serve()
						_ = l.Release(t.Context())
					}
				})
			} else {
				p := startHolder(t, kind, f.url, "n", longTTL)
				all.Go(func() {
					if line := <-p.lines; strings.HasPrefix(line, "held ") {
						serve()
						p.send("end")
					}
				})
			}
			want = append(want, i)
			f.waiting(i + 1)
		}
		f.release(l)
		all.Wait()
		if slices.Equal(served, want) {
			return
		}
		t.Logf("served in the order %v", served)
	}
	t.Error("three times out of order")
}

func TestClientsLateWriteIsRefused(t *testing.T) {
	t.Parallel()
	eachClient(t, func(f clientFixture, kind string) {
		p := startHolder(f.t, kind, f.url, "n", longTTL)
		token := p.held()
		got := p.write(func() {
			f.expire()
			f.acquire()
		})
		if got != "refused PGL01" || f.written(token) != 0 {
			f.t.Errorf("a late write: %q", got)
		}
	})
}

func TestClientsSuspendedHolderDoesNotWrite(t *testing.T) {
	t.Parallel()
	eachClient(t, func(f clientFixture, kind string) {
		p := startHolder(f.t, kind, f.url, "n", shortTTL)
		token := p.held()
		got := p.write(func() {
			p.signal(syscall.SIGSTOP)
			f.acquire()
			p.signal(syscall.SIGCONT)
		})
		// The timer of the shell may end its command first. In Python the loss may be reported
		// first.
		if got == "lost" {
			got = p.next()
		}
		if got != "refused PGL01" && (got != "" || kind != "shell") || f.written(token) != 0 {
			f.t.Errorf("the write of a suspended holder: %q", got)
		}
	})
}

func TestClientsReportALoss(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(f clientFixture, p *faultproxy.Proxy){
		"expired":     func(f clientFixture, _ *faultproxy.Proxy) { f.expire() },
		"unreachable": func(_ clientFixture, p *faultproxy.Proxy) { p.Cut() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachClient(t, func(f clientFixture, kind string) {
				proxy := faultproxy.New(f.t, f.address())
				p := startHolder(f.t, kind, proxy.URL(f.url), "n", shortTTL)
				p.held()
				lose(f, proxy)
				if kind == "shell" {
					p.expect("") // the command was killed
				} else {
					p.expect("lost")
				}
				if name == "unreachable" && kind != "shell" { // the local check
					proxy.Heal()
					p.send("write")
					p.expect("refused locally")
				}
				proxy.Heal()
				p.send("end")
				if kind == "shell" {
					_ = p.cmd.Wait() // it fails
					if status := p.cmd.ProcessState.ExitCode(); status != 137 {
						f.t.Errorf("its status is %d: %s", status, p.log.String())
					}
				} else {
					p.expect("Lost")
				}
				f.acquire()
			})
		})
	}
}

func TestClientsKilledHolderIsFollowedAfterTheTTL(t *testing.T) {
	t.Parallel()
	eachClient(t, func(f clientFixture, kind string) {
		p := startHolder(f.t, kind, f.url, "n", shortTTL)
		token := p.held()
		p.signal(syscall.SIGKILL)
		l := f.acquire()
		// The server's clock has the grant from its end on, and the end is the TTL after the last
		// renewal.
		if !locktest.Scan[bool](f.t, f.pool, "SELECT last_end = 'expired' AND acquired_at >= ended_at FROM pglock.distributed_locks") {
			f.t.Error("the lock was granted before the end of the TTL")
		}
		if int64(l.Token()) <= token {
			f.t.Errorf("token %d after %d", l.Token(), token)
		}
	})
}

// TestClientsScriptIsKilledAlone kills the script, whose command must not outlive the lock.
func TestClientsScriptIsKilledAlone(t *testing.T) {
	t.Parallel()
	f := clientFixture{t: t, url: pgtest.Database(t)}
	f.client = locktest.Client(t, f.url)
	f.pool = pgtest.PoolOn(t, f.url)
	p := startHolder(t, "shell", f.url, "n", renewedTTL)
	p.held()
	locktest.OK(t, p.cmd.Process.Kill())
	_, _ = p.cmd.Process.Wait() // else the script would still be there, as a zombie
	f.acquire()
	pgtest.Eventually(t, "its command is killed", func() bool { return len(p.tree()) == 0 })
}

// TestClientsRepeatCallsWithoutAnAnswer has a proxy that loses the first answer of a kind of
// statement.
func TestClientsRepeatCallsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for _, function := range []string{"acquire", "wait_ticket", "renew", "release"} {
		t.Run(function, func(t *testing.T) {
			t.Parallel()
			eachClient(t, func(f clientFixture, kind string) {
				proxy := faultproxy.New(f.t, f.address())
				var lost atomic.Int64
				proxy.OnRequest(func(r faultproxy.Request) faultproxy.Fate {
					if strings.Contains(r.SQL, "pglock."+function+"(") && lost.Add(1) == 1 {
						return faultproxy.LoseReply
					}
					return faultproxy.Pass
				})
				var first *pglock.Lease
				if function == "wait_ticket" { // there must be a queue
					first = f.acquire()
				}
				ttl := longTTL // so that no second grant follows an expiry
				if function == "renew" {
					ttl = renewedTTL
				}
				p := startHolder(f.t, kind, proxy.URL(f.url), "n", ttl)
				if first != nil {
					f.waiting(1)
					f.release(first)
				}
				token := p.held()
				pgtest.Eventually(f.t, "a second call", func() bool { return function == "release" || lost.Load() >= 2 })
				if got := p.write(func() {}); got != "written" || f.written(token) != 1 {
					f.t.Errorf("a guarded write: %q", got)
				}
				p.send("end")
				pgtest.Eventually(f.t, "a free lock", func() bool {
					return locktest.Scan[int](f.t, f.pool, "SELECT count(*) FROM pglock.locks_held") == 0
				})
				if last := locktest.Scan[string](f.t, f.pool, "SELECT last_end FROM pglock.distributed_locks"); last != "released" {
					f.t.Errorf("the grant is %s", last)
				}
				f.nobodyWaits() // by a ticket that is younger than the grant
			})
		})
	}
}

// TestClientsLeaveTheQueue has waiters that give up, by their limit or by a signal.
func TestClientsLeaveTheQueue(t *testing.T) {
	t.Parallel()
	eachClient(t, func(f clientFixture, kind string) {
		l := f.acquire()
		args := clientKinds[kind](f.t, f.url, "n")
		if kind != "shell" {
			args = append(args, "wait=2")
		}
		p := startClient(f.t, f.url, args)
		f.waiting(1)
		if kind == "shell" {
			locktest.OK(f.t, p.cmd.Process.Signal(syscall.SIGTERM))
			p.expect("")
		} else {
			p.expect("TimeoutError")
		}
		f.nobodyWaits()
		f.release(l)
	})
}

// TestClientsGiveUpAnUnansweredAcquire has a waiter that is granted the lock by its last attempt,
// whose answer is lost.
func TestClientsGiveUpAnUnansweredAcquire(t *testing.T) {
	t.Parallel()
	f := clientFixture{t: t, url: pgtest.Database(t)}
	f.client = locktest.Client(t, f.url)
	f.pool = pgtest.PoolOn(t, f.url)
	proxy := faultproxy.New(t, f.address())
	var calls atomic.Int64
	proxy.OnRequest(func(r faultproxy.Request) faultproxy.Fate {
		if strings.Contains(r.SQL, "pglock.acquire(") && calls.Add(1) == 1 {
			return faultproxy.LoseReply
		}
		return faultproxy.Pass
	})
	p := startClient(t, f.url, append(clientKinds["python"](t, proxy.URL(f.url), "n"), "wait=0", "ttl=60"))
	p.expect("TimeoutError")
	pgtest.Eventually(t, "a free lock", func() bool {
		return calls.Load() > 1 && locktest.Scan[int](t, f.pool, "SELECT count(*) FROM pglock.locks_held") == 0
	})
}

// TestClientsSharePermits has a semaphore of two permits and a readers-writer lock, in Python and
// in Go.
func TestClientsSharePermits(t *testing.T) {
	t.Parallel()
	f := clientFixture{t: t, url: pgtest.Database(t)}
	f.client = locktest.Client(t, f.url)
	f.pool = pgtest.PoolOn(t, f.url)
	start := func(name string, settings ...string) *clientProcess {
		t.Helper()
		return startClient(t, f.url, append(clientKinds["python listening"](t, f.url, name), settings...))
	}
	one, two := start("sem", "permits=2"), start("sem", "permits=2")
	one.held()
	two.held()
	if _, err := f.client.Semaphore("sem", 2).TryAcquire(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("a third permit of two: %v", err)
	}
	both := start("sem", "permits=2", "weight=2")
	f.waiting(1)
	one.send("end")
	two.send("end")
	both.held()

	reader, err := f.client.Reader("rw").Acquire(t.Context())
	locktest.OK(t, err)
	start("rw", "permits=1073741824").held()
	start("rw", "permits=1073741824", "weight=1073741824")
	f.waiting(1)
	f.release(reader)
	if got := locktest.Scan[int](t, f.pool, "SELECT count(*) FROM pglock.locks_held WHERE name = 'rw' AND exclusive"); got != 0 {
		t.Error("a writer beside a reader")
	}
}
