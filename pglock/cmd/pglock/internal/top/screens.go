package top

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/text"
	"github.com/pglock/pglock-go/pglock/inspect"
)

// view is what the screens draw.
type view struct {
	inspect.Snapshot
	checks []doctor.Result
	shares map[int64]float64 // by token: the remaining time, as part of the longest that was seen
	rates  map[string]float64
}

// screen is a table of one part of a view.
type screen struct {
	title   string
	columns []column
	rows    func(v view) []row
	empty   string
}

// screens are in the order of their keys, from 1.
var screens = []screen{
	{"held", []column{
		{title: "NAME", wide: true}, {title: "KIND", drop: 4}, {title: "HOLDER", wide: true, drop: 1}, {title: "HELD", right: true, drop: 2},
		{title: "REMAINING"}, {title: "WAITERS", right: true}, {title: "TOKEN", right: true, drop: 3},
		{title: "CHANGES/S", right: true, drop: 5}, {title: "LABELS", wide: true, drop: 6},
	}, heldRows, "No lock is held."},
	{"waiting", []column{
		{title: "NAME", wide: true}, {title: "PLACE", right: true}, {title: "CLIENT", wide: true}, {title: "WAITED", right: true},
		{title: "WANTS", drop: 2}, {title: "HELD BY", wide: true, drop: 1}, {title: "REMAINING", right: true, drop: 3},
	}, waitingRows, "Nobody waits."},
	{"blocking", []column{
		{title: "LOCK, ITS WAITERS, AND WHAT BLOCKS BEHIND THEM", wide: true}, {title: "HELD BY, OR HOLDS", wide: true}, {title: "WAITED", right: true},
	}, blockingRows, "Nobody waits."},
	{"permits", []column{
		{title: "NAME", wide: true}, {title: "KIND", drop: 2}, {title: "IN USE"}, {title: "HOLDER", wide: true}, {title: "HAS"},
		{title: "HELD", right: true, drop: 1}, {title: "REMAINING"}, {title: "WAITERS", right: true}, {title: "TOKEN", right: true, drop: 3},
	}, permitRows, "No semaphore and no readers-writer lock is held."},
	{"elections", []column{
		{title: "ELECTION", wide: true}, {title: "LEADER", wide: true}, {title: "PAYLOAD", wide: true, drop: 1}, {title: "TERM", right: true},
		{title: "REMAINING"}, {title: "CANDIDATES", right: true, drop: 2}, {title: "TOKEN", right: true, drop: 3},
	}, electionRows, "No election has a leader."},
	{"schedules", []column{
		{title: "JOB", wide: true}, {title: "STATE"}, {title: "LAST TICK", drop: 2}, {title: "AGO", right: true}, {title: "NEXT TICK", drop: 1},
		{title: "HOLDER", wide: true, drop: 3},
	}, scheduleRows, "No job has run."},
	{"once", []column{
		{title: "KEY", wide: true}, {title: "STATE"}, {title: "HOLDER", wide: true, drop: 1}, {title: "STARTED", right: true},
		{title: "FIRST", right: true, drop: 2}, {title: "TOKEN", right: true, drop: 3},
	}, onceRows, "No effect is without an outcome."},
	{"doctor", []column{
		{title: "LEVEL"}, {title: "CHECK"}, {title: "FOUND", wide: true, least: 48}, {title: "REMEDY", wide: true, drop: 1},
	}, doctorRows, "The checks run."},
	{"advisory", []column{
		{title: "KEY"}, {title: "MODE", drop: 2}, {title: "STATE"}, {title: "PID", right: true}, {title: "APPLICATION", wide: true},
		{title: "USER", wide: true, drop: 1}, {title: "TRANSACTION", right: true}, {title: "WAITS FOR", drop: 3},
	}, advisoryRows, "No advisory lock is held."},
}

// The places of two screens.
const blockingScreen, doctorScreen = 2, 7

func number(n int64) cell { return cell{text: strconv.FormatInt(n, 10)} }

func count(n int) cell {
	if n == 0 {
		return cell{"0", faint}
	}
	return cell{text: strconv.Itoa(n)}
}

func short(d time.Duration) cell { return cell{text: text.Short(d)} }

// named returns text of others.
func named(s string) cell { return cell{text: text.Plain(s)} }

func since(at, now time.Time) cell {
	if at.IsZero() || at.Year() < 1970 {
		return cell{"-", faint}
	}
	return short(now.Sub(at))
}

// remaining draws how long a grant lasts. A grant that is renewed in time is rarely below half.
func (v view) remaining(token int64, d time.Duration) cell {
	share, known := v.shares[token]
	if !known {
		return short(d)
	}
	c := cell{fmt.Sprintf("%s %5s", meter(share, 8), text.Short(d)), good}
	switch {
	case share < 0.2:
		c.tone = bad
	case share < 0.5:
		c.tone = warning
	}
	return c
}

// grants returns the grants of a lock, of one holder or of several.
func grants(l inspect.Lock) []inspect.Grant {
	if len(l.Grants) > 0 || !l.Held() {
		return l.Grants
	}
	return []inspect.Grant{{
		Token: l.Token, Holder: l.Holder, Labels: l.Labels, HeldFor: l.HeldFor, Remaining: l.Remaining,
		Exclusive: true, ReleaseRequested: l.ReleaseRequested,
	}}
}

// grantRow returns a row that is about a grant.
func grantRow(name string, g inspect.Grant, cells ...cell) row {
	return row{cells: cells, lock: name, token: int64(g.Token), key: fmt.Sprint(name, g.Token)}
}

func heldRows(v view) (rows []row) {
	for _, l := range v.Locks {
		for _, g := range grants(l) {
			holder := named(g.Holder)
			if g.ReleaseRequested {
				holder = cell{holder.text + " (asked to release)", warning}
			}
			rows = append(rows, grantRow(l.Name, g, named(l.Name), cell{text: string(l.Kind)}, holder, short(g.HeldFor),
				v.remaining(int64(g.Token), g.Remaining), count(len(l.Waiters)), number(int64(g.Token)),
				cell{text: fmt.Sprintf("%.1f", v.rates[l.Name])}, cell{strings.Join(text.Labels(g.Labels), " "), faint}))
		}
	}
	return rows
}

func waitingRows(v view) (rows []row) {
	for _, l := range v.Locks {
		for i, w := range l.Waiters {
			rows = append(rows, row{
				cells: []cell{named(l.Name), number(int64(i + 1)), named(w.Holder), short(w.Waited), {text: text.Share(l.Kind, w.Permits, w.Exclusive)}, holders(l.Holders()), short(soonest(l))},
				lock:  l.Name, token: int64(l.Token), key: fmt.Sprint(l.Name, w.Ticket, w.Holder),
			})
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int { return strings.Compare(a.lock, b.lock) })
	return rows
}

// soonest returns when the first grant of a lock ends unless renewed.
func soonest(l inspect.Lock) time.Duration {
	d := l.Remaining
	for i, g := range l.Grants {
		if i == 0 || g.Remaining < d {
			d = g.Remaining
		}
	}
	return d
}

func holders(all []string) cell {
	switch len(all) {
	case 0:
		return cell{"nobody", faint}
	case 1:
		return named(all[0])
	}
	return cell{text: fmt.Sprintf("%s and %d more", text.Plain(all[0]), len(all)-1)}
}

func blockingRows(v view) (rows []row) {
	for i, b := range v.Tree() {
		indent := strings.Repeat("  ", b.Depth)
		r := row{lock: b.Name, key: fmt.Sprint(i)}
		switch {
		case b.Place > 0:
			holds := cell{"holds nothing", faint}
			if len(b.Holds) > 0 {
				names := make([]string, len(b.Holds))
				for i, n := range b.Holds {
					names[i] = text.Plain(n)
				}
				holds = cell{text: "its client holds " + strings.Join(names, ", ")}
				if b.Nested {
					holds.text = "holds " + strings.Join(names, ", ")
				}
			}
			r.cells = []cell{{text: fmt.Sprintf("%s%d. %s", indent, b.Place, text.Plain(b.Waiter.Holder))}, holds, short(b.Waiter.Waited)}
		case b.Cycle:
			r.cells = []cell{{indent + text.Plain(b.Name) + " again: a cycle", bad}, holders(b.Holders), {}}
		default:
			r.cells = []cell{{text: indent + text.Plain(b.Name)}, {text: "held by " + holders(b.Holders).text}, {}}
		}
		rows = append(rows, r)
	}
	return rows
}

func permitRows(v view) (rows []row) {
	for _, l := range v.Locks {
		if l.Kind == inspect.OneHolder {
			continue
		}
		used := cell{text: fmt.Sprint(len(l.Grants))}
		if l.Kind == inspect.Semaphore {
			used.text = fmt.Sprintf("%s %d of %d", meter(float64(l.InUse())/float64(max(l.Permits, 1)), 8), l.InUse(), l.Permits)
			if l.InUse() >= l.Permits {
				used.tone = warning
			}
		}
		for _, g := range l.Grants {
			rows = append(rows, grantRow(l.Name, g, named(l.Name), cell{text: string(l.Kind)}, used, named(g.Holder),
				cell{text: text.Share(l.Kind, g.Permits, g.Exclusive)}, short(g.HeldFor), v.remaining(int64(g.Token), g.Remaining),
				count(len(l.Waiters)), number(int64(g.Token))))
		}
	}
	return rows
}

func electionRows(v view) (rows []row) {
	for _, l := range v.Elections() {
		for _, g := range grants(l) {
			rows = append(rows, grantRow(l.Name, g, named(l.Name), named(g.Holder), named(g.Labels["payload"]), short(g.HeldFor),
				v.remaining(int64(g.Token), g.Remaining), count(len(l.Waiters)), number(int64(g.Token))))
		}
	}
	return rows
}

func scheduleRows(v view) (rows []row) {
	for _, s := range v.Schedules {
		state, next := cell{"done", plainTone}, cell{"-", faint}
		if !s.Next.IsZero() {
			next = cell{text: s.Next.UTC().Format(time.DateTime)}
		}
		switch late := s.Late(v.At); {
		case !s.Running.IsZero():
			state = cell{"runs", good}
		case late > 0:
			state = cell{"late by " + text.Short(late), bad}
		}
		last := cell{"-", faint}
		if !s.Last.IsZero() {
			last = cell{text: s.Last.UTC().Format(time.DateTime)}
		}
		rows = append(rows, row{cells: []cell{named(s.Job), state, last, since(s.Last, v.At), next, named(s.Holder)}, lock: s.Job, key: s.Job})
	}
	return rows
}

func onceRows(v view) (rows []row) {
	for _, a := range v.Once {
		state := cell{"unknown", bad}
		if a.Running {
			state = cell{"running", good}
		}
		rows = append(rows, row{cells: []cell{named(a.Key), state, named(a.Holder), since(a.StartedAt, v.At), since(a.CreatedAt, v.At), number(int64(a.Token))}, key: a.Key})
	}
	return rows
}

func doctorRows(v view) (rows []row) {
	levels := map[doctor.Level]tone{doctor.OK: good, doctor.Warn: warning, doctor.Fail: bad, doctor.Skip: faint}
	for i, r := range v.checks {
		rows = append(rows, row{cells: []cell{{string(r.Level), levels[r.Level]}, {text: r.Check}, {text: text.OneLine(r.Found)}, {text: text.OneLine(r.Remedy)}}, key: fmt.Sprint(i)})
	}
	return rows
}

func advisoryRows(v view) (rows []row) {
	for _, u := range v.Advisory {
		mode, state := "exclusive", cell{"held", plainTone}
		if u.Shared {
			mode = "shared"
		}
		if !u.Granted {
			state = cell{"waits", warning}
		}
		key := u.Key.String()
		if u.Name != "" {
			key = text.Plain(u.Name)
		}
		blockers := ""
		if len(u.WaitsFor) > 0 {
			blockers = strings.Trim(fmt.Sprint(u.WaitsFor), "[]")
		}
		rows = append(rows, row{
			cells: []cell{{text: key}, {text: mode}, state, number(int64(u.PID)), named(u.ApplicationName), named(u.User), short(u.TransactionAge), {text: blockers}},
			key:   fmt.Sprint(u.Key, u.PID, mode),
		})
	}
	return rows
}
