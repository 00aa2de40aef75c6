package backend_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

// verb is a call of the scripts.
type verb struct {
	method string // of backend.Table, that it is for
	usual  string // how the answer begins in a step that says nothing of it
	run    func(ctx context.Context, w *world, s *step) (answer string, err error)
}

var verbs = map[string]verb{
	"acquire": {"AcquireFull", "granted", func(ctx context.Context, w *world, s *step) (string, error) {
		if r := w.requests[key(s.actor, s.slots())]; s.together() || s.permits() || s.options["again"] != "" && r != nil && r.Permits.Any() {
			return acquireSlots(ctx, w, s)
		}
		return acquireBatch(ctx, w, s, w.table.AcquireFull)
	}},
	"fast": {"AcquireFast", "granted", func(ctx context.Context, w *world, s *step) (string, error) {
		return acquireBatch(ctx, w, s, w.table.AcquireFast)
	}},
	"slots": {"AcquireSlots", "granted", acquireSlots},
	"handoff": {"HandOff", "granted", func(ctx context.Context, w *world, s *step) (string, error) {
		to := *s // another caller of the same client
		to.actor = s.options["to"]
		r := w.request(&to, s.slots())
		g, err := w.table.HandOff(ctx, w.grant(s).fence, r, w.client(s))
		return w.attempt(&to, r, g), err
	}},
	"adopt": {"Adopt", "granted", func(ctx context.Context, w *world, s *step) (string, error) {
		from := w.grant(s)
		r, err := w.table.Adopt(ctx, from.fence, s.actor, s.duration("ttl", time.Minute))
		text := renewal(r)
		if r.Outcome == leasetable.Granted {
			text += fmt.Sprintf(", %ds old", int(r.Age.Truncate(unit).Seconds()))
			if r.Permits.Any() {
				text += fmt.Sprintf(", %d of %d permits", r.Permits.Weight, r.Permits.Capacity)
			}
			text += word(r.ID != from.request.ID, ", of another request", "")
			w.owners[from.fence.Token], w.grants[s.actor+" "+from.fence.Name] = s.actor, from
		}
		return text, err
	}},
	"upgrade": {"Upgrade", "granted", func(ctx context.Context, w *world, s *step) (string, error) {
		reader := w.grant(s).fence.Token
		r := w.request(s, s.slots())
		g, err := w.table.Upgrade(ctx, reader, r)
		return w.attempt(s, r, g), err
	}},
	"keep": {"KeepPermits", "kept", func(ctx context.Context, w *world, s *step) (string, error) {
		done, err := w.table.KeepPermits(ctx, w.grant(s).fence, s.number("n", 0))
		return word(done, "kept", "not held"), err
	}},
	"resize": {"Resize", "", func(ctx context.Context, w *world, s *step) (string, error) {
		before, err := w.table.Resize(ctx, s.name(), s.number("n", 0))
		return word(before >= 0, fmt.Sprint(before, " before"), word(before == -1, "one holder", "readers and writers")), err
	}},

	"renew": {"Renew", "granted", func(ctx context.Context, w *world, s *step) (string, error) {
		answers, err := w.table.Renew(ctx, w.extensions(s))
		return w.renewals(s, answers), err
	}},
	"reserved": {"RenewReserved", "granted", func(ctx context.Context, w *world, s *step) (string, error) {
		answers, err := w.table.RenewReserved(ctx, w.extensions(s), time.Hour, func(time.Time) {})
		return w.renewals(s, answers), err
	}},
	"check": {"CheckGrants", "live", func(ctx context.Context, w *world, s *step) (string, error) {
		answers, err := w.table.CheckGrants(ctx, w.fences(s))
		return w.renewals(s, answers), err
	}},
	"has": {"GrantedTo", "yes", func(ctx context.Context, w *world, s *step) (string, error) {
		yes, err := w.table.GrantedTo(ctx, s.name(), w.grant(s).request.ID)
		return word(yes, "yes", "no"), err
	}},
	"guard": {"", "current", func(ctx context.Context, w *world, s *step) (string, error) { return guarded(ctx, w, s, w.guard) }},
	"bind":  {"", "current", func(ctx context.Context, w *world, s *step) (string, error) { return guarded(ctx, w, s, fencing.Bind) }},

	"release": {"Release", "released", func(ctx context.Context, w *world, s *step) (string, error) {
		h := w.grant(s)
		if s.together() || h.permits.Any() {
			return releasePermits(ctx, w, s)
		}
		done, notified, err := w.table.Release(ctx, h.fence, s.duration("minhold", 0))
		return released(notified, done), err
	}},
	"releases": {"ReleaseBatch", "released", func(ctx context.Context, w *world, s *step) (string, error) {
		all := w.fences(s)
		notified, err := w.table.ReleaseBatch(ctx, all, slices.Repeat([]time.Duration{s.duration("minhold", 0)}, len(all)))
		var words []string
		for _, f := range all {
			woken, done := notified[f]
			words = append(words, released(woken, done))
		}
		return strings.Join(words, " | "), err
	}},
	"permits": {"ReleasePermits", "released", releasePermits},
	"undo": {"Revoke", "revoked", func(ctx context.Context, w *world, s *step) (string, error) {
		done, err := w.table.Revoke(ctx, w.grant(s).request)
		return word(done, "revoked", "not held"), err
	}},
	"revoke": {"RevokeGrant", "done", func(ctx context.Context, w *world, s *step) (string, error) {
		return w.call(w.table.RevokeGrant(ctx, w.grant(s).fence, cmp.Or(s.options["why"], "why")))
	}},
	"ask": {"RequestRelease", "done", func(ctx context.Context, w *world, s *step) (string, error) {
		return w.call(w.table.RequestRelease(ctx, w.grant(s).fence, cmp.Or(s.options["why"], "please")))
	}},
	"label": {"SetLabels", "done", func(ctx context.Context, w *world, s *step) (string, error) {
		h := w.grant(s)
		c, err := w.table.SetLabels(ctx, h.fence, s.options["labels"], s.number("limit", 1000))
		if c.Large && err == nil { // it says nothing of a grant that has ended
			c.Large, err = w.table.GrantedTo(ctx, s.name(), h.request.ID)
		}
		return w.call(c, err)
	}},
	"await": {"AwaitGuards", "done", func(ctx context.Context, w *world, s *step) (string, error) {
		return "done", w.table.AwaitGuards(ctx, w.grant(s).fence)
	}},

	"join": {"Join", "", join},
	"crowd": {"Join", "", func(ctx context.Context, w *world, s *step) (text string, err error) {
		for i := 0; i < s.number("n", 0) && err == nil; i++ {
			other := *s
			other.actor = fmt.Sprint(s.actor, i)
			text, err = join(ctx, w, &other)
		}
		return text, err
	}},
	"refresh": {"RefreshTickets", "", func(ctx context.Context, w *world, s *step) (string, error) {
		t := w.ticket(s)
		seen, err := w.table.RefreshTickets(ctx, []leasetable.Ticket{t}, s.options["polls"] == "")
		if err != nil {
			return "", err
		}
		p := seen[0]
		entered := p.State == leasetable.Queued && t.State == leasetable.InOverflow
		if t.Number, t.State = p.Ticket, p.State; p.State != leasetable.Lost {
			w.tickets[key(s.actor, s.slots())] = t
		}
		return position(p) + word(entered, ", entered", ""), nil
	}},
	"leave": {"LeaveQueue", "", func(ctx context.Context, w *world, s *step) (string, error) {
		t := w.ticket(s)
		if s.options["again"] != "" { // whatever the ticket is
			t.Number = leasetable.AnyTicket
		}
		return "left", w.table.LeaveQueue(ctx, t)
	}},
	"forget": {"DeleteRows", "", func(ctx context.Context, w *world, s *step) (string, error) {
		return "done", w.table.DeleteRows(ctx, []leasetable.Ticket{w.ticket(s)})
	}},
	"quit": {"QuitQueue", "", func(ctx context.Context, w *world, s *step) (string, error) {
		return "left", w.table.QuitQueue(ctx, w.client(s))
	}},
	"watch": {"Watch", "", func(ctx context.Context, w *world, s *step) (string, error) {
		return "done", w.table.Watch(ctx, s.name(), w.client(s))
	}},
	"notify": {"Notify", "", func(ctx context.Context, w *world, s *step) (string, error) {
		return "done", w.table.Notify(ctx, w.client(s))
	}},
	"listen": {"Listen", "", func(ctx context.Context, w *world, s *step) (_ string, err error) {
		c := w.client(s)
		w.sessions[s.actor], err = w.table.Listen(ctx, schema.HolderChannel(w.schema), c, c+schema.NextSuffix, c+schema.AllSuffix)
		return "done", err
	}},
	"hear": {"Listen", "", hear},

	"wait": {"NestedWait", "", func(ctx context.Context, w *world, s *step) (string, error) {
		at := key(s.actor, s.slots())
		if w.waits[at] == nil || s.options["again"] == "" {
			n := &leasetable.NestedWait{Request: w.request(s, s.slots()), Holds: []fencing.Token{}}
			if name := s.options["holding"]; name != "" {
				n.Holds, n.Holders = append(n.Holds, w.grantOf(s.actor, name).fence.Token), append(n.Holders, s.actor)
			}
			w.waits[at] = n
		} else if t, ok := w.tickets[at]; ok && s.options["ticket"] != "" {
			r := *w.waits[at].Request
			r.Ticket = t.Number
			w.waits[at].Request = &r
		}
		cycle, err := w.table.NestedWait(ctx, w.waits[at])
		return cmp.Or(cycle, "no deadlock"), err
	}},
	"end": {"EndNestedWait", "", func(ctx context.Context, w *world, s *step) (string, error) {
		n := w.waits[key(s.actor, s.slots())]
		if n == nil {
			return "no wait", nil
		}
		return "done", w.table.EndNestedWait(ctx, n.ID)
	}},

	"prune": {"Prune", "", func(ctx context.Context, w *world, s *step) (string, error) {
		p, err := w.table.Prune(ctx, s.duration("n", 0), int64(s.number("page", 0)))
		return fmt.Sprintf("%d deleted, highest %q%s", p.Deleted, p.Highest.Name, word(p.Done, ", done", "")), err
	}},
	"lift": {"LiftTokens", "", func(ctx context.Context, w *world, s *step) (string, error) {
		return "done", w.table.LiftTokens(ctx, s.name())
	}},
	"sweep": {"DeleteDeadRows", "", func(ctx context.Context, w *world, _ *step) (string, error) {
		return "done", w.table.DeleteDeadRows(ctx)
	}},

	"open": {"Check", "", func(ctx context.Context, w *world, _ *step) (string, error) { return "done", w.table.Check(ctx) }},
	"close": {"Close", "", func(ctx context.Context, w *world, _ *step) (string, error) {
		life, end := context.WithCancel(ctx)
		table := w.open(life) // of another client
		end()
		table.Close(ctx)
		_, err := table.GrantedTo(ctx, "n", newID())
		return word(errors.Is(err, errs.ErrClosed), "closed", fmt.Sprint("open: ", err)), nil
	}},
	"explain": {"Explain", "", func(ctx context.Context, w *world, s *step) (string, error) {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, err := w.table.AcquireFast(ended, []*leasetable.Request{{Name: "n", ID: newID(), Holder: s.actor, Labels: "{}", TTL: time.Minute}})
		return fmt.Sprintf("unavailable %v, transient %v, maybe applied %v", errors.Is(w.table.Explain("acquire", err), errs.ErrUnavailable),
			link.Transient(err), link.MaybeApplied(err)), w.table.Explain("acquire", nil)
	}},
	"connect": {"Slots", "", func(_ context.Context, w *world, _ *step) (string, error) {
		return word(w.table.Slots() > 0, "some", "none"), nil
	}},
	"database": {"Database", "", func(ctx context.Context, w *world, _ *step) (string, error) {
		other := w.open(ctx)
		defer other.Close(ctx)
		return word(w.table.Database() != "" && w.table.Database() == other.Database(), "the same", "different"), nil
	}},
	"latency": {"Latency", "", func(_ context.Context, w *world, _ *step) (string, error) {
		most, slowest := w.table.Latency()
		return word(most >= 0 && most <= slowest && slowest < time.Hour, "a time", fmt.Sprint(most, slowest)), nil
	}},
	"suspect": {"Suspect", "", func(_ context.Context, w *world, _ *step) (string, error) {
		w.table.Suspect(time.Now())
		return "done", nil
	}},
	"read": {"Send", "", func(ctx context.Context, w *world, _ *step) (text string, err error) {
		_, err = w.table.Send(ctx, leasetable.Statement{SQL: "SELECT 'text'", Row: func(r pgx.Rows) error { return r.Scan(&text) }})
		return text, err
	}},

	"advance": {"", "", func(ctx context.Context, w *world, s *step) (string, error) {
		return "done", w.advance(ctx, s.duration("n", 0))
	}},
	"expire": {"", "", func(ctx context.Context, w *world, s *step) (string, error) {
		return "done", w.expire(ctx, s.name(), w.grant(s).fence.Token)
	}},
}

func acquireBatch(ctx context.Context, w *world, s *step, do func(context.Context, []*leasetable.Request) ([]leasetable.Grant, error)) (string, error) {
	var batch []*leasetable.Request
	for _, slots := range s.batch {
		batch = append(batch, w.request(s, slots))
	}
	grants, err := do(ctx, batch)
	var words []string
	for i, g := range grants {
		words = append(words, w.attempt(s, batch[i], g))
	}
	return strings.Join(words, " | "), err
}

func acquireSlots(ctx context.Context, w *world, s *step) (string, error) {
	r := w.request(s, s.slots())
	g, err := w.table.AcquireSlots(ctx, r)
	return w.attempt(s, r, g), err
}

func releasePermits(ctx context.Context, w *world, s *step) (string, error) {
	h := w.grant(s)
	notified, err := w.table.ReleasePermits(ctx, s.names(), h.fence.Token, !s.together() && h.permits.Shared())
	var words []string
	for _, name := range s.names() {
		woken, done := notified[name]
		words = append(words, released(woken, done))
	}
	return strings.Join(words, " | "), err
}

// guarded begins a transaction, guards it with the grant, and rolls it back.
func guarded(ctx context.Context, w *world, s *step, guard func(context.Context, fencing.Tx, fencing.Fence) error) (string, error) {
	tx, err := w.begin(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	err = guard(ctx, tx, w.grant(s).fence)
	var stale *fencing.StaleError
	switch {
	case errors.As(err, &stale):
		owner := w.owners[stale.Current]
		return "stale" + word(owner != "", ", after "+owner, ""), nil
	case errors.Is(err, fencing.ErrShared):
		return "shared", nil
	}
	return "current", err
}

func join(ctx context.Context, w *world, s *step) (string, error) {
	at := key(s.actor, s.slots())
	before := w.requests[at]
	r := w.request(&step{actor: s.actor}, s.slots())
	w.requests[at] = before // which may be repeated
	p, err := w.table.Join(ctx, w.caller(s), r, s.duration("waited", 0), s.options["polls"] == "")
	w.tickets[at] = leasetable.Ticket{Client: w.caller(s), Names: r.Names(), Number: p.Ticket, State: p.State, Heavy: r.Heavy()}
	return position(p), err
}

// hear returns what the client of an actor was notified of since the last time. It ends with a
// notification of its own, because the server delivers them in the order of commits.
func hear(ctx context.Context, w *world, s *step) (string, error) {
	client := w.client(s)
	if err := w.table.Notify(ctx, client); err != nil {
		return "", err
	}
	var words []string
	for {
		n, err := w.sessions[s.actor].WaitForNotification(ctx)
		if err != nil {
			return "", err
		}
		number, _ := strconv.ParseInt(n.Payload, 10, 64)
		switch {
		case n.Channel == client && n.Payload == "":
			return cmp.Or(strings.Join(words, ", "), "nothing"), nil
		case n.Channel == client:
			words = append(words, n.Payload)
		case n.Channel == client+schema.NextSuffix:
			words = append(words, "next "+n.Payload)
		case n.Channel == client+schema.AllSuffix:
			words = append(words, "all of "+strings.ReplaceAll(w.sets[number-1], " ", "+"))
		default:
			words = append(words, "a call for "+w.owners[fencing.Token(number)])
		}
	}
}
