package ui

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/display"
	"github.com/pglock/pglock-go/pglock/internal/text"
)

const (
	pageSize = 100       // locks of a page
	maxPage  = 1_000_000 // so that the offset is a number
)

//go:embed templates
var templates embed.FS

type page struct {
	Path, Title string
	Live        bool // updated while it is open
	load        loader
	template    *template.Template
}

type loader func(ctx context.Context, h *handler, q url.Values) (any, error)

func newPage(path, title string, live bool, load loader) *page {
	return &page{path, title, live, load, template.Must(template.New("").Funcs(functions).ParseFS(templates,
		"templates/layout.html", "templates/"+cmp.Or(path, "now")+".html"))}
}

var (
	// fewLocks is also the query of pages that show no locks, because all others cost more.
	fewLocks = inspect.Query{Filter: inspect.Filter{Elections: true}}

	pages = []*page{
		newPage("", "Now", true, loadNow),
		newPage("locks", "Locks", true, loadLocks),
		newPage("waiting", "Waiting", true, snapshot(inspect.Query{Order: inspect.ByWaiters})),
		newPage("permits", "Permits", true, snapshot(inspect.Query{Filter: inspect.Filter{Shared: true}, Order: inspect.ByWaiters})),
		newPage("elections", "Elections", true, snapshot(fewLocks)),
		newPage("schedules", "Schedules", true, snapshot(fewLocks)),
		newPage("once", "Once", true, snapshot(fewLocks)),
		newPage("clients", "Clients", true, snapshot(display.ManyLocks)),
		newPage("doctor", "Doctor", false, loadDoctor),
		newPage("lock", "", true, loadLock), // not in the menu
	}
	refusal = newPage("refusal", "Not done", false, nil)
)

func pageAt(path string) *page {
	if i := slices.IndexFunc(pages, func(p *page) bool { return p.Path == path }); i >= 0 {
		return pages[i]
	}
	return nil
}

func snapshot(query inspect.Query) loader {
	return func(ctx context.Context, h *handler, _ url.Values) (any, error) { return h.client.Snapshot(ctx, query) }
}

func loadLocks(ctx context.Context, h *handler, q url.Values) (any, error) {
	f := inspect.Filter{Pattern: q.Get("name"), Holder: q.Get("holder"), Held: stateOf(q) == "held", Waiting: stateOf(q) == "waiting"}
	if f.Pattern != "" && !strings.ContainsAny(f.Pattern, "*?") {
		f.Pattern = "*" + f.Pattern + "*"
	}
	order := inspect.Order(q.Get("order"))
	if !slices.Contains([]inspect.Order{inspect.ByWaiters, inspect.ByHeld, inspect.ByRemaining}, order) {
		order = inspect.ByName
	}
	return h.client.Snapshot(ctx, inspect.Query{Filter: f, Order: order, Limit: pageSize, Offset: (pageNumber(q) - 1) * pageSize})
}

// stateOf returns the state of the locks that are asked for, which is held without a filter.
func stateOf(q url.Values) string {
	if !q.Has("state") && !q.Has("name") && !q.Has("holder") {
		return "held"
	}
	return q.Get("state")
}

// pageNumber returns the page of the locks that is asked for, from 1.
func pageNumber(q url.Values) int {
	n, _ := strconv.Atoi(q.Get("page")) // 0 for no number
	return min(max(n, 1), maxPage)
}

func loadLock(ctx context.Context, h *handler, q url.Values) (any, error) {
	l, err := h.client.Get(ctx, q.Get("name"))
	if err != nil && !errors.Is(err, pglock.ErrNotFound) { // then it is free
		return nil, err
	}
	s, err := h.client.Snapshot(ctx, fewLocks)
	s.Locks = []inspect.Lock{l}
	s.Guards = slices.DeleteFunc(s.Guards, func(g inspect.Guard) bool { return g.Name != q.Get("name") })
	s.Actions = slices.DeleteFunc(s.Actions, func(a inspect.Action) bool { return a.Name != q.Get("name") })
	return s, err
}

const checkEvery = time.Minute // for the first page

// nowPage is what the first page is made from.
type nowPage struct {
	inspect.Snapshot
	checks []display.Check
}

func loadNow(ctx context.Context, h *handler, _ url.Values) (any, error) {
	if h.Doctor != nil && time.Since(h.checked) > checkEvery {
		checks, err := h.Doctor(ctx)
		if h.checks = nil; err != nil {
			h.checks = []display.Check{{Name: "doctor", Level: "fail", Found: errs.Text(err), Remedy: "pglock doctor"}}
		}
		for _, c := range checks {
			h.checks = append(h.checks, display.Check(c))
		}
		h.checked = time.Now()
	}
	s, err := h.client.Snapshot(ctx, display.ManyLocks)
	return nowPage{s, h.checks}, err
}

// snapshotOf returns the snapshot that a page is made from, if there is one.
func snapshotOf(value any) (s inspect.Snapshot, found bool) {
	if now, ok := value.(nowPage); ok {
		return now.Snapshot, true
	}
	s, found = value.(inspect.Snapshot)
	return s, found
}

// Attention returns what needs attention on the first page.
func (v *view) Attention() []display.Concern {
	p, _ := v.Data.(nowPage)
	return display.Attention(p.Snapshot, v.overdue, v.grown, p.checks)
}

// Sessions returns the sessions of a holder's process.
func (v *view) Sessions(holder string) []inspect.Session {
	s, _ := snapshotOf(v.Data)
	return display.SessionsOf(s, holder)
}

// Holds returns the locks that a session's process holds.
func (v *view) Holds(session inspect.Session) (names []string) {
	s, _ := snapshotOf(v.Data)
	for _, l := range s.Locks {
		if slices.ContainsFunc(l.Holders(), func(h string) bool { return schema.SessionOf(session.Application, h) }) {
			names = append(names, l.Name)
		}
	}
	return names
}

func loadDoctor(ctx context.Context, h *handler, _ url.Values) (any, error) {
	d := struct {
		inspect.Server
		Checks []Check
		Run    bool // there is a function for them
	}{Run: h.Doctor != nil}
	s, err := h.client.Snapshot(ctx, fewLocks)
	d.Server = s.Server
	d.Version, _, _ = strings.Cut(s.Server.Version, " ") // the packager's follows
	if err == nil && d.Run {
		d.Checks, err = h.Doctor(ctx)
	}
	return d, err
}

// loadFor returns the function that reads a page for a request, and a key of equal readings.
func (h *handler) loadFor(r *http.Request, p *page) (key string, load func(context.Context) (any, error)) {
	return p.Path + "?" + r.URL.RawQuery, func(ctx context.Context) (any, error) { return p.load(ctx, h, r.URL.Query()) }
}

type view struct {
	*page
	Pages   []*page
	Schema  string
	Query   url.Values
	At      time.Time // of the reading, by the clock of the server if that is known
	Data    any
	Problem string    // why there is no Data, or why it is old
	Since   time.Time // of the last answer, if there is Data in spite of a Problem
	Number  int       // of the page of a list
	Standby string    // what is different on a standby

	MayOperate, MayRevoke bool

	label func(key, value string) (string, bool)
	reading
}

func (h *handler) view(r *http.Request, access Access, p *page, reading reading) *view {
	v := &view{
		page: p, Pages: pages, Schema: h.client.Schema(), Query: r.URL.Query(), At: reading.asOf, Data: reading.value, reading: reading,
		MayOperate: access >= Operate, MayRevoke: access >= Revoke, Number: pageNumber(r.URL.Query()), label: h.Label,
	}
	if s, ok := snapshotOf(reading.value); ok {
		v.At, v.Standby = s.At, text.Standby(s.Server)
		v.MayOperate, v.MayRevoke = v.MayOperate && !s.Server.Standby, v.MayRevoke && !s.Server.Standby // it changes nothing
	}
	switch {
	case reading.err != nil && v.Data == nil:
		v.Problem, v.At = errs.Text(reading.err), time.Now()
	case reading.err != nil:
		v.Problem, v.Since = errs.Text(reading.err), v.At
	}
	return v
}

// expiry says how long a grant lasts unless renewed, and for how long its renewal is overdue.
type expiry struct{ Remaining, Overdue time.Duration }

func (v *view) Expiry(g inspect.Grant) expiry { return expiry{g.Remaining, v.overdue[g.Token]} }

func (v *view) State() string { return stateOf(v.Query) }

func (v *view) First() int { return (v.Number-1)*pageSize + 1 }

// Turn returns a link to the page of the list after this one by n.
func (v *view) Turn(n int) string {
	q := maps.Clone(v.Query)
	q.Set("page", strconv.Itoa(v.Number+n))
	return "?" + q.Encode()
}

// Labels returns the labels that are shown, in the order of their keys.
func (v *view) Labels(m map[string]string) (labels [][2]string) {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if text, shown := v.label(key, m[key]); shown {
			labels = append(labels, [2]string{key, text})
		}
	}
	return labels
}

// HeldTrend returns the sparkline of the held grants, and WaitingTrend that of the clients that
// wait.
func (v *view) HeldTrend() spark    { return newSpark(v.trend, func(p point) int { return p.held }) }
func (v *view) WaitingTrend() spark { return newSpark(v.trend, func(p point) int { return p.waiting }) }

type spark struct {
	Points   string
	Min, Max int
	Over     time.Duration
}

func newSpark(points []point, value func(point) int) (s spark) {
	if len(points) < 2 {
		return s
	}
	first, last := points[0], points[len(points)-1]
	s = spark{Min: value(first), Max: value(first), Over: last.at.Sub(first.at)}
	for _, p := range points {
		s.Min, s.Max = min(s.Min, value(p)), max(s.Max, value(p))
	}
	for _, p := range points {
		s.Points += fmt.Sprintf("%.1f,%.1f ", percent(p.at.Sub(first.at), s.Over), 22-float64(20*value(p))/float64(max(s.Max, 1)))
	}
	return s
}
