package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/testserver"
)

const (
	// The work that the others must have done while a holder was paused.
	meanwhileGrants   = 2
	meanwhileDeposits = 2 * depositsPerLease

	patience = 30 * time.Second // bounds every wait except the one for the server
)

// act is one of the three parts.
type act struct {
	number  int
	name    string // for the table of results
	about   string
	locked  bool     // workers hold the lock while they deposit
	guarded bool     // and guard each write with it
	pauses  []string // the places where holders are paused, after one was killed
}

func (d demo) acts() []act {
	acts := []act{{
		number: 1, name: "no lock",
		about: fmt.Sprintf("No lock. %d processes make %d deposits or more: read the balance, think, write what was read plus one.",
			d.workers, d.workers*d.rounds),
	}, {
		number: 2, name: "lock alone", locked: true, pauses: []string{beforeWrite},
		about: fmt.Sprintf("The lock alone. A process acquires the lock, checks its lease before each write, makes up to %d deposits, "+
			"and releases.\nTTL %v, renewed while the holder lives.", depositsPerLease, d.ttl),
	}, {
		number: 3, name: "lock and guard", locked: true, guarded: true, pauses: []string{beforeWrite, inTransaction},
		about: "The lock and a guard. The same, but each write is in a transaction that begins with lease.Guard.",
	}}
	if d.noGuard {
		acts[2].name, acts[2].guarded = "lock, no guard", false
		acts[2].about = "No guard. This is act 2 once more, so the demo must fail."
	}
	return acts
}

// performance is an act while it is played. Only the goroutine that plays it uses its fields; those that
// read the workers' output share nothing with it but the channel.
type performance struct {
	act
	demo
	*story
	pool    *pgxpool.Pool
	members []*member
	events  chan event
	heard   []event
	killed  string // the worker that was killed
	result  result
}

// member is a worker, as the parent sees it.
type member struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser // for orders
}

// play plays the act with processes of its own. They have ended when it returns.
func (p *performance) play(ctx context.Context, job assignment) error {
	defer p.dismiss()
	if err := p.assemble(ctx, job); err != nil {
		return err
	}
	if p.locked {
		if err := p.hit(ctx, p.members[0], beforeWrite, true); err != nil {
			return err
		}
	}
	for i, where := range p.pauses {
		if err := p.hit(ctx, p.members[i+1], where, false); err != nil {
			return err
		}
	}
	if _, err := p.await(ctx, "the deposits to be made", p.workers*p.rounds, -1, deposited+wrote); err != nil {
		return err
	}
	p.dismiss() // a deposit that this interrupts is in both tables or in none
	r := &p.result
	r.act, r.grants = p.act, len(p.reports(0, granted))
	err := p.pool.QueryRow(ctx, "SELECT (SELECT count(*) FROM entries WHERE account = $1), balance FROM ledger WHERE account = $1",
		p.name).Scan(&r.deposits, &r.balance)
	p.say("all", "end: %d deposits were made, the balance says %d: %d lost; %d grants", r.deposits, r.balance, r.lost(), r.grants)
	return err
}

// assemble starts the processes.
func (p *performance) assemble(ctx context.Context, job assignment) error {
	if _, err := p.pool.Exec(ctx, "INSERT INTO ledger (account, balance) VALUES ($1, 0)", p.name); err != nil {
		return err
	}
	job.Account, job.Locked, job.Guarded, job.TTL = p.name, p.locked, p.guarded, p.ttl
	var pids []string
	for i := range p.workers {
		job.Name = string(rune('A' + i))
		if err := p.hire(job); err != nil {
			return fmt.Errorf("worker %s: %w", job.Name, err)
		}
		pids = append(pids, fmt.Sprint(p.members[i].cmd.Process.Pid))
	}
	p.say("all", "begin, as processes %s", strings.Join(pids, " "))
	return nil
}

// hire starts a worker.
func (p *performance) hire(job assignment) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(job)
	if err != nil {
		return err
	}
	m := &member{name: job.Name, cmd: exec.Command(program)}
	var stderr bytes.Buffer
	m.cmd.Env = append(os.Environ(), workerVariable+"="+string(text))
	m.cmd.SysProcAttr = workerAttr()
	m.cmd.Stderr = &stderr
	out, err := m.cmd.StdoutPipe()
	if err == nil {
		m.stdin, err = m.cmd.StdinPipe()
	}
	if err == nil {
		err = m.cmd.Start()
	}
	if err != nil {
		return err
	}
	p.members = append(p.members, m)
	go func() {
		end := event{Worker: m.name, Kind: exited}
		lines := json.NewDecoder(out)
		for e := end; lines.Decode(&e) == nil; e = end {
			e.Worker = m.name
			p.events <- e
		}
		if err := m.cmd.Wait(); err != nil {
			end.Reasons = []string{err.Error(), strings.TrimSpace(stderr.String())}
		}
		p.events <- end
	}()
	return nil
}

// order writes a line to a worker that lives: the write to another one would be a SIGPIPE.
func (m *member) order(line string) { _, _ = fmt.Fprintln(m.stdin, line) }

// dismiss kills the workers that still run, and returns when all are gone.
func (p *performance) dismiss() {
	for _, m := range p.members {
		_ = m.cmd.Process.Kill() // also if it is paused; it may have ended
	}
	for len(p.reports(-1, exited)) < len(p.members) {
		p.heard = append(p.heard, <-p.events)
	}
	for _, m := range p.members {
		m.stdin.Close()
	}
}

// await hears reports until there are n of these kinds with newer tokens than that, and returns the
// n-th. It fails when a worker does, when ctx ends, or after patience, with an error that says what it
// waited for.
func (p *performance) await(ctx context.Context, what string, n int, newer int64, kinds string) (event, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited %v for %s", patience, what))
	defer cancel()
	for {
		if found := p.reports(newer, kinds); len(found) >= n {
			return found[n-1], nil
		}
		select { // if both are ready, either may come first
		case e := <-p.events:
			p.heard = append(p.heard, e)
			if len(e.Reasons) > 0 && e.Kind == exited && e.Worker != p.killed {
				return e, fmt.Errorf("worker %s: %s", e.Worker, strings.Join(e.Reasons, ": "))
			}
		case <-ctx.Done():
			return event{}, context.Cause(ctx)
		}
	}
}

// reports returns the reports of these kinds with newer tokens than that.
func (p *performance) reports(newer int64, kinds string) (all []event) {
	for _, e := range p.heard {
		if e.Token > newer && strings.Contains(kinds, e.Kind) {
			all = append(all, e)
		}
	}
	return all
}

// hit has a worker stay at a place of a deposit, after the lock has changed hands a few times, and kills
// or pauses it there. It wakes a paused one when the others have gone on, and waits for the outcome of
// its write.
func (p *performance) hit(ctx context.Context, m *member, where string, kill bool) error {
	if _, err := p.await(ctx, "the lock to change hands", len(p.reports(0, granted))+p.workers+1, 0, granted); err != nil {
		return err
	}
	m.order(where)
	held, err := p.await(ctx, "a holder to come "+where, len(p.reports(0, holding))+1, 0, holding)
	if err != nil {
		return err
	}
	begun := time.Now()
	p.say(m.name, "has token %d, has read %d, is %s of %d", held.Token, held.Balance, where, held.Balance+1)
	if kill {
		p.killed = m.name
		err = m.cmd.Process.Kill()
		p.say(m.name, "KILLED (process %d)", m.cmd.Process.Pid)
	} else {
		err = testserver.Suspend(m.cmd.Process.Pid)
		p.say(m.name, "PAUSED (process %d), as by its garbage collector or hypervisor", m.cmd.Process.Pid)
		m.order(resume) // it finds this when it is woken, so that only the write is left to do
	}
	if err != nil {
		return err
	}
	next, err := p.await(ctx, "another worker to be granted the lock", 1, held.Token, granted)
	if err != nil {
		return err
	}
	p.say(next.Worker, "takes over with token %d, after %.2f s (TTL %v)", next.Token, time.Since(begun).Seconds(), p.ttl)
	if kill {
		return nil
	}
	_, err = p.await(ctx, "others to be granted the lock", meanwhileGrants, held.Token, granted)
	_, err2 := p.await(ctx, "others to write", meanwhileDeposits, held.Token, deposited)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	p.say(m.name, "WOKEN after %.2f s, when others have written with newer tokens: it continues where it was, and writes",
		time.Since(begun).Seconds())
	if err := testserver.Resume(m.cmd.Process.Pid); err != nil {
		return err
	}
	late, err := p.await(ctx, "the woken worker's write", len(p.result.late)+1, 0, wrote+refused)
	if err != nil {
		return err
	}
	p.result.late = append(p.result.late, late)
	if late.Kind == wrote {
		p.say(late.Worker, "STALE WRITE: writes %d with token %d; nothing refuses it", late.Balance, late.Token)
	}
	for _, reason := range late.Reasons {
		p.say(late.Worker, "REFUSED by %s", reason)
	}
	return nil
}
