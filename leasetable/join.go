package leasetable

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ticketTTL is how long a ticket counts that its client does not refresh. Who waits behind
// a client that died does not wait that long: see sql/take.sql.
const ticketTTL = 15 * time.Second

// place is what the server says to a new ticket.
type place struct {
	ticket    int64
	ahead     int // others that wait
	free      bool
	remaining time.Duration // of the grant in the way
}

// joinCall is one run of the join statement.
type joinCall struct {
	done  chan struct{} // closed when the rest is set
	place place
	err   error
}

// lineUp draws a ticket for the turn's line. It goes on when ctx ends: otherwise nobody
// would know whether there is a row to be removed.
func (c *Client) lineUp(ctx context.Context, ln *line) (place, error) {
	q := &c.waiting
	q.mu.Lock()
	call := ln.join
	if call == nil {
		call = &joinCall{done: make(chan struct{})}
		ln.join = call
		c.background(statementBound, func(bound context.Context) { c.runJoin(bound, ln, call) })
	}
	q.mu.Unlock()
	select {
	case <-call.done:
		return call.place, call.err
	case <-ctx.Done():
		return place{}, ctx.Err()
	case <-c.closing:
		return place{}, ErrClosed
	}
}

func (c *Client) runJoin(ctx context.Context, ln *line, call *joinCall) {
	c.keeper.begin()
	var p place
	err := c.askTwice(ctx, statement{c.sql.join, []any{ln.name, c.channel, ticketTTL.Microseconds()}, func(r pgx.Rows) error {
		var left int64
		err := r.Scan(&p.ticket, &p.ahead, &p.free, &left)
		p.remaining = time.Duration(left) * time.Microsecond
		return err
	}})
	call.place, call.err = p, explain(c.cfg.schema, fmt.Sprintf("wait for %q", ln.name), err)

	q := &c.waiting
	q.mu.Lock()
	ln.join = nil
	if err == nil {
		ln.ticket, ln.row = p.ticket, p.ticket
	}
	unneeded := q.vacate(ln) // if all have left meanwhile
	q.mu.Unlock()
	close(call.done)
	c.returnTicket(ln.name, unneeded)
}

// returnTicket takes a ticket out of the queue, in the background. Whoever is next is woken
// if the lock is free: the notification may have come to us. The caller is counted in.
func (c *Client) returnTicket(name string, ticket int64) {
	if ticket == 0 {
		return
	}
	select {
	case <-c.closing: // Close removes all
		return
	default:
	}
	c.background(statementBound, func(ctx context.Context) {
		if err := c.passOn(ctx, name, ticket); err != nil {
			c.cfg.logger.Warn("pglock: could not leave the queue; the ticket expires by itself", "name", name, "error", err)
		}
	})
}

// passOn removes the ticket, if there is one, and wakes the next in the queue if the lock is free.
func (c *Client) passOn(ctx context.Context, name string, ticket int64) error {
	return c.askTwice(ctx, statement{sql: c.sql.leave, args: []any{name, c.channel, ticket}})
}
