package waitlist

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

// Row is the client's row of lock_waiters for a local queue, as far as the client knows it.
type Row struct {
	state  rowState
	ticket int64 // its number; leasetable.AnyTicket if it is unknown
}

type rowState int

const (
	rowNone     rowState = iota
	rowUnknown           // there may be one, because the answer to a Join was lost
	rowStale             // its ticket was used up, skipped or lost, and the next Join replaces it
	rowOverflow          // an entry of the overflow list, which a look may replace by a ticket
	rowQueued            // a valid ticket
)

// at returns the row at the position that the server has reported.
func (r Row) at(p leasetable.Position) Row {
	switch p.State {
	case leasetable.Queued:
		return Row{rowQueued, p.Ticket}
	case leasetable.InOverflow:
		return Row{rowOverflow, p.Ticket}
	case leasetable.Lost:
	}
	return Row{rowStale, r.ticket}
}

// Exists reports whether there may be a row, valid or not, because others waited lately.
func (r Row) Exists() bool { return r.state != rowNone }

// InOverflow reports whether the row is in the overflow list, and so has no ticket.
func (r Row) InOverflow() bool { return r.state == rowOverflow }

// Joined reports whether the row has a valid ticket, or is in the overflow list.
func (r Row) Joined() bool { return r.state == rowOverflow || r.state == rowQueued }

// Ticket returns the valid ticket, or leasetable.NoTicket.
func (r Row) Ticket() int64 {
	if r.state == rowQueued {
		return r.ticket
	}
	return leasetable.NoTicket
}

// ticket returns, under mu, the row in the terms of package leasetable.
func (q *queue) ticket() leasetable.Ticket {
	t := leasetable.Ticket{Client: q.client, Names: q.names, Number: q.row.ticket, State: leasetable.Queued, Heavy: q.heavy()}
	if q.row.InOverflow() {
		t.State = leasetable.InOverflow
	}
	return t
}

// joinOp is one run of the statement that draws a ticket, which its entries share.
type joinOp struct {
	done     chan struct{}       // closed by runJoin, which owns position and err until then
	position leasetable.Position // immutable after that
	err      error               // immutable after that
	removals int                 // guarded by the Queues' mu: last entries that left while it ran
}

// DrawTicket draws a ticket for the entry's queue, or adds that to the overflow list. The statement
// continues when ctx ends, because its effect must be known before the row can be deleted. The
// caller is inside a counted call.
func (e *Entry) DrawTicket(ctx context.Context) (leasetable.Position, error) {
	l, q := e.list, e.queue
	l.AwaitRemoval(ctx, q.key) // it may delete any ticket of this client
	if ctx.Err() != nil {
		return leasetable.Position{}, ctx.Err()
	}
	l.mu.Lock()
	op, r := q.join, e.request // others see the caller that draws the ticket
	begins := op == nil
	if begins {
		op = &joinOp{done: make(chan struct{})}
		q.join = op
	}
	l.mu.Unlock()
	if begins {
		l.cfg.Background(timing.StatementBound, func(bound context.Context) { l.runJoin(bound, q, op, r, e.began) })
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

	unneeded := l.endJoin(q, p, err)
	close(op.done)
	l.deleteTicket(unneeded, q.keys, op.removals)
}

// endJoin records the ticket that was drawn for q, or the failure. If all entries have left
// meanwhile, it returns the ticket to delete.
func (l *Queues) endJoin(q *queue, p leasetable.Position, err error) (unneeded *leasetable.Ticket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q.join = nil
	now := time.Now()
	switch {
	case err == nil:
		q.row, q.failingSince, q.heldUntil = q.row.at(p), time.Time{}, now.Add(p.Remaining)
		q.looks.drawn(q.row, p.Ahead, now)
	case link.MaybeApplied(err): // it may have replaced the known row
		q.row = Row{rowUnknown, leasetable.AnyTicket}
	}
	if l.looksAt.IsZero() || q.next(now, l.looksAt).Before(l.looksAt) {
		offer(l.refresher.wake, struct{}{})
	}
	return l.dropIfEmpty(q)
}

// dropIfEmpty ends a queue without entries, under mu, and returns its ticket to delete, or nil.
func (l *Queues) dropIfEmpty(q *queue) (unneeded *leasetable.Ticket) {
	if q.entries.Len() > 0 || q.join != nil {
		return nil
	}
	q.emptySince = time.Now()
	if q.row.state == rowStale { // the queue is idle
		return nil
	}
	l.drop(q)
	if !q.row.Exists() {
		return nil
	}
	t := q.ticket()
	if q.row.InOverflow() { // a look in progress may replace the entry by a ticket
		t.Number = leasetable.AnyTicket
	}
	q.row = Row{}
	return &t
}

// removals counts the deletions in progress of tickets for a name or a key.
type removals struct {
	pending int           // guarded by the Queues' mu
	sending chan struct{} // holds one while a statement deletes tickets
	done    chan struct{} // closed when all have ended
}

// beginRemovals records, under mu, that a ticket is being deleted, and endRemovals must follow. It
// returns a channel that is closed when no ticket for the first key is being deleted any more.
func (l *Queues) beginRemovals(keys []string) (done <-chan struct{}) {
	for _, key := range keys {
		r := l.removals[key]
		if r == nil {
			r = &removals{sending: make(chan struct{}, 1), done: make(chan struct{})}
			l.removals[key] = r
		}
		r.pending++
	}
	return l.removals[keys[0]].done
}

func (l *Queues) endRemovals(keys []string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range keys {
		r := l.removals[key]
		if r.pending -= n; r.pending == 0 {
			delete(l.removals, key)
			close(r.done)
		}
	}
}

// AwaitRemoval waits until the tickets of earlier waiters of this process are deleted, or ctx is
// done, because they would keep the next caller of this process from a free lock.
func (l *Queues) AwaitRemoval(ctx context.Context, name string) {
	l.mu.Lock()
	r := l.removals[name]
	l.mu.Unlock()
	if r != nil {
		select { // if both are ready, either is right, because the caller checks ctx itself
		case <-r.done:
		case <-ctx.Done():
		}
	}
}

// deleteTicket deletes a ticket, unless it is nil, in the background, and then ends as many
// removals for the keys. With a ticket there is at least one. If a lock is free, its next waiter is
// woken, because the notification may have arrived at this client. Deletions for one name are sent
// one after the other, because the last release often notifies a client that has just left, whose
// second deletion would use another connection. The caller is inside a counted call.
func (l *Queues) deleteTicket(t *leasetable.Ticket, keys []string, removals int) {
	select {
	case <-l.cfg.Closing: // Stop deletes all
		t = nil
	default:
	}
	if t == nil {
		if removals > 0 {
			l.endRemovals(keys, removals)
		}
		return
	}
	l.mu.Lock()
	sending := l.removals[keys[0]].sending
	l.mu.Unlock()
	l.cfg.Background(timing.TicketTTL, func(ctx context.Context) { // by then it has expired
		defer l.endRemovals(keys, removals)
		select { // if both are ready, either is right: the statement fails at once, or is sent
		case sending <- struct{}{}:
			defer func() { <-sending }()
		case <-ctx.Done():
		}
		err := l.cfg.Retry(ctx, l.cfg.Closing, func(ctx context.Context) error {
			return l.cfg.Store.LeaveQueue(ctx, *t)
		})
		if err != nil {
			l.cfg.Logger.Warn("pglock: could not leave the queue; the ticket expires by itself", "name", strings.Join(t.Names, ", "), "error", l.cfg.Store.Explain("leave the queue", err))
		}
	})
}
