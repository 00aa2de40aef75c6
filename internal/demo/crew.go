package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// patience is how long anything but the server's start may take.
	patience = 30 * time.Second

	// lookInterval is how often until looks at what isn't reported.
	lookInterval = 10 * time.Millisecond
)

// crew is the workers of an act, and what they have reported. All but the channels
// belongs to the goroutine that plays.
type crew struct {
	story   *story
	members []*member
	events  chan event
	over    chan struct{} // closed when nobody reads events any more

	seen []event // all events so far, by arrival

	// onGrant is told of each grant before the story is, and returns true if it
	// has told it.
	onGrant func(event) bool
}

func newCrew(s *story) *crew {
	return &crew{story: s, events: make(chan event), over: make(chan struct{})}
}

// hire starts a worker.
func (c *crew) hire(job assignment) (*member, error) {
	m, err := startMember(job, func(e event) {
		select { // after the end of the play events are of no interest
		case c.events <- e:
		case <-c.over:
		}
	})
	if m != nil {
		c.members = append(c.members, m)
	}
	return m, err
}

// dismiss kills the workers that still run, and returns when all are gone.
func (c *crew) dismiss() {
	close(c.over)
	for _, m := range c.members {
		_ = m.kill() // a process of ours can always be killed
	}
	for _, m := range c.members {
		<-m.exited
	}
}

// tellAll gives an order to all workers that live.
func (c *crew) tellAll(o order) error {
	for _, m := range c.members {
		if m.killed {
			continue
		}
		if err := m.tell(o); err != nil {
			return err
		}
	}
	return nil
}

// until takes events until done returns true. It fails when a worker does, when
// ctx ends, or when it takes too long; what tells what was waited for.
func (c *crew) until(ctx context.Context, what string, done func() bool) error {
	return c.untilLooking(ctx, what, done, func(context.Context) error { return nil })
}

// untilLooking is until for what depends on something that isn't reported: look is
// called before anything else, and then again and again.
func (c *crew) untilLooking(ctx context.Context, what string, done func() bool, look func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited %v for %s", patience, what))
	defer cancel()
	again := time.NewTicker(lookInterval)
	defer again.Stop()
	if err := look(ctx); err != nil {
		return err
	}
	for !done() {
		var err error
		select { // whichever is ready: events are never dropped, and looks only repeat
		case e := <-c.events:
			err = c.take(e)
		case <-again.C:
			err = look(ctx)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// take records an event and tells what is of interest by itself.
func (c *crew) take(e event) error {
	c.seen = append(c.seen, e)
	switch e.Kind {
	case granted:
		if c.onGrant == nil || !c.onGrant(e) {
			c.story.grant(e.grant())
		}
	case lost:
		c.story.say(bad, e.from.name, "finds out only now: %s", e.Error)
	case failed:
		c.story.say(bad, e.from.name, "fails: %s", e.Error)
		return errors.New("worker " + e.from.name + ": " + e.Error)
	case exited:
		return e.from.unexpected()
	}
	return nil
}

// count returns how many events of that kind there were.
func (c *crew) count(k kind) int { return c.countAbove(k, -1) }

// countAbove returns how many there were with a token above that one.
func (c *crew) countAbove(k kind, token int64) int {
	n := 0
	for _, e := range c.seen {
		if e.Kind == k && e.Token > token {
			n++
		}
	}
	return n
}

// last returns the latest event of that kind.
func (c *crew) last(k kind) event {
	for _, e := range slices.Backward(c.seen) {
		if e.Kind == k {
			return e
		}
	}
	return event{}
}

// await returns the first event from now on for which wanted returns true.
func (c *crew) await(ctx context.Context, what string, wanted func(event) bool) (event, error) {
	next := len(c.seen)
	var found event
	err := c.until(ctx, what, func() bool {
		for ; next < len(c.seen); next++ {
			if wanted(c.seen[next]) {
				found = c.seen[next]
				return true
			}
		}
		return false
	})
	return found, err
}
