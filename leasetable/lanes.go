package leasetable

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

// batchSize is how many names one statement asks for or frees at most.
const batchSize = 128

// lanes send the client's acquires and releases. While all of them are under way,
// further calls gather, and share the next statement. There is no timer: a lone call
// finds a lane idle, waits for nobody, and takes the statement for a single row.
//
// A lane is a goroutine that lives as long as the client: one for each connection that
// is not kept for renewals, started when it is needed. As long as nothing is under way, who releases, or
// acquires and can't be cancelled, takes a lane's place and sends the statement himself: to wake a goroutine and be
// woken by it takes longer than all else that a client does.
type lanes struct {
	client  *Client
	limit   int // lanes
	batch   int // calls in a statement, at most
	forced  bool
	wake    chan struct{} // holds one for each lane that was idle and has been called
	quit    chan struct{}
	running sync.WaitGroup

	mu         sync.Mutex // guards what follows
	asks       []*ask     // oldest first
	frees      []*freeing // oldest first
	started    int
	idle       int  // of those started, not counting any that has been called
	callers    int  // in a lane's place
	freesFirst bool // next time, if both are there
}

func newLanes(c *Client) *lanes {
	limit := cap(c.conns.slots)
	return &lanes{
		client: c, limit: limit, batch: cmp.Or(c.cfg.batch, batchSize), forced: c.cfg.forceBatch,
		wake: make(chan struct{}, limit), quit: make(chan struct{}),
	}
}

// ask sends q when its turn comes. The answer is delivered on q.
func (n *lanes) ask(q *ask) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asks = append(n.asks, q)
	n.call()
}

// free sends f when its turn comes.
func (n *lanes) free(f *freeing) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frees = append(n.frees, f)
	n.call()
}

// enter reports whether the caller may take a lane's place. Then exit must follow.
func (n *lanes) enter() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.forced || len(n.asks)+len(n.frees) > 0 || n.busy() > 0 {
		return false
	}
	n.callers++
	return true
}

// exit gives the place back, to a lane if calls have gathered.
func (n *lanes) exit() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.callers--
	if len(n.asks)+len(n.frees) > 0 {
		n.call()
	}
}

// busy returns how many statements are under way. The caller holds mu.
func (n *lanes) busy() int { return n.started - n.idle + n.callers }

// call gets a lane to work, if there is room for one. Beyond a few that are busy
// another one is worth it only for many calls. The caller holds mu.
func (n *lanes) call() {
	const few = 4
	if n.busy() >= few && len(n.asks)+len(n.frees) < n.batch/2 {
		return
	}
	switch {
	case n.busy() == n.limit: // whoever is done next sees what has gathered
	case n.idle > 0:
		n.idle--
		n.wake <- struct{}{} // has room: no more are called than were idle
	case n.started < n.limit:
		n.started++
		n.running.Go(n.run)
	}
}

// stop ends the lanes. Nothing may be under way or come any more. It is called once.
func (n *lanes) stop() {
	close(n.quit)
	n.running.Wait()
}

// run is a lane.
func (n *lanes) run() {
	for {
		asks, frees := n.next()
		switch {
		case len(asks) > 0:
			n.client.sendAsks(asks, n.forced)
		case len(frees) > 0:
			n.client.sendFrees(frees, n.forced)
		default:
			select {
			case <-n.wake: // another lane may have taken the work meanwhile
			case <-n.quit:
				return
			}
		}
	}
}

// next takes what goes into one statement: asks or frees, in turn if there are both.
// If it returns neither, the lane is counted idle.
func (n *lanes) next() (asks []*ask, frees []*freeing) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case len(n.frees) > 0 && (n.freesFirst || len(n.asks) == 0):
		n.freesFirst = false
		frees, n.frees = cut(n.frees, n.batch)
	case len(n.asks) > 0:
		n.freesFirst = true
		asks, n.asks = cut(n.asks, n.batch)
	default:
		n.idle++
	}
	return asks, frees
}

// cut takes the first so many off the line.
func cut[T any](line []T, most int) (taken, rest []T) {
	if len(line) <= most {
		return line, nil
	}
	return line[:most:most], line[most:]
}

// sendAsks sends asks in one statement and delivers the answers.
func (c *Client) sendAsks(all []*ask, forced bool) {
	batch := all[:0]
	for _, q := range all {
		if q.state.Load() == askLeft {
			c.leave() // nothing was sent
			continue
		}
		batch = append(batch, q)
	}
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(c.life, statementBound)
	defer cancel()
	if len(batch) == 1 && !forced {
		batch[0].deliver(c.askAlone(ctx, batch[0]))
		return
	}
	leads, followers := byName(batch)
	grants, err := c.askTogether(ctx, leads)
	if err != nil && !connectionFailed(err) {
		// One of them is at fault, and must not fail the others. Nothing was done.
		c.warnOfBatch(err, "acquires")
		for _, q := range batch {
			c.calls.Go(func() {
				ctx, cancel := context.WithTimeout(c.life, statementBound)
				defer cancel()
				q.deliver(c.askAlone(ctx, q))
			})
		}
		return
	}
	for i, q := range leads {
		q.deliver(grants[i], err)
	}
	for _, q := range followers {
		i, _ := slices.BinarySearchFunc(leads, q.name, func(q *ask, name string) int { return cmp.Compare(q.name, name) })
		q.deliver(grants[i].behind(leads[i]), err)
	}
}

// warnOfBatch tells of a statement for many that the server refused. They are sent one by one then, which works,
// but is slow.
func (c *Client) warnOfBatch(err error, what string) {
	if err != nil && !transient(err) {
		c.cfg.logger.Warn("pglock: the server refused a statement for many; each is sent by itself", "what", what, "error", err)
	}
}

// byName returns one ask for each name, in the order of names, and the others. Of
// several for a name that with the smallest ticket goes, and of these the first.
func byName(batch []*ask) (leads, followers []*ask) {
	slices.SortStableFunc(batch, func(a, b *ask) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.ticket, b.ticket))
	})
	for i, q := range batch {
		if i > 0 && batch[i-1].name == q.name {
			leads[len(leads)-1].doubtful = true // wanted by many
			followers = append(followers, q)
		} else {
			leads = append(leads, q)
		}
	}
	return leads, followers
}
