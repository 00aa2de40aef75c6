package main

import (
	"context"
	"time"
)

// killHolder kills a holder between its read and its write.
func killHolder(ctx context.Context, p *performance) error {
	e, err := p.holdSomebody(ctx, beforeWrite)
	if err != nil {
		return err
	}
	victim := e.from
	p.story.say(plain, victim.name, "has token %d, has read %d, is about to write %d", e.Token, e.Balance, e.Balance+1)
	hit := time.Now()
	if err := victim.kill(); err != nil {
		return err
	}
	_, err = p.crew.await(ctx, "the killed worker's end", func(e event) bool { return e.Kind == exited })
	if err != nil {
		return err
	}
	p.story.say(bad, victim.name, "KILLED (kill -KILL %d)", victim.pid())
	return p.succeed(ctx, e.Token, hit, "kill")
}

// holdSomebody has the next holder stay at that place of a deposit, and returns
// its report from there.
func (p *performance) holdSomebody(ctx context.Context, where place) (event, error) {
	next, err := p.crew.await(ctx, "a grant", func(e event) bool { return e.Kind == granted })
	if err != nil {
		return event{}, err
	}
	if err := next.from.tell(order{Do: hold, Where: where}); err != nil {
		return event{}, err
	}
	return p.crew.await(ctx, "a holder to come "+string(where), func(e event) bool { return e.Kind == holding })
}
