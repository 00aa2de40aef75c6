package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// act is one of the three parts.
type act struct {
	number  int
	name    string // for the table of results
	about   string
	account string // of the ledger
	locked  bool   // workers hold the lock while they deposit
	guarded bool   // and guard each write with it
	scenes  []scene
}

// scene is something that happens to a holder while the others go on.
type scene func(ctx context.Context, p *performance) error

func (d demo) acts() []act {
	name, third := "lock and guard", "The lock and a guard. The same, but each write is in a transaction that begins with lease.Guard."
	if d.noGuard {
		name, third = "lock, no guard", "No guard, as was asked for. This is act 2 once more, so the demo must fail."
	}
	return []act{{
		number: 1, name: "no lock", account: "act 1",
		about: fmt.Sprintf("No lock. %d processes make %d deposits each: read the balance, think, write what was read plus one.",
			d.workers, d.rounds),
	}, {
		number: 2, name: "lock alone", account: "act 2", locked: true,
		about: fmt.Sprintf("The lock alone. A process acquires the lock, looks at its lease before each write, makes up to %d deposits, "+
			"and releases. TTL %v, renewed while the holder lives.", depositsPerLease, d.ttl),
		scenes: []scene{killHolder, pauseBeforeWrite},
	}, {
		number: 3, name: name, account: "act 3", locked: true, guarded: !d.noGuard,
		about:  third,
		scenes: []scene{killHolder, pauseBeforeWrite, pauseInTransaction},
	}}
}

// performance is an act while it is played.
type performance struct {
	act
	ttl    time.Duration
	crew   *crew
	book   *ledger
	story  *story
	result result
}

// playAct plays one act with processes of its own. When it returns they have ended.
func (d demo) playAct(ctx context.Context, a act, book *ledger, s *story) (result, error) {
	s.act(a)
	if err := book.open(ctx, a.account); err != nil {
		return result{}, err
	}
	c := newCrew(s)
	defer c.dismiss()
	p := &performance{act: a, ttl: d.ttl, crew: c, book: book, story: s, result: result{act: a}}
	if err := p.assemble(ctx, d); err != nil {
		return result{}, err
	}
	for _, play := range a.scenes {
		if err := p.warmUp(ctx); err != nil {
			return result{}, err
		}
		if err := play(ctx, p); err != nil {
			return result{}, err
		}
	}
	if err := p.finish(ctx, d.workers*d.rounds); err != nil {
		return result{}, err
	}
	if err := p.tally(ctx); err != nil {
		return result{}, err
	}
	s.summary(p.result)
	return p.result, nil
}

// assemble starts the processes and lets all of them begin at once.
func (p *performance) assemble(ctx context.Context, d demo) error {
	var names, pids []string
	for i := range d.workers {
		job := assignment{
			Name: string(rune('A' + i)), URL: p.book.url, Schema: p.book.schema, Account: p.account,
			Locked: p.locked, Guarded: p.guarded, TTL: d.ttl, Rounds: d.rounds,
		}
		m, err := p.crew.hire(job)
		if err != nil {
			return err
		}
		names, pids = append(names, m.name), append(pids, fmt.Sprint(m.pid()))
	}
	err := p.crew.until(ctx, "all workers to be ready", func() bool { return p.crew.count(ready) == d.workers })
	if err != nil {
		return err
	}
	p.story.say(plain, all, "%s begin, as processes %s", strings.Join(names, " "), strings.Join(pids, " "))
	return p.crew.tellAll(order{Do: begin})
}

// warmUp lets the lock change hands a few times.
func (p *performance) warmUp(ctx context.Context) error {
	target := p.crew.count(granted) + len(p.crew.members) + 1
	return p.crew.until(ctx, "the lock to change hands", func() bool { return p.crew.count(granted) >= target })
}

// finish ends the act when so many deposits were made.
func (p *performance) finish(ctx context.Context, deposits int) error {
	err := p.crew.until(ctx, "the deposits to be made", func() bool { return p.crew.count(wrote) >= deposits })
	if err != nil {
		return err
	}
	if p.locked { // the others end by themselves
		if err := p.crew.tellAll(order{Do: finish}); err != nil {
			return err
		}
	}
	return p.crew.until(ctx, "the workers to end", func() bool { return p.crew.count(exited) == len(p.crew.members) })
}

// tally completes the result with what the tables and the reports say.
func (p *performance) tally(ctx context.Context) (err error) {
	p.result.tally, err = p.book.tally(ctx, p.account)
	for _, e := range p.crew.seen {
		if e.Kind == granted {
			p.result.grants = append(p.result.grants, e.grant())
		}
	}
	return err
}
