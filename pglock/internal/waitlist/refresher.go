package waitlist

import (
	"context"
	"sync"
	"time"

	"github.com/pglock/pglock-go/internal/random"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
)

// refresher maintains the client's rows in the queue on the server. It looks at the locks of all
// tickets that are due with one statement, and deletes rows only after they have been idle for
// timing.IdleRowTTL, so that a client that waits for the same name again and again reuses its row
// and changes no index. Its fields are immutable after New.
type refresher struct {
	list    *Queues
	wake    chan struct{} // buffer of one: there is a row, or a ticket that is due before all others
	quit    chan struct{} // closed by stop
	once    sync.Once     // for run
	running sync.WaitGroup
}

// start starts the refresher, unless it runs, before a row is made and inside a counted call.
func (r *refresher) start() { r.once.Do(func() { r.running.Go(r.run) }) }

// stop ends the refresher and deletes the client's rows, and is called once.
func (r *refresher) stop(ctx context.Context) {
	close(r.quit)
	r.running.Wait()
	rows := true
	if r.once.Do(func() { rows = false }); rows { // it was started before
		ctx, cancel := context.WithTimeout(ctx, timing.StatementBound)
		defer cancel()
		_ = r.list.cfg.Store.QuitQueue(ctx, r.list.cfg.Client)
	}
}

func (r *refresher) run() {
	for rows := false; ; {
		var next <-chan time.Time
		if rows {
			next = time.After(min(timing.SweepEvery-random.N(timing.SweepEvery/5), r.list.untilNext()))
		}
		select { // if several are ready, another round is harmless, because stop waits for it
		case <-next:
			rows = r.round()
		case <-r.wake:
			rows = true
		case <-r.quit:
			return
		}
	}
}

// round handles all queues once, and reports whether there are any left, and so perhaps rows.
func (r *refresher) round() bool {
	cfg := &r.list.cfg
	ctx, cancel := context.WithTimeout(cfg.Life, timing.StatementBound)
	defer cancel()
	due, idle, rows := r.list.collect(time.Now())
	if r.list.needsListener() {
		r.list.listener.start()
	}
	var err error
	if len(idle) > 0 {
		err = cfg.Store.DeleteRows(ctx, idle)
	}
	if len(due) > 0 && err == nil {
		err = r.look(ctx, due)
	}
	if err != nil {
		cfg.Logger.Warn("pglock: could not refresh the tickets of waiters, trying again", "error", cfg.Store.Explain("refresh tickets", err))
	}
	return rows
}

// look extends the tickets, and records what it finds.
func (r *refresher) look(ctx context.Context, due []leasetable.Ticket) error {
	seen, err := r.list.cfg.Store.RefreshTickets(ctx, due, r.list.listener.stays())
	for i, t := range due {
		p := leasetable.Position{}
		if err == nil {
			p = seen[i]
		}
		if lost := r.list.looked(t, p, err); lost && !r.list.listener.doubted.Swap(true) {
			// Perhaps the server refuses the notifications of the client that released the lock. So
			// all waiters of this client poll until a notification arrives.
			r.list.wakeAll()
		}
	}
	return err
}
