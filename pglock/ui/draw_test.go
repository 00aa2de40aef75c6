package ui

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock/inspect"
)

// TestVisible: characters that can't be seen, or that change how others are seen, are marked.
func TestVisible(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", "plain": "plain", "two  blanks": "two  blanks", "שלום 漢字 🔒": "שלום 漢字 🔒", `\n"'`: `\n"'`,
		"a\nb": `a[\n]b`, "\u202e\u2066x": `[\u202e][\u2066]x`, "\x00\x1b\x7f\u009b": `[\x00][\x1b][\x7f][\u009b]`, "\u00a0\u200b\ufeff": `[\u00a0][\u200b][\ufeff]`, "\U000e0041": `[\U000e0041]`,
		"\u3164\u2800\ufe0f\U000e0100": `[\u3164][\u2800][\ufe0f][\U000e0100]`,
	} {
		var got strings.Builder
		for _, p := range pieces(text) {
			if p.Odd {
				p.Text = "[" + p.Text + "]"
			}
			got.WriteString(p.Text)
		}
		if got.String() != want || visible(text) != strings.NewReplacer("[", "", "]", "").Replace(want) {
			t.Errorf("%q: %s, %s, want %s", text, got.String(), visible(text), want)
		}
	}
}

// TestLinesOfAStream: whatever ends a line of a stream begins another line of the same event.
func TestLinesOfAStream(t *testing.T) {
	t.Parallel()
	if got := lines.Replace("a\rb\r\nc\n\rd"); got != "a\ndata: b\ndata: c\ndata: \ndata: d" {
		t.Errorf("%q", got)
	}
}

// TestNumbers: counts as they are shown.
func TestNumbers(t *testing.T) {
	t.Parallel()
	for n, want := range map[any]string{0: "0", 999: "999", 1000: "1,000", int64(1234567): "1,234,567"} {
		if got := count(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}

// TestOverdueGrants: a holder that does not renew is seen on all pages that show when its grant
// expires, and another is not.
func TestOverdueGrants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, began := newSampler(), time.Now()
		grant := func(token fencing.Token, ttl, renewed time.Duration) inspect.Lock {
			return inspect.Lock{Name: fmt.Sprint("n", token), Holder: "h", Token: token, Remaining: ttl - (time.Since(began) - renewed)}
		}
		draw := func(path string, value func() any) string {
			t.Helper()
			p := pageAt(path)
			r := s.read(t.Context(), path, time.Now().Add(-1), func(context.Context) (any, error) { return value(), nil })
			v := &view{page: p, Data: r.value, reading: r, Number: 1, label: func(_, v string) (string, bool) { return v, true }}
			var b strings.Builder
			if err := p.template.ExecuteTemplate(&b, "live", v); err != nil {
				t.Fatal(err)
			}
			return b.String()
		}
		both := func() any {
			return inspect.Snapshot{Locks: []inspect.Lock{grant(1, 30*time.Second, 0), grant(2, time.Minute, time.Since(began).Truncate(20*time.Second))}}
		}
		time.Sleep(20 * time.Second) //nolint:forbidigo // the clock is that of the test
		for _, path := range []string{"locks", "elections"} {
			if page := draw(path, both); strings.Contains(page, "not renewed") || !strings.Contains(page, "10s") {
				t.Errorf("%q at once:\n%s", path, page)
			}
		}
		time.Sleep(7 * time.Second) //nolint:forbidigo // the clock is that of the test
		for path, value := range map[string]func() any{"locks": both, "elections": both, "lock": func() any { return inspect.Snapshot{Locks: []inspect.Lock{grant(1, 30*time.Second, 0)}} }, "": func() any { return nowPage{Snapshot: both().(inspect.Snapshot)} }} {
			if page := draw(path, value); strings.Count(page, "not renewed for 7s") != 1 {
				t.Errorf("%q:\n%s", path, page)
			}
		}
	})
}

// TestSpark: a line over time, whose top is the largest value.
func TestSpark(t *testing.T) {
	t.Parallel()
	at := time.Now()
	points := []point{{at, 5, 0}, {at.Add(time.Minute), 10, 0}, {at.Add(4 * time.Minute), 0, 0}}
	held := newSpark(points, func(p point) int { return p.held })
	if held.Points != "0.0,12.0 25.0,2.0 100.0,22.0 " || held.Min != 0 || held.Max != 10 || held.Over != 4*time.Minute {
		t.Errorf("%+v", held)
	}
	if none := newSpark(points, func(p point) int { return p.waiting }); none.Points != "0.0,22.0 25.0,22.0 100.0,22.0 " {
		t.Errorf("%+v", none)
	}
	if one := newSpark(points[:1], func(p point) int { return p.held }); one.Points != "" {
		t.Errorf("%+v", one)
	}
}

// TestForest: a long queue is cut, except waiters that block others, and so is a large tree.
func TestForest(t *testing.T) {
	t.Parallel()
	hot := inspect.Lock{Name: "hot", Holder: "h", Remaining: time.Minute}
	for i := range 100 {
		hot.Waiters = append(hot.Waiters, inspect.Waiter{Holder: fmt.Sprint("w", i), Waited: time.Second})
	}
	below := inspect.Lock{Name: "below", Holder: "w77", Remaining: time.Minute, Waiters: []inspect.Waiter{{Holder: "x"}}}
	root := forest(inspect.Snapshot{Locks: []inspect.Lock{hot, below}})
	b := root.Branches[0]
	if len(root.Branches) != 1 || len(b.Branches) != maxQueue+1 || b.More != 100-maxQueue-1 {
		t.Errorf("%d roots, %d waiters, and %d more", len(root.Branches), len(b.Branches), b.More)
	}
	last := b.Branches[maxQueue]
	if last.Waiter.Holder != "w77" || len(last.Branches) != 1 || last.Branches[0].Name != "below" || len(last.Branches[0].Branches) != 1 {
		t.Errorf("%+v", last)
	}
	var many []inspect.Lock
	for i := range 1000 {
		many = append(many, inspect.Lock{Name: fmt.Sprint(i), Holder: "h", Remaining: time.Minute, Waiters: []inspect.Waiter{{Holder: "w"}}})
	}
	if root := forest(inspect.Snapshot{Locks: many}); len(root.Branches) != maxBranch/2 || root.More != 1000-maxBranch/2 {
		t.Errorf("%d roots and %d more", len(root.Branches), root.More)
	}
}
