package main

import (
	"context"
	"time"
)

// What the others must have done while a holder was paused.
const (
	meanwhileGrants   = 2
	meanwhileDeposits = 2 * depositsPerLease
)

// lateWrite is what a holder tried after it was woken.
type lateWrite struct {
	holder   string
	token    int64
	where    place
	passed   bool
	refusals []refusal // why not
}

// pauseBeforeWrite pauses a holder after it has looked at its lease and before it
// writes, and wakes it when others have written.
func pauseBeforeWrite(ctx context.Context, p *performance) error {
	return p.pauseHolder(ctx, beforeWrite, "has token %d, has read %d, has checked its lease, is about to write %d")
}

// pauseInTransaction does the same to one whose guard, if there is one, has passed.
func pauseInTransaction(ctx context.Context, p *performance) error {
	return p.pauseHolder(ctx, inTransaction, "has token %d, has read %d, is in the transaction that is to write %d")
}

func (p *performance) pauseHolder(ctx context.Context, where place, doing string) error {
	e, err := p.holdSomebody(ctx, where)
	if err != nil {
		return err
	}
	sleeper := e.from
	p.story.say(plain, sleeper.name, doing, e.Token, e.Balance, e.Balance+1)
	hit := time.Now()
	if err := p.halt(ctx, sleeper); err != nil {
		return err
	}
	p.story.say(bad, sleeper.name, "PAUSED (kill -STOP %d), as by its garbage collector or hypervisor", sleeper.pid())
	// It finds this when it is woken, so that nothing is between waking and writing.
	if err := sleeper.tell(order{Do: resume}); err != nil {
		return err
	}
	if err := p.succeed(ctx, e.Token, hit, "pause"); err != nil {
		return err
	}
	err = p.crew.until(ctx, "others to go on during the pause", func() bool {
		return p.crew.countAbove(granted, e.Token) >= meanwhileGrants && p.crew.countAbove(wrote, e.Token) >= meanwhileDeposits
	})
	if err != nil {
		return err
	}
	p.story.say(plain, all, "go on: %d deposits with newer tokens since the pause; the balance is %d",
		p.crew.countAbove(wrote, e.Token), p.crew.last(wrote).Balance)
	return p.wake(ctx, e, where)
}

// halt stops a process and waits until it stands still.
func (p *performance) halt(ctx context.Context, m *member) error {
	if err := m.signal(sigStop); err != nil {
		return err
	}
	var stopped bool
	return p.crew.untilLooking(ctx, "the paused worker to stand still",
		func() bool { return stopped },
		func(context.Context) (err error) { stopped, err = m.stopped(); return err })
}

// wake lets the process go on, and waits for what comes of its write.
func (p *performance) wake(ctx context.Context, held event, where place) error {
	sleeper := held.from
	p.story.say(plain, sleeper.name, "WOKEN (kill -CONT %d) after %s: goes on where it was, and writes",
		sleeper.pid(), seconds(time.Since(held.arrived)))
	if err := sleeper.signal(sigContinue); err != nil {
		return err
	}
	e, err := p.crew.await(ctx, "the woken worker's write", func(e event) bool {
		return e.from == sleeper && e.Token == held.Token && (e.Kind == wrote || e.Kind == refused)
	})
	if err != nil {
		return err
	}
	p.result.late = append(p.result.late, lateWrite{
		holder: sleeper.name, token: held.Token, where: where, passed: e.Kind == wrote, refusals: e.Refusals,
	})
	p.story.lateWrite(e)
	return nil
}
