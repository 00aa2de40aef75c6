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
// in one statement, and deletes rows only after they have been idle for timing.IdleRowTTL, so that
// a client that waits for the same name again and again reuses its row and changes no index.
// Tickets for several names or permits are refreshed in each round, because timing.KeepTicket is
// short.
type refresher struct {
	list    *Queues
	once    sync.Once
	started atomic.Bool
	wake    chan struct{} // buffer of one: there is a row
	quit    chan struct{}
	running sync.WaitGroup
}

func (r *refresher) init(l *Queues) {
	r.list, r.wake, r.quit = l, make(chan struct{}, 1), make(chan struct{})
}

// start starts the refresher and the listener, unless they run, before a row is made. It is called
// inside a counted call.
func (r *refresher) start() {
	r.once.Do(func() {
		r.started.Store(true)
		r.running.Go(r.run)
	})
	r.list.listener.start()
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
	refreshed := time.Now()
	for {
		select { // if both are ready, a needless round is harmless
		case <-r.wake:
		case <-r.quit:
			return
		}
		for rows := true; rows; {
			select { // if both are ready, another round is harmless, because stop waits for it
			case <-time.After(timing.SweepEvery - rand.N(timing.SweepEvery/5)):
			case <-r.quit:
				return
			}
			due := time.Since(refreshed) > timing.RefreshEvery
			if due {
				refreshed = time.Now()
			}
			rows = r.round(due)
		}
	}
}

// round handles all queues once, and reports whether there are any left.
func (r *refresher) round(refresh bool) bool {
	cfg := &r.list.cfg
	ctx, cancel := context.WithTimeout(cfg.Life, timing.StatementBound)
	defer cancel()
	inUse, idle := r.list.collectRows(refresh)
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

// refresh extends the tickets. If a ticket has disappeared, because the server crashed or this
// process paused for too long, its waiters draw a new one.
func (r *refresher) refresh(ctx context.Context, inUse []leasetable.Ticket) error {
	lost, err := r.list.cfg.Store.RefreshTickets(ctx, inUse)
	for _, t := range lost {
		r.list.ticketLost(t)
	}
	return err
}
