package waitlist

import (
	"context"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/leasetable/internal/store"
	"github.com/pglock/pglock-go/leasetable/internal/timing"
)

// joinOp is one run of the statement that draws a ticket. Its entries share it.
type joinOp struct {
	done     chan struct{} // closed when position and err are set
	position store.Position
	err      error

	removals int // guarded by the List's mu: the last entries that left while it ran
}

// DrawTicket draws a ticket for the entry's queue. The statement continues when ctx ends: its
// effect must be known, so that the row can be deleted. The caller is inside a counted call.
func (e *Entry) DrawTicket(ctx context.Context) (store.Position, error) {
	l, q := e.list, e.queue
	l.AwaitRemoval(ctx, q.name) // it may delete any ticket of this client
	if ctx.Err() != nil {
		return store.Position{}, ctx.Err()
	}
	op, begun := l.beginJoin(q)
	if begun {
		holder, weight, began := e.Request.Holder, e.Request.Permits.Weight, e.began // others see the caller that draws the ticket
		l.cfg.Host.Background(timing.StatementBound, func(bound context.Context) { l.runJoin(bound, q, op, holder, weight, began) })
	}
	// Several may be ready. The ticket is the queue's, not the caller's: it is not lost with a
	// caller that leaves.
	select {
	case <-op.done:
		return op.position, op.err
	case <-ctx.Done():
		return store.Position{}, ctx.Err()
	case <-l.cfg.Closing:
		return store.Position{}, errs.ErrClosed
	}
}

// runJoin draws a ticket for q. If all entries have left meanwhile, it deletes the ticket.
func (l *List) runJoin(ctx context.Context, q *queue, op *joinOp, holder string, weight int, began time.Time) {
	l.refresher.start()
	p, err := l.cfg.Store.JoinQueue(ctx, q.name, l.cfg.Client, holder, weight, time.Since(began))
	op.position, op.err = p, l.cfg.Store.Explain(fmt.Sprintf("wait for %q", q.name), err)

	unneeded, removals := l.endJoin(q, p.Ticket, err)
	close(op.done)
	l.deleteTicket(q.name, unneeded, removals)
}

// deleteTicket deletes a ticket in the background, and then ends as many removals of the name. If
// the lock is free, the next waiter is woken: the notification may have come to this client. The
// caller is inside a counted call.
func (l *List) deleteTicket(name string, ticket int64, removals int) {
	select {
	case <-l.cfg.Closing: // Stop deletes all
		ticket = 0
	default:
	}
	if ticket == 0 {
		l.endRemovals(name, removals)
		return
	}
	l.cfg.Host.Background(timing.TicketTTL, func(ctx context.Context) { // by then it has expired
		defer l.endRemovals(name, removals)
		err := l.cfg.Host.Retry(ctx, l.cfg.Closing, func(ctx context.Context) error {
			return l.cfg.Store.LeaveQueue(ctx, name, l.cfg.Client, ticket)
		})
		if err != nil {
			l.cfg.Logger.Warn("pglock: could not leave the queue; the ticket expires by itself", "name", name, "error", err)
		}
	})
}
