package ui

import (
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"

	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/display"
	"github.com/pglock/pglock-go/pglock/internal/text"
)

var functions = template.FuncMap{
	"add":     func(a, b int) int { return a + b },
	"clock":   func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
	"percent": func(part, whole int) float64 { return percent(part, whole) },
	"passed":  func(from, to, now time.Time) float64 { return percent(now.Sub(from), to.Sub(from)) },
	"share":   func(part float64) float64 { return 100 * part },
	"session": display.Session,
	"remedy":  display.EndGuard,
	"pieces":  pieces, "visible": visible, "short": text.Short, "count": count, "forest": forest,
}

// percent returns a part of a whole, at most all of it.
func percent[N int | time.Duration](part, whole N) float64 {
	return 100 * float64(min(part, whole)) / float64(max(whole, 1))
}

// piece is a part of a text. An odd one stands for a character that can't be seen, or that changes
// how others are seen.
type piece struct {
	Text string
	Odd  bool
}

func pieces(s string) (all []piece) {
	for _, r := range s {
		p := piece{string(r), !text.Visible(r)}
		if p.Odd {
			p.Text = strings.Trim(strconv.QuoteRuneToASCII(r), "'")
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
func visible(s string) (all string) {
	for _, p := range pieces(s) {
		all += p.Text
	}
	return all
}

// count returns a number with its thousands apart.
func count(n any) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

const (
	maxQueue  = 20   // waiters of a lock in the tree, besides those that block others
	maxBranch = 1000 // in the whole tree
)

// branch is a lock or a waiter in the tree of who waits for whom.
type branch struct {
	inspect.Block
	Branches []*branch
	More     int // that are not shown
}

func forest(s inspect.Snapshot) *branch {
	blocks, root := s.Tree(), &branch{}
	path := []*branch{root}
	for i, b := range blocks {
		parent, child := path[b.Depth], &branch{Block: b}
		path = append(path[:b.Depth+1], child)
		leaf := i+1 == len(blocks) || blocks[i+1].Depth <= b.Depth
		if b.Place > maxQueue && leaf || i >= maxBranch {
			parent.More++
		} else {
			parent.Branches = append(parent.Branches, child)
		}
	}
	return root
}
