package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/testserver"
)

// The work that the others must have done while a holder was paused.
const (
	meanwhileGrants   = 2
	meanwhileDeposits = 2 * depositsPerLease
)

// act is one of the three parts.
type act struct {
	number  int
	name    string // for the table of results
	about   string
	locked  bool    // workers hold the lock while they deposit
	guarded bool    // and guard each write with it
	pauses  []place // where holders are paused, after one was killed
}

func (a act) account() string { return fmt.Sprintf("act %d", a.number) }

func (d demo) acts() []act {
	acts := []act{{
		number: 1, name: "no lock",
		about: fmt.Sprintf("No lock. %d processes make %d deposits each: read the balance, think, write what was read plus one.",
			d.workers, d.rounds),
	}, {
		number: 2, name: "lock alone", locked: true, pauses: []place{beforeWrite},
		about: fmt.Sprintf("The lock alone. A process acquires the lock, checks its lease before each write, makes up to %d deposits, "+
			"and releases.\nTTL %v, renewed while the holder lives.", depositsPerLease, d.ttl),
	}, {
		number: 3, name: "lock and guard", locked: true, guarded: true, pauses: []place{beforeWrite, inTransaction},
		about: "The lock and a guard. The same, but each write is in a transaction that begins with lease.Guard.",
	}}
	if d.noGuard {
		acts[2].name, acts[2].guarded = "lock, no guard", false
		acts[2].about = "No guard, as the command line asks. This is act 2 once more, so the demo must fail."
	}
	return acts
}

// performance is an act while it is played.
type performance struct {
	act
	*ledger
	crew
	ttl      time.Duration
	story    *story
	result   result
	lastHeld int64 // token of the latest holder that was killed or paused
}

// playAct plays one act with processes of its own. They have ended when it returns.
func (d demo) playAct(ctx context.Context, a act, book *ledger, s *story) (result, error) {
	s.heading(fmt.Sprintf("Act %d  %s", a.number, a.about))
	p := &performance{act: a, ledger: book, ttl: d.ttl, story: s, result: result{act: a}}
	defer p.dismiss()
	err := p.assemble(ctx, d)
	if err == nil && a.locked {
		err = p.hit(ctx, beforeWrite, true)
	}
	for _, where := range a.pauses {
		if err == nil {
			err = p.hit(ctx, where, false)
		}
	}
	if err == nil {
		err = p.finish(ctx, d)
	}
	if err == nil {
		p.result.grants, err = book.grants(ctx, a.account())
	}
	if err == nil {
		p.result.tally, err = book.tally(ctx, a.account())
	}
	s.say("all", "end: %d deposits were made, the balance says %d: %d lost; %d grants",
		p.result.deposits, p.result.balance, p.result.lost(), len(p.result.grants))
	return p.result, err
}

// assemble starts the processes and lets all of them begin at once.
func (p *performance) assemble(ctx context.Context, d demo) error {
	if err := p.exec(ctx, "INSERT INTO ledger (account, balance) VALUES ($1, 0)", p.account()); err != nil {
		return err
	}
	var pids []string
	for i := range d.workers {
		m, err := p.hire(assignment{
			Name: string(rune('A' + i)), URL: p.url, Schema: p.schema, Account: p.account(),
			Locked: p.locked, Guarded: p.guarded, TTL: d.ttl, Rounds: d.rounds,
		})
		if err != nil {
			return err
		}
		pids = append(pids, fmt.Sprint(m.pid()))
	}
	if err := p.untilCount(ctx, "all workers to be ready", d.workers, countEvents, p.account(), ready, -1); err != nil {
		return err
	}
	p.story.say("all", "begin, as processes %s", strings.Join(pids, " "))
	return p.write(ctx, p.account(), event{Kind: begin})
}

// hit kills or pauses a holder at a place of its deposit, and waits until the others have gone on. It
// wakes a paused one then, and waits for the outcome of its write.
func (p *performance) hit(ctx context.Context, where place, kill bool) error {
	held, err := p.holdSomebody(ctx, where)
	if err != nil {
		return err
	}
	m, begun, how := p.members[held.Worker[0]-'A'], time.Now(), "pause"
	if kill {
		how = "kill"
		m.kill()
		<-m.exited
		p.story.say(m.name, "KILLED (process %d)", m.pid())
	} else {
		if err := testserver.Suspend(m.pid()); err != nil {
			return err
		}
		p.story.say(m.name, "PAUSED (process %d), as by its garbage collector or hypervisor", m.pid())
		// The worker finds this when it is woken, so that only the write is left to do.
		if err := p.write(ctx, p.account(), event{Kind: resume, Token: held.Token}); err != nil {
			return err
		}
	}
	if err := p.succeed(ctx, held.Token, begun, how); err != nil || kill {
		return err
	}
	err = p.untilCount(ctx, "others to be granted the lock", meanwhileGrants, countEvents, p.account(), granted, held.Token)
	if err == nil {
		err = p.untilCount(ctx, "others to write", meanwhileDeposits, countEntries, p.account(), held.Token)
	}
	if err != nil {
		return err
	}
	p.story.say(m.name, "WOKEN after %.2f s, when others have written with newer tokens: it goes on where it was, and writes",
		time.Since(begun).Seconds())
	if err := testserver.Resume(m.pid()); err != nil {
		return err
	}
	return p.lateWrite(ctx, held)
}

// lateWrite waits for the outcome of a woken holder's write.
func (p *performance) lateWrite(ctx context.Context, held event) error {
	var e event
	err := p.until(ctx, "the woken worker's write", func() (found bool, err error) {
		e, found, err = p.read(ctx, "kind IN ('wrote', 'refused') AND token = $2", p.account(), held.Token)
		return found, err
	})
	if err != nil {
		return err
	}
	late := lateWrite{holder: held.Worker, token: held.Token, passed: e.Kind == wrote}
	if !late.passed {
		err = json.Unmarshal([]byte(e.Text), &late.refusals)
	}
	p.result.late = append(p.result.late, late)
	p.story.lateWrite(late, e.Balance)
	return err
}

// holdSomebody has a holder stay at that place of a deposit, after the lock has changed hands a few
// times.
func (p *performance) holdSomebody(ctx context.Context, where place) (held event, err error) {
	before, err := p.count(ctx, countEvents, p.account(), granted, 0)
	if err == nil {
		err = p.untilCount(ctx, "the lock to change hands", before+len(p.members)+1, countEvents, p.account(), granted, 0)
	}
	if err == nil {
		err = p.write(ctx, p.account(), event{Kind: hold, Text: string(where)})
	}
	if err != nil {
		return event{}, err
	}
	err = p.until(ctx, "a holder to come "+string(where), func() (found bool, err error) {
		held, found, err = p.read(ctx, "kind = 'holding' AND token > $2", p.account(), p.lastHeld)
		return found, err
	})
	p.lastHeld = held.Token
	p.story.say(held.Worker, "has token %d, has read %d, is %s of %d", held.Token, held.Balance, where, held.Balance+1)
	return held, err
}

// succeed waits until another worker is granted the lock after the holder of a token was killed or
// paused. The holder can't renew now, but a renewal may have been on its way, so the stored expiry is
// read until the end.
func (p *performance) succeed(ctx context.Context, token int64, begun time.Time, how string) error {
	s := succession{token: token}
	err := p.until(ctx, "another worker to be granted the lock", func() (bool, error) {
		at, err := p.expiry(ctx, token)
		if !at.IsZero() {
			s.expiry = at
		}
		next, found, err2 := p.read(ctx, "kind = 'granted' AND token > $2", p.account(), token)
		s.next = grant{next.Worker, next.Token, next.At}
		return found, errors.Join(err, err2)
	})
	if err != nil {
		return err
	}
	p.result.successions = append(p.result.successions, s)
	p.story.say(s.next.holder, "takes over with token %d, %.2f s after the %s (TTL %v), %v after the expiry",
		s.next.token, time.Since(begun).Seconds(), how, p.ttl, s.next.at.Sub(s.expiry).Round(time.Millisecond))
	return nil
}

// finish ends the act when all deposits are made.
func (p *performance) finish(ctx context.Context, d demo) error {
	err := p.untilCount(ctx, "the deposits to be made", d.workers*d.rounds, countEntries, p.account(), -1)
	if err == nil {
		err = p.write(ctx, p.account(), event{Kind: finish})
	}
	if err != nil {
		return err
	}
	return p.until(ctx, "the workers to end", func() (bool, error) {
		for _, m := range p.members {
			if !m.ended() {
				return false, nil
			}
		}
		return true, nil
	})
}
