package leasetable

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/timing"
)

// Position is the answer to a new ticket.
type Position struct {
	Ticket    int64
	Ahead     int  // other waiters
	Free      bool // the lock
	Remaining time.Duration
}

// AnyTicket makes LeaveQueue delete the client's row, which a lost answer may have left in the queue,
// whatever its ticket is. The rows that Watch writes have it.
const AnyTicket = -1

// Join draws a ticket for the client in the queues of all the names of r, in place of an earlier one.
// Others see the holder of r and how long it has waited.
func (s *Store) Join(ctx context.Context, client string, r *Request, waited time.Duration) (p Position, err error) {
	names, _, weights := r.slots()
	var keep *int64 // of a caller that waits for several names
	if r.All != nil {
		us := timing.KeepTicket.Microseconds()
		keep = &us
	}
	args := []any{names, weights, client, ticketTTL(r.Heavy()).Microseconds(), keep, r.Holder, waited.Microseconds()}
	err = s.wakeTwice(ctx, statement{s.sql["join"], args, func(r pgx.Rows) error {
		return r.Scan(&p.Ticket, &p.Ahead, &p.Free, (*pgtx.Micros)(&p.Remaining))
	}})
	return p, err
}

// Ticket is a ticket of a client in the queues for some names: of one name, or of those that a caller
// waits for together.
type Ticket struct {
	Client string
	Names  []string // sorted
	Number int64
	Heavy  bool // its caller needs several permits
}

// ticketTTL returns how long a ticket is valid without a refresh. A head that needs more permits than
// are free can't be told from a dead one by its silence, so a heavy ticket expires soon.
func ticketTTL(heavy bool) time.Duration {
	if heavy {
		return timing.KeepTicket
	}
	return timing.TicketTTL
}

// AllSuffix makes the channel of a client the one that notifies its callers that wait for several names.
// In lock_waiters, a slash and a number tell these callers apart.
const AllSuffix = "_all"

// LeaveQueue deletes a ticket, and notifies the next waiter of each name that is free.
func (s *Store) LeaveQueue(ctx context.Context, t Ticket) error {
	_, err := s.sendWaking(ctx, statement{sql: s.sql["leave_queue"], args: []any{t.Names, t.Client, t.Number}})
	return err
}

// RefreshTickets extends tickets, heavy ones for a shorter time. It returns those that it has not
// found, or not for all their names.
func (s *Store) RefreshTickets(ctx context.Context, tickets []Ticket) (lost []Ticket, err error) {
	type row struct{ name, client string }
	found := map[row]int64{}
	clients, names, _ := flatten(tickets)
	var ttls []int64
	for _, t := range tickets {
		ttls = append(ttls, slices.Repeat([]int64{ticketTTL(t.Heavy).Microseconds()}, len(t.Names))...)
	}
	args := []any{clients, names, ttls, timing.KeepTicket.Microseconds()}
	_, err = s.send(ctx, statement{s.sql["refresh_tickets"], args, func(r pgx.Rows) error {
		var at row
		var ticket int64
		err := r.Scan(&at.name, &at.client, &ticket)
		found[at] = ticket
		return err
	}})
	if err != nil {
		return nil, err
	}
	for _, t := range tickets {
		if slices.ContainsFunc(t.Names, func(name string) bool { return found[row{name, t.Client}] != t.Number }) {
			lost = append(lost, t)
		}
	}
	return lost, nil
}

// DeleteRows deletes the rows of tickets that are not in use.
func (s *Store) DeleteRows(ctx context.Context, tickets []Ticket) error {
	clients, names, numbers := flatten(tickets)
	_, err := s.send(ctx, statement{sql: s.sql["delete_rows"], args: []any{clients, names, numbers}})
	return err
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

// QuitQueue deletes all of the client's rows, also those of its callers that wait for several names.
func (s *Store) QuitQueue(ctx context.Context, client string) error {
	_, err := s.send(ctx, statement{sql: s.sql["quit_queue"], args: []any{client}})
	return err
}

// DeleteDeadRows deletes the rows of dead clients.
func (s *Store) DeleteDeadRows(ctx context.Context) error {
	return s.sendTwice(ctx, statement{sql: s.sql["delete_dead_rows"]})
}
