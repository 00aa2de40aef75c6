package waitlist

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
)

// refresher maintains the client's rows in the queue on the server. It refreshes the tickets in use
// and looks at their locks in one statement, and deletes rows only after they have been idle for
// timing.IdleRowTTL, so that a client that waits for the same name again and again reuses its row and
// changes no index. Tickets for several names or permits are refreshed in each round, because
// timing.KeepTicket is short.
type refresher struct {
	list    *Queues
	once    sync.Once
	started atomic.Bool
	wake    chan struct{} // buffer of one: there is a row, or a ticket that is due before all others
	quit    chan struct{}
	running sync.WaitGroup
}

func (r *refresher) init(l *Queues) {
	r.list, r.wake, r.quit = l, make(chan struct{}, 1), make(chan struct{})
}

// start starts the refresher, unless it runs, before a row is made. It is called inside a counted call.
func (r *refresher) start() {
	r.once.Do(func() {
		r.started.Store(true)
		r.running.Go(r.run)
	})
}

func (r *refresher) signal() {
	select {
	case r.wake <- struct{}{}:
	default: // a signal is pending
	}
}

// stop ends the refresher and deletes the client's rows. It is called once.
func (r *refresher) stop(ctx context.Context) {
	close(r.quit)
	r.running.Wait()
	if r.started.Load() {
		ctx, cancel := context.WithTimeout(ctx, timing.StatementBound)
		defer cancel()
		_ = r.list.cfg.Store.QuitQueue(ctx, r.list.cfg.Client)
	}
}

func (r *refresher) run() {
	for {
		select { // if both are ready, a needless round is harmless
		case <-r.wake:
		case <-r.quit:
			return
		}
		for rows := true; rows; {
			select { // if several are ready, another round is harmless, because stop waits for it
			case <-time.After(min(timing.SweepEvery-rand.N(timing.SweepEvery/5), r.list.nextLook())):
				rows = r.round()
			case <-r.wake:
			case <-r.quit:
				return
			}
		}
	}
}

// round handles all queues once, and reports whether there are any left.
func (r *refresher) round() bool {
	cfg := &r.list.cfg
	ctx, cancel := context.WithTimeout(cfg.Life, timing.StatementBound)
	defer cancel()
	inUse, idle := r.list.collectRows(time.Now())
	if r.list.needsListener() {
		r.list.listener.start()
	}
	var err error
	if len(idle) > 0 {
		err = cfg.Store.DeleteRows(ctx, idle)
	}
	if len(inUse) > 0 && err == nil {
		err = r.refresh(ctx, inUse)
	}
	if err != nil {
		cfg.Logger.Warn("pglock: could not refresh the tickets of waiters, trying again", "error", cfg.Store.Explain("refresh tickets", err))
	}
	return r.list.hasQueues()
}

// refresh extends the tickets, and tells their queues what it has seen.
func (r *refresher) refresh(ctx context.Context, inUse []leasetable.Ticket) error {
	seen, err := r.list.cfg.Store.RefreshTickets(ctx, inUse, r.list.listener.stays())
	if err != nil {
		r.list.wakeOverflow(inUse)
	}
	for i, p := range seen {
		r.list.looked(inUse[i], p)
	}
	return err
}
