package leasetable

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// freeing is one release on its way. The client is counted in until it is done.
type freeing struct {
	lease *Lease
	call  *releaseCall // nil if nobody waits for it

	// uncertain: an earlier attempt may have been applied, so that finding the lock
	// free is no loss.
	uncertain bool

	to       *turn // that gets the lock instead, or nil
	handed   bool  // it has got it
	notified bool  // somebody who waits for it was
}

// done tells those who wait, and counts the freeing out. The first in line here asks at
// once, unless the notification will come to it, or goes to those before it.
func (f *freeing) done(err error) {
	c, l := f.lease.client, f.lease
	if f.call != nil {
		f.call.err = err
		c.forget(l)
		close(f.call.done)
	}
	if toldElsewhere := f.notified && c.ears.listening(); !f.handed && !toldElsewhere {
		c.waiting.nudge(l.fence.Name)
	}
	c.leave()
}

// sendFrees frees all in one statement. What needs more than that goes on by itself.
func (c *Client) sendFrees(batch []*freeing, forced bool) {
	ctx, cancel := context.WithTimeout(c.life, statementBound/2)
	defer cancel()
	if len(batch) == 1 && !forced {
		batch[0].send(ctx)
		return
	}
	batch = slices.DeleteFunc(batch, func(f *freeing) bool {
		if f.to == nil {
			return false
		}
		go f.insist() // the others don't wait for its commit
		return true
	})
	if len(batch) == 0 {
		return
	}
	slices.SortFunc(batch, func(a, b *freeing) int { return strings.Compare(a.lease.fence.Name, b.lease.fence.Name) })
	names, tokens := make([]string, len(batch)), make([]int64, len(batch))
	for i, f := range batch {
		names[i], tokens[i] = f.lease.fence.Name, int64(f.lease.fence.Token)
	}
	freed := make(map[fencing.Fence]bool, len(batch)) // whether somebody was notified
	_, err := c.conns.sendOwn(ctx, statement{c.sql.releaseAll, []any{names, tokens}, func(r pgx.Rows) error {
		var notified bool
		fence := fencing.Fence{Schema: c.cfg.schema}
		err := r.Scan(&fence.Name, &fence.Token, &notified)
		freed[fence] = notified
		return err
	}})
	c.warnOfBatch(err, "releases")
	for _, f := range batch {
		f.uncertain = f.uncertain || applied(err)
		if notified, ok := freed[f.lease.fence]; err == nil && ok {
			f.notified = notified
			f.done(nil)
		} else {
			go f.insist() // which finds out why not
		}
	}
}

// send frees one, or hands it over. What needs more than a statement goes on by itself.
func (f *freeing) send(ctx context.Context) {
	if f.to != nil && f.lease.client.sendHandoff(ctx, f) {
		f.done(nil)
		return
	}
	if released, err := f.freeAlone(ctx); err == nil {
		f.done(f.settle(released))
		return
	}
	go f.insist()
}

// freeAlone sends the statement once.
func (f *freeing) freeAlone(ctx context.Context) (released bool, err error) {
	c, fence := f.lease.client, f.lease.fence
	_, err = c.conns.sendOwn(ctx, statement{
		sql:  c.sql.release,
		args: []any{fence.Name, int64(fence.Token)},
		row:  func(r pgx.Rows) error { released = true; return r.Scan(&f.notified) },
	})
	f.uncertain = f.uncertain || applied(err)
	return released, err
}

// insist hands the lock over if it is meant to be, otherwise it repeats the statement
// until there is an answer.
func (f *freeing) insist() {
	c := f.lease.client
	ctx, cancel := context.WithTimeout(c.life, statementBound)
	defer cancel()
	if f.to != nil && c.sendHandoff(ctx, f) {
		f.done(nil)
		return
	}
	var released bool
	err := c.retry(ctx, func(ctx context.Context) (err error) {
		released, err = f.freeAlone(ctx)
		return err
	})
	if err == nil {
		err = f.settle(released)
	}
	f.done(explain(c.cfg.schema, fmt.Sprintf("release %q", f.lease.fence.Name), err))
}

// settle says whether a release that changed nothing tells of a loss.
func (f *freeing) settle(released bool) error {
	l := f.lease
	// The holder had stopped while it could trust the lease: that it has expired, and
	// perhaps passed on, on the way here is no loss.
	if released || f.uncertain || !time.Now().Before(l.Deadline()) {
		return nil
	}
	return &LostError{Name: l.fence.Name, Token: l.fence.Token, Reason: "the server had ended it, or granted the lock to another holder"}
}
