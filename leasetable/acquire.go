package leasetable

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// Request is one attempt to acquire a lock.
type Request struct {
	Name    string    // for All: a text for people
	All     []string  // names that are acquired together, sorted; nil: only Name
	Each    []Permits // of the names in All; nil: each has one holder
	ID      string    // a UUID: the same for attempts of one call whose effect is unknown
	Holder  string
	Labels  string // JSON
	TTL     time.Duration
	Ticket  int64
	Permits Permits // of Name
	New     bool    // the name likely has no row yet: see AcquireFast
}

// Names returns the names that the request is for, sorted.
func (r *Request) Names() []string {
	if r.All == nil {
		return []string{r.Name}
	}
	return r.All
}

// permitsAt returns the permits that the request is for at one of its names.
func (r *Request) permitsAt(i int) Permits {
	if r.All == nil {
		return r.Permits
	}
	if r.Each == nil {
		return Permits{}
	}
	return r.Each[i]
}

// PermitsOf returns the permits that the request is for at the name.
func (r *Request) PermitsOf(name string) Permits {
	return r.permitsAt(max(slices.Index(r.All, name), 0))
}

// Heavy reports whether the request needs several permits of a name.
func (r *Request) Heavy() bool {
	return r.Permits.Weight > 1 || slices.ContainsFunc(r.Each, func(p Permits) bool { return p.Weight > 1 })
}

// hasFast reports whether AcquireFast has a statement for the request.
func (r *Request) hasFast() bool {
	switch {
	case r.All != nil:
		return r.Each == nil && r.Ticket == NoTicket
	case r.Permits.Any():
		return r.Permits.Shared() && r.Ticket == NoTicket
	}
	return true
}

// slots returns the arguments of acquire_slots and join_all.sql: names, and of each its permits, 0
// for a lock with one holder, and how many of them the request is for.
func (r *Request) slots() (names []string, permits, weights []int) {
	names = r.Names()
	permits, weights = make([]int, len(names)), make([]int, len(names))
	for i := range names {
		weights[i] = 1
		if p := r.permitsAt(i); p.Any() {
			permits[i], weights[i] = p.Capacity, p.Weight
		}
	}
	return names, permits, weights
}

// Numbers that no ticket has.
const (
	NoTicket    = math.MaxInt64 // of an attempt without one: waits for every ticket
	BargeTicket = 0             // of an attempt that ignores the queue
	AnyTicket   = 0             // of a row that Watch writes; LeaveQueue then deletes the row with any ticket
)

// Outcome is the result of an attempt, empty if the row was inserted meanwhile.
type Outcome string

// Outcomes: see sql/acquire_full.sql.
const (
	Granted      Outcome = "granted"
	Busy         Outcome = "busy"
	RequestEnded Outcome = "spent"
	OtherKind    Outcome = "kind" // the name has another number of permits: Grant.Capacity
)

// again is the zero Outcome in an answer.
const again Outcome = "again"

// Grant is the answer to a Request: the grant, or what is in its way.
type Grant struct {
	Outcome   Outcome
	Name      string // which of several names is in the way; empty for a request with one name
	Token     fencing.Token
	Ahead     int  // number of waiters before this one
	Capacity  int  // of OtherKind: the number of permits, 0 for a lock with one holder
	Invalid   bool // the ticket: the queue has skipped it
	New       bool // the name had no row, and the lock has one holder
	Holder    string
	Remaining time.Duration
	Sent      time.Time // just before the statement was sent: promises count from there
}

// AcquireFast grants free locks that have rows, for requests with distinct names, sorted by name,
// or for one of any kind; and also names that have no row, if a request has New. A Grant without an
// Outcome is for AcquireFull, or AcquireSlots.
func (t *Table) AcquireFast(ctx context.Context, batch []*Request) ([]Grant, error) {
	if len(batch) == 1 {
		r := batch[0]
		sql, args := t.sql["acquire_fast"], oneArgs(r)
		switch {
		case !r.hasFast():
			return make([]Grant, 1), nil
		case r.All != nil:
			sql, args[0] = t.sql["acquire_all"], r.All
		case r.Permits.Any():
			sql, args = t.sql["acquire_permit"], append(args, r.Permits.Capacity, r.Permits.Weight)
		case r.New:
			if grants, err := t.acquireNew(ctx, batch); err != nil || grants[0].Outcome == Granted {
				return grants, err
			}
		}
		return t.grantRow(ctx, r, sql, args...)
	}
	if slices.ContainsFunc(batch, func(r *Request) bool { return r.New }) {
		return t.acquireNew(ctx, batch)
	}
	return t.grantNames(ctx, batch, t.sql["acquire_fast_batch"], acquireArgs(batch))
}

// acquireNew also grants new names.
func (t *Table) acquireNew(ctx context.Context, batch []*Request) ([]Grant, error) {
	if len(batch) == 1 {
		return t.grantNames(ctx, batch, t.sql["acquire_new"], oneArgs(batch[0]))
	}
	return t.grantNames(ctx, batch, t.sql["acquire_batch"], acquireArgs(batch))
}

// grantNames sends a statement that returns a row for each name that it grants.
func (t *Table) grantNames(ctx context.Context, batch []*Request, sql string, args []any) ([]Grant, error) {
	var name string
	g := Grant{Outcome: Granted}
	into := []any{&name, &g.Token, (*pgtx.Micros)(&g.Remaining), &g.New} // once: a batch has many rows
	return t.grantBatch(ctx, batch, sql, args, func(r pgx.Rows) (string, Grant, error) {
		err := r.Scan(into[:len(r.FieldDescriptions())]...)
		return name, g, err
	})
}

// HandOff grants the lock of fence to the request r of the same client, whatever its ticket is.
// Without an Outcome the lock must be released.
func (t *Table) HandOff(ctx context.Context, fence fencing.Fence, r *Request, client string) (Grant, error) {
	grants, err := t.grantRow(ctx, r, t.sql["handoff"],
		fence.Name, int64(fence.Token), r.ID, r.Holder, r.Labels, r.TTL.Microseconds(), client)
	if err != nil {
		return Grant{}, err
	}
	return grants[0], nil
}

// grantRow sends a statement that returns one row if it grants the lock of r.
func (t *Table) grantRow(ctx context.Context, r *Request, sql string, args ...any) ([]Grant, error) {
	return t.grantBatch(ctx, []*Request{r}, sql, args, func(row pgx.Rows) (string, Grant, error) {
		g := Grant{Outcome: Granted}
		err := row.Scan(&g.Token, (*pgtx.Micros)(&g.Remaining))
		return r.Name, g, err
	})
}

// AcquireFull answers a batch that AcquireFast does not, with a Grant for each request, also with an
// error, since its statements commit by themselves: the first one finds what is busy, the second one grants
// new names.
func (t *Table) AcquireFull(ctx context.Context, batch []*Request) ([]Grant, error) {
	grants := make([]Grant, len(batch))
	for _, step := range []func(context.Context, []*Request) ([]Grant, error){t.peek, t.acquireNew, t.acquireEach} {
		var rest []*Request
		var at []int // in batch
		for i, r := range batch {
			if grants[i].Outcome == "" {
				rest, at = append(rest, r), append(at, i)
			}
		}
		if len(rest) == 0 {
			break
		}
		answers, err := step(ctx, rest)
		if err != nil {
			return grants, err
		}
		for i, g := range answers {
			grants[at[i]] = g
		}
	}
	return grants, nil
}

func (t *Table) peek(ctx context.Context, batch []*Request) ([]Grant, error) {
	args := acquireArgs(batch)
	return t.grantBatch(ctx, batch, t.sql["peek"], []any{args[0], args[2], args[5]}, func(r pgx.Rows) (name string, g Grant, err error) {
		g.Outcome = Busy
		err = g.scan(r, &name)
		return name, g, err
	})
}

func (t *Table) acquireEach(ctx context.Context, batch []*Request) ([]Grant, error) {
	return t.grantBatch(ctx, batch, t.sql["acquire_full"], acquireArgs(batch), func(r pgx.Rows) (name string, g Grant, err error) {
		err = g.scan(r, &name, &g.Outcome)
		return name, g, err
	})
}

// AcquireSlots makes an attempt to acquire permits, or several names.
func (t *Table) AcquireSlots(ctx context.Context, r *Request) (Grant, error) {
	names, permits, weights := r.slots()
	args := []any{names, permits, weights, r.ID, r.Holder, r.Labels, r.TTL.Microseconds(), r.Ticket, true}
	return t.grantSlots(ctx, r, Statement{SQL: t.sql["acquire_slots"], Args: args, Wakes: true})
}

// grantSlots sends a statement that answers a request as a whole.
func (t *Table) grantSlots(ctx context.Context, r *Request, st Statement) (g Grant, err error) {
	st.Row = func(row pgx.Rows) error {
		err := g.scan(row, (*zeronull.Text)(&g.Name), &g.Outcome)
		if r.All == nil {
			g.Name = ""
		}
		return err
	}
	sent, err := t.sender.Send(ctx, st)
	switch {
	case err != nil:
		return Grant{}, err // a row before the error promises nothing
	case g.Outcome == Granted:
		t.observe(r, g)
	case g.Outcome == again:
		g.Outcome = ""
	}
	g.Sent = sent
	return g, nil
}

// grantBatch sends a statement for requests that are sorted by name, and returns the answer to each
// of them. scan reads the answer to the request with that name from a row.
func (t *Table) grantBatch(
	ctx context.Context, batch []*Request, sql string, args []any, scan func(pgx.Rows) (name string, g Grant, err error),
) ([]Grant, error) {
	grants := make([]Grant, len(batch))
	sent, err := t.sender.Send(ctx, Statement{SQL: sql, Args: args, Row: func(r pgx.Rows) error {
		name, g, err := scan(r)
		at, found := slices.BinarySearchFunc(batch, name, func(r *Request, name string) int { return cmp.Compare(r.Name, name) })
		if found {
			grants[at] = g
		}
		return err
	}})
	if err != nil {
		return nil, err // rows before the error promise nothing
	}
	for i := range grants {
		g := &grants[i]
		g.Sent = sent
		if g.Outcome == Granted {
			t.observe(batch[i], *g)
		}
	}
	return grants, nil
}

// observe tells the Sender of a grant.
func (t *Table) observe(r *Request, g Grant) {
	if t.grants != nil {
		t.grants.ObserveGrant(fencing.Fence{Schema: t.schema, Name: r.Names()[0], Token: g.Token})
	}
}

// scan reads a row whose first columns are into.
func (g *Grant) scan(r pgx.Rows, into ...any) error {
	err := r.Scan(append(into, &g.Token, (*zeronull.Text)(&g.Holder), (*pgtx.Micros)(&g.Remaining), &g.Ahead, &g.Invalid)...)
	if g.Outcome == OtherKind {
		g.Capacity, g.Ahead = g.Ahead, 0
	}
	return err
}

// acquireArgs returns the arguments of the batch statements that grant.
func acquireArgs(batch []*Request) []any {
	n := len(batch)
	names, holders, ids, labels := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	us, tickets := make([]int64, n), make([]int64, n)
	for i, r := range batch {
		names[i], holders[i], ids[i], labels[i] = r.Name, r.Holder, r.ID, r.Labels
		us[i], tickets[i] = r.TTL.Microseconds(), r.Ticket
	}
	return []any{names, collapse(holders), ids, collapse(labels), collapse(us), collapse(tickets)}
}

// oneArgs returns the arguments of the statements that grant one name.
func oneArgs(r *Request) []any {
	return []any{r.Name, r.Holder, r.ID, r.Labels, r.TTL.Microseconds(), r.Ticket}
}

// collapse returns values, or only the first one if all are equal.
func collapse[T comparable](values []T) []T {
	if slices.ContainsFunc(values, func(v T) bool { return v != values[0] }) {
		return values
	}
	return values[:1]
}
