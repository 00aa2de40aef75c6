package adapters_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/schedule"
	"github.com/pglock/pglock-go/pglock/ui"
)

// browser is a tab of a headless Chromium, and the pages of package ui on a schema of their own.
type browser struct {
	t      *testing.T
	ctx    context.Context
	client *pglock.Client
	sql    func(statement string)                // written for the default schema
	open   func(...pglock.Option) *pglock.Client // another client
	url    string

	mu       sync.Mutex
	problems []string // errors of scripts, refusals of the Content-Security-Policy, dialogs
}

// chromium returns the path of the program.
func chromium(t *testing.T) (program string) {
	t.Helper()
	pgtest.NeedTool(t, "chromium", func() (err error) {
		for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
			if program, err = exec.LookPath(name); err == nil {
				return nil
			}
		}
		return fmt.Errorf("%w: testdata/setup.sh installs it", err)
	})
	return program
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	program := chromium(t)
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	b := &browser{t: t, sql: func(statement string) { locktest.Exec(t, pool, schema.Render(statement, name)) }, open: func(opts ...pglock.Option) *pglock.Client {
		return locktest.ClientOn(t, pool, append([]pglock.Option{pglock.WithSchema(name), pglock.WithLogger(nil)}, opts...)...)
	}}
	b.client = b.open()
	h, err := ui.Handler(b.client, ui.Options{
		Logger:    slog.New(slog.DiscardHandler),
		Authorize: func(*http.Request) ui.Access { return ui.Revoke },
		Actor:     func(*http.Request) string { return "alice" },
	})
	locktest.OK(t, err)
	server := httptest.NewServer(http.StripPrefix("/admin/locks", h))
	t.Cleanup(server.Close)
	b.url = server.URL + "/admin/locks/"

	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox)
	alloc, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(alloc)
	t.Cleanup(func() { _ = chromedp.Cancel(ctx); closeTab() })
	b.ctx = ctx
	b.do(b.listen())
	return b
}

// listen collects the problems of the pages.
func (b *browser) listen() chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, cdplog.Enable, cdp.Empty{})
		return errors.Join(err, chromedp.Listen(ctx, func(event any) {
			problem := ""
			switch e := event.(type) {
			case *cdplog.EventEntryAdded:
				problem = e.Entry.Text + " " + e.Entry.URL
			case *runtime.EventExceptionThrown:
				problem = e.ExceptionDetails.Text
			case *page.EventJavascriptDialogOpening:
				problem = "dialog: " + e.Message
			}
			if b.mu.Lock(); problem != "" {
				b.problems = append(b.problems, problem)
			}
			b.mu.Unlock()
		}))
	})
}

// clean fails the test if the pages had problems.
func (b *browser) clean() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.problems) > 0 {
		b.t.Errorf("problems of the pages: %q", b.problems)
	}
	b.problems = nil
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx := b.ctx
	if chromedp.FromContext(ctx).Target != nil { // not the call that starts the browser
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, pgtest.Patience)
		defer cancel()
	}
	locktest.OK(b.t, chromedp.Do(ctx, actions...))
}

// see opens a page.
func (b *browser) see(path string) { b.t.Helper(); b.do(chromedp.Navigate(b.url + path)) }

// eval returns the value of an expression of the page.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits for an expression of the page to be true.
func (b *browser) until(what, expression string) {
	b.t.Helper()
	pgtest.Eventually(b.t, what, func() bool {
		v, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](expression))
		return err == nil && v // in between, there is no page
	})
}

const text = "(document.querySelector('main')?.innerText ?? '')"

func (b *browser) shows(part string) {
	b.t.Helper()
	b.until("the page has "+part, fmt.Sprintf("%s.includes(%q)", text, part))
}

func (b *browser) try(l pglock.Lock, opts ...pglock.LeaseOption) *pglock.Lease {
	b.t.Helper()
	lease, err := l.TryAcquire(b.t.Context(), opts...)
	locktest.OK(b.t, err)
	return lease
}

// populate makes one of everything, with names that try to run scripts, and 10,000 other locks.
func (b *browser) populate() {
	b.t.Helper()
	for _, name := range []string{
		"<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "javascript:alert(1)", "' onmouseover='alert(1)", "a\nb\u202ec", strings.Repeat("long", 128), strings.Repeat("漢", 170), "a/../b?c=d&e#f",
	} {
		b.try(b.client.Lock(name), pglock.WithHolder(name), pglock.WithLabels(map[string]string{name: name}))
	}
	b.sql("UPDATE pglock.distributed_locks SET last_holder = holder, last_end = 'revoked', revoked_token = token, revoked_reason = holder, ended_at = now()")
	b.try(b.client.Lock("lock 1"))
	b.sql(`INSERT INTO pglock.distributed_locks (name, token, version, holder, acquired_at, expires_at)
		SELECT 'tenant/' || i, i, 1, 'h' || i % 100, now() - i * interval '1 s', now() + interval '1 h' FROM generate_series(1, 10000) AS i`)
	b.try(b.client.Semaphore("sem", 5).Weight(2), pglock.WithHolder("<img src=x onerror=alert(1)>"))
	b.try(b.client.Writer("rw"))
	other := b.open(pglock.WithHolder("<b>waiter</b>\u202e" + strings.Repeat("w", 300)))
	for _, l := range []pglock.Lock{other.Lock("<script>alert(1)</script>"), other.Semaphore("sem", 5).Weight(4)} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = l.Acquire(b.t.Context()) // until the end of the test
		}()
		b.t.Cleanup(func() { <-done })
	}
	e, err := leader.New(b.client, "election <b>")
	locktest.OK(b.t, err)
	_, err = e.Campaign(b.t.Context(), strings.Repeat("payload <b>", 50))
	locktest.OK(b.t, err)
	job, err := schedule.New(b.client, "job <b>")
	locktest.OK(b.t, err)
	locktest.OK(b.t, job.RunDue(b.t.Context(), schedule.Every(time.Hour), func(context.Context, *pglock.Lease) error { return nil }))
	_, _ = once.Do(b.t.Context(), b.client, "payment <b>", make([]byte, 32), func(context.Context, *pglock.Lease) (int, error) { return 0, context.DeadlineExceeded })
}

var uiPages = []string{"", "locks", "waiting", "permits", "elections", "schedules", "once", "clients", "doctor", "locks?state=waiting", "locks?name=none", "lock?name=sem", "lock?name=lock+1", "lock?name=none",
	"lock?" + url.Values{"name": {"<script>alert(1)</script>"}}.Encode(), "lock?" + url.Values{"name": {"a\nb\u202ec"}}.Encode(), "lock?" + url.Values{"name": {strings.Repeat("long", 128)}}.Encode()}

// TestUIPages: on a desk, a tablet and a phone, light and dark, no page runs the script of a name or breaks its
// own policy, none is wider than the window, texts have contrast, and all that can be used has a name.
func TestUIPages(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	b.populate()
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range map[string][]int64{"light": {1280, 800}, "dark": {1280, 390}}[scheme] {
			b.do(chromedp.EmulateViewport(width, 800))
			_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
			locktest.OK(t, err)
			for _, path := range uiPages {
				b.see(path)
				if wider := eval[float64](b, "document.documentElement.scrollWidth - innerWidth"); wider > 0 {
					t.Errorf("%d, %s, %q is %v too wide", width, scheme, path, wider)
				}
				if faint := eval[[]string](b, contrast); len(faint) > 0 {
					t.Errorf("%d, %s, %q has texts without contrast: %q", width, scheme, path, faint)
				}
				if n := eval[float64](b, "document.querySelectorAll('h1').length"); n != 1 {
					t.Errorf("%q has %v headings", path, n)
				}
				if n := eval[float64](b, "document.querySelectorAll('tbody tr').length"); n > 100 || path == "locks" && n != 100 {
					t.Errorf("%q has %v rows", path, n)
				}
				if width == 1280 && scheme == "light" {
					b.checkNames(path)
				}
			}
			b.clean()
		}
	}
	b.do(chromedp.Evaluate[chromedp.Void]("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"alert(1)\"><p style=\"color:#ddd;background:#fff\">x</p>'), undefined"))
	pgtest.Eventually(t, "control: the policy refuses a script", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.problems) > 1 })
}

// contrast returns the texts whose contrast is less than 4.5, as WCAG 2 counts it.
const contrast = `(() => {
	const rgb = color => { const c = document.createElement("canvas").getContext("2d", {willReadFrequently: true}); c.fillStyle = color; c.fillRect(0, 0, 1, 1); return Array.from(c.getImageData(0, 0, 1, 1).data); };
	const light = c => c.slice(0, 3).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
	const found = new Set();
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n; n = walker.nextNode();) {
		const e = n.parentElement, box = e.getBoundingClientRect();
		if (!n.data.trim() || !box.width || e.closest("script, .skip")) continue;
		let back = [0, 0, 0, 0];
		for (let p = e; p && back[3] < 255; p = p.parentElement) { const c = rgb(getComputedStyle(p).backgroundColor); if (c[3] == 255) back = c; }
		const a = light(rgb(getComputedStyle(e).color)), z = light(back);
		if ((Math.max(a, z) + 0.05) / (Math.min(a, z) + 0.05) < 4.5) found.add(n.data.trim().slice(0, 40) + " " + getComputedStyle(e).color + " on " + back);
	}
	return Array.from(found);
})()`

// checkNames checks that a screen reader finds a name for all that can be used, and for pictures.
func (b *browser) checkNames(path string) {
	b.t.Helper()
	tree, err := chromedp.Call(b.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	locktest.OK(b.t, err)
	seen := 0
	for _, node := range tree.Nodes {
		if node.Ignored || node.Role == nil {
			continue
		}
		switch role := strings.Trim(string(node.Role.Value), `"`); role {
		case "link", "button", "textbox", "combobox", "navigation", "search", "region", "img", "form":
			seen++
			if node.Name == nil || strings.Trim(string(node.Name.Value), `" `) == "" {
				b.t.Errorf("%q: a %s has no name", path, role)
			}
		}
	}
	if seen < 8 {
		b.t.Errorf("%q: only %d things can be used", path, seen)
	}
}

// TestUIUpdates: an open page shows what changes, keeps the focus, and waits while it is used or paused.
func TestUIUpdates(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	l := b.try(b.client.Lock("first"), pglock.WithLabels(map[string]string{"n": "1"}))
	b.see("locks?state=") // free ones too
	b.do(chromedp.Evaluate[chromedp.Void]("window.opened = true, document.querySelector('a.lock').focus(), undefined"))
	second := b.try(b.client.Lock("second"))
	b.shows("second")
	if at := eval[string](b, "document.activeElement.textContent"); at != "first" || !eval[bool](b, "window.opened") {
		t.Errorf("after an update, the focus is at %q", at)
	}
	b.do(chromedp.Click("#pause"))
	b.shows("Paused")
	locktest.OK(t, second.Release(t.Context()))
	b.until("the button is pressed", "document.getElementById('pause').getAttribute('aria-pressed') === 'true'")
	b.do(chromedp.Sleep(3 * time.Second)) // more than an update
	if eval[bool](b, text+".includes('free')") {
		t.Error("a page that is paused changes")
	}
	b.do(chromedp.Click("#pause"))
	b.shows("free")

	b.see("lock?name=first")
	b.do(chromedp.SendKeys("form[action^=release] input[name=reason]", "noon"))
	locktest.OK(t, l.SetLabels(t.Context(), map[string]string{"n": "2"}))
	b.shows("Waiting while you use the page")
	if got := eval[string](b, "document.querySelector('form[action^=release] input[name=reason]').value"); got != "noon" {
		t.Errorf("the form has %q", got)
	}
	b.clean()
	locktest.OK(t, l.Release(t.Context()))
}

// TestUIOutage: while the database does not answer, an open page says since when it is old, is
// gray, and has what it had.
func TestUIOutage(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	l := b.try(b.client.Lock("first"))
	b.see("locks")
	b.until("the page is up to date", "document.getElementById('status').className === 'live'")
	b.sql("ALTER VIEW pglock.locks_held RENAME TO away")
	b.until("the page is old", "/^No answer since [0-9]{2}:[0-9]{2}:[0-9]{2} UTC$/.test(document.getElementById('status').textContent)")
	if eval[bool](b, "document.getElementById('status').className === 'live'") || eval[string](b, "getComputedStyle(document.querySelector('.old')).filter") != "grayscale(1)" {
		t.Error("an old page looks like another")
	}
	b.shows("first")
	b.do(chromedp.Click("#pause"), chromedp.Click("#pause")) // connects again
	b.until("the page is still old", "document.getElementById('status').textContent.startsWith('No answer since')")
	b.sql("ALTER VIEW pglock.away RENAME TO locks_held")
	b.until("the page is up to date again", "document.getElementById('status').className === 'live' && !document.querySelector('.old, .problem')")
	b.clean()
	locktest.OK(t, l.Release(t.Context()))
}

// TestUIActions: with the keyboard alone, a release is requested and a grant of a hostile name revoked.
func TestUIActions(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	const name = "a\nb\u202e<b>&name=x"
	l := b.try(b.client.Lock(name))
	b.see("locks")
	b.do(chromedp.KeyEvent(kb.Tab))
	if at := eval[string](b, "document.activeElement.textContent"); at != "Skip to content" {
		t.Errorf("the first is %q", at)
	}
	if ring := eval[string](b, "getComputedStyle(document.activeElement).outlineStyle"); ring != "solid" {
		t.Errorf("the focus is drawn as %s", ring)
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	for range 20 { // past the filter
		if b.do(chromedp.KeyEvent(kb.Tab)); eval[bool](b, "document.activeElement.matches('a.lock')") {
			break
		}
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	b.shows("Ask for the release")
	b.do(chromedp.Focus("form[action^=release] input[name=reason]"), chromedp.KeyEvent("please"), chromedp.KeyEvent(kb.Enter))
	locktest.Receive(t, l.ReleaseRequested())
	if got := l.ReleaseReason(); got != "please (by alice)" {
		t.Errorf("the reason is %q", got)
	}
	b.shows("release asked")
	typed := eval[string](b, "document.getElementById('exactly').querySelector('.text').innerText") // as people see it
	b.do(chromedp.Focus("form[action^=revoke] input[name=reason]"), chromedp.KeyEvent("it hangs"))
	b.do(chromedp.Focus("form[action^=revoke] input[name=confirm]"), chromedp.KeyEvent(typed), chromedp.KeyEvent(kb.Enter))
	b.shows("Nobody holds it")
	pgtest.Eventually(t, "the lease is lost", func() bool { return errors.Is(l.Err(), pglock.ErrRevoked) })
	b.clean()
	_ = l.Release(context.Background())
}

// TestUIWithoutScript: pages are refreshed, and forms work.
func TestUIWithoutScript(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	_, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	locktest.OK(t, err)
	l := b.try(b.client.Lock("n"))
	b.see("locks?name=n")
	b.shows("1–1 of 1 locks")
	if got := eval[string](b, "document.querySelector('meta[http-equiv=refresh]').content"); got != "30" || eval[bool](b, "!document.getElementById('pause').hidden") {
		t.Errorf("refreshed after %s s", got)
	}
	b.do(chromedp.Click("a.lock"), chromedp.SendKeys("form[action^=revoke] input[name=reason]", "it hangs"), chromedp.SendKeys("form[action^=revoke] input[name=confirm]", "n"), chromedp.Click("form[action^=revoke] button"))
	b.shows("Nobody holds it")
	pgtest.Eventually(t, "the lease is lost", func() bool { return errors.Is(l.Err(), pglock.ErrRevoked) })
	b.clean()
	_ = l.Release(context.Background())
}
