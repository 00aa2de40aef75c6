package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

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
	crew
	demo
	*story
	book   ledger
	result result
}

// playAct plays one act with processes of its own. They have ended when it returns.
func (d demo) playAct(ctx context.Context, a act, book ledger, s *story) (result, error) {
	s.heading(fmt.Sprintf("Act %d  %s", a.number, a.about))
	p := &performance{act: a, demo: d, story: s, book: book, result: result{act: a}}
	p.events = make(chan event, 100)
	defer p.dismiss()
	err := p.assemble(ctx)
	victims := p.members
	if err == nil && a.locked {
		err = p.hit(ctx, victims[0], beforeWrite, true)
	}
	for i, where := range a.pauses {
		if err == nil {
			err = p.hit(ctx, victims[i+1], where, false)
		}
	}
	if err == nil {
		err = p.finish(ctx)
	}
	for _, e := range p.reports(0, granted) {
		p.result.grants = append(p.result.grants, grant{e.Worker, e.Token, e.At})
	}
	if err == nil {
		t := &p.result.tally
		err = book.pool.QueryRow(ctx, "SELECT (SELECT count(*) FROM entries WHERE account = $1), balance FROM ledger WHERE account = $1", a.name).Scan(&t.deposits, &t.balance)
	}
	s.say("all", "end: %d deposits were made, the balance says %d: %d lost; %d grants",
		p.result.deposits, p.result.balance, p.result.lost(), len(p.result.grants))
	return p.result, err
}

// assemble starts the processes and lets all of them begin at once.
func (p *performance) assemble(ctx context.Context) error {
	if _, err := p.book.pool.Exec(ctx, "INSERT INTO ledger (account, balance) VALUES ($1, 0)", p.name); err != nil {
		return err
	}
	var pids []string
	for i := range p.workers {
		err := p.hire(assignment{
			Name: string(rune('A' + i)), URL: p.book.url, Schema: p.book.schema, Account: p.name,
			Locked: p.locked, Guarded: p.guarded, TTL: p.ttl, Rounds: p.rounds,
		})
		if err != nil {
			return err
		}
		pids = append(pids, fmt.Sprint(p.members[i].pid()))
	}
	if err := p.untilHeard(ctx, "all workers to be ready", p.workers, -1, ready); err != nil {
		return err
	}
	p.say("all", "begin, as processes %s", strings.Join(pids, " "))
	for _, m := range p.members {
		m.order(begin)
	}
	return nil
}

// hit has a worker stay at a place of a deposit, after the lock has changed hands a few times, and kills
// or pauses it there. It wakes a paused one when the others have gone on, and waits for the outcome of
// its write.
func (p *performance) hit(ctx context.Context, m *member, where place, kill bool) error {
	err := p.untilHeard(ctx, "the lock to change hands", len(p.reports(0, granted))+p.workers+1, 0, granted)
	if err != nil {
		return err
	}
	m.order(string(where))
	before := len(p.reports(0, holding))
	if err := p.untilHeard(ctx, "a holder to come "+string(where), before+1, 0, holding); err != nil {
		return err
	}
	held, begun, how := p.reports(0, holding)[before], time.Now(), "kill"
	p.say(m.name, "has token %d, has read %d, is %s of %d", held.Token, held.Balance, where, held.Balance+1)
	if kill {
		m.kill()
		<-m.exited
		p.say(m.name, "KILLED (process %d)", m.pid())
		return p.succeed(ctx, held.Token, begun, how)
	}
	how = "pause"
	if err := testserver.Suspend(m.pid()); err != nil {
		return err
	}
	p.say(m.name, "PAUSED (process %d), as by its garbage collector or hypervisor", m.pid())
	m.order(resume) // it finds this when it is woken, so that only the write is left to do
	err = p.succeed(ctx, held.Token, begun, how)
	if err == nil {
		err = p.untilHeard(ctx, "others to be granted the lock", meanwhileGrants, held.Token, granted)
	}
	if err == nil {
		err = p.untilHeard(ctx, "others to write", meanwhileDeposits, held.Token, deposited)
	}
	if err != nil {
		return err
	}
	p.say(m.name, "WOKEN after %.2f s, when others have written with newer tokens: it continues where it was, and writes",
		time.Since(begun).Seconds())
	if err := testserver.Resume(m.pid()); err != nil {
		return err
	}
	if err := p.untilHeard(ctx, "the woken worker's write", len(p.result.late)+1, 0, wrote+refused); err != nil {
		return err
	}
	e := p.reports(0, wrote+refused)[len(p.result.late)]
	late := lateWrite{holder: e.Worker, token: e.Token, passed: e.Kind == wrote, refusals: e.Refusals}
	p.result.late = append(p.result.late, late)
	if late.passed {
		p.say(late.holder, "STALE WRITE: writes %d with token %d; nothing refuses it", e.Balance, late.token)
	}
	for _, r := range late.refusals {
		p.say(late.holder, "REFUSED by %s: %s", r.By, r.Error)
	}
	return nil
}

// succeed waits until another worker is granted the lock after the holder of a token was killed or
// paused. The holder can't renew now, but a renewal may have been on its way, so the stored expiry is
// read until the end.
func (p *performance) succeed(ctx context.Context, token int64, begun time.Time, how string) error {
	s := succession{token: token}
	err := p.until(ctx, "another worker to be granted the lock", func() (bool, error) {
		err := p.book.pool.QueryRow(ctx, "SELECT expires_at FROM distributed_locks WHERE name = $1 AND token = $2", lockName, token).Scan(&s.expiry)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) { // a newer grant
			return false, err
		}
		next := p.reports(token, granted)
		if len(next) > 0 {
			s.next = grant{next[0].Worker, next[0].Token, next[0].At}
		}
		return len(next) > 0, nil
	})
	if err != nil {
		return err
	}
	p.result.successions = append(p.result.successions, s)
	p.say(s.next.holder, "takes over with token %d, %.2f s after the %s (TTL %v), %v after the expiry",
		s.next.token, time.Since(begun).Seconds(), how, p.ttl, s.next.at.Sub(s.expiry).Round(time.Millisecond))
	return nil
}

// finish ends the act when all deposits are made.
func (p *performance) finish(ctx context.Context) error {
	if err := p.untilHeard(ctx, "the deposits to be made", p.workers*p.rounds, -1, deposited+wrote); err != nil {
		return err
	}
	for _, m := range p.members {
		if p.locked && !m.ended() { // without a lock they end by themselves, and a write to one that has is a SIGPIPE
			m.order(finish)
		}
	}
	return p.until(ctx, "the workers to end", func() (bool, error) {
		return !slices.ContainsFunc(p.members, func(m *member) bool { return !m.ended() }), nil
	})
}
