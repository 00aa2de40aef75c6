//go:build linux

package chaos

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

//go:embed sql/ledger.sql
var ledgerSQL string

// arena is a server with a ledger, and the workers that compete for its locks.
type arena struct {
	t      *testing.T
	server *testserver.Server
	admin  *pgxpool.Pool // past the proxies
	base   assignment
	crew   []*process
	pairs  bool // of nemeses strike at a time

	// The test binaries of releases, of which the first one makes the tables. "" is this one.
	releases []string

	mu      sync.Mutex
	records []record
	hits    []hit
}

// process is one worker after the other: a killed one is replaced.
type process struct {
	*arena
	binary string // "" is this one
	index  int
	proxy  *faultproxy.Proxy
	life   sync.Mutex // held from the end of a worker to the start of the next one

	mu      sync.Mutex // guards the fields below
	born    int
	cmd     *exec.Cmd
	stdin   io.Closer
	tell    io.Writer
	stderr  *bytes.Buffer
	gone    chan struct{} // the output has been read to its end, and the process has ended
	failure error         // read after gone
}

// hit is a time in which a fault may cost healthy holders their leases.
type hit struct {
	worker   string // the beginning of its name; "" is all of them
	from, to int64
}

// newArena starts a server and workers, which begin at once.
func newArena(t *testing.T, base assignment, n nemesis) *arena {
	t.Helper()
	a := &arena{t: t, base: base, pairs: n.name == mixed().name, releases: []string{""}, server: pgtest.Server(t, testserver.Options{Settings: map[string]string{
		"max_connections": strconv.Itoa(70 + 5*n.fleet), "max_wal_size": "48MB", "min_wal_size": "32MB",
	}})}
	if n.prepare != nil {
		n.prepare(a)
	}
	a.admin = pgtest.PoolOn(t, a.server.URL(), func(c *pgxpool.Config) {
		c.ConnConfig.ConnectTimeout, c.MaxConns = 20*time.Second, 6
	})
	a.migrate(a.releases[0])
	a.exec(ledgerSQL)
	a.base.Role, a.base.Password = "worker", "poor"
	a.exec("CREATE ROLE worker LOGIN PASSWORD 'poor'")
	a.exec("SELECT pglock.grant_user('worker')")
	a.exec("GRANT SELECT, INSERT, UPDATE ON accounts, entries TO worker")
	for _, name := range []string{leaseName, otherLease, semaphoreName, rwName, electionName} {
		a.exec("INSERT INTO accounts (name) VALUES ($1)", name)
	}
	for i := range workers {
		p := &process{arena: a, binary: a.releases[0], index: i, proxy: faultproxy.New(t, a.server.Addr())}
		if n.fates != nil {
			p.proxy.OnRequest(func(r faultproxy.Request) faultproxy.Fate {
				fate := n.fates.decide(r)
				if a.pairs && fate != faultproxy.Pass { // see strain
					now := monotonic()
					a.noteHit(hit{p.prefix(), now, now + int64(a.base.TTL/2)})
				}
				return fate
			})
		}
		a.crew = append(a.crew, p)
		p.start()
	}
	t.Cleanup(a.killAll)
	return a
}

func (a *arena) killAll() {
	for _, p := range a.crew {
		p.kill()
	}
}

func (a *arena) exec(sql string, args ...any) {
	a.t.Helper()
	if _, err := a.admin.Exec(a.t.Context(), sql, args...); err != nil {
		a.t.Fatalf("%s: %v", sql, err)
	}
}

// harm runs f, and notes that it may cost the worker's leases; that of all workers if p is nil.
func (a *arena) harm(p *process, f func()) {
	h := hit{from: monotonic()}
	if p != nil {
		h.worker = p.prefix()
	}
	f()
	h.to = monotonic()
	a.noteHit(h)
}

func (a *arena) noteHit(h hit) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hits = append(a.hits, h)
}

// note adds a record, as that of the worker.
func (a *arena) note(worker string, r record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.Worker = worker
	a.records = append(a.records, r)
}

// count returns the number of records of that kind.
func (a *arena) count(kind what) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.records {
		if r.What == kind {
			n++
		}
	}
	return n
}

// watchMachine notes the times in which the server, its disk or this process stood still, as on a
// laden machine, until ctx is done.
func (a *arena) watchMachine(ctx context.Context) {
	last := monotonic()
	for ctx.Err() == nil {
		_, err := a.admin.Exec(ctx, "SELECT pg_logical_emit_message(true, 'chaos', '')") // a commit that waits for the disk
		pause(sampling)
		now := monotonic()
		if err != nil || now-last > int64(a.base.TTL/8) {
			a.noteHit(hit{"", last, now})
		}
		last = now
	}
}

// prefix is what the names of the workers of this place begin with.
func (p *process) prefix() string { return fmt.Sprintf("worker %d.", p.index) }

func (p *process) name() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprint(p.prefix(), p.born)
}

// start starts the next worker of this place.
func (p *process) start() {
	p.mu.Lock()
	p.born++
	p.mu.Unlock()
	job := p.base
	job.Name, job.URL, job.Seed = p.name(), p.proxy.URL(p.server.URL()), p.base.Seed+uint64(100*p.index+p.born)
	text, err := json.Marshal(job)
	if err != nil {
		p.t.Error(err)
		return
	}
	cmd := exec.Command(cmp.Or(p.binary, "/proc/self/exe"))
	cmd.Env = append(os.Environ(), workerVariable+"="+string(text), "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		p.t.Error(err)
		return
	}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		p.t.Error(err)
		return
	}
	gone := make(chan struct{})
	p.mu.Lock()
	p.cmd, p.stdin, p.tell, p.stderr, p.gone = cmd, stdin, stdin, &stderr, gone
	p.mu.Unlock()
	go func() {
		defer close(gone)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			var r record
			if json.Unmarshal(lines.Bytes(), &r) == nil {
				p.note(job.Name, r)
			}
		}
		p.failure = cmd.Wait()
		p.note(job.Name, record{What: died, Return: monotonic()})
	}()
}

// signal sends a signal to the current worker.
func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.cmd.Process.Signal(s) // it may have ended
}

// kill ends the current worker, and returns when it is gone.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.gone
	p.stdin.Close()
}

// finish lets all workers end their turns, and returns when they have ended. It fails the test if a
// worker does not.
func (a *arena) finish() {
	a.t.Helper()
	for _, p := range a.crew {
		_, _ = p.tell.Write([]byte("\n"))
	}
	late := time.After(maxWait + 2*ioTimeout)
	for _, p := range a.crew {
		select {
		case <-p.gone:
			if p.failure != nil {
				a.t.Errorf("%s: %v: %s", p.name(), p.failure, p.stderr)
			}
		case <-late:
			a.t.Errorf("%s does not end", p.name())
		}
	}
}

// progress waits until every actor of every worker has been granted a lock since now. It fails the
// test if one has not within maxWait.
func (a *arena) progress() {
	a.t.Helper()
	if a.base.Mode == unlocked {
		return
	}
	since := monotonic()
	pgtest.Eventually(a.t, "every actor is granted a lock", func() bool {
		served := map[string]bool{}
		a.mu.Lock()
		defer a.mu.Unlock()
		for i := len(a.records) - 1; i >= 0; i-- {
			if r := a.records[i]; r.What == granted && r.Return > since {
				served[fmt.Sprint(r.Worker, r.Actor)] = true
			}
		}
		return len(served) == len(a.crew)*a.base.Actors
	})
}
