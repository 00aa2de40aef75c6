package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/leasetable/internal/timing"
)

// Position is the answer to a new ticket.
type Position struct {
	Ticket    int64
	Ahead     int  // other waiters
	Free      bool // the lock
	Remaining time.Duration
}

// AnyTicket stands for the ticket of a row that a lost answer may have left in the queue. It makes
// LeaveQueue delete the client's row, whatever its ticket is.
const AnyTicket = -1

// JoinQueue draws a ticket for the client in the queue for name. It replaces an earlier one of the
// client. The caller needs weight permits, if the lock has permits. The ticket shows others that its caller has waited for that time, and the name that the
// caller would hold the lock with. JoinQueue tries twice.
func (s *Store) JoinQueue(ctx context.Context, name, client, holder string, weight int, waited time.Duration) (p Position, err error) {
	args := []any{name, client, timing.TicketTTL.Microseconds(), holder, waited.Microseconds(), max(weight, 1)}
	err = s.sendTwice(ctx, statement{s.sql.joinQueue, args, func(r pgx.Rows) error {
		var left int64
		err := r.Scan(&p.Ticket, &p.Ahead, &p.Free, &left)
		p.Remaining = time.Duration(left) * time.Microsecond
		return err
	}})
	return p, err
}

// LeaveQueue deletes a ticket of the client, and notifies the next waiter if the lock is free. ctx
// is derived from the life of the Store.
func (s *Store) LeaveQueue(ctx context.Context, name, client string, ticket int64) error {
	_, err := s.sendWaking(ctx, statement{sql: s.sql.leaveQueue, args: []any{name, client, ticket}})
	return err
}

// RefreshTickets extends the client's tickets for names. It returns the tickets that it found, by
// name.
func (s *Store) RefreshTickets(ctx context.Context, client string, names []string) (map[string]int64, error) {
	found := make(map[string]int64, len(names))
	_, err := s.send(ctx, statement{s.sql.refreshTickets, []any{client, names, timing.TicketTTL.Microseconds()}, func(r pgx.Rows) error {
		var name string
		var ticket int64
		err := r.Scan(&name, &ticket)
		found[name] = ticket
		return err
	}})
	return found, err
}

// DeleteRows deletes the client's rows with those names and tickets, which are not in use.
func (s *Store) DeleteRows(ctx context.Context, client string, names []string, tickets []int64) error {
	_, err := s.send(ctx, statement{sql: s.sql.deleteRows, args: []any{client, names, tickets}})
	return err
}

// QuitQueue deletes all of the client's rows.
func (s *Store) QuitQueue(ctx context.Context, client string) error {
	_, err := s.send(ctx, statement{sql: s.sql.quitQueue, args: []any{client}})
	return err
}

// DeleteDeadRows deletes the rows of dead clients. It tries twice.
func (s *Store) DeleteDeadRows(ctx context.Context) error {
	return s.sendTwice(ctx, statement{sql: s.sql.deleteDeadRows})
}
