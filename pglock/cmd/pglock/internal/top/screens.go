package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/display"
	"github.com/pglock/pglock-go/pglock/internal/text"
)

type view struct {
	inspect.Snapshot
	width   int // of the screen; 0: texts are not wrapped
	checks  []doctor.Result
	grown   map[string]int                  // by how many waiters the queues have grown
	overdue map[fencing.Token]time.Duration // for how long at least the grants were not renewed that should have been
	rates   map[string]float64              // of changes per second, by name
}

type screen struct {
	title   string
	columns []column
	rows    func(v view) []row
	empty   string
}

// screens are in the order of their keys, from 1.
var screens = []screen{
	{"now", []column{{title: "NOW"}, {title: "WHAT NEEDS ATTENTION, AND THE CURE", wide: true}}, nowRows, ""},
	{"held", []column{
		{title: "NAME", wide: true}, {title: "KIND", drop: 3}, {title: "HOLDER", wide: true, drop: 1}, {title: "HELD", align: right, drop: 2},
		{title: "REMAINING"}, {title: "WAITERS", align: right}, {title: "TOKEN", align: right, drop: 4},
		{title: "CHANGES/S", align: right, drop: 5}, {title: "LABELS", wide: true, drop: 6},
	}, heldRows, "No lock is held."},
	{"waiting", []column{
		{title: "NAME", wide: true}, {title: "PLACE", align: right}, {title: "CLIENT", wide: true}, {title: "WAITED", align: right},
		{title: "WANTS", drop: 2}, {title: "HELD BY", wide: true, drop: 1}, {title: "REMAINING", align: right, drop: 3},
	}, waitingRows, "Nobody waits."},
	{"blocking", []column{
		{title: "LOCK, ITS WAITERS, AND WHAT BLOCKS BEHIND THEM", wide: true}, {title: "HELD BY, OR HOLDS", wide: true}, {title: "WAITED", align: right},
	}, blockingRows, "Nobody waits."},
	{"permits", []column{
		{title: "NAME", wide: true}, {title: "KIND", drop: 2}, {title: "IN USE"}, {title: "HOLDER", wide: true}, {title: "HAS"},
		{title: "HELD", align: right, drop: 1}, {title: "REMAINING"}, {title: "WAITERS", align: right}, {title: "TOKEN", align: right, drop: 3},
	}, permitRows, "No semaphore and no readers-writer lock is held."},
	{"elections", []column{
		{title: "ELECTION", wide: true}, {title: "LEADER", wide: true}, {title: "PAYLOAD", wide: true, drop: 1}, {title: "TERM", align: right},
		{title: "REMAINING"}, {title: "CANDIDATES", align: right, drop: 2}, {title: "TOKEN", align: right, drop: 3},
	}, electionRows, "No election has a leader."},
	{"schedules", []column{
		{title: "JOB", wide: true}, {title: "STATE"}, {title: "LAST TICK", drop: 2}, {title: "AGO", align: right}, {title: "NEXT TICK", drop: 1},
		{title: "ZONE", drop: 5}, {title: "HOLDER", wide: true, drop: 4}, {title: "ERROR", wide: true, drop: 3},
	}, scheduleRows, "No job has run."},
	{"once", []column{
		{title: "KEY", wide: true}, {title: "STATE"}, {title: "HOLDER", wide: true, drop: 1}, {title: "STARTED", align: right},
		{title: "FIRST", align: right, drop: 2}, {title: "TOKEN", align: right, drop: 3},
	}, onceRows, "No effect is without an outcome."},
	{"doctor", []column{{title: "IS"}, {title: "CHECK: WHAT WAS FOUND, AND THE REMEDY", wide: true}}, doctorRows, "The checks run."},
}

const nowScreen, doctorScreen = 0, 8 // their places

var none = cell{"-", faint}

func count(n int) cell {
	if n == 0 {
		return cell{"0", faint}
	}
	return cell{text: strconv.Itoa(n)}
}

func waiters(l inspect.Lock) cell {
	if l.Standby {
		return cell{text: text.Waiters(l)}
	}
	return count(len(l.Waiters))
}

func short(d time.Duration) cell { return cell{text: text.Short(d)} }

// named returns text that other programs wrote.
func named(s string) cell { return cell{text: text.Plain(s)} }

func token(t fencing.Token) cell { return cell{text: fmt.Sprint(t)} }

func since(t, now time.Time) cell {
	if t.IsZero() {
		return none
	}
	return short(now.Sub(t))
}

func at(t time.Time) cell {
	if t.IsZero() {
		return none
	}
	return cell{text: t.UTC().Format(time.DateTime)}
}

// remaining says how long a grant lasts, and whether it should have been renewed.
func (v view) remaining(g inspect.Grant) cell {
	if overdue := v.overdue[g.Token]; overdue > 0 {
		return cell{text.Short(g.Remaining) + ", not renewed for " + text.Short(overdue), bad}
	}
	return short(g.Remaining)
}

func grantRow(l inspect.Lock, g inspect.Grant, cells ...cell) row {
	return row{cells: append([]cell{named(l.Name)}, cells...), lock: l.Name, token: g.Token, key: fmt.Sprint(l.Name, g.Token)}
}

// wrapped returns the rows of a text that is never cut: the first one has the head.
func (v view) wrapped(r row, head cell, texts ...cell) (rows []row) {
	const noHyphen = "\ue000" // Wrap breaks no line after it, as it would within --happened
	for _, c := range texts {
		lines := []string{c.text}
		if v.width > 0 {
			lines = strings.Split(ansi.Wrap(strings.ReplaceAll(c.text, "-", noHyphen), max(v.width-6, leastWide), ""), "\n")
		}
		for _, line := range lines {
			next := r
			next.cells, next.key = []cell{head, {strings.ReplaceAll(line, noHyphen, "-"), c.style}}, fmt.Sprint(r.key, len(rows))
			rows, head = append(rows, next), cell{}
		}
	}
	return rows
}

// attention returns what needs attention now.
func (v view) attention() []display.Concern {
	checks := make([]display.Check, len(v.checks))
	for i, c := range v.checks {
		checks[i] = display.Check{Name: c.Check, Level: string(c.Level), Found: c.Found, Remedy: c.Remedy}
	}
	return display.Attention(v.Snapshot, v.overdue, v.grown, checks)
}

var levels = map[string]lipgloss.Style{string(doctor.OK): good, string(doctor.Warn): warning, string(doctor.Fail): bad, string(doctor.Skip): faint}

// nowRows are what needs attention, and then the last actions of operators.
func nowRows(v view) (rows []row) {
	for _, c := range v.attention() {
		r := row{lock: c.Name, token: c.Token, key: fmt.Sprint(c.Name, c.Token, c.Found)}
		if c.Key {
			r.lock, r.once = "", c.Name
		}
		rows = append(rows, v.wrapped(r, cell{c.Level, levels[c.Level]}, cell{text: c.Line()}, cell{text.OneLine(c.Cure), faint})...)
	}
	if len(rows) == 0 && !v.At.IsZero() {
		what := "Nothing needs attention."
		if v.checks == nil {
			what = "Nothing needs attention so far: the checks of doctor run."
		}
		rows = v.wrapped(row{}, cell{"ok", good}, cell{text: what})
	}
	for _, a := range v.Actions[:min(len(v.Actions), 10)] {
		rows = append(rows, v.wrapped(row{key: fmt.Sprint(a)}, cell{"done", faint}, cell{text.Short(v.At.Sub(a.At)) + " ago: " + text.Action(a), faint})...)
	}
	return rows
}

// heldRows are the grants, and then the sessions that hold or wait for advisory locks.
func heldRows(v view) (rows []row) {
	for _, l := range v.Locks {
		for _, g := range l.Live() {
			holder := named(g.Holder)
			if g.ReleaseRequested {
				holder = cell{holder.text + " (asked to release)", warning}
			}
			rows = append(rows, grantRow(l, g, cell{text: string(l.Kind)}, holder, short(g.HeldFor), v.remaining(g), waiters(l), token(g.Token),
				cell{text: fmt.Sprintf("%.1f", v.rates[l.Name])}, cell{strings.Join(text.Labels(g.Labels), " "), faint}))
		}
	}
	for _, u := range v.Advisory {
		kind, remaining, more := "advisory", none, cell{"user=" + text.Plain(u.User), faint}
		if u.Shared {
			kind = "advisory, shared"
		}
		if !u.Granted {
			remaining, more.text = cell{"waits", warning}, fmt.Sprintf("%s waits for %d", more.text, u.WaitsFor)
		}
		who := cell{text: fmt.Sprintf("%s %d", text.Plain(u.ApplicationName), u.PID)}
		rows = append(rows, row{
			cells: []cell{named(cmp.Or(u.Name, u.Key.String())), {text: kind}, who, short(u.TransactionAge), remaining, none, none, none, more},
			key:   fmt.Sprint(u.Key, u.PID, kind),
		})
	}
	return rows
}

func waitingRows(v view) (rows []row) {
	for _, l := range v.Locks {
		soonest := l.Remaining
		if len(l.Grants) > 0 {
			soonest = slices.MinFunc(l.Grants, func(a, b inspect.Grant) int { return cmp.Compare(a.Remaining, b.Remaining) }).Remaining
		}
		for i, w := range l.Waiters {
			rows = append(rows, row{
				cells: []cell{named(l.Name), count(i + 1), named(w.Holder), short(w.Waited), {text: text.Share(l.Kind, w.Permits, w.Exclusive)}, holders(l.Holders()), short(soonest)},
				lock:  l.Name, token: l.Token, key: fmt.Sprint(l.Name, w.Ticket, w.Holder),
			})
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int { return strings.Compare(a.lock, b.lock) })
	return rows
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
		what, who, waited := named(b.Name), cell{text: "held by " + holders(b.Holders).text}, cell{}
		switch {
		case b.Place > 0:
			what.text = fmt.Sprintf("%d. %s", b.Place, text.Plain(b.Waiter.Holder))
			waited = short(b.Waiter.Waited)
			who = cell{text: "its client holds " + text.List(b.Holds)}
			if b.Nested {
				who.text = "holds " + text.List(b.Holds)
			}
			if len(b.Holds) == 0 {
				who = cell{"holds nothing", faint}
			}
		case b.Cycle:
			what = cell{what.text + " again: a cycle", bad}
		case b.Perhaps:
			what = cell{what.text + " again: perhaps a cycle", warning}
		}
		what.text = strings.Repeat("  ", b.Depth) + what.text
		rows = append(rows, row{cells: []cell{what, who, waited}, lock: b.Name, key: fmt.Sprint(i)})
	}
	return rows
}

func permitRows(v view) (rows []row) {
	for _, l := range v.Locks {
		used := cell{text: fmt.Sprint(len(l.Grants))}
		if l.Kind == inspect.Semaphore {
			used.text = fmt.Sprintf("%s %d of %d", meter(float64(l.InUse())/float64(max(l.Permits, 1)), 8), l.InUse(), l.Permits)
			if l.InUse() >= l.Permits {
				used.style = warning
			}
		}
		for _, g := range l.Grants {
			rows = append(rows, grantRow(l, g, cell{text: string(l.Kind)}, used, named(g.Holder), cell{text: text.Share(l.Kind, g.Permits, g.Exclusive)},
				short(g.HeldFor), v.remaining(g), waiters(l), token(g.Token)))
		}
	}
	return rows
}

func electionRows(v view) (rows []row) {
	for _, l := range v.Locks {
		payload, ok := l.Labels["payload"]
		for _, g := range l.Live() {
			if ok {
				rows = append(rows, grantRow(l, g, named(g.Holder), named(payload), short(g.HeldFor), v.remaining(g), waiters(l), token(g.Token)))
			}
		}
	}
	return rows
}

func scheduleRows(v view) (rows []row) {
	for _, s := range v.Schedules {
		state := cell{text: "done"}
		switch late := s.Late(v.At); {
		case !s.Running.IsZero():
			state = cell{"runs", good}
		case late > 0:
			state = cell{"late by " + text.Short(late), bad}
		case !s.Triggered.IsZero():
			state = cell{text: "triggered"}
		case s.Attempts > 0:
			state = cell{fmt.Sprintf("failed %d×", s.Attempts), bad}
		}
		rows = append(rows, row{cells: []cell{named(s.Job), state, at(s.Last), since(s.Last, v.At), at(s.Next), named(s.Zone), named(s.Holder), named(s.Error)}, lock: s.Job, key: s.Job})
	}
	return rows
}

func onceRows(v view) (rows []row) {
	for _, a := range v.Once {
		state := cell{"unknown", bad}
		if a.Running {
			state = cell{"running", good}
		}
		rows = append(rows, row{cells: []cell{named(a.Key), state, named(a.Holder), since(a.StartedAt, v.At), since(a.CreatedAt, v.At), token(a.Token)}, once: a.Key, token: a.Token, key: a.Key})
	}
	return rows
}

func doctorRows(v view) (rows []row) {
	for i, r := range v.checks {
		rows = append(rows, v.wrapped(row{key: fmt.Sprint(i, " ")}, cell{string(r.Level), levels[string(r.Level)]}, cell{text: r.Check + ": " + text.OneLine(r.Text())})...)
	}
	return rows
}
