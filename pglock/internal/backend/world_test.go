package backend_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/backend"
)

// world is a driver's tables during a case. The keys of its maps are those of key.
type world struct {
	tables
	prefix   string // of the channels of its clients, because tests at the same time share a database
	grants   map[string]held
	requests map[string]*leasetable.Request
	tickets  map[string]leasetable.Ticket
	waits    map[string]*leasetable.NestedWait
	owners   map[fencing.Token]string
	newest   map[string]fencing.Token    // of a name
	sessions map[string]backend.Listener // of an actor
	sets     []string                    // of names that callers wait for together
}

// held is a grant of an actor.
type held struct {
	fence   fencing.Fence
	request *leasetable.Request
	permits leasetable.Permits
}

func newWorld(tables tables) *world {
	return &world{
		tables: tables, prefix: rand.Text()[:8] + ".", grants: map[string]held{}, requests: map[string]*leasetable.Request{},
		tickets: map[string]leasetable.Ticket{}, waits: map[string]*leasetable.NestedWait{}, owners: map[fencing.Token]string{},
		newest: map[string]fencing.Token{}, sessions: map[string]backend.Listener{},
	}
}

func (w *world) close() {
	for _, session := range w.sessions {
		_ = session.Close(context.Background()) // the case is over
	}
}

// say makes a call, and returns its answer in words. No case has two transactions at once, but the commits of other tests
// that notify somebody are waited for, on a loaded machine for longer than a statement waits.
func (w *world) say(ctx context.Context, s *step) string {
	text, err := verbs[s.verb].run(ctx, w, s)
	for n := 0; pgtx.SQLState(err) == pgtx.LockNotAvailable && n < 10; n++ {
		text, err = verbs[s.verb].run(ctx, w, s)
	}
	if err != nil {
		return "error: " + err.Error()
	}
	return text
}

// grantOf returns the grant that an actor has or had of a name, or one that never was.
func (w *world) grantOf(actor, name string) held {
	if h, ok := w.grants[actor+" "+name]; ok {
		return h
	}
	return held{fence: fencing.Fence{Name: name, Schema: w.schema, Token: 1 << 60}, request: &leasetable.Request{Name: name, ID: newID()}}
}

// grant returns that of the actor, or of the one in the option "of".
func (w *world) grant(s *step) held { return w.grantOf(cmp.Or(s.options["of"], s.actor), s.name()) }

func (w *world) fences(s *step) (all []fencing.Fence) {
	for _, slots := range s.batch {
		all = append(all, w.grantOf(s.actor, slots[0].name).fence)
	}
	return all
}

func (w *world) extensions(s *step) (all []leasetable.Extension) {
	for _, f := range w.fences(s) {
		all = append(all, leasetable.Extension{Fence: f, TTL: s.duration("ttl", time.Minute)})
	}
	return all
}

// request returns the request for the names of a step, or that of an earlier step again.
func (w *world) request(s *step, slots []slot) *leasetable.Request {
	at := key(s.actor, slots)
	if r := w.requests[at]; s.options["again"] != "" && r != nil {
		return r
	}
	r := &leasetable.Request{
		ID: newID(), Holder: s.actor, Labels: cmp.Or(s.options["labels"], "{}"), TTL: s.duration("ttl", time.Minute), Ticket: leasetable.NoTicket,
		Name: slots[0].name, Permits: slots[0].Permits, New: s.options["new"] != "",
	}
	if len(slots) > 1 {
		r.Permits = leasetable.Permits{}
		for _, at := range slots {
			r.All, r.Each = append(r.All, at.name), append(r.Each, at.Permits)
		}
		r.Name = strings.Join(r.All, ", ")
		if !slices.ContainsFunc(slots, func(at slot) bool { return at.Any() }) {
			r.Each = nil
		}
	}
	switch t, ok := w.tickets[at]; {
	case s.options["barge"] != "":
		r.Ticket = leasetable.BargeTicket
	case s.options["ticket"] != "" && ok:
		r.Ticket = t.Number
	}
	w.requests[at] = r
	return r
}

func (w *world) ticket(s *step) leasetable.Ticket {
	if t, ok := w.tickets[key(s.actor, s.slots())]; ok {
		return t
	}
	return leasetable.Ticket{Client: w.caller(s), Names: s.names(), Number: 1 << 60, State: leasetable.Queued}
}

func (w *world) client(s *step) string { return w.prefix + s.actor }

// caller returns the client of an actor, or its caller that waits for several names.
func (w *world) caller(s *step) string {
	if !s.together() {
		return w.client(s)
	}
	set := strings.Join(s.names(), " ")
	if !slices.Contains(w.sets, set) {
		w.sets = append(w.sets, set)
	}
	return fmt.Sprint(w.client(s), schema.AllSuffix, "/", slices.Index(w.sets, set)+1)
}

// unit is that of the times of answers. What is left of a time is rounded up, and what has passed
// of it down, so that they are the same however long a case takes.
const unit = 3 * time.Second

func left(d time.Duration) string {
	return fmt.Sprintf("%ds", int((d + unit - 1).Truncate(unit).Seconds()))
}

// attempt notes a grant, and returns the answer to an attempt in words.
func (w *world) attempt(s *step, r *leasetable.Request, g leasetable.Grant) string {
	var words []string
	add := func(when bool, format string, args ...any) {
		if when {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	switch g.Outcome {
	case leasetable.Granted:
		add(true, "granted for %s", left(g.Remaining))
		add(g.New && r.New, "a new name")
		add(g.Sent.IsZero() || time.Since(g.Sent) < 0, "without a time")
		for _, name := range r.Names() {
			add(g.Token <= w.newest[name] && w.owners[g.Token] != s.actor, "with an old token")
			w.newest[name] = max(g.Token, w.newest[name])
			w.grants[s.actor+" "+name] = held{fencing.Fence{Name: name, Schema: w.schema, Token: g.Token}, r, r.PermitsOf(name)}
		}
		w.owners[g.Token] = s.actor
	case "":
		return "no answer"
	case leasetable.RequestEnded:
		return "spent"
	case leasetable.OtherKind:
		add(true, "another kind, %d permits", g.Capacity)
	default:
		add(true, "%s", g.Outcome)
		add(g.Holder != "", "held by %s for %s", g.Holder, left(g.Remaining))
		add(g.Holder != "" && w.owners[g.Token] != g.Holder, "with the token of %q", w.owners[g.Token])
		add(g.Holder == "" && g.Remaining > 0, "free in %s", left(g.Remaining))
		add(g.Ahead > 0, "%d ahead", g.Ahead)
		add(g.Invalid && r.Ticket != leasetable.BargeTicket && r.Ticket != leasetable.NoTicket, "invalid")
	}
	add(g.Name != "" && r.All != nil && g.Outcome != leasetable.Granted, "at %s", g.Name)
	return strings.Join(words, ", ")
}

// renewals returns the answers to the holders of a step's grants in words.
func (w *world) renewals(s *step, answers map[fencing.Fence]leasetable.Renewal) string {
	var words []string
	for _, f := range w.fences(s) {
		words = append(words, renewal(answers[f]))
	}
	return strings.Join(words, " | ")
}

func renewal(r leasetable.Renewal) string {
	text := "gone"
	switch r.Outcome {
	case leasetable.Granted:
		text = "granted for " + left(r.Remaining) + word(r.Sent.IsZero() || time.Since(r.Sent) < 0, ", without a time", "")
	case leasetable.Busy:
		text = "live"
	}
	if r.Request != nil {
		text += ", asked: " + *r.Request
	}
	if r.Revoked != nil {
		text += ", revoked: " + *r.Revoked
	}
	return text
}

// released returns the answer to a release in words.
func released(notified, done bool) string {
	return word(done, "released", "not held") + word(notified, ", notified", "")
}

// call returns the answer to a call about a grant of somebody else in words.
func (w *world) call(c leasetable.GrantCall, err error) (string, error) {
	owner := w.owners[c.Current]
	return word(c.Done, "done", word(c.Found, "not current", "no such lock")) + word(c.Large, ", too large", "") +
		word(owner != "", ", the last grant is of "+owner, ""), err
}

// position returns a position of a ticket in words.
func position(p leasetable.Position) string {
	if p.State == leasetable.Lost {
		return "lost"
	}
	return fmt.Sprint(p.Ahead, " ahead") + word(p.State == leasetable.InOverflow, ", in the overflow list", "") +
		word(p.Free, ", free", ", taken"+word(p.Remaining > 0, " for "+left(p.Remaining), "")) + word(p.Overdue, ", overdue", "")
}
