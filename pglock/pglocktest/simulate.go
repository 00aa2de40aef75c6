package pglocktest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/sim"
)

// Simulate runs a program of several processes in many worlds, each with other faults, and fails with
// the first world in which a promise is broken. body starts the processes with World.Go, makes tables,
// and says with World.Check what must always be true. It returns at once, and is called once for each
// world.
//
// A world is a bubble of testing/synctest with a minute of its own time: 40 s with faults and 20 s
// without, and then the context of all processes ends. Each process has a real client, and one table
// in memory is the server. The seed of the world decides what happens: messages are late or lost,
// before or after they were applied, or arrive twice; connections break; notifications get lost;
// processes stand still, or crash and start again; the server hangs, restarts, fails over to a standby
// without the last grants, or steps its clock. A process must do nothing that needs real time, such as
// the network, and start no goroutines that its function does not wait for.
//
// Beside the checks of the program, each world checks those of pglock, which docs/reference/promises.md
// numbers from I1 to I11: no two holders at once, tokens in order, no lease that is trusted after its
// end or lost without a fault, no call that waits for ever, nothing that is left at the end.
//
// Without settings there are 200 worlds, or as many as fit into two seconds. PGLOCK_SIM=10m runs worlds
// with new seeds for so long, and PGLOCK_SEED=17 runs one world. go test -v says how many there were.
// The failure of a world names its seed, the faults that are enough, and what happened. The worlds run
// one after the other, on one processor, because the order of goroutines is a part of the world; no
// other simulation of the test binary runs meanwhile.
func Simulate(t *testing.T, body func(w *World)) {
	t.Helper()
	sim.Simulate(t, func(w *sim.World) { body(&World{w}) })
}

// World is a simulated world.
type World struct{ world *sim.World }

// Go starts n processes, which do the work each with a client of its own that has the options. One
// that crashes begins again: its context ends, no message of it gets through any more, and when work
// has returned, it is called with a new process. If work returns by itself, the process ends.
//
// All leases of a process have to end before work returns, unless its context has ended. A process
// that has crashed goes on until work returns, and reaches nothing: before an effect that is no message,
// such as a call of a fake of another service, look at the context.
func (w *World) Go(name string, n int, work func(ctx context.Context, p *Process), opts ...pglock.Option) {
	w.world.Go(name, n, func(ctx context.Context, n *sim.Node) { work(ctx, &Process{n.Client, n}) }, opts...)
}

// Check calls check after each statement that the server has executed, and when it returns an error,
// the world fails. check must not use a client. Table.All has what it needs. An effect that is not in
// a table is checked where it happens, with Failf.
func (w *World) Check(check func() error) { w.world.Check(check) }

// Failf fails the world, with a text as that of fmt.Sprintf. What comes before its first colon is the
// promise that was broken: the search for fewer faults looks for the same one.
func (w *World) Failf(format string, args ...any) { w.world.Failf(format, args...) }

// Logf adds a line to what is told of a world that fails, with a text as that of fmt.Sprintf.
func (w *World) Logf(format string, args ...any) { w.world.Logf(format, args...) }

// Synchronous makes the standby of each failover have all that was committed, as with synchronous
// replication. Without it, a failover may lose the last grants and writes. Call it before Go.
func (w *World) Synchronous() { w.world.Synchronous() }

// SteadyClock keeps the server's clock from jumping. A clock that is set forward ends leases early, so
// a rule about what happens outside of guarded transactions holds in worlds that have called it and
// Synchronous. Call it before Go.
func (w *World) SteadyClock() { w.world.SteadyClock() }

// Random returns a number of at least 0 and less than n, which must be positive, that depends on the
// seed.
func (w *World) Random(n int) int { return w.world.Random(n) }

// Sleep waits for d, and at most until ctx is done. It is the work of a process.
func (w *World) Sleep(ctx context.Context, d time.Duration) { sim.Sleep(ctx, d) }

// Process is a process of a world, with its client.
type Process struct {
	*pglock.Client
	node *sim.Node
}

// Name returns the name of the process, another one after a crash.
func (p *Process) Name() string { return p.node.Name() }

// Begin begins a transaction as Locks.Begin of a Fake does, for guards and for tables of the world.
// Each of its statements is a message, and so is its commit.
func (p *Process) Begin(ctx context.Context) (pgx.Tx, error) { return p.node.Begin(ctx) }

// Table is a table of the server of a world. A row that was never written is the zero V.
type Table[V any] struct{ table *sim.Table[V] }

// NewTable returns an empty table.
func NewTable[V any](w *World) *Table[V] { return &Table[V]{sim.NewTable[V](w.world)} }

// Get returns the row of a key as it is committed now. It is a message of the process p.
func (t *Table[V]) Get(ctx context.Context, p *Process, key string) (V, error) {
	return t.table.Read(ctx, p.node, key)
}

// Update changes a row when tx, a transaction of Process.Begin, commits: change gets the row as it is
// committed then, and returns the new one. It is called once for a commit that succeeds, in the order
// of the calls of Update, and must not block. Get sees the change after the commit.
func (t *Table[V]) Update(tx pgx.Tx, key string, change func(row V) V) {
	t.table.Update(tx, key, change)
}

// All returns a copy of all rows, for checks.
func (t *Table[V]) All() map[string]V { return t.table.All() }
