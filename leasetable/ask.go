package leasetable

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

const (
	newcomer = math.MaxInt64 // the ticket of who has none
	bargeIn  = 0             // and of who overtakes everybody
)

// What is answered; see sql/acquire.sql.
const (
	granted = "granted"
	busy    = "busy"
	raced   = "raced"
	spent   = "spent"
)

// grant is the acquire statement's answer.
type grant struct {
	outcome   string
	token     fencing.Token
	ahead     int  // others that wait before us
	void      bool // our ticket: we were passed over
	holder    string
	remaining time.Duration
	sent      time.Time // before the statement was
}

// ask is one question for a name, on its way to the server and back.
type ask struct {
	*acquisition        // whose request may be another one later
	request      string // of this question
	ticket       int64
	doubtful     bool // it is likely held: the short statement would be in vain

	// The answer is put into answers before state says so, so that whoever finds
	// that state finds the answer.
	answers chan answer // holds one
	state   atomic.Int32
}

type answer struct {
	grant grant
	err   error
}

// The states of an ask: only askWaiting changes, once.
const (
	askWaiting int32 = iota
	askAnswered
	askLeft
)

// deliver hands the answer over, or gives back what the caller, who has left, was granted.
// It is called once for each ask.
func (q *ask) deliver(g grant, err error) {
	q.answers <- answer{g, err}
	if !q.state.CompareAndSwap(askWaiting, askAnswered) && (err == nil && g.outcome == granted || applied(err)) {
		q.withdraw(q.request)
	}
	q.client.leave()
}

// here asks on the caller's own goroutine.
func (q *ask) here() answer {
	ctx, cancel := context.WithTimeout(q.client.life, statementBound)
	defer cancel()
	g, err := q.client.askAlone(ctx, q)
	return answer{g, err}
}

// leave gives the ask up. It returns an answer that came before.
func (q *ask) leave() (answer, bool) {
	if q.state.CompareAndSwap(askWaiting, askLeft) {
		return answer{}, false
	}
	return <-q.answers, true
}

// askAlone asks with the short statement, and if that grants nothing finds out why.
func (c *Client) askAlone(ctx context.Context, q *ask) (g grant, err error) {
	if q.doubtful {
		return c.askLong(ctx, q)
	}
	g.sent, err = c.conns.sendOwn(ctx, statement{
		sql:  c.sql.take,
		args: []any{q.name, q.cfg.holder, q.request, q.cfg.labels, q.cfg.ttl.Microseconds(), q.ticket},
		row: func(r pgx.Rows) error {
			var left int64
			err := r.Scan(&g.token, &left)
			g.outcome, g.remaining = granted, time.Duration(left)*time.Microsecond
			return err
		},
	})
	if err != nil || g.outcome == granted {
		return g, err
	}
	return c.askLong(ctx, q)
}

// askLong asks who holds it, and with the long statement if nobody does.
func (c *Client) askLong(ctx context.Context, q *ask) (g grant, err error) {
	g.outcome = raced
	err = c.askAllLong(ctx, []*ask{q}, func(_ string, answer grant) {
		if g.outcome != granted {
			g = answer
		}
	})
	if rowLocked(err) { // somebody's insert of the name goes on
		return grant{outcome: busy, sent: g.sent}, nil
	}
	return g, err
}

// askTogether asks for all: with the short statement those that will likely be granted, and
// then finds out about the rest. Their names are in order, each there once. There is a
// grant for each, also with an error.
func (c *Client) askTogether(ctx context.Context, batch []*ask) ([]grant, error) {
	grants := make([]grant, len(batch))
	index := make(map[string]int, len(batch))
	var likely, rest []*ask
	for i, q := range batch {
		grants[i].outcome = raced
		index[q.name] = i
		if !q.doubtful {
			likely = append(likely, q)
		}
	}
	if len(likely) > 0 {
		sent, err := c.conns.sendOwn(ctx, statement{c.sql.takeAll, arguments(likely), func(r pgx.Rows) error {
			var name string
			var token fencing.Token
			var left int64
			err := r.Scan(&name, &token, &left)
			if i, ok := index[name]; ok {
				grants[i] = grant{outcome: granted, token: token, remaining: time.Duration(left) * time.Microsecond}
			}
			return err
		}})
		for i := range grants {
			grants[i].sent = sent
		}
		if err != nil {
			return grants, err
		}
	}
	for i, q := range batch {
		if grants[i].outcome != granted {
			rest = append(rest, q)
		}
	}
	if len(rest) == 0 {
		return grants, nil
	}
	return grants, c.askAllLong(ctx, rest, func(name string, g grant) {
		if i, ok := index[name]; ok && grants[i].outcome != granted {
			grants[i] = g
		}
	})
}

// askAllLong asks for those that will likely not be granted: who holds them, and, where nobody does,
// with the long statement. It calls take for each answer, of which a name may have two.
func (c *Client) askAllLong(ctx context.Context, batch []*ask, take func(name string, g grant)) error {
	type named struct {
		name  string
		grant grant
	}
	var answers []named
	send := func(s statement) error {
		answers = make([]named, 0, len(batch))
		sent, err := c.conns.sendOwn(ctx, s)
		for _, a := range answers {
			a.grant.sent = sent
			take(a.name, a.grant)
		}
		return err
	}
	err := send(statement{c.sql.look, questions(batch), func(r pgx.Rows) error {
		a := named{grant: grant{outcome: busy}}
		err := a.grant.scan(r, &a.name)
		answers = append(answers, a)
		return err
	}})
	if err != nil || len(answers) == len(batch) {
		return err
	}
	held := make(map[string]bool, len(answers))
	for _, a := range answers {
		held[a.name] = true
	}
	batch = slices.DeleteFunc(slices.Clone(batch), func(q *ask) bool { return held[q.name] })
	return send(statement{c.sql.acquire, arguments(batch), func(r pgx.Rows) error {
		var a named
		err := a.grant.scan(r, &a.name, &a.grant.outcome)
		answers = append(answers, a)
		return err
	}})
}

// questions are the arguments of the statement that looks.
func questions(batch []*ask) []any {
	n := len(batch)
	names, requests, tickets := make([]string, n), make([]string, n), make([]int64, n)
	for i, q := range batch {
		names[i], requests[i], tickets[i] = q.name, q.request, q.ticket
	}
	return []any{names, requests, oneForAll(tickets)}
}

// arguments are those of the statements for many.
func arguments(batch []*ask) []any {
	n := len(batch)
	names, holders, requests, labels := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	us, tickets := make([]int64, n), make([]int64, n)
	for i, q := range batch {
		names[i], holders[i], requests[i], labels[i] = q.name, q.cfg.holder, q.request, q.cfg.labels
		us[i], tickets[i] = q.cfg.ttl.Microseconds(), q.ticket
	}
	return []any{names, oneForAll(holders), requests, oneForAll(labels), oneForAll(us), oneForAll(tickets)}
}

// oneForAll returns the first value if all are the same, as they mostly are.
func oneForAll[T comparable](values []T) []T {
	for _, v := range values {
		if v != values[0] {
			return values
		}
	}
	return values[:1]
}

// scan reads a row that begins with into.
func (g *grant) scan(r pgx.Rows, into ...any) error {
	var holder *string
	var left int64
	if err := r.Scan(append(into, &g.token, &holder, &left, &g.ahead, &g.void)...); err != nil {
		return err
	}
	if holder != nil {
		g.holder = *holder
	}
	g.remaining = time.Duration(left) * time.Microsecond
	return nil
}

// behind is the answer for somebody else in this process who asked for the name in the
// same statement: it is his who asked first, or nobody's.
func (g grant) behind(first *ask) grant {
	switch g.outcome {
	case granted:
		g.outcome, g.holder = busy, first.cfg.holder
	case spent:
		g.outcome = raced
	}
	return g
}
