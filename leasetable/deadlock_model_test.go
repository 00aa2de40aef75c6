package leasetable_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
)

// resource is a name, with its grants.
type resource struct {
	name     string
	capacity int   // 0: a lock with one holder
	used     int64 // tickets up to it are used up
	grants   []*modelGrant
}

func (r *resource) size() int { return max(r.capacity, 1) }

type modelGrant struct {
	on     *resource
	token  int64
	weight int
	holder string
	live   bool
}

// modelWait is a call that waits: under leases, with a number, or without, in the queue alone.
type modelWait struct {
	number int64
	holder string
	ticket int64
	wants  map[*resource]int
	claims map[int64]string // tokens that it says it holds, and as whom
	live   bool             // of its row in nested_waits, if it has a number
	queued bool             // it has rows in the queue
	alive  bool             // of these
}

// nested reports whether the server knows what the call holds.
func (w *modelWait) nested() bool { return w.number > 0 && w.live }

// holds reports whether the call holds the grant.
func (w *modelWait) holds(g *modelGrant) bool {
	return w.nested() && g.live && w.claims[g.token] == g.holder
}

// state is one of the resource graph.
type state struct {
	resources []*resource
	waits     []*modelWait
}

// randomState returns a state in which much is held and waited for. Some rows have expired, some tickets are used up,
// and some calls say that they hold what others hold.
func randomState(r *rand.Rand) *state {
	s := &state{resources: []*resource{
		{name: "plain 1"}, {name: "plain 2"}, {name: "permits", capacity: 3}, {name: "more permits", capacity: 3}, {name: "readers", capacity: 1 << 30},
	}}
	tickets, token := r.Perm(60), int64(1000)
	for n := range 3 + r.IntN(4) {
		w := &modelWait{number: int64(100 + n), holder: fmt.Sprint("call ", n), claims: map[int64]string{}, live: r.IntN(10) > 0, alive: true}
		s.waits = append(s.waits, w)
	}
	r.Shuffle(len(s.waits), func(i, j int) { s.waits[i].number, s.waits[j].number = s.waits[j].number, s.waits[i].number })
	nested := len(s.waits)
	for n := range r.IntN(4) {
		s.waits = append(s.waits, &modelWait{holder: fmt.Sprint("waiter ", n), queued: true, alive: r.IntN(8) > 0})
	}
	for i, w := range s.waits {
		w.ticket = int64(1 + tickets[i])
		if !w.queued {
			switch kind := r.IntN(10); {
			case kind < 3:
				w.ticket = leasetable.NoTicket
			case kind < 4:
				w.ticket = leasetable.BargeTicket
			default:
				w.queued = r.IntN(5) > 0
			}
		}
	}
	for _, on := range s.resources {
		if r.IntN(2) == 0 {
			on.used = int64(r.IntN(50))
		}
		holders := r.Perm(nested)
		weight := on.size()
		if on.capacity > 0 && r.IntN(4) > 0 {
			weight = 1
		}
		for sum := 0; sum+weight <= on.size() && len(holders) > 0 && len(on.grants) < 3 && r.IntN(8) > 0; sum += weight {
			token++
			g := &modelGrant{on, token, weight, "nobody", r.IntN(10) > 0}
			if w := s.waits[holders[0]]; r.IntN(8) > 0 {
				g.holder = w.holder
				if r.IntN(4) == 0 {
					g.holder = "another name of " + w.holder
				}
				w.claims[g.token] = g.holder
				if r.IntN(4) == 0 { // another call under the same lease
					s.waits[holders[len(holders)-1]].claims[g.token] = g.holder
				}
			} else if r.IntN(2) == 0 {
				w.claims[g.token] = w.holder // which is not true
			}
			on.grants, holders = append(on.grants, g), holders[1:]
			if on.capacity == 3 {
				weight = 1 + r.IntN(2)
			}
		}
	}
	for _, w := range s.waits {
		w.wants = map[*resource]int{}
		for range 1 + r.IntN(3)/2 {
			on := s.resources[r.IntN(len(s.resources))]
			weight := 1
			switch own := on.claimedBy(w); {
			case own && on.capacity == 3:
				weight = 1
			case own:
				continue
			case on.capacity == 3:
				weight += r.IntN(3)
			case on.capacity > 0 && r.IntN(2) == 0:
				weight = on.capacity
			}
			w.wants[on] = weight
		}
		if len(w.wants) > 1 && w.ticket > 0 && w.ticket != leasetable.NoTicket {
			w.queued = true
		}
		for on := range w.wants { // a ticket that is used up at one of several names is soon replaced
			if len(w.wants) > 1 && w.ticket <= on.used && w.ticket != leasetable.BargeTicket {
				w.ticket += 60
			}
		}
	}
	s.waits = slices.DeleteFunc(s.waits, func(w *modelWait) bool { return len(w.wants) == 0 })
	return s
}

// claimedBy reports whether the call says that it holds the resource.
func (r *resource) claimedBy(w *modelWait) bool {
	return slices.ContainsFunc(r.grants, func(g *modelGrant) bool { return w.claims[g.token] != "" })
}

// insert writes the state into the tables.
func (s *state) insert(b *pgx.Batch, name func(sql string) string) {
	const ends = "clock_timestamp() + CASE WHEN %s THEN interval '1 h' ELSE interval '-1 h' END"
	for _, on := range s.resources {
		b.Queue(name("INSERT INTO pglock.distributed_locks (name, token, version, ticket, acquired_at, expires_at, capacity, in_use) "+
			"VALUES ($1, 0, 1, $2, clock_timestamp(), '-infinity', nullif($3, 0), CASE WHEN $3 > 0 THEN 0 END)"), on.name, on.used, on.capacity)
		for _, g := range on.grants {
			if g.weight == on.size() {
				b.Queue(name("UPDATE pglock.distributed_locks SET token = $2, holder = $3, expires_at = "+fmt.Sprintf(ends, "$4::boolean")+" WHERE name = $1"),
					on.name, g.token, g.holder, g.live)
			} else {
				b.Queue(name("INSERT INTO pglock.lock_permits (name, token, weight, version, acquired_at, expires_at, request, holder) "+
					"VALUES ($1, $2, $3, 1, clock_timestamp(), "+fmt.Sprintf(ends, "$5::boolean")+", gen_random_uuid(), $4)"), on.name, g.token, g.weight, g.holder, g.live)
			}
		}
	}
	for i, w := range s.waits {
		names, weights, tokens, holders := []string{}, []int{}, []int64{}, []string{}
		for on, weight := range w.wants {
			names, weights = append(names, on.name), append(weights, weight)
		}
		for token, holder := range w.claims {
			tokens, holders = append(tokens, token), append(holders, holder)
		}
		if w.number > 0 {
			b.Queue(name("INSERT INTO pglock.nested_waits (number, names, weights, holds, holders, ticket, holder, expires_at, request) "+
				"VALUES ($1, $2, $3, $4, $5, $6, $7, "+fmt.Sprintf(ends, "$8::boolean")+", gen_random_uuid())"),
				w.number, names, weights, tokens, holders, w.ticket, w.holder, w.live)
		}
		if w.queued {
			client := fmt.Sprint("client_", i)
			if len(names) > 1 {
				client += "/1"
			}
			b.Queue(name("INSERT INTO pglock.lock_waiters (name, client, ticket, holder, weight, expires_at) "+
				"SELECT u.name, $1, $2, $3, u.weight, "+fmt.Sprintf(ends, "$4::boolean")+" FROM unnest($5::text[], $6::int[]) AS u (name, weight)"),
				client, w.ticket, w.holder, w.alive, names, weights)
		}
	}
}

// A cause is that a wait needs another one to end, at a name.
type cause struct {
	waiter, blocker *modelWait
	on              *resource
	granted         bool // the blocker holds it; otherwise it is before the waiter in the queue
}

func (c cause) String() string {
	if c.granted {
		return fmt.Sprintf("%s waits for %q, which %s holds", c.waiter.holder, c.on.name, c.blocker.holder)
	}
	return fmt.Sprintf("%s waits for %q, where %s is before it", c.waiter.holder, c.on.name, c.blocker.holder)
}

// place returns a number that is smaller for those who are served before. Those without a valid ticket are behind the
// others, and those who overtake wait for nobody.
func (w *modelWait) place(on *resource) int64 {
	if w.ticket > 0 && w.ticket <= on.used {
		return math.MaxInt64
	}
	return w.ticket
}

// causes returns why the wait is not granted if all others than the stuck ones release what they hold, or nil. At a
// lock with one holder, those before it in the queue need what it needs itself, unless they wait for other names too.
func (s *state) causes(w *modelWait, stuck []*modelWait) (all []cause) {
	for on, weight := range w.wants {
		if !w.nested() && w.place(on) == math.MaxInt64 {
			continue
		}
		sum := weight
		var here []cause
		for _, g := range on.grants {
			held := false
			for _, v := range stuck {
				if v.holds(g) {
					held = true
					if v != w || g.weight > on.size()-weight {
						here = append(here, cause{w, v, on, true})
					}
				}
			}
			if held {
				sum += g.weight
			}
		}
		for _, v := range stuck {
			ahead, wants := v.wants[on]
			if place := v.place(on); v == w || !wants || place < 1 || place == math.MaxInt64 || place >= w.place(on) {
				continue
			}
			sum += ahead
			if on.capacity > 0 || len(v.wants) > 1 {
				here = append(here, cause{w, v, on, false})
			}
		}
		if sum > on.size() {
			all = append(all, here...)
		}
	}
	return all
}

// reduce returns the waits that are stuck, by Holt's reduction, and the causes.
func (s *state) reduce() (causes map[*modelWait][]cause) {
	stuck := slices.DeleteFunc(slices.Clone(s.waits), func(w *modelWait) bool { return !w.nested() && (!w.queued || !w.alive) })
	for before := -1; before != len(stuck); {
		before = len(stuck)
		causes = map[*modelWait][]cause{}
		all := slices.Clone(stuck)
		stuck = slices.DeleteFunc(stuck, func(w *modelWait) bool {
			causes[w] = s.causes(w, all)
			return len(causes[w]) == 0
		})
	}
	return causes
}

// reach returns all that a wait needs to end, itself if it is in a cycle.
func reach(w *modelWait, causes map[*modelWait][]cause) []*modelWait {
	var seen []*modelWait
	for next := []*modelWait{w}; len(next) > 0; next = next[1:] {
		for _, c := range causes[next[0]] {
			if !slices.Contains(seen, c.blocker) {
				seen, next = append(seen, c.blocker), append(next, c.blocker)
			}
		}
	}
	return seen
}

// check compares the words of find_deadlock for a wait with the model.
func (s *state) check(w *modelWait, words string) (wrong string) {
	if w.number == 0 {
		return ""
	}
	causes := s.reduce()
	needs := reach(w, causes)
	youngest := w.nested() && slices.Contains(needs, w) // of all that are in cycles with it
	for _, v := range needs {
		if v.nested() && v.number > w.number && slices.Contains(reach(v, causes), w) {
			youngest = false
		}
	}
	switch {
	case words == "" && youngest:
		return "is not found"
	case words == "":
		return ""
	case !w.nested() || !slices.Contains(needs, w):
		return "is none: " + words
	}
	at := w
	for words := range strings.SplitSeq(words, "; ") {
		i := slices.IndexFunc(causes[at], func(c cause) bool { return c.String() == words })
		if i < 0 {
			return "has a link that is none: " + words
		}
		by := causes[at][i]
		if by.granted = true; slices.Contains(causes[at], by) && !causes[at][i].granted {
			return "has a link by the queue, where there is one by a grant: " + words
		}
		if at = by.blocker; at.nested() && at.number > w.number {
			return "has a younger one: " + words
		}
	}
	if at != w {
		return "does not end where it begins: " + words
	}
	return ""
}

// TestDeadlocksOfRandomStates compares find_deadlock with a model of the resource graph.
func TestDeadlocksOfRandomStates(t *testing.T) {
	t.Parallel()
	states := 300
	if os.Getenv("PGLOCK_CHAOS") != "" {
		states = 5000
	}
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	render := func(sql string) string { return schema.Render(sql, name) }
	deadlocks, seed := 0, rand.Uint64()
	for n := range states {
		s := randomState(rand.New(rand.NewPCG(seed, uint64(n))))
		words := s.findAll(t, pool, render)
		for _, w := range s.waits {
			if wrong := s.check(w, words[w.number]); wrong != "" {
				t.Fatalf("seed %d, state %d: the deadlock of %s %s\n%s", seed, n, w.holder, wrong, s)
			}
		}
		deadlocks += len(words)
	}
	if deadlocks < states/20 {
		t.Errorf("%d deadlocks in %d states", deadlocks, states)
	}
	t.Logf("%d deadlocks in %d states", deadlocks, states)
}

// findAll returns what find_deadlock says of each wait, in a transaction that leaves nothing behind.
func (s *state) findAll(t *testing.T, pool *pgxpool.Pool, render func(sql string) string) map[int64]string {
	t.Helper()
	words := map[int64]string{}
	tx, err := pool.Begin(t.Context())
	locktest.OK(t, err)
	defer func() { locktest.OK(t, tx.Rollback(context.Background())) }()
	b := &pgx.Batch{}
	b.Queue("SET LOCAL statement_timeout = '60 s'") // of a search that does not end
	s.insert(b, render)
	b.Queue(render("SELECT n.number, pglock.find_deadlock(n.number) FROM pglock.nested_waits AS n WHERE n.number > 0")).Query(func(rows pgx.Rows) error {
		var number int64
		var found *string
		_, err := pgx.ForEachRow(rows, []any{&number, &found}, func() error {
			if found != nil {
				words[number] = *found
			}
			return nil
		})
		return err
	})
	if err := tx.SendBatch(t.Context(), b).Close(); err != nil {
		t.Fatalf("%v\n%s", err, s)
	}
	return words
}

func (s *state) String() string {
	var b strings.Builder
	for _, on := range s.resources {
		fmt.Fprintf(&b, "%s (%d), tickets to %d:", on.name, on.size(), on.used)
		for _, g := range on.grants {
			fmt.Fprintf(&b, " %d×%d of %s, live %v;", g.token, g.weight, g.holder, g.live)
		}
		b.WriteByte('\n')
	}
	for _, w := range s.waits {
		fmt.Fprintf(&b, "%s (%d), ticket %d, queued %v %v, live %v, claims %v, wants", w.holder, w.number, w.ticket, w.queued, w.alive, w.live, w.claims)
		for on, weight := range w.wants {
			fmt.Fprintf(&b, " %s×%d", on.name, weight)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
