package leasetable

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	keepEvery    = time.Second
	refreshEvery = 4 * time.Second
	parkedFor    = time.Second // how long a row without a ticket that counts is kept for the next
)

// keeper keeps the client's rows in the queue on the server: it refreshes the tickets
// that count, in one statement, and removes the rows that are not needed any more. A client
// that waits for the same name over and over finds its row there, and changes no index.
type keeper struct {
	client  *Client
	once    sync.Once
	begun   atomic.Bool
	wake    chan struct{} // holds one: there is something to keep
	quit    chan struct{}
	running sync.WaitGroup
}

func newKeeper(c *Client) *keeper {
	return &keeper{client: c, wake: make(chan struct{}, 1), quit: make(chan struct{})}
}

// begin is called before the first row is made. The caller is counted in.
func (k *keeper) begin() {
	k.once.Do(func() {
		k.begun.Store(true)
		k.running.Go(k.run)
		k.client.ears.begin()
	})
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// stop ends the keeper and removes all that is left. No waiter is left then. It is
// called once. Rows that can't be removed within ctx expire.
func (k *keeper) stop(ctx context.Context) {
	close(k.quit)
	k.running.Wait()
	if k.begun.Load() {
		ctx, cancel := context.WithTimeout(ctx, statementBound)
		defer cancel()
		_, _ = k.client.conns.send(ctx, statement{sql: k.client.sql.quit, args: []any{k.client.channel}})
	}
}

func (k *keeper) run() {
	refreshed := time.Now()
	for {
		select {
		case <-k.wake:
		case <-k.quit:
			return
		}
		for rows := true; rows; {
			select {
			case <-time.After(keepEvery - rand.N(keepEvery/5)):
			case <-k.quit:
				return
			}
			due := time.Since(refreshed) > refreshEvery
			if due {
				refreshed = time.Now()
			}
			rows = k.round(due)
		}
	}
}

// round looks at all lines once, and reports whether there are any rows.
func (k *keeper) round(refresh bool) bool {
	ctx, cancel := context.WithTimeout(k.client.life, statementBound)
	defer cancel()
	counting, names, tickets := k.client.waiting.rows()
	var err error
	if len(names) > 0 {
		_, err = k.client.conns.send(ctx, statement{sql: k.client.sql.forget, args: []any{k.client.channel, names, tickets}})
	}
	if refresh && len(counting) > 0 && err == nil {
		err = k.refresh(ctx, counting)
	}
	if err != nil {
		k.client.cfg.logger.Warn("pglock: could not keep the tickets of those who wait, trying again", "error", err)
	}
	return k.client.waiting.hasLines()
}

// refresh makes tickets good for longer. Those that are gone, since the server crashed or
// this process was away for too long, are drawn anew by those who wait.
func (k *keeper) refresh(ctx context.Context, counting map[string]int64) error {
	names := make([]string, 0, len(counting))
	for name := range counting {
		names = append(names, name)
	}
	found := map[string]int64{}
	_, err := k.client.conns.send(ctx, statement{k.client.sql.refresh,
		[]any{k.client.channel, names, ticketTTL.Microseconds()},
		func(r pgx.Rows) error {
			var name string
			var ticket int64
			err := r.Scan(&name, &ticket)
			found[name] = ticket
			return err
		}})
	if err != nil {
		return err
	}
	for name, ticket := range counting {
		if found[name] != ticket {
			k.client.waiting.lostTicket(name, ticket)
		}
	}
	return nil
}

// rows returns the tickets that count, by name, and the rows that are not needed any more,
// which are forgotten here.
func (q *queue) rows() (counting map[string]int64, names []string, tickets []int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	counting = map[string]int64{}
	for name, ln := range q.lines {
		switch {
		case ln.ticket != 0:
			counting[name] = ln.ticket
		case len(ln.turns) == 0 && ln.join == nil && time.Since(ln.emptySince) > parkedFor:
			names, tickets = append(names, name), append(tickets, ln.row)
			delete(q.lines, name)
		}
	}
	return counting, names, tickets
}

func (q *queue) hasLines() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.lines) > 0
}

// lostTicket has the line for name take a new ticket, unless it has already.
func (q *queue) lostTicket(name string, ticket int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ln := q.lines[name]; ln != nil && ln.ticket == ticket {
		ln.ticket = 0
		q.nudgeLine(ln)
	}
}

// hasTicket reports whether the turn's line has a ticket that counts.
func (t *turn) hasTicket() bool {
	q := &t.client.waiting
	q.mu.Lock()
	defer q.mu.Unlock()
	return t.line.ticket != 0
}
