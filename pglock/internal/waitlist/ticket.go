package waitlist

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
)

// row is the client's row of lock_waiters for a local queue, as far as the client knows it.
type row struct {
	state  rowState
	ticket int64 // as package leasetable numbers it
}

type rowState int

const (
	rowNone     rowState = iota
	rowUnknown           // there may be one, because the answer to a Join was lost
	rowStale             // its ticket was used up, skipped or lost, and the next Join replaces it
	rowOverflow          // an entry of the overflow list, which a look may replace by a ticket
	rowQueued            // a valid ticket
)

// rowOf returns the row that the server has reported. It is stale if its ticket is lost.
func rowOf(p leasetable.Position) row {
	switch {
	case p.Ticket > 0:
		return row{rowQueued, p.Ticket}
	case p.Ticket < 0:
		return row{rowOverflow, p.Ticket}
	}
	return row{state: rowStale}
}

// joined reports whether the row makes its client a waiter on the server.
func (r row) joined() bool { return r.state == rowOverflow || r.state == rowQueued }

// valid returns the row's ticket for an attempt.
func (r row) valid() int64 {
	if r.state == rowQueued {
		return r.ticket
	}
	return leasetable.NoTicket
}

// joinOp is one run of the statement that draws a ticket, which its entries share.
type joinOp struct {
	done     chan struct{} // closed when position and err are set
	position leasetable.Position
	err      error

	removals int // guarded by the Queues' mu: the number of last entries that left while it ran
}

// DrawTicket draws a ticket for the entry's queue. The statement continues when ctx ends, because
// its effect must be known before the row can be deleted. The caller is inside a counted call.
func (e *Entry) DrawTicket(ctx context.Context) (leasetable.Position, error) {
	l, q := e.list, e.queue
	l.AwaitRemoval(ctx, q.key) // it may delete any ticket of this client
	if ctx.Err() != nil {
		return leasetable.Position{}, ctx.Err()
	}
	op, begun := l.beginJoin(q)
	if begun {
		r, began := e.Request(), e.began // others see the caller that draws the ticket
		l.cfg.Tasks.Background(timing.StatementBound, func(bound context.Context) { l.runJoin(bound, q, op, r, began) })
	}
	// More than one case may be ready. Any order is safe, because the ticket belongs to the queue
	// and is not lost with a caller that leaves.
	select {
	case <-op.done:
		return op.position, op.err
	case <-ctx.Done():
		return leasetable.Position{}, ctx.Err()
	case <-l.cfg.Closing:
		return leasetable.Position{}, errs.ErrClosed
	}
}

// runJoin draws a ticket for q, and deletes it if all entries have left meanwhile.
func (l *Queues) runJoin(ctx context.Context, q *queue, op *joinOp, r *leasetable.Request, began time.Time) {
	l.refresher.start()
	p, err := l.cfg.Store.Join(ctx, q.client, r, time.Since(began), l.listener.stays())
	op.position, op.err = p, l.cfg.Store.Explain(fmt.Sprintf("wait for %q", strings.Join(q.names, ", ")), err)

	unneeded, removals := l.endJoin(q, p, err)
	close(op.done)
	l.deleteTicket(unneeded, q.removalKeys(), removals)
}

// deleteTicket deletes a ticket, unless it is nil, in the background, and then ends as many removals for the keys, of which there is
// one at least. If a lock is free, its next waiter is woken, because the notification may have arrived at this
// client. Two deletions for one name are not sent at once: the last release often notifies a client that has
// just left, and would use a connection of its own. The caller is inside a counted call.
func (l *Queues) deleteTicket(t *leasetable.Ticket, keys []string, removals int) {
	select {
	case <-l.cfg.Closing: // Stop deletes all
		t = nil
	default:
	}
	if t == nil {
		l.endRemovals(keys, removals)
		return
	}
	l.mu.Lock()
	turn := l.removals[keys[0]].turn
	l.mu.Unlock()
	l.cfg.Tasks.Background(timing.TicketTTL, func(ctx context.Context) { // by then it has expired
		defer l.endRemovals(keys, removals)
		select { // if both are ready, either is right: the statement fails at once, or is sent
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
		}
		err := l.cfg.Tasks.Retry(ctx, l.cfg.Closing, func(ctx context.Context) error {
			return l.cfg.Store.LeaveQueue(ctx, *t)
		})
		if err != nil {
			l.cfg.Logger.Warn("pglock: could not leave the queue; the ticket expires by itself", "name", strings.Join(t.Names, ", "), "error", l.cfg.Store.Explain("leave the queue", err))
		}
	})
}
