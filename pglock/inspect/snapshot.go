package inspect

import (
	"slices"
	"time"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
)

// Query selects what Client.Snapshot reads.
type Query struct {
	Filter       // of the locks
	Order  Order // of the locks
	Limit  int   // of each list; 0: 500
	Offset int   // of the locks: so many that match are left out before the first
}

// Order is that of the locks in a Snapshot.
type Order string

// These are the values of Order.
const (
	ByName      Order = ""          // by the database's collation
	ByWaiters   Order = "waiters"   // most waiters first
	ByHeld      Order = "held"      // longest held first
	ByRemaining Order = "remaining" // those that expire first, and last those that were released
)

// Snapshot is what an operator sees of one schema. Its parts are read one after the other, so a
// lock may be in one and not in another.
type Snapshot struct {
	At     time.Time // by the server's clock
	Server Server

	Names    int    // of locks that have a row, held or not
	Matching int    // of these, those that match the filter
	Locks    []Lock // these of them, after Query.Offset others

	Nested    []NestedWait
	Guards    []Guard
	Once      []Attempt
	Schedules []Schedule
	Advisory  []advisory.Usage // all sessions with an advisory lock of the database, also of other programs
	Sessions  []Session
	Actions   []Action // the last 100 of operators, the newest first
}

// Server describes the server, and what it keeps for all clients.
type Server struct {
	Version, Database, User string

	Connections, MaxConnections int // in use by all programs, and in all
	Sessions, Listeners         int // of pglock; that listen, of any program

	NotifyQueue          float64       // the part of the notification queue that is in use
	OldestTransaction    time.Duration // 0 without one. Hot locks get slower while it is open
	OldestTransactionWho string
	DeadRows             int64 // of the tables of locks

	// Standby reports that the server is a standby, where no waiter is known. Behind is how old its
	// data can be: 0 if it has replayed all that it has received, and otherwise the time since the
	// last commit that it has replayed, or since its start. While its primary is idle or
	// cannot be reached, that grows although nothing may be missing.
	Standby bool
	Behind  time.Duration

	Held, Waiting, Started int // grants, waiting clients, and effects without an outcome
}

// Full reports that few connections are left: four fifths of them are in use.
func (s Server) Full() bool { return 5*s.Connections >= 4*s.MaxConnections && s.MaxConnections > 0 }

// NestedWait is a call that waits for locks, all of them together, while its context carries leases
// of others.
type NestedWait struct {
	Holder string // as others see it when it holds the locks
	Names  []string
	Holds  []fencing.Token // of the leases
	Waited time.Duration
}

// Guard is a session whose transaction has guarded a grant. No other holder is granted the lock
// before its end.
type Guard struct {
	Name        string        // of the lock
	Ended       bool          // the grant has ended: the lock seems to be free
	PID         uint32        // 0 for a prepared transaction
	Prepared    string        // the prepared transaction, for COMMIT PREPARED or ROLLBACK PREPARED
	Application string        // as State, Age and Query: empty if the role may not see it
	State       string        // active or idle in transaction
	Age         time.Duration // of the transaction
	Query       string        // the last statement
}

// Attempt is an effect of package once that has begun and has no outcome.
type Attempt struct {
	Key       string
	Token     fencing.Token // 0: in a transaction of the caller
	Holder    string
	CreatedAt time.Time // the first attempt
	StartedAt time.Time // the last attempt
	Running   bool      // its lease is held; otherwise the outcome is unknown
}

// Schedule is a job of package schedule that has run, or whose first tick is awaited.
type Schedule struct {
	Job     string
	Last    time.Time // the last tick that was run
	Next    time.Time // the tick after the last one that began; zero if unknown
	Running time.Time // the tick that is being run; zero if none
	Holder  string    // that runs it
	Zone    string    // of the schedule, as its runner said

	Failed   time.Time // Last if that has failed, or a later tick that may be repeated; zero if none has
	Attempts int       // of the tick Failed
	Error    string    // of the last one of them

	Triggered time.Time // an extra tick that no process has begun yet; zero if none
}

// Late returns how long the next tick has been due without a run that began, or 0.
func (s Schedule) Late(now time.Time) time.Duration {
	if s.Next.IsZero() || !s.Running.IsZero() {
		return 0
	}
	return max(now.Sub(s.Next), 0)
}

// Session is a connection of a client of pglock.
type Session struct {
	PID         uint32
	Application string
	User        string
	ClientAddr  string // empty on a Unix-domain socket
	State       string // active, idle or idle in transaction
	Age         time.Duration
	Listens     bool
}

// Action is what an operator did to the grant of another process, or to a key without an outcome.
type Action struct {
	At          time.Time // by the server's clock
	Role        string    // that was logged in
	Application string    // the application_name of its session
	What        string    // "asked to release", "revoked", "resolved: happened" or "resolved: did not happen"
	Name        string    // of the lock, or the key
	Token       fencing.Token
	Reason      string
}

// Block is one line of the tree of who waits for whom: a lock that has waiters, with its holders,
// or one of its waiters, which is a level deeper.
type Block struct {
	Depth   int // even for locks, odd for waiters
	Name    string
	Holders []string // of a lock
	Waiter  Waiter   // of a waiter
	Place   int      // of a waiter in the queue, from 1
	Holds   []string // of a waiter: the locks that it holds, of those in the Snapshot
	Nested  bool     // of a waiter: the call that waits holds them; otherwise another call of its client may
	Again   bool     // of a lock: its waiters are above already
	Cycle   bool     // of a lock: it is above on the way to here, and the calls between wait for one another
	Perhaps bool     // of a lock: it is above on the way to here, but perhaps the calls do not wait for one another
}

// Tree returns the tree of who waits for whom, for the locks of the Snapshot. Below a waiter are
// the locks that it holds and others wait for. If the context of a call carries its leases, Tree
// knows what the call holds. Otherwise holders are known by their names, which are those of
// clients: one that holds and waits in two unrelated calls looks as if it waited with what it
// holds. So only nested calls are a Cycle, and only if each lock has one holder, since a lock of
// several is granted when any of them releases it.
func (s Snapshot) Tree() []Block {
	t := tree{locks: map[string]Lock{}, holds: map[string][]string{}, nested: map[call][]string{}, shown: map[string]bool{}}
	granted := map[fencing.Token]string{} // names of locks
	waits := map[string]bool{}            // by holder
	for _, l := range s.Locks {
		t.locks[l.Name] = l
		for _, g := range l.Live() {
			granted[g.Token] = l.Name
			t.holds[g.Holder] = append(t.holds[g.Holder], l.Name)
		}
		for _, w := range l.Waiters {
			waits[w.Holder] = true
		}
	}
	for _, n := range s.Nested {
		for _, name := range n.Names {
			for _, token := range n.Holds {
				if held, ok := granted[token]; ok {
					t.nested[call{n.Holder, name}] = append(t.nested[call{n.Holder, name}], held)
				}
			}
		}
	}
	for _, rootsOnly := range []bool{true, false} { // what is left after the roots is in cycles
		for _, l := range s.Locks {
			blocked := slices.ContainsFunc(l.Holders(), func(h string) bool { return waits[h] })
			if len(l.Waiters) > 0 && !t.shown[l.Name] && (!rootsOnly || !blocked) {
				t.add(l, nil, 0)
			}
		}
	}
	return t.blocks
}

// tree is the result of Tree so far, and what it is made from.
type tree struct {
	blocks []Block
	locks  map[string]Lock
	holds  map[string][]string // names of locks by holder
	nested map[call][]string   // names of locks that a call holds
	shown  map[string]bool     // by lock
}

type call struct{ holder, name string }

// add adds a lock below the locks of path. From path[sure] on, each lock waits for the next one for
// sure.
func (t *tree) add(l Lock, path []string, sure int) {
	depth, above := 2*len(path), slices.Index(path, l.Name)
	b := Block{Depth: depth, Name: l.Name, Holders: l.Holders(), Again: t.shown[l.Name]}
	b.Cycle, b.Perhaps = above >= sure, above >= 0 && above < sure
	t.blocks = append(t.blocks, b)
	if b.Again {
		return
	}
	t.shown[l.Name] = true
	path = append(slices.Clip(path), l.Name)
	for i, w := range l.Waiters {
		held, exact := t.nested[call{w.Holder, l.Name}]
		if !exact {
			held = t.holds[w.Holder]
		}
		t.blocks = append(t.blocks, Block{Depth: depth + 1, Name: l.Name, Waiter: w, Place: i + 1, Holds: held, Nested: exact})
		for _, name := range held {
			if next := t.locks[name]; len(next.Waiters) > 0 && exact && len(b.Holders) == 1 {
				t.add(next, path, sure)
			} else if len(next.Waiters) > 0 {
				t.add(next, path, len(path))
			}
		}
	}
}
