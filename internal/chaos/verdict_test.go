//go:build linux

package chaos

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// checkTimeout bounds the search of porcupine.
const checkTimeout = 90 * time.Second

// entry is a write in the ledger.
type entry struct {
	Seq     int64
	Name    string
	Op      string
	Token   int64
	Balance int64
	At      time.Time
}

// event is a row of the log of grants.
type event struct {
	Seq       int64
	What      string
	Name      string
	Token     int64
	Weight    int64
	ExpiresAt *time.Time
	At        time.Time
}

// verdict is what a run has shown. Every field of violations must be zero, except in a control.
type verdict struct {
	rounds, operations, grants, writes, losses, observed int

	violations violations

	longest  time.Duration // wait for a lock
	takeover time.Duration // the least time from the end of a lost lease's Context to the next grant
	expiry   time.Duration // to the expiry of its own grant

	story string // of a history that is not linearizable
}

// violations counts what must not happen.
type violations struct {
	notLinearizable int // names
	lostUpdates     int
	staleWrites     int
	tornReads       int
	overlaps        int // of grants, by the server's clock
	tokensBack      int
	lateStops       int // the Context of a lost lease ended after the next grant
	falseLeaders    int // observers saw an older leader than before, or another one's payload
	healthyLosses   int
	starved         int
}

func (v violations) total() int { return v.safety() + v.healthyLosses + v.starved }

// safety leaves out what a control may show for another reason than the missing protection.
func (v violations) safety() int {
	return v.notLinearizable + v.lostUpdates + v.staleWrites + v.tornReads + v.overlaps + v.tokensBack + v.lateStops + v.falseLeaders
}

// judge reads the accounts of a run that has ended.
func (a *arena) judge(ctx context.Context, rounds int) (v verdict, err error) {
	v.rounds, v.takeover, v.expiry = rounds, time.Hour, time.Hour
	var entries []entry
	var events []event
	var balances map[string][2]int64
	for range 5 { // the server may just have been restarted
		if entries, events, balances, err = a.accounts(ctx); err == nil {
			break
		}
	}
	if err != nil {
		return v, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := monotonic()
	offset := clock(unix.CLOCK_REALTIME) - now // from the monotonic clock to the server's
	v.judgeLedger(entries, balances)
	v.judgeGrants(events)
	v.judgeWrites(entries, events)
	a.judgeRecords(&v, events, offset)
	history := a.history(entries, now)
	v.operations = len(history)
	if result := porcupine.CheckOperationsTimeout(model(), history, checkTimeout); result != porcupine.Ok {
		for _, part := range partition(history) {
			result, info := porcupine.CheckOperationsVerbose(model(), part, checkTimeout)
			switch result {
			case porcupine.Illegal:
				v.violations.notLinearizable++
				v.story = story(part, info)
			case porcupine.Unknown:
				v.violations.notLinearizable++
				a.t.Logf("porcupine has not found an answer for %d operations", len(part))
			}
		}
	}
	return v, nil
}

// story tells the end of the longest order of operations that the model allows, and the operations
// that come next, none of which it allows there.
func story(history []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []int
	for _, order := range info.PartialLinearizations()[0] {
		if len(order) > len(longest) {
			longest = order
		}
	}
	tell := func(o porcupine.Operation) string {
		in := o.Input.(operation)
		return fmt.Sprintf("\n  %v to %v %s %v, token %d, value %d", time.Duration(o.Call), time.Duration(o.Return), in.verb, in.uses, in.token, in.value)
	}
	var text strings.Builder
	text.WriteString("possible so far:")
	for _, i := range longest[max(len(longest)-12, 0):] {
		text.WriteString(tell(history[i]))
	}
	var rest []porcupine.Operation
	for i, o := range history {
		if !slices.Contains(longest, i) {
			rest = append(rest, o)
		}
	}
	slices.SortFunc(rest, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	text.WriteString("\nimpossible next:")
	for _, o := range rest[:min(len(rest), 6)] {
		text.WriteString(tell(o))
	}
	return text.String()
}

func (a *arena) accounts(ctx context.Context) (entries []entry, events []event, balances map[string][2]int64, err error) {
	rows, _ := a.admin.Query(ctx, "SELECT seq, name, op, token, balance, at FROM entries ORDER BY seq")
	if entries, err = pgx.CollectRows(rows, pgx.RowToStructByPos[entry]); err != nil {
		return nil, nil, nil, err
	}
	rows, _ = a.admin.Query(ctx, "SELECT seq, what, name, token, weight, CASE WHEN expires_at > '-infinity' THEN expires_at END, at FROM grant_log ORDER BY seq")
	if events, err = pgx.CollectRows(rows, pgx.RowToStructByPos[event]); err != nil {
		return nil, nil, nil, err
	}
	balances = map[string][2]int64{}
	rows, _ = a.admin.Query(ctx, "SELECT name, balance, twin FROM accounts")
	var name string
	var both [2]int64
	_, err = pgx.ForEachRow(rows, []any{&name, &both[0], &both[1]}, func() error { balances[name] = both; return nil })
	return entries, events, balances, err
}

// judgeLedger compares sums, and the order of the tokens of exclusive writes with that of the
// commits.
func (v *verdict) judgeLedger(entries []entry, balances map[string][2]int64) {
	v.writes = len(entries)
	count, newest := map[string]int64{}, map[string]int64{}
	for _, e := range entries {
		count[e.Name]++
		if e.Name == semaphoreName {
			continue
		}
		if e.Token < newest[e.Name] {
			v.violations.staleWrites++
		}
		newest[e.Name] = max(newest[e.Name], e.Token)
	}
	for name, both := range balances {
		v.violations.lostUpdates += int(count[name] - both[0])
		if both[0] != both[1] {
			v.violations.lostUpdates++
		}
	}
}

// grant is a grant by the log.
type grant struct {
	name    string
	token   int64
	weight  int64
	from    time.Time
	expires time.Time
}

// judgeGrants replays the log: the live grants of a name never have more than its capacity, and its
// tokens grow.
func (v *verdict) judgeGrants(events []event) {
	live, last := map[string][]grant{}, map[string]int64{}
	for _, e := range events {
		all := live[e.Name]
		i := slices.IndexFunc(all, func(g grant) bool { return g.token == e.Token })
		switch {
		case e.What == "granted":
			v.grants++
			sum := e.Weight
			for _, g := range all {
				if g.expires.After(e.At) {
					sum += g.weight
				}
			}
			if sum > capacityOf(e.Name) {
				v.violations.overlaps++
			}
			if e.Token <= last[e.Name] {
				v.violations.tokensBack++
			}
			last[e.Name] = max(last[e.Name], e.Token)
			all = slices.DeleteFunc(all, func(g grant) bool { return !g.expires.After(e.At) })
			live[e.Name] = append(all, grant{name: e.Name, token: e.Token, weight: e.Weight, from: e.At, expires: *e.ExpiresAt})
		case i < 0:
		case e.What == "renewed" && e.ExpiresAt != nil:
			all[i].expires = *e.ExpiresAt
		case e.What == "lowered":
			all[i].weight = e.Weight
		case e.What == "ended":
			live[e.Name] = slices.Delete(all, i, i+1)
		}
	}
}

func capacityOf(name string) int64 {
	switch name {
	case semaphoreName:
		return capacity
	case rwName:
		return allPermits
	}
	return 1
}

// judgeWrites looks for writes of a grant after a later grant that it excludes.
func (v *verdict) judgeWrites(entries []entry, events []event) {
	grants := map[string][]event{}
	weight := map[string]int64{}
	for _, e := range events {
		if e.What == "granted" {
			grants[e.Name] = append(grants[e.Name], e)
			k := fmt.Sprint(e.Name, e.Token)
			weight[k] = max(weight[k], e.Weight) // a writer that becomes a reader keeps its token
		}
	}
	for _, e := range entries {
		for _, g := range grants[e.Name] {
			if g.Token > e.Token && g.At.Before(e.At) && g.Weight+weight[fmt.Sprint(e.Name, e.Token)] > capacityOf(e.Name) {
				v.violations.staleWrites++
				break
			}
		}
	}
}

// judgeRecords looks at what the workers say about waits, losses and reads.
func (a *arena) judgeRecords(v *verdict, events []event, offset int64) {
	hits := slices.Clone(a.hits)
	from := map[string]int64{}   // names and token → when it was granted
	returned := map[int64]bool{} // tokens
	payloads := map[int64]string{}
	newest := map[string]int64{} // by worker: the leader that it has observed
	for _, r := range a.records {
		if r.What == granted || r.What == raised {
			returned[r.Token], payloads[r.Token] = true, r.Op
		}
		if r.What == stalled || r.What == abandoned {
			hits = append(hits, hit{r.Worker, r.Call, r.Return})
		}
	}
	for _, r := range a.records {
		switch r.What {
		case granted, raised:
			from[fmt.Sprint(r.Names, r.Token)] = r.Call
			v.longest = max(v.longest, time.Duration(r.Return-r.Call))
		case starved:
			v.violations.starved++
			a.t.Logf("%s waited for %q for %v: %s", r.Worker, r.Name, time.Duration(r.Return-r.Call), r.Error)
		case viewed:
			if r.Value != r.Twin {
				v.violations.tornReads++
			}
		case observed:
			v.observed++
			if r.Token < newest[r.Worker] || !strings.HasPrefix(r.Op, payloads[r.Token]) {
				v.violations.falseLeaders++
			}
			newest[r.Worker] = r.Token
		case over:
			if !r.Lost {
				continue
			}
			v.losses++
			for _, name := range r.Names {
				next, expiry := after(events, returned, name, r.Token, r.Weight)
				if next != 0 {
					distance := time.Duration(next - offset - r.Stopped)
					v.takeover = min(v.takeover, distance)
					if distance < 0 {
						v.violations.lateStops++
					}
				}
				if expiry != 0 {
					v.expiry = min(v.expiry, time.Duration(expiry-offset-r.Stopped))
				}
			}
			explained := slices.ContainsFunc(hits, func(h hit) bool {
				return strings.HasPrefix(r.Worker, h.worker) && h.from <= r.Stopped && h.to >= from[fmt.Sprint(r.Names, r.Token)]
			})
			if !explained {
				v.violations.healthyLosses++
				a.t.Logf("%s lost %q, token %d, at %v without a fault: %s", r.Worker, r.Names, r.Token, time.Duration(r.Stopped), r.Error)
			}
		}
	}
}

// after returns when a grant of the name that excludes this one, and was returned to a caller, began
// after it, and when this one expired, in nanoseconds of the server's clock; 0: never. A grant that no
// caller was told of is revoked, such as that of an upgrade without an answer.
func after(events []event, returned map[int64]bool, name string, token, weight int64) (next, expiry int64) {
	for _, e := range events {
		switch {
		case e.Name != name:
		case e.Token == token && e.ExpiresAt != nil:
			expiry = e.ExpiresAt.UnixNano()
		case e.Token > token && e.What == "granted" && next == 0 && returned[e.Token] && e.Weight+weight > capacityOf(name):
			next = e.At.UnixNano()
		}
	}
	return next, expiry
}

// history turns the records into the input of the model. A write whose outcome its worker did not
// learn counts if it is in the ledger.
func (a *arena) history(entries []entry, now int64) (history []porcupine.Operation) {
	type key struct {
		name  string
		token int64
	}
	begun := map[key]record{}  // grants, by each of their names
	live := map[key]*record{}  // by the first name; Call is when the holder last saw it alive
	known := map[string]bool{} // writes
	add := func(v verb, r record) {
		o := operation{verb: v, token: r.Token, value: r.Value}
		names := r.Names
		if v == wrote || v == incremented || v == read {
			names = []string{r.Name}
		}
		for _, name := range names {
			o.uses = append(o.uses, use{name, r.Weight, capacityOf(name)})
		}
		history = append(history, porcupine.Operation{Input: o, Call: r.Call, Return: r.Return})
	}
	begin := func(r record) {
		for _, name := range r.Names {
			begun[key{name, r.Token}] = r
		}
		if r.Value = 0; !r.Lost {
			r.Call = r.Return
		}
		live[key{r.Names[0], r.Token}] = &r
	}
	for _, r := range a.records {
		if r.What == died { // and all its grants with it
			for k, g := range live {
				if g.Worker != r.Worker {
					continue
				}
				g.Return = r.Return
				if g.Value != 0 { // between lowering and lowered
					both := *g
					both.Call = g.Value
					add(lessened, both)
					g.Weight, g.Call = 1, g.Value
				}
				add(ended, *g)
				delete(live, k)
			}
			continue
		}
		if len(r.Names) == 0 {
			continue
		}
		k := key{r.Names[0], r.Token}
		g := live[k]
		if g == nil {
			g = new(record) // ended, if a seeded bug repeats tokens
		}
		switch r.What {
		case granted:
			begin(r)
			add(acquired, r)
		case raised:
			delete(live, key{r.Names[0], r.Value})
			begin(r)
			add(raisedTo, r)
		case alive:
			g.Call = max(g.Call, r.Call)
		case lowering:
			g.Value = r.Call
		case lowered:
			g.Weight, g.Value = 1, 0
			add(lessened, r)
		case over:
			delete(live, k)
			add(ended, r)
		case committed, added:
			known[r.Op] = true
			add(map[what]verb{committed: wrote, added: incremented}[r.What], r)
		case viewed:
			add(read, r)
		}
	}
	for _, e := range entries {
		g, found := begun[key{e.Name, e.Token}]
		if known[e.Op] || !found {
			continue
		}
		g.Name, g.Value, g.Call, g.Return = e.Name, e.Balance-1, g.Return, now
		v := wrote
		if e.Name == semaphoreName && g.Weight < capacity {
			v = incremented
		}
		add(v, g)
	}
	return history
}

// String returns the figures for a table.
func (v verdict) String() string {
	text := fmt.Sprintf("%d rounds, %d grants, %d writes, %d operations checked, %d leaders observed, %d leases lost, longest wait %v: %d violations",
		v.rounds, v.grants, v.writes, v.operations, v.observed, v.losses, v.longest.Round(time.Millisecond), v.violations.total())
	if v.violations != (violations{}) {
		text += fmt.Sprintf(" %+v", v.violations)
	}
	if v.takeover < time.Hour {
		text += fmt.Sprintf("; Context ended at least %d µs before the next grant", v.takeover.Microseconds())
	}
	if v.expiry < time.Hour {
		text += fmt.Sprintf(", %d µs before the expiry", v.expiry.Microseconds())
	}
	return text
}
