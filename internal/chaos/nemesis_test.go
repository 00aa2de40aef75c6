//go:build linux

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sys/unix"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
)

// nemesis is a kind of faults. Unless it says so by harm, a fault costs no healthy holder its lease.
type nemesis struct {
	name    string
	control mode // what shows violations
	strike  func(a *arena, r *rand.Rand)

	fates   *fates         // of the workers' requests; nil: all pass
	long    float64        // see assignment
	linger  bool           // see assignment; it shows whether leases are renewed, and they last longer
	prepare func(a *arena) // before the workers start
	rounds  int            // that a protected run has at least
	fleet   int            // further clients, most of which wait for a lock of the workers all the time
}

// nemeses returns all of them.
func nemeses() []nemesis {
	return []nemesis{
		{name: "nothing", control: unlocked, strike: func(a *arena, _ *rand.Rand) { a.rest(a.base.TTL) }},
		{name: "worker paused", control: unfenced, strike: pauseWorker},
		{name: "worker killed", control: unlocked, strike: killWorker},
		{name: "connections terminated", control: unlocked, strike: terminate},
		{name: "server killed", control: unlocked, strike: killServer},
		{name: "server paused", control: unfenced, strike: pauseServer},
		{name: "network cut", control: unfenced, strike: cut},
		{name: "black hole", control: unfenced, strike: blackHole},
		{name: "half-open connections", control: unlocked, strike: halfOpen, linger: true},
		{name: "network delayed", control: unlocked, strike: delay},
		{name: "replies lost", control: unlocked, strike: idle, fates: newFates(faultproxy.LoseReply, 12, func(faultproxy.Request) bool { return true }), linger: true},
		{name: "requests delivered twice", control: unlocked, strike: idle, fates: newFates(faultproxy.Twice, 3, ofLocks)},
		{name: "requests delivered again later", control: unlocked, strike: idle, fates: newFates(faultproxy.Again, 3, ofLocks)},
		{name: "connection storm", control: unlocked, strike: storm},
		{name: "long guarded transactions", control: unlocked, strike: idle, long: 0.05},
		{name: "VACUUM FULL, REINDEX, ALTER TABLE", control: unlocked, strike: maintain},
		{name: "old snapshots", control: unlocked, strike: oldSnapshot},
		{name: "notification queue full", control: unlocked, strike: fillQueue},
		{name: "fleet", control: unlocked, strike: terminateOften, fleet: 100, rounds: 3},
		{name: "disk full", control: unlocked, strike: fillDisk, prepare: moveToSmallDisk},
		upgrade(),
	}
}

// mixed strikes with two random nemeses at a time.
func mixed() nemesis {
	all := slices.DeleteFunc(nemeses(), func(n nemesis) bool { return n.prepare != nil || n.fleet > 0 })
	var requests atomic.Int64
	some := func(r faultproxy.Request) bool { return ofLocks(r) && requests.Add(1)/500%2 == 0 } // half of the time
	return nemesis{
		name: "all mixed", control: unfenced, long: 0.01, fates: newFates(faultproxy.LoseReply, 12, some),
		strike: func(a *arena, r *rand.Rand) {
			var two sync.WaitGroup
			for range 2 {
				n, own := all[r.IntN(len(all))], rand.New(rand.NewPCG(r.Uint64(), 0))
				two.Go(func() {
					from := monotonic()
					n.strike(a, own)
					a.t.Logf("%s: %v to %v", n.name, time.Duration(from), time.Duration(monotonic()))
				})
			}
			two.Wait()
		},
	}
}

// strain runs f, which alone costs no healthy holder its lease, but may beside another nemesis: a
// worker can't replace its connections during a storm. So may a reply that is lost.
func (a *arena) strain(p *process, f func()) {
	if a.pairs {
		a.harm(p, f)
	} else {
		f()
	}
}

// rest waits for d, or for the end of the test.
func (a *arena) rest(d time.Duration) {
	select {
	case <-time.After(d):
	case <-a.t.Context().Done():
	}
}

// between returns a random time between two parts of the TTL.
func (a *arena) between(r *rand.Rand, least, most float64) time.Duration {
	return time.Duration((least + (most-least)*r.Float64()) * float64(a.base.TTL))
}

// sail opens n clients, of which four of five wait for the lease again and again, and hold it for a moment.
// The others have waited once. stop ends them.
func (a *arena) sail(n int) (stop func()) {
	ctx, cancel := context.WithCancel(a.t.Context())
	pool := pgtest.PoolOn(a.t, a.server.URL(), func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = a.base.Role, a.base.Password })
	var all sync.WaitGroup
	var served atomic.Int64
	for i := range n {
		all.Go(func() {
			var client *pglock.Client
			for client == nil && ctx.Err() == nil { // connections are terminated
				client, _ = pglock.Open(ctx, pool, pglock.WithTTL(a.base.TTL))
			}
			for rounds := 0; ctx.Err() == nil && (i%5 > 0 || rounds == 0); {
				l, err := client.Acquire(ctx, leaseName)
				if err != nil {
					continue
				}
				rounds++
				served.Add(1)
				_ = l.Release(ctx)
			}
			<-ctx.Done()
			if client != nil {
				_ = client.Close(ctx)
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
		a.t.Logf("the fleet was served %d times", served.Load())
		if a.base.Mode == protected && served.Load() < int64(n) { // without, the first violation ends the run
			a.t.Error("the fleet hardly waited")
		}
	}
}

func idle(a *arena, _ *rand.Rand) { a.rest(a.base.TTL / 2) }

func (a *arena) someone(r *rand.Rand) *process { return a.crew[r.IntN(len(a.crew))] }

// pauseWorker halts a worker with all its holders and waiters.
func pauseWorker(a *arena, r *rand.Rand) {
	p := a.someone(r)
	a.harm(p, func() {
		p.signal(syscall.SIGSTOP)
		a.rest(a.between(r, 0.2, 2))
		p.signal(syscall.SIGCONT)
	})
	a.rest(a.between(r, 0, 0.5))
}

// pauseMost halts all workers but one, for long enough that this one is granted what they hold.
func pauseMost(a *arena, r *rand.Rand) {
	spared := a.someone(r)
	each := func(s syscall.Signal) {
		for _, p := range a.crew {
			if p != spared {
				p.signal(s)
			}
		}
	}
	a.harm(nil, func() {
		each(syscall.SIGSTOP)
		a.rest(2 * a.base.TTL)
		each(syscall.SIGCONT)
	})
	a.rest(a.between(r, 0.2, 0.5))
}

// killWorker kills a worker and starts another one.
func killWorker(a *arena, r *rand.Rand) {
	p := a.someone(r)
	p.life.Lock() // another nemesis may have chosen the same one
	defer p.life.Unlock()
	a.harm(p, p.kill)
	a.rest(a.between(r, 0, 0.5))
	p.start()
	a.rest(a.between(r, 0, 0.5))
}

// terminate ends a third of the workers' connections.
func terminate(a *arena, r *rand.Rand) {
	a.strain(nil, func() {
		_, _ = a.admin.Exec(a.t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1 AND pid % 3 = $2", // the server may be away
			a.base.Role, r.IntN(3))
		a.rest(a.between(r, 0.1, 0.4))
	})
}

// recover waits for a few writes, because a slow machine needs many seconds to connect a fleet.
func (a *arena) recover() {
	enough := a.count(committed) + workers
	for end := monotonic() + int64(maxWait); a.count(committed) < enough && monotonic() < end && a.t.Context().Err() == nil; {
		a.rest(sampling)
	}
}

// terminateOften strikes faster than the clients of a fleet connect again. On two cores their dials delay
// renewals, until leases are lost.
func terminateOften(a *arena, r *rand.Rand) {
	a.harm(nil, func() {
		for range 1 + r.IntN(8) {
			terminate(a, r)
		}
		a.recover()
	})
	a.rest(a.between(r, 0.5, 1))
}

func killServer(a *arena, r *rand.Rand) {
	a.harm(nil, func() {
		if err := a.server.Kill(); err != nil {
			a.t.Error(err)
		}
		a.rest(a.between(r, 0, 0.5))
		a.startServer()
		a.rest(a.base.TTL / 2) // clients connect again
	})
	a.rest(a.between(r, 0.5, 1))
}

func (a *arena) startServer() {
	if err := a.server.Start(); err != nil {
		a.t.Error(err)
	}
}

func pauseServer(a *arena, r *rand.Rand) {
	a.harm(nil, func() {
		if err := a.server.Pause(); err != nil && !strings.Contains(err.Error(), "is down") { // by another nemesis
			a.t.Error(err)
		}
		a.rest(a.between(r, 0.2, 2))
		if err := a.server.Resume(); err != nil {
			a.t.Error(err)
		}
	})
	a.rest(a.between(r, 0, 0.5))
}

// cut holds a worker's traffic back: it arrives later.
func cut(a *arena, r *rand.Rand) {
	p := a.someone(r)
	a.harm(p, func() {
		p.proxy.Cut()
		a.rest(a.between(r, 0.2, 2))
		p.proxy.Heal()
	})
	a.rest(a.between(r, 0, 0.5))
}

// blackHole makes a worker's connections silent for good, and those that it opens meanwhile.
func blackHole(a *arena, r *rand.Rand) {
	p := a.someone(r)
	a.harm(p, func() {
		p.proxy.Freeze(true)
		a.rest(a.between(r, 0.2, 2))
		p.proxy.Freeze(false)
		a.rest(a.base.TTL) // the worker notices
	})
	p.proxy.Sever()
	a.rest(a.between(r, 0, 0.5))
}

// halfOpen makes a worker's connections silent for good. New ones pass.
func halfOpen(a *arena, r *rand.Rand) {
	p := a.someone(r)
	a.strain(p, func() {
		p.proxy.Freeze(true)
		p.proxy.Freeze(false)
		a.rest(a.base.TTL)
	})
	p.proxy.Sever() // the server learns of it
	a.rest(a.between(r, 0, 0.5))
}

// delay delays all traffic of a worker by up to 5 % of the TTL in each direction.
func delay(a *arena, r *rand.Rand) {
	p := a.someone(r)
	a.strain(p, func() {
		p.proxy.Delay(a.between(r, 0.01, 0.05))
		a.rest(a.between(r, 0.3, 1))
		p.proxy.Delay(0)
	})
}

// ofLocks reports whether the request is a statement of the lock protocol, and not of a transaction
// of the ledger. Delivered twice, it must have no other effect than once.
func ofLocks(r faultproxy.Request) bool {
	return !r.InTransaction && !strings.Contains(r.SQL, "accounts") && (strings.Contains(r.SQL, "distributed_locks") || strings.Contains(r.SQL, "lock_waiters") ||
		strings.Contains(r.SQL, "lock_permits") || strings.Contains(r.SQL, "_permits("))
}

// fates chooses the fates of requests: it meets the first of each statement, and then each n-th.
type fates struct {
	fate faultproxy.Fate
	n    int
	meet func(faultproxy.Request) bool

	mu   sync.Mutex
	sent map[string]int // SQL → requests
	met  map[string]int
}

func newFates(fate faultproxy.Fate, n int, meet func(faultproxy.Request) bool) *fates {
	return &fates{fate: fate, n: n, meet: meet, sent: map[string]int{}, met: map[string]int{}}
}

func (f *fates) decide(r faultproxy.Request) faultproxy.Fate {
	if !f.meet(r) {
		return faultproxy.Pass
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent[r.SQL]++
	if f.sent[r.SQL]%f.n != 1 {
		return faultproxy.Pass
	}
	f.met[r.SQL]++
	return f.fate
}

// String says how many statements were met.
func (f *fates) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	total := 0
	for _, n := range f.met {
		total += n
	}
	return fmt.Sprintf("%d requests of %d statements; %d statements were sent", total, len(f.met), len(f.sent))
}

// storm opens all connections that the server allows to the workers' role.
func storm(a *arena, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(a.t.Context(), pgtest.Patience)
	defer cancel()
	var all []*pgx.Conn
	for {
		config := a.admin.Config().ConnConfig
		config.User, config.Password = a.base.Role, a.base.Password
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			break
		}
		all = append(all, conn)
	}
	a.strain(nil, func() { a.rest(a.between(r, 0.3, 1)) })
	for _, conn := range all {
		_ = conn.Close(context.Background())
	}
	a.rest(a.between(r, 0, 0.5))
}

// maintain rewrites the tables of the locks, as an operator might.
func maintain(a *arena, r *rand.Rand) {
	table := []string{"distributed_locks", "lock_waiters", "lock_permits"}[r.IntN(3)]
	command := []string{"VACUUM FULL pglock.%s", "REINDEX TABLE pglock.%s", "ALTER TABLE pglock.%s SET (fillfactor = 50)",
		"ALTER TABLE pglock.%s ADD COLUMN extra int; ALTER TABLE pglock.%[1]s DROP COLUMN extra",
		"ANALYZE pglock.%s", "BEGIN; LOCK TABLE pglock.%s; SELECT pg_sleep(0.1); COMMIT"}[r.IntN(6)]
	ctx, cancel := context.WithTimeout(a.t.Context(), pgtest.Patience)
	defer cancel()
	conn, err := a.admin.Acquire(ctx)
	if err != nil {
		return
	}
	defer conn.Release()
	for _, sql := range append([]string{"SET lock_timeout = '200ms'"}, strings.Split(fmt.Sprintf(command, table), "; ")...) {
		if _, err := conn.Exec(ctx, sql); err != nil { // an unlucky lock_timeout
			_, _ = conn.Exec(ctx, "ROLLBACK")
		}
	}
	a.rest(a.between(r, 0.05, 0.2))
}

// oldSnapshot keeps a snapshot, so that vacuum removes nothing.
func oldSnapshot(a *arena, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(a.t.Context(), time.Minute)
	defer cancel()
	tx, err := a.admin.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return
	}
	_, _ = tx.Exec(ctx, "SELECT count(*) FROM pglock.distributed_locks, pglock.lock_permits, pglock.lock_waiters")
	a.rest(a.between(r, 1, 4))
	_ = tx.Rollback(ctx)
}

// fillQueue makes notifications fail when their transaction commits, with the error of a full queue,
// which would take 8 GiB.
func fillQueue(a *arena, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(a.t.Context(), pgtest.Patience)
	defer cancel()
	_, err := a.admin.Exec(ctx, `
		CREATE TABLE IF NOT EXISTS full_queue (full_queue boolean);
		CREATE OR REPLACE FUNCTION refuse_notifications() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN
			IF current_setting('chaos.notified', true) = 'yes' AND EXISTS (SELECT FROM public.full_queue) THEN
				RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000';
			END IF;
			RETURN NULL;
		END $$;
		DO $do$
		DECLARE body text;
		BEGIN
			SELECT pg_get_functiondef('pglock.wake_next'::regproc) INTO body;
			IF body NOT LIKE '%RETURN true;%' THEN
				RAISE 'wake_next looks different';
			END IF;
			IF body NOT LIKE '%chaos.notified%' THEN
				EXECUTE replace(body, 'RETURN true;', $new$PERFORM set_config('chaos.notified', 'yes', true); RETURN true;$new$);
				CREATE CONSTRAINT TRIGGER full_queue AFTER UPDATE ON pglock.distributed_locks DEFERRABLE INITIALLY DEFERRED
					FOR EACH ROW EXECUTE FUNCTION refuse_notifications();
			END IF;
		END $do$;
		INSERT INTO full_queue VALUES (true)`)
	if err != nil && a.t.Context().Err() == nil {
		a.t.Logf("the queue could not be filled: %v", err) // another nemesis
	}
	a.rest(a.between(r, 0.5, 1.5))
	_, _ = a.admin.Exec(ctx, "DELETE FROM full_queue")
	a.rest(a.between(r, 0.1, 0.5))
}

// data returns the server's directory of data.
func (a *arena) data() string { return filepath.Join(filepath.Dir(a.server.LogFile()), "data") }

// moveToSmallDisk puts the server's data on a file system of its own. Without the right to mount one
// the test is skipped.
func moveToSmallDisk(a *arena) {
	a.t.Helper()
	info, err := os.Stat(a.data())
	if err == nil {
		err = a.server.Stop(testserver.Fast)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	aside := a.data() + ".aside"
	if err := os.Rename(a.data(), aside); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Mkdir(a.data(), 0o700); err != nil {
		a.t.Fatal(err)
	}
	pgtest.NeedTool(a.t, "tmpfs", func() error {
		return unix.Mount("tmpfs", a.data(), "tmpfs", 0, fmt.Sprintf("size=200m,mode=0700,uid=%d,gid=%d", owner.Uid, owner.Gid))
	})
	a.t.Cleanup(func() {
		if err := a.server.Kill(); err != nil {
			a.t.Error(err)
		}
		if err := unix.Unmount(a.data(), unix.MNT_DETACH); err != nil {
			a.t.Error(err)
		}
	})
	if out, err := exec.Command("cp", "-a", aside+"/.", a.data()).CombinedOutput(); err != nil {
		a.t.Fatalf("%v: %s", err, out)
	}
	a.startServer()
}

// fillDisk leaves the server no space. It may stop by itself then.
func fillDisk(a *arena, r *rand.Rand) {
	filler := filepath.Join(a.data(), "filler")
	a.harm(nil, func() {
		file, err := os.Create(filler)
		if err != nil {
			a.t.Error(err)
			return
		}
		block := make([]byte, 1<<16)
		for end := time.Now().Add(a.between(r, 0.3, 1.2)); time.Now().Before(end); { // also what becomes free
			if _, err := file.Write(block); err != nil {
				a.rest(5 * time.Millisecond)
			}
		}
		_ = file.Close()
		if err := os.Remove(filler); err != nil {
			a.t.Error(err)
		}
		a.startServer()
		a.rest(a.base.TTL / 2)
	})
	a.rest(a.between(r, 0.5, 1))
}

// calm ends what a nemesis may have left behind when another one interfered.
func (a *arena) calm() {
	a.t.Helper()
	for _, p := range a.crew {
		p.signal(syscall.SIGCONT)
		p.proxy.Heal()
		p.proxy.Delay(0)
	}
	if err := a.server.Resume(); err != nil {
		a.t.Error(err)
	}
	a.startServer()
	_, _ = a.admin.Exec(a.t.Context(), "DO $$ BEGIN DELETE FROM full_queue; EXCEPTION WHEN undefined_table THEN NULL; END $$")
}
