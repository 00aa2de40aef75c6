package ui

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pglock/pglock-go/pglock/inspect"
)

// functions are those of the templates. The bars of times are logarithmic and full after these times.
var functions = template.FuncMap{
	"add":     func(a, b int) int { return a + b },
	"held":    func(d time.Duration) bar { return newBar(d, 24*time.Hour) },
	"waited":  func(d time.Duration) bar { return newBar(d, time.Hour) },
	"ttl":     func(d time.Duration) bar { return newBar(d, time.Minute) },
	"clock":   func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
	"percent": func(part, whole int) float64 { return percent(part, whole) },
	"passed":  func(from, to, now time.Time) float64 { return percent(now.Sub(from), to.Sub(from)) },
	"share":   func(part float64) float64 { return 100 * part },
	"pieces":  pieces, "visible": visible, "short": short, "count": count, "state": state, "grants": grants, "forest": forest,
}

// percent returns a part of a whole, at most all of it.
func percent[N int | time.Duration](part, whole N) float64 {
	return 100 * float64(min(part, whole)) / float64(max(whole, 1))
}

// bar is a duration as a bar.
type bar struct {
	Text    string
	Percent float64
}

func newBar(d, full time.Duration) bar {
	return bar{short(d), min(100, 100*math.Log1p(max(d, 0).Seconds())/math.Log1p(full.Seconds()))}
}

// piece is a part of a text. An odd one stands for a character that can't be seen, or that changes how
// others are seen.
type piece struct {
	Text string
	Odd  bool
}

func pieces(text string) (all []piece) {
	for _, r := range text {
		p := piece{string(r), !unicode.IsPrint(r)}
		if p.Odd {
			p.Text = strings.Trim(strconv.QuoteRune(r), "'")
		}
		if n := len(all); n > 0 && !p.Odd && !all[n-1].Odd {
			all[n-1].Text += p.Text
		} else {
			all = append(all, p)
		}
	}
	return all
}

// visible returns the pieces as one text, for titles, and for forms in which it is typed.
func visible(text string) (all string) {
	for _, p := range pieces(text) {
		all += p.Text
	}
	return all
}

// short returns a duration with its two largest units.
func short(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= day:
		return fmt.Sprintf("%dd %dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh %dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm %ds", d/time.Minute, d%time.Minute/time.Second)
	case d >= 10*time.Second:
		return fmt.Sprintf("%ds", d/time.Second)
	case d >= time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return fmt.Sprintf("%dms", max(d, 0)/time.Millisecond)
}

// count returns a number with its thousands apart.
func count(n any) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// state says in one word whether a lock is held.
func state(l inspect.Lock) string {
	switch {
	case len(l.Grants) > 0 && !l.Grants[0].Exclusive:
		return "shared"
	case l.Held():
		return "held"
	case l.Holder == "" && l.Remaining > 0:
		return "kept" // released, and not free yet
	case l.Holder != "":
		return "expired"
	}
	return "free"
}

// grants returns the live grants of a lock of any kind, the oldest first.
func grants(l inspect.Lock) []inspect.Grant {
	if len(l.Grants) > 0 || !l.Held() {
		return l.Grants
	}
	return []inspect.Grant{{
		Token: l.Token, Holder: l.Holder, Labels: l.Labels, Exclusive: true, AcquiredAt: l.AcquiredAt, HeldFor: l.HeldFor,
		Remaining: l.Remaining, ReleaseRequested: l.ReleaseRequested, ReleaseReason: l.ReleaseReason,
	}}
}

const (
	maxQueue  = 20   // waiters of a lock in the tree, besides those that block others
	maxBranch = 1000 // in the whole tree
)

// branch is a lock or a waiter in the tree of who waits for whom.
type branch struct {
	inspect.Block
	Again    bool // a lock whose waiters are above
	Branches []*branch
	More     int // that are not shown
}

func forest(s inspect.Snapshot) *branch {
	blocks, root, seen := s.Tree(), &branch{}, map[string]bool{}
	path := []*branch{root}
	for i, b := range blocks {
		parent, child := path[b.Depth], &branch{Block: b, Again: b.Place == 0 && seen[b.Name]}
		path, seen[b.Name] = append(path[:b.Depth+1], child), true
		leaf := i+1 == len(blocks) || blocks[i+1].Depth <= b.Depth
		if b.Place > maxQueue && leaf || i >= maxBranch {
			parent.More++
		} else {
			parent.Branches = append(parent.Branches, child)
		}
	}
	return root
}
