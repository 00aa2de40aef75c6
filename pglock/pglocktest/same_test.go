package pglocktest

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
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
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/link"
	"github.com/pglock/pglock-go/pglock/internal/memory"
)

// side is one of two stores that are given the same statements. Its tokens and tickets are compared by the order
// in which they were first seen.
type side struct {
	backend.Table
	place
	schema   string
	numbers  []int64
	tickets  map[string]leasetable.Ticket // by client and names
	held     []heldGrant
	nested   []string       // of nested waits, their IDs
	capacity map[string]int // of the semaphores, as resized
}

func newSide(s backend.Table, p place, schema string) *side {
	return &side{Table: s, place: p, schema: schema, tickets: map[string]leasetable.Ticket{}, capacity: map[string]int{}}
}

type heldGrant struct {
	fence   fencing.Fence // of one of its names
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

// grant returns the grant with that number, of those that this side was granted, at one of its names.
func (s *side) grant(i int) (heldGrant, bool) {
	if len(s.held) == 0 {
		return heldGrant{}, false
	}
	g := s.held[len(s.held)-1-i%min(len(s.held), 4)]
	names := g.request.Names()
	g.fence.Name, g.fence.Schema = names[i%len(names)], s.schema
	g.permits = g.request.PermitsOf(g.fence.Name)
	return g, true
}

// names of each kind. A name of no fixed kind is what the first statement makes it.
var kinds = map[string]leasetable.Permits{
	"one": {}, "uno": {}, "sem": {Capacity: 3, Weight: 1}, "rw": {Capacity: leasetable.ReadersWriter, Weight: 1}, "any": {},
}

// together are the names that calls want together.
var together = [][]string{{"one", "uno"}, {"one", "sem"}, {"any", "sem"}, {"any", "rw", "uno"}, {"one", "rw", "sem"}}

// durations of grants, renewals and minimum holds, and steps of the time. All times of the protocol are
// multiples of the unit, except timing.HeadGrace, its half, and a round takes less than a third of it. So the
// sides, some milliseconds apart, agree on what is over.
const unit, round = 3 * time.Second, time.Second

var (
	durations = []time.Duration{2 * unit, 3 * unit, time.Hour}
	steps     = []time.Duration{unit, unit, 2 * unit, 10 * unit}
)

// left describes a remaining time so that both sides say the same.
func left(d time.Duration) time.Duration { return (d + unit - 1).Truncate(unit) }

// step is a statement for a side, whose result is text. All random choices are made before.
type step func(ctx context.Context, s *side) string

// randomNames returns the names of a round: of most rounds only one or two, and most often those with permits, because
// the rare states of the fake need several statements about one name.
func randomNames(r *mathrand.Rand) (names []string) {
	all := []string{"one", "uno", "sem", "rw", "sem", "rw", "any"}
	for range []int{1, 1, 2, 7}[r.IntN(4)] {
		names = append(names, all[r.IntN(len(all))])
	}
	return names
}

// randomStep chooses a statement about some of the names, which end with a suffix.
func randomStep(tb testing.TB, r *mathrand.Rand, all []string, suffix string) (what string, run step) {
	tb.Helper()
	names := []string{all[r.IntN(len(all))]}
	client := []string{"c1", "c2", "c3"}[r.IntN(3)]
	several, number := r.IntN(6) == 0, r.IntN(len(together))
	if several {
		names = together[number]
	}
	weights := make([]int, len(names))
	for i := range weights {
		weights[i] = 1
		if r.IntN(3) == 0 {
			weights[i] = 1 + r.IntN(3)
		}
	}
	anyKind := []string{"one", "sem", "rw"}[r.IntN(3)]
	which, duration := r.IntN(24), durations[r.IntN(len(durations))]
	var id [16]byte
	_, _ = rand.Read(id[:])
	labels := []string{"{}", `{"a":"1"}`, `{"b":"2"}`}[r.IntN(3)]
	permits := func(s *side, i int) leasetable.Permits {
		kind := names[i]
		if kind == "any" {
			kind = anyKind
		}
		p := kinds[kind]
		switch kind {
		case "sem":
			if n, resized := s.capacity[names[i]+suffix]; resized {
				p.Capacity = n
			}
			if p.Weight = min(weights[i], p.Capacity); weights[i] == 3 {
				p.Weight = p.Capacity
			}
		case "rw":
			if weights[i] == 2 {
				p.Weight = p.Capacity
			}
		}
		return p
	}
	request := func(s *side, ticket int64) *leasetable.Request {
		text := hex.EncodeToString(id[:])
		q := &leasetable.Request{
			ID:     text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:],
			Holder: client, Labels: labels, TTL: duration, Ticket: ticket,
		}
		if !several {
			q.Name, q.Permits = names[0]+suffix, permits(s, 0)
			return q
		}
		shared := false
		for i, name := range names {
			q.All, q.Each = append(q.All, name+suffix), append(q.Each, permits(s, i))
			shared = shared || q.Each[i].Any()
		}
		q.Name = strings.Join(q.All, ", ")
		if !shared {
			q.Each = nil
		}
		return q
	}
	if several {
		client += fmt.Sprint(leasetable.AllSuffix, "/", number)
	}
	key := fmt.Sprint(client, names)
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
		case g.Outcome == leasetable.Granted:
		case req.Permits.Any() || req.All != nil:
			g, err = s.AcquireSlots(ctx, req)
		default:
			all, err = s.AcquireFull(ctx, []*leasetable.Request{req})
			g = all[0]
		}
		locktest.OK(tb, err)
		switch g.Outcome {
		case leasetable.Granted:
			if !slices.ContainsFunc(s.held, func(h heldGrant) bool { return h.fence.Token == g.Token }) {
				s.held = append(s.held, heldGrant{fence: fencing.Fence{Token: g.Token}, request: req})
			}
			return fmt.Sprintf("granted %d for %v", s.number(int64(g.Token)), left(g.Remaining))
		case leasetable.OtherKind:
			return fmt.Sprint("another kind: ", cmp.Or(g.Name, req.Name), " ", g.Capacity)
		}
		if g.Outcome == leasetable.RequestEnded {
			return "spent"
		}
		queued := req.Ticket != leasetable.BargeTicket && req.Ticket != leasetable.NoTicket
		return fmt.Sprintf("%s by %q for %v, %d ahead, invalid %v", g.Outcome, g.Holder, left(g.Remaining), g.Ahead, g.Invalid && queued)
	}
	switch r.IntN(40) { // a number without a case stands for the statements below
	case 0, 1, 2:
		return "acquire " + key, func(ctx context.Context, s *side) string { return acquire(ctx, s, request(s, leasetable.NoTicket)) }
	case 3:
		return "barge " + key, func(ctx context.Context, s *side) string { return acquire(ctx, s, request(s, leasetable.BargeTicket)) }
	case 4, 5, 6:
		return "join " + key, func(ctx context.Context, s *side) string {
			q := request(s, 0)
			p, err := s.Join(ctx, client, q, 0, true)
			locktest.OK(tb, err)
			s.tickets[key] = leasetable.Ticket{Client: client, Names: q.Names(), Number: p.Ticket, State: p.State, Heavy: q.Heavy()}
			return fmt.Sprintf("ticket %d, %d ahead", s.number(p.Ticket), p.Ahead)
		}
	case 7, 8, 9:
		return "acquire by ticket " + key, func(ctx context.Context, s *side) string {
			t, ok := s.tickets[key]
			if !ok {
				return "no ticket"
			}
			return acquire(ctx, s, request(s, t.Number))
		}
	case 10:
		return "refresh " + key, func(ctx context.Context, s *side) string {
			t, ok := s.tickets[key]
			if !ok {
				return "no ticket"
			}
			p, err := s.RefreshTickets(ctx, []leasetable.Ticket{t}, true)
			locktest.OK(tb, err)
			if p[0].State == leasetable.Lost {
				return "lost"
			}
			return fmt.Sprintf("ticket %d, %d ahead, free %v, overdue %v", s.number(p[0].Ticket), p[0].Ahead, p[0].Free, p[0].Overdue)
		}
	case 11, 26, 27:
		return "leave " + key, func(ctx context.Context, s *side) string {
			if t, ok := s.tickets[key]; ok {
				locktest.OK(tb, s.LeaveQueue(ctx, t))
				delete(s.tickets, key)
			}
			return "left"
		}
	case 12, 13, 14:
		return fmt.Sprint("release ", which), func(ctx context.Context, s *side) (text string) {
			g, ok := s.grant(which)
			if !ok {
				return "nothing"
			}
			for _, name := range g.request.Names() {
				if p := g.request.PermitsOf(name); p.Any() {
					done, err := s.ReleasePermits(ctx, []string{name}, g.fence.Token, p.Shared())
					locktest.OK(tb, err)
					woken, released := done[name]
					text += fmt.Sprint(released, woken)
					continue
				}
				released, woken, err := s.Release(ctx, fencing.Fence{Name: name, Token: g.fence.Token}, 0)
				locktest.OK(tb, err)
				text += fmt.Sprint(released, woken)
			}
			return text
		}
	case 15:
		return fmt.Sprint("expire ", which), func(ctx context.Context, s *side) string {
			g, ok := s.grant(which)
			if ok {
				locktest.OK(tb, s.expire(ctx, g.fence.Name, g.fence.Token))
			}
			return "done"
		}
	case 16, 17, 18:
		return fmt.Sprintf("wait for %s and hold %d", key, which), func(ctx context.Context, s *side) string {
			n := leasetable.NestedWait{Request: request(s, leasetable.NoTicket), Holds: []fencing.Token{}}
			if t, ok := s.tickets[key]; ok && fast && !several {
				n.Ticket = t.Number
			}
			if g, ok := s.grant(which); ok {
				n.Holds, n.Holders = []fencing.Token{g.fence.Token}, []string{g.request.Holder}
			}
			cycle, err := s.NestedWait(ctx, &n)
			locktest.OK(tb, err)
			if cycle == "" {
				s.nested = append(s.nested, n.ID)
			}
			return fmt.Sprintf("deadlock: %v", cycle != "")
		}
	case 19:
		return fmt.Sprint("end wait ", which), func(ctx context.Context, s *side) string {
			if len(s.nested) > 0 {
				locktest.OK(tb, s.EndNestedWait(ctx, s.nested[which%len(s.nested)]))
			}
			return "ended"
		}
	case 20:
		return fmt.Sprint("acquire again ", which), func(ctx context.Context, s *side) string {
			g, ok := s.grant(which)
			if !ok {
				return "nothing"
			}
			return acquire(ctx, s, g.request)
		}
	case 21, 22:
		by := steps[which%len(steps)]
		return fmt.Sprint("advance by ", by), func(ctx context.Context, s *side) string {
			locktest.OK(tb, s.advance(ctx, by))
			return "done"
		}
	case 23, 28, 29:
		return fmt.Sprintf("hand %d off to %s", which, client), func(ctx context.Context, s *side) string {
			g, ok := s.grant(which)
			if !ok || g.request.All != nil || several {
				return "nothing"
			}
			q := request(s, leasetable.NoTicket)
			q.Name, q.Permits = g.fence.Name, leasetable.Permits{}
			got, err := s.HandOff(ctx, g.fence, q, client)
			locktest.OK(tb, err)
			if got.Outcome == leasetable.Granted {
				s.held = append(s.held, heldGrant{fence: fencing.Fence{Token: got.Token}, request: q})
			}
			return fmt.Sprint(got.Outcome, s.number(int64(got.Token)), left(got.Remaining))
		}
	case 24:
		return fmt.Sprintf("adopt %d for %v", which, duration), func(ctx context.Context, s *side) string {
			g, ok := s.grant(which)
			if !ok {
				return "nothing"
			}
			got, err := s.Adopt(ctx, g.fence, "adopter", duration)
			locktest.OK(tb, err)
			return fmt.Sprint(got.Outcome, got.Permits, left(got.Remaining), got.ID == g.request.ID, got.Request != nil)
		}
	case 25:
		return fmt.Sprint("upgrade ", which), func(ctx context.Context, s *side) string {
			g, ok := s.grant(which)
			if !ok || g.request.All != nil || g.permits.Capacity != leasetable.ReadersWriter {
				return "nothing"
			}
			q := request(s, leasetable.NoTicket)
			q.Name, q.All, q.Each, q.Permits = g.fence.Name, nil, nil, leasetable.Permits{Capacity: g.permits.Capacity, Weight: g.permits.Capacity}
			text := ""
			for range 2 { // the second one is a repetition
				got, err := s.Upgrade(ctx, g.fence.Token, q)
				locktest.OK(tb, err)
				text += fmt.Sprint(got.Outcome, got.Holder, s.number(int64(got.Token)), left(got.Remaining))
				if got.Outcome == leasetable.Granted && !slices.ContainsFunc(s.held, func(h heldGrant) bool { return h.fence.Token == got.Token }) {
					s.held = append(s.held, heldGrant{fence: fencing.Fence{Token: got.Token}, request: q})
				}
			}
			return text
		}
	}
	capacity := 2 + r.IntN(3)
	switch r.IntN(10) {
	case 9:
		check, what := fencing.Check, "guard"
		if fast {
			check, what = fencing.Bind, "bind"
		}
		return fmt.Sprint(what, " ", which), func(ctx context.Context, s *side) string {
			g, ok := s.grant(which)
			if !ok {
				return "nothing"
			}
			tx, err := s.begin(ctx)
			locktest.OK(tb, err)
			defer func() { locktest.OK(tb, tx.Rollback(context.Background())) }()
			err = check(ctx, tx, g.fence)
			var stale *fencing.StaleError
			switch {
			case errors.As(err, &stale):
				return fmt.Sprint("stale, after ", s.number(int64(stale.Current)))
			case err == nil, errors.Is(err, fencing.ErrShared):
				return fmt.Sprint(errors.Is(err, fencing.ErrShared))
			}
			return err.Error()
		}
	case 8:
		limit := []int{8, 9, 16, 17, 64}[r.IntN(5)] // one or two labels have 9 or 17
		return fmt.Sprintf("label %d with %s, %d bytes at most", which, labels, limit), func(ctx context.Context, s *side) string {
			g, ok := s.grant(which)
			if !ok || g.permits.Shared() {
				return "nothing"
			}
			call, err := s.SetLabels(ctx, g.fence, labels, limit)
			locktest.OK(tb, err)
			held, err := s.GrantedTo(ctx, g.fence.Name, g.request.ID)
			locktest.OK(tb, err)
			return fmt.Sprint(call.Found, call.Done, s.number(int64(call.Current)), call.Large && held, held)
		}
	case 7:
		return fmt.Sprint("look at ", which), func(ctx context.Context, s *side) string {
			g, ok := s.grant(which)
			if !ok {
				return "nothing"
			}
			answers, err := s.CheckGrants(ctx, []fencing.Fence{g.fence})
			locktest.OK(tb, err)
			granted, err := s.GrantedTo(ctx, g.fence.Name, g.request.ID)
			locktest.OK(tb, err)
			for _, a := range answers {
				return fmt.Sprint(a.Outcome, a.Request != nil, a.Revoked != nil, granted)
			}
			return fmt.Sprint("gone ", granted)
		}
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
			name := names[0] + suffix
			if g, ok := s.grant(which); ok && s.capacity[g.fence.Name] == 0 && g.permits.Capacity == kinds["sem"].Capacity {
				name = g.fence.Name
			}
			before, err := s.Resize(ctx, name, capacity)
			locktest.OK(tb, err)
			if before >= 0 {
				s.capacity[name] = capacity
			}
			return fmt.Sprint(before)
		}
	case 5:
		return fmt.Sprintf("release with a minimum hold of %v: %d", duration, which), func(ctx context.Context, s *side) string {
			g, ok := s.grant(which)
			if !ok || g.permits.Any() {
				return "nothing"
			}
			released, woken, err := s.Release(ctx, g.fence, duration)
			locktest.OK(tb, err)
			return fmt.Sprint(released, woken)
		}
	case 0:
		return fmt.Sprintf("renew %d for %v", which, duration), func(ctx context.Context, s *side) string {
			g, _ := s.grant(which)
			answers, err := s.Renew(ctx, []leasetable.Extension{{Fence: g.fence, TTL: duration}})
			locktest.OK(tb, err)
			for _, a := range answers {
				return fmt.Sprint(a.Outcome, left(a.Remaining), a.Request != nil, a.Revoked != nil)
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
		if !ok || g.request.All != nil || !g.permits.Any() {
			return "nothing"
		}
		done, err := s.KeepPermits(ctx, g.fence, 1)
		locktest.OK(tb, err)
		return fmt.Sprint(done)
	}
}

// TestTheFakeIsLikeTheServer: both are given the same random statements, and answer in the same way. A round
// has names of its own, and ends after a second, because a head is skipped after 1.5 s, at a moment that the two
// sides don't share.
func TestTheFakeIsLikeTheServer(t *testing.T) {
	t.Parallel()
	seeds := uint64(20)
	if os.Getenv("PGLOCK_CHAOS") != "" {
		seeds = 100
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			life, end := context.WithCancel(context.Background())
			d, err := newDatabase(t, pgtest.Pool(t))
			locktest.OK(t, err)
			l := link.New(life, d.pool.Config(), link.Config{Schema: d.schema, MaxConns: 2})
			defer l.Close(t.Context())
			tables := struct {
				*leasetable.Table
				*link.Link
			}{leasetable.New(d.schema, l), l}
			defer end()
			server := memory.NewServer()
			for n := range uint64(6) {
				r := mathrand.New(mathrand.NewPCG(seed, n))
				sameRound(t, r, fmt.Sprint(n), newSide(server.Connect(life), inMemory{server}, d.schema), newSide(tables, d, d.schema))
			}
		})
	}
}

func sameRound(t *testing.T, r *mathrand.Rand, suffix string, fake, real *side) {
	t.Helper()
	var script []string
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	names := randomNames(r)
	for began, n := time.Now(), 0; n < 150; n++ {
		what, run := randomStep(t, r, names, suffix)
		got, want := run(ctx, fake), run(ctx, real)
		script = append(script, fmt.Sprintf("%s: %s", what, want))
		switch {
		case time.Since(began) >= round: // a machine that stands still fails no test
			return
		case got != want:
			t.Fatalf("%q, want %q, after\n%s", got, want, strings.Join(script, "\n"))
		}
	}
}
