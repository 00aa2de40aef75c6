package pglocktest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/memory"
)

// side is one of two stores that are given the same statements. Its tokens and tickets are compared by the order
// in which they were first seen.
type side struct {
	backend.Store
	place
	numbers []int64
	tickets map[string]leasetable.Ticket // of each client, by name
	held    []heldGrant
	nested  []int64 // numbers of nested waits
}

type heldGrant struct {
	fence   fencing.Fence
	permits leasetable.Permits
	request *leasetable.Request
}

// number returns the place of a token or ticket among those seen so far.
func (s *side) number(n int64) int {
	if n == 0 {
		return -1
	}
	at := slices.Index(s.numbers, n)
	if at < 0 {
		s.numbers = append(s.numbers, n)
		at = len(s.numbers) - 1
	}
	return at
}

// held returns the name and the fence of the grant with that number, of those that this side was granted.
func (s *side) grant(i int) (heldGrant, bool) {
	if len(s.held) == 0 {
		return heldGrant{}, false
	}
	return s.held[i%len(s.held)], true
}

// names of each kind.
var kinds = map[string]leasetable.Permits{
	"one": {}, "uno": {}, "sem": {Capacity: 3, Weight: 1}, "rw": {Capacity: leasetable.ReadersWriter, Weight: 1},
}

// step is a statement for a side, whose result is text. All random choices are made before.
type step func(ctx context.Context, s *side) string

// randomStep chooses a statement.
func randomStep(tb testing.TB, r *mathrand.Rand) (what string, run step) {
	tb.Helper()
	name := []string{"one", "uno", "sem", "rw"}[r.IntN(4)]
	client := []string{"c1", "c2", "c3"}[r.IntN(3)]
	permits := kinds[name]
	if name == "sem" && r.IntN(3) == 0 {
		permits.Weight = 1 + r.IntN(3)
	} else if name == "rw" && r.IntN(3) == 0 {
		permits.Weight = permits.Capacity
	}
	which := r.IntN(8)
	var id [16]byte
	_, _ = rand.Read(id[:])
	request := func(ticket int64) *leasetable.Request {
		text := hex.EncodeToString(id[:])
		return &leasetable.Request{
			Name: name, Permits: permits, ID: text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:],
			Holder: client, Labels: "{}", TTL: time.Hour, Ticket: ticket,
		}
	}
	fast := r.IntN(2) == 0
	acquire := func(ctx context.Context, s *side, req *leasetable.Request) string {
		var err error
		all := make([]leasetable.Grant, 1)
		if fast && req.HasFast() {
			all, err = s.AcquireFast(ctx, []*leasetable.Request{req})
			locktest.OK(tb, err)
		}
		g := all[0]
		switch {
		case g.Outcome != "":
		case req.Permits.Any():
			g, err = s.AcquireSlots(ctx, req)
		default:
			all, err = s.AcquireFull(ctx, []*leasetable.Request{req})
			g = all[0]
		}
		locktest.OK(tb, err)
		if g.Outcome == leasetable.Granted {
			s.held = append(s.held, heldGrant{fencing.Fence{Name: req.Name, Token: g.Token}, req.Permits, req})
			return fmt.Sprintf("granted %d", s.number(int64(g.Token)))
		}
		queued := req.Ticket != leasetable.BargeTicket && req.Ticket != leasetable.NoTicket
		return fmt.Sprintf("%s by %q, %d ahead, invalid %v", g.Outcome, g.Holder, g.Ahead, g.Invalid && queued)
	}
	withTicket := r.IntN(2) == 0
	switch r.IntN(20) { // a number without a case stands for the statements below
	case 0, 1:
		return "acquire " + name, func(ctx context.Context, s *side) string { return acquire(ctx, s, request(leasetable.NoTicket)) }
	case 2:
		return "barge " + name, func(ctx context.Context, s *side) string { return acquire(ctx, s, request(leasetable.BargeTicket)) }
	case 3, 4:
		return "join " + name, func(ctx context.Context, s *side) string {
			p, err := s.Join(ctx, client, request(0), 0, true)
			locktest.OK(tb, err)
			s.tickets[client+name] = leasetable.Ticket{Client: client, Names: []string{name}, Number: p.Ticket, Heavy: permits.Weight > 1}
			return fmt.Sprintf("ticket %d, %d ahead", s.number(p.Ticket), p.Ahead)
		}
	case 5:
		return "acquire by ticket " + name, func(ctx context.Context, s *side) string {
			t, ok := s.tickets[client+name]
			if !ok {
				return "no ticket"
			}
			return acquire(ctx, s, request(t.Number))
		}
	case 6:
		return "refresh " + name, func(ctx context.Context, s *side) string {
			t, ok := s.tickets[client+name]
			if !ok {
				return "no ticket"
			}
			p, err := s.RefreshTickets(ctx, []leasetable.Ticket{t}, true)
			locktest.OK(tb, err)
			if p[0].Ticket == 0 {
				return "lost"
			}
			return fmt.Sprintf("ticket %d, %d ahead, free %v", s.number(p[0].Ticket), p[0].Ahead, p[0].Free)
		}
	case 7:
		return "leave " + name, func(ctx context.Context, s *side) string {
			if t, ok := s.tickets[client+name]; ok {
				locktest.OK(tb, s.LeaveQueue(ctx, t))
				delete(s.tickets, client+name)
			}
			return "left"
		}
	case 8, 9:
		return fmt.Sprint("release ", which), func(ctx context.Context, s *side) string {
			g, ok := s.grant(which)
			if !ok {
				return "nothing"
			}
			if g.permits.Any() {
				done, err := s.ReleasePermits(ctx, []string{g.fence.Name}, g.fence.Token, g.permits.Shared())
				locktest.OK(tb, err)
				woken, released := done[g.fence.Name]
				return fmt.Sprint(released, woken)
			}
			released, woken, err := s.Release(ctx, g.fence, 0)
			locktest.OK(tb, err)
			return fmt.Sprint(released, woken)
		}
	case 10:
		return fmt.Sprint("expire ", which), func(ctx context.Context, s *side) string {
			g, ok := s.grant(which)
			if ok {
				locktest.OK(tb, s.expire(ctx, g.fence.Name, g.fence.Token))
			}
			return "done"
		}
	case 11, 12, 13:
		return fmt.Sprintf("wait for %s and hold %d", name, which), func(ctx context.Context, s *side) string {
			n := leasetable.NestedWait{Request: request(leasetable.NoTicket), Holds: []fencing.Token{}}
			if t, ok := s.tickets[client+name]; ok && withTicket {
				n.Ticket = t.Number
			}
			if g, ok := s.grant(which); ok {
				n.Holds = []fencing.Token{g.fence.Token}
			}
			cycle, err := s.NestedWait(ctx, &n)
			locktest.OK(tb, err)
			if cycle == "" {
				s.nested = append(s.nested, n.Number)
			}
			return fmt.Sprintf("wait %d, deadlock: %v", s.number(n.Number), cycle != "")
		}
	case 14:
		return fmt.Sprint("end wait ", which), func(ctx context.Context, s *side) string {
			if len(s.nested) > 0 {
				locktest.OK(tb, s.EndNestedWait(ctx, s.nested[which%len(s.nested)]))
			}
			return "ended"
		}
	}
	capacity := 2 + r.IntN(3)
	switch r.IntN(7) {
	case 6:
		return fmt.Sprint("revoke the request ", which), func(ctx context.Context, s *side) string {
			g, ok := s.grant(which)
			if !ok {
				return "nothing"
			}
			revoked, err := s.Revoke(ctx, g.request)
			locktest.OK(tb, err)
			return fmt.Sprint(revoked)
		}
	case 4:
		return fmt.Sprint("resize ", capacity), func(ctx context.Context, s *side) string {
			before, err := s.Resize(ctx, name, capacity)
			locktest.OK(tb, err)
			return fmt.Sprint(before)
		}
	case 5:
		return fmt.Sprint("release with a minimum hold ", which), func(ctx context.Context, s *side) string {
			g, ok := s.grant(which)
			if !ok || g.permits.Any() {
				return "nothing"
			}
			released, woken, err := s.Release(ctx, g.fence, time.Hour)
			locktest.OK(tb, err)
			return fmt.Sprint(released, woken)
		}
	case 0:
		return fmt.Sprint("renew ", which), func(ctx context.Context, s *side) string {
			g, _ := s.grant(which)
			answers, err := s.Renew(ctx, []leasetable.Extension{{Fence: g.fence, TTL: time.Hour}})
			locktest.OK(tb, err)
			for _, a := range answers {
				return fmt.Sprint(a.Outcome, a.Request != nil, a.Revoked != nil)
			}
			return "gone"
		}
	case 1:
		return fmt.Sprint("revoke ", which), func(ctx context.Context, s *side) string {
			g, ok := s.grant(which)
			if !ok {
				return "nothing"
			}
			call, err := s.RevokeGrant(ctx, g.fence, "why")
			locktest.OK(tb, err)
			return fmt.Sprint(call.Found, call.Done, s.number(int64(call.Current)))
		}
	case 2:
		return fmt.Sprint("ask ", which), func(ctx context.Context, s *side) string {
			g, ok := s.grant(which)
			if !ok {
				return "nothing"
			}
			call, err := s.RequestRelease(ctx, g.fence, "please")
			locktest.OK(tb, err)
			return fmt.Sprint(call.Found, call.Done)
		}
	}
	return fmt.Sprint("keep one permit ", which), func(ctx context.Context, s *side) string {
		g, ok := s.grant(which)
		if !ok || !g.permits.Any() {
			return "nothing"
		}
		done, err := s.KeepPermits(ctx, g.fence, 1)
		locktest.OK(tb, err)
		return fmt.Sprint(done)
	}
}

// TestTheFakeIsLikeTheServer: both are given the same random statements, for a second, and answer in the same
// way.
func TestTheFakeIsLikeTheServer(t *testing.T) {
	t.Parallel()
	seeds := uint64(20)
	if os.Getenv("PGLOCK_CHAOS") != "" {
		seeds = 500
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			life, end := context.WithCancel(context.Background())
			d, err := newDatabase(t, pgtest.Pool(t))
			locktest.OK(t, err)
			tables := leasetable.New(life, d.pool.Config(), leasetable.Config{Schema: d.schema, MaxConns: 2})
			defer tables.Close(t.Context())
			defer end()
			server := memory.NewServer()
			fake := &side{Store: server.Connect(life), place: inMemory{server}, tickets: map[string]leasetable.Ticket{}}
			real := &side{Store: tables, place: d, tickets: map[string]leasetable.Ticket{}}
			r := mathrand.New(mathrand.NewPCG(seed, 0))
			var script []string
			began := time.Now() // a head is skipped after 1.5 s, at a moment that the two sides don't share
			for n := 0; n < 300 && time.Since(began) < time.Second; n++ {
				what, run := randomStep(t, r)
				got, want := run(life, fake), run(life, real)
				script = append(script, fmt.Sprintf("%s: %s", what, want))
				if got != want && time.Since(began) < timing.HeadGrace { // a machine that stands still fails no test
					t.Fatalf("%q, want %q, after\n%s", got, want, strings.Join(script, "\n"))
				}
			}
		})
	}
}
