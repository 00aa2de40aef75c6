package leasetable

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/timing"
)

// TicketState says what a ticket is good for.
type TicketState int

// States of a ticket.
const (
	Lost       TicketState = iota // not valid: it was skipped, has expired, or a crash has emptied the queue
	Queued                        // in the queue
	InOverflow                    // in the overflow list of a long queue, which it leaves at a refresh, perhaps with a new number
)

// Position is the answer to a new ticket, or to a look at its lock.
type Position struct {
	State     TicketState
	Ticket    int64
	Ahead     int           // waiters before it
	Free      bool          // the lock, for this caller alone
	Remaining time.Duration // of the grant in the way
	Overdue   bool          // the head of the queue could have been granted the lock for longer than timing.HeadGrace
}

// merge makes p the position of a caller that waits in the queue of q too. The tickets are not
// compared.
func (p *Position) merge(q Position) {
	p.Ahead, p.Remaining = max(p.Ahead, q.Ahead), max(p.Remaining, q.Remaining)
	p.Free, p.Overdue = p.Free && q.Free, p.Overdue && q.Overdue
}

// nearHead is how many clients are in a queue and listen, besides one for each permit. Others are
// in the overflow list: before PostgreSQL 19 each notification wakes all sessions that listen,
// whatever they wait for, and with any version each waiter in the queue tries again and again at
// first. With everyone, there is no overflow list.
const (
	nearHead = 16
	everyone = 1 << 40
)

// near returns the length of the queue from which a client goes to the overflow list. One that
// listens anyway does not, and several names are idle while their caller is in the list for one of
// them.
func near(listens bool, names []string, heavy bool) int64 {
	if listens || heavy || len(names) > 1 {
		return everyone
	}
	return nearHead
}

// Join draws a ticket for the client in the queues of all names of r, in place of an earlier one,
// or adds it to the overflow list, unless it listens. Others see the holder of r and how long it
// has waited.
func (t *Table) Join(ctx context.Context, client string, r *Request, waited time.Duration, listens bool) (p Position, err error) {
	ttl := ticketTTL(r.Heavy()).Microseconds()
	if r.All == nil {
		args := []any{r.Name, max(r.Permits.Weight, 1), client, ttl, r.Holder, waited.Microseconds(), near(listens, r.Names(), r.Heavy())}
		err = t.run(ctx, Statement{SQL: t.sql["join"], Args: args, Tries: 2, Row: func(r pgx.Rows) error {
			var overflow bool
			err := r.Scan(&p.Ticket, &overflow, &p.Ahead, &p.Free, (*pgtx.Micros)(&p.Remaining))
			p.State = stateOf(false, overflow)
			return err
		}})
		return p, err
	}
	names, _, weights := r.slots()
	args := []any{names, weights, client, ttl, timing.KeepTicket.Microseconds(), r.Holder, waited.Microseconds(), true}
	err = t.run(ctx, Statement{
		SQL: t.sql["join_all"], Args: args, Tries: 2, Wakes: true,
		Begin: func() { p = Position{State: Queued, Free: true} },
		Row: func(r pgx.Rows) error {
			var at Position
			err := r.Scan(&at.Ticket, &at.Ahead, &at.Free, (*pgtx.Micros)(&at.Remaining), nil)
			p.Ticket = at.Ticket
			p.merge(at)
			return err
		},
	})
	return p, err
}

// Ticket is a ticket of a client for a name, or for several together.
type Ticket struct {
	Client string
	Names  []string // sorted
	Number int64
	State  TicketState // as the client knows it
	Heavy  bool        // its caller needs several permits
}

// ticketTTL returns how long a ticket is valid without a refresh. A head that needs more permits
// than are free can't be told from a dead one by its silence, so a heavy ticket expires soon.
func ticketTTL(heavy bool) time.Duration {
	if heavy {
		return timing.KeepTicket
	}
	return timing.TicketTTL
}

// LeaveQueue deletes a ticket, and wakes the next waiter of each free name.
func (t *Table) LeaveQueue(ctx context.Context, left Ticket) error {
	args := []any{left.Names, left.Client, zeronull.Int8(left.Number), true}
	return t.run(ctx, Statement{SQL: t.sql["leave_queue"], Args: args, Wakes: true})
}

func stateOf(lost, overflow bool) TicketState {
	switch {
	case lost:
		return Lost
	case overflow:
		return InOverflow
	}
	return Queued
}

// RefreshTickets extends tickets and returns their positions.
func (t *Table) RefreshTickets(ctx context.Context, tickets []Ticket, listens bool) ([]Position, error) {
	type row struct{ name, client string }
	found := map[row]Position{}
	clients, names, _ := flatten(tickets)
	var ttls, places []int64
	for _, k := range tickets {
		ttls = append(ttls, slices.Repeat([]int64{ticketTTL(k.Heavy).Microseconds()}, len(k.Names))...)
		places = append(places, slices.Repeat([]int64{near(listens, k.Names, k.Heavy)}, len(k.Names))...)
	}
	args := []any{clients, names, ttls, timing.KeepTicket.Microseconds(), places}
	err := t.run(ctx, Statement{SQL: t.sql["refresh_tickets"], Args: args, Row: func(r pgx.Rows) error {
		var at row
		var p Position
		var overflow, lost bool
		err := r.Scan(&at.name, &at.client, &p.Ticket, &overflow, &lost, &p.Ahead, &p.Free, (*pgtx.Micros)(&p.Remaining), &p.Overdue)
		p.State = stateOf(lost, overflow)
		found[at] = p
		return err
	}})
	if err != nil {
		return nil, err
	}
	positions := make([]Position, len(tickets))
	for i, k := range tickets {
		all := Position{State: k.State, Ticket: k.Number, Free: true, Overdue: true}
		for _, name := range k.Names {
			p := found[row{name, k.Client}] // lost without a row
			switch entered := k.State == InOverflow && p.State == Queued; {
			case entered:
				all.State, all.Ticket = Queued, p.Ticket
			case p.State != k.State, p.Ticket != k.Number:
				all.State = Lost
			}
			all.merge(p)
		}
		positions[i] = all
	}
	return positions, nil
}

// DeleteRows deletes the rows of tickets that are not in use.
func (t *Table) DeleteRows(ctx context.Context, tickets []Ticket) error {
	clients, names, numbers := flatten(tickets)
	return t.run(ctx, Statement{SQL: t.sql["delete_rows"], Args: []any{clients, names, numbers}})
}

// flatten returns the columns of the rows of tickets.
func flatten(tickets []Ticket) (clients, names []string, numbers []int64) {
	for _, t := range tickets {
		for _, name := range t.Names {
			clients, names, numbers = append(clients, t.Client), append(names, name), append(numbers, t.Number)
		}
	}
	return clients, names, numbers
}

// QuitQueue is LeaveQueue for all tickets of a client.
func (t *Table) QuitQueue(ctx context.Context, client string) error {
	return t.run(ctx, Statement{SQL: t.sql["quit_queue"], Args: []any{client, true}, Wakes: true})
}

// DeleteDeadRows deletes the rows of dead clients.
func (t *Table) DeleteDeadRows(ctx context.Context) error {
	return t.run(ctx, Statement{SQL: t.sql["delete_dead_rows"], Tries: 2})
}
