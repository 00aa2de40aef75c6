package display

import (
	"fmt"
	"strings"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/text"
)

// Up to these limits a state is usual, and needs no attention.
const (
	usualWait  = time.Minute      // of a client
	usualGuard = 10 * time.Second // of a transaction whose grant has ended
	usualTick  = time.Minute      // of a tick that is late
	usualQueue = 10               // clients by which a queue grows
)

// ManyLocks selects what Attention looks at.
var ManyLocks = inspect.Query{Filter: inspect.Filter{Held: true}, Order: inspect.ByWaiters, Limit: 1000}

// Concern needs the attention of an operator. Its texts have names of others, so escape them.
type Concern struct {
	Level string // "fail": work has stopped or is not safe; "warn": it may soon be so
	Name  string // of the lock, the key or the job; empty if it concerns the server
	Key   bool   // Name is a key
	Token fencing.Token
	Who   string // the holder, or the session
	Found string
	Cure  string // a command for a shell or SQL, with words about it
}

// Line returns the concern without its cure, in one line that is safe for a terminal.
func (c Concern) Line() string {
	about := ""
	if c.Name != "" {
		about = text.Plain(c.Name)
	}
	if c.Key {
		about = "key " + about
	}
	if c.Who != "" {
		about = strings.TrimPrefix(about+", "+text.OneLine(c.Who), ", ")
	}
	return strings.TrimPrefix(about+": "+text.OneLine(c.Found), ": ")
}

// maxOperator is how much of an operator's name counts, in bytes, so that there is room for a reason.
const maxOperator = 100

// Operator returns the name of an operator as it is recorded.
func Operator(name string) string {
	name = strings.ReplaceAll(name, "\x00", "")
	return strings.ToValidUTF8(name[:min(len(name), maxOperator)], "")
}

// By returns the reason of an action, which ends with the name of the operator.
func By(reason, operator string) string {
	return strings.TrimSpace(fmt.Sprintf("%s (by %s)", strings.TrimSpace(reason), Operator(operator)))
}

// Check is a result of pglock doctor.
type Check struct{ Name, Level, Found, Remedy string }

// Attention returns what needs attention, the worst first: failed checks, keys without an outcome,
// guards that keep a lock from others, leases that are not renewed, ticks that are late or have failed,
// clients that wait for long, and a server that is almost full.
//
// A lock is held for too long if a client has waited for a minute, unless it is that of an election:
// what is usual without waiters is not in the tables. overdue and grown are what Renewals and Queues
// have found out, if the caller reads again and again.
func Attention(s inspect.Snapshot, overdue map[fencing.Token]time.Duration, grown map[string]int, checks []Check) (all []Concern) {
	for _, c := range checks {
		if c.Level == "fail" {
			all = append(all, Concern{Level: c.Level, Found: c.Name + ": " + c.Found, Cure: c.Remedy})
		}
	}
	for _, a := range s.Once {
		if !a.Running {
			all = append(all, Concern{"fail", a.Key, true, a.Token, a.Holder,
				"its effect began " + text.Short(s.At.Sub(a.StartedAt)) + " ago, and the outcome is unknown: calls with the key fail",
				"find out whether it happened, then: pglock once resolve " + word(a.Key) + " --happened, or --did-not-happen"})
		}
	}
	for _, g := range s.Guards {
		if g.Ended && (g.Age == 0 || g.Age > usualGuard) { // 0: the role may not see it
			all = append(all, Concern{"fail", g.Name, false, 0, Session(g),
				"no client gets the lock: an open transaction has guarded its last grant", "end that transaction, or: " + EndGuard(g)})
		}
	}
	for _, l := range s.Locks {
		for _, g := range l.Live() {
			if unrenewed := overdue[g.Token]; unrenewed > 0 {
				all = append(all, Concern{"fail", l.Name, false, g.Token, g.Holder,
					fmt.Sprintf("not renewed for %s, ends in %s: its holder is paused, overloaded or cut off", text.Short(unrenewed), text.Short(g.Remaining)),
					"stop the holder, unless its writes are guarded; see: pglock show " + word(l.Name)})
			}
		}
	}
	for _, j := range s.Schedules {
		if late := j.Late(s.At); late > usualTick {
			all = append(all, Concern{"fail", j.Job, false, 0, "", "its tick is late by " + text.Short(late) + ": no process has begun it",
				"start a process that runs the job; see: pglock show " + word(j.Job)})
		}
		if j.Attempts > 0 && j.Running.IsZero() {
			all = append(all, Concern{"fail", j.Job, false, 0, "", "its tick of " + j.Failed.UTC().Format(time.DateTime) + " has failed: " + j.Error,
				"mend the cause, then: pglock schedule run " + word(j.Job)})
		}
	}
	for _, b := range s.Tree() {
		if b.Cycle || b.Perhaps {
			all = append(all, Concern{"warn", b.Name, false, 0, strings.Join(b.Holders, ", "), "clients wait for one another, perhaps in a cycle",
				"if they stay, revoke one of their grants; see: pglock top --once --screen blocking"})
		}
	}
	return append(append(all, longWaits(s, grown)...), ofServer(s)...)
}

// longWaits returns the locks that clients have waited for, for long, or that ever more wait for.
func longWaits(s inspect.Snapshot, grown map[string]int) (all []Concern) {
	for _, l := range s.Locks {
		longest, more := time.Duration(0), ""
		for _, w := range l.Waiters {
			longest = max(longest, w.Waited)
		}
		if n := grown[l.Name]; n >= usualQueue {
			more = fmt.Sprintf(", %d more than before", n)
		}
		grants := l.Live()
		_, election := l.Labels["payload"]
		if len(grants) == 0 || election || longest <= usualWait && more == "" {
			continue
		}
		g, name := grants[0], word(l.Name)
		if len(grants) > 1 {
			name += fmt.Sprintf(" --token %d", g.Token)
		}
		cure := "pglock ask " + name + ` --reason "…"; if it hangs: `
		if g.ReleaseRequested {
			cure = "its holder was asked, so: "
		}
		all = append(all, Concern{"warn", l.Name, false, g.Token, g.Holder,
			fmt.Sprintf("held for %s, waiters: %d, up to %s%s", text.Short(g.HeldFor), len(l.Waiters), text.Short(longest), more),
			cure + "pglock release " + name + ` --force --reason "…"`})
	}
	return all
}

func ofServer(s inspect.Snapshot) (all []Concern) {
	if v := s.Server; v.Full() {
		all = append(all, Concern{Level: "warn", Found: fmt.Sprintf("%d of %d connections are in use", v.Connections, v.MaxConnections),
			Cure: "close those that idle, or raise max_connections"})
	}
	if len(s.Locks) < s.Matching {
		all = append(all, Concern{Level: "warn", Found: fmt.Sprintf("only %d of %d locks were looked at, those with the most waiters", len(s.Locks), s.Matching),
			Cure: "look for others by name: pglock ls --pattern"})
	}
	return all
}

// word returns a name as a word of a shell, or NAME if it can't be typed, or would be taken for a flag.
func word(name string) string {
	if text.OneLine(name) != name || strings.HasPrefix(name, "-") {
		return "NAME"
	}
	return schema.ShellWord(name)
}

// Session says which session guards a grant.
func Session(g inspect.Guard) string {
	if g.Prepared != "" {
		return "prepared transaction " + g.Prepared
	}
	return strings.TrimSuffix(fmt.Sprintf("process %d, %s", g.PID, g.Application), ", ")
}

// EndGuard returns the statement that ends the transaction of a guard, which rolls it back.
func EndGuard(g inspect.Guard) string {
	if g.Prepared != "" {
		return "ROLLBACK PREPARED " + schema.Literal(g.Prepared)
	}
	return fmt.Sprintf("SELECT pg_terminate_backend(%d)", g.PID)
}

// SessionsOf returns the sessions that seem to be of a holder's process.
func SessionsOf(s inspect.Snapshot, holder string) (of []inspect.Session) {
	for _, session := range s.Sessions {
		if schema.SessionOf(session.Application, holder) {
			of = append(of, session)
		}
	}
	return of
}

// Queues has the fewest waiters that each lock had while a screen read it again and again.
type Queues map[string]int

// Grown returns by how much the queue of each lock is longer than it was.
func (q *Queues) Grown(locks []inspect.Lock) map[string]int {
	grown, fewest := map[string]int{}, Queues{}
	for _, l := range locks {
		n := len(l.Waiters)
		fewest[l.Name] = n
		if before, known := (*q)[l.Name]; known {
			fewest[l.Name] = min(n, before)
		}
		grown[l.Name] = n - fewest[l.Name]
	}
	*q = fewest
	return grown
}
