package ui_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/schedule"
	"github.com/pglock/pglock-go/pglock/ui"
)

var (
	paths   = []string{"/", "/locks", "/waiting", "/permits", "/elections", "/schedules", "/once", "/clients", "/doctor", "/lock?name=n"}
	statics = []string{"/ui.css", "/ui.js", "/ui.svg"}
)

// TestAccess: what each access may do, and that a refused action changes nothing.
func TestAccess(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	job, err := schedule.New(f.client, "job")
	locktest.OK(t, err)
	for access, want := range map[ui.Access]struct{ read, release, revoke int }{
		-1:         {403, 403, 403},
		ui.None:    {403, 403, 403},
		ui.Read:    {200, 403, 403},
		ui.Operate: {200, 303, 403},
		ui.Revoke:  {200, 303, 303},
	} {
		h := f.handler(access)
		for _, path := range append(paths, statics...) {
			code, body := get(t, h, path)
			if code != want.read {
				t.Errorf("%d, %s: %d", access, path, code)
			}
			if forms := strings.Contains(body, `method="post"`); strings.HasPrefix(path, "/lock") && forms {
				t.Errorf("%d, %s: a form, although the lock is free", access, path)
			}
		}
		tick := time.Now()
		locktest.OK(t, job.Once(t.Context(), tick, func(context.Context, *pglock.Lease) error { return nil }))
		if _, body := get(t, h, "/schedules"); strings.Contains(body, `action="trigger?name=job"`) != (want.release == 303) {
			t.Errorf("%d: the button is wrong: %s", access, body)
		}
		w := post(h, "/trigger?name=job", url.Values{})
		s, err := f.client.Snapshot(t.Context(), inspect.Query{})
		if locktest.OK(t, err); w.Code != want.release || s.Schedules[0].Triggered.After(tick) != (want.release == 303) {
			t.Errorf("%d: trigger: %d, %+v", access, w.Code, s.Schedules)
		}
		l := f.try(f.client.Lock("held"))
		_, body := get(t, h, "/lock?name=held")
		if strings.Contains(body, `action="release`) != (want.release == 303) || strings.Contains(body, `action="revoke`) != (want.revoke == 303) {
			t.Errorf("%d: the forms are wrong: %s", access, body)
		}
		if w := post(h, "/release?name=held", revocation(l, "")); w.Code != want.release {
			t.Errorf("%d: release: %d", access, w.Code)
		}
		k, err := f.client.Get(t.Context(), "held")
		if locktest.OK(t, err); k.ReleaseRequested != (want.release == 303) {
			t.Errorf("%d: the release is requested: %t", access, k.ReleaseRequested)
		}
		if w := post(h, "/revoke?name=held", revocation(l, "")); w.Code != want.revoke {
			t.Errorf("%d: revoke: %d", access, w.Code)
		}
		k, err = f.client.Get(t.Context(), "held")
		if locktest.OK(t, err); k.Held() != (want.revoke == 403) {
			t.Errorf("%d: the lock is held: %t", access, k.Held())
		}
		_ = l.Release(context.Background()) // it may be revoked
	}
}

// TestOnlyThisMachineMayLook by default, by a local name, and not through a proxy.
func TestOnlyThisMachineMayLook(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h, err := ui.Handler(f.client, ui.Options{})
	locktest.OK(t, err)
	for _, tc := range []struct {
		peer, host, header string
		want               int
	}{
		{"127.0.0.1:1234", "127.0.0.1:8080", "", 200},
		{"127.0.0.1:1234", "localhost:8080", "", 200},
		{"127.0.0.1:1234", "localhost", "", 200},
		{"127.1.2.3:1234", "127.0.0.1", "", 200},
		{"[::1]:1234", "[::1]:8080", "", 200},
		{"[::1]:1234", "[::1]", "", 200},
		{"[::ffff:127.0.0.1]:1234", "localhost", "", 200},
		{"192.0.2.1:1234", "localhost:8080", "", 403},
		{"[2001:db8::1]:1234", "localhost:8080", "", 403},
		{"@", "localhost:8080", "", 403}, // a Unix-domain socket
		{"", "localhost:8080", "", 403},
		{"127.0.0.1:1234", "attacker.example:8080", "", 403}, // its name resolves to this machine
		{"127.0.0.1:1234", "localhost.attacker.example", "", 403},
		{"127.0.0.1:1234", "127.0.0.1.attacker.example", "", 403},
		{"127.0.0.1:1234", "", "", 403},
		{"127.0.0.1:1234", "localhost", "Forwarded", 403},
		{"127.0.0.1:1234", "localhost", "Via", 403},
		{"127.0.0.1:1234", "localhost", "X-Forwarded-For", 403},
		{"127.0.0.1:1234", "localhost", "X-Forwarded-Host", 403},
		{"127.0.0.1:1234", "localhost", "X-Real-Ip", 403},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr, r.Host = tc.peer, tc.host
		if tc.header != "" {
			r.Header.Set(tc.header, "192.0.2.7")
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != tc.want {
			t.Errorf("%+v: %d", tc, w.Code)
		}
	}
	l := f.try(f.client.Lock("n"))
	for _, path := range []string{"/release", "/revoke", "/happened", "/did-not-happen"} {
		r := httptest.NewRequest(http.MethodPost, lockPath(path, "n"), strings.NewReader(revocation(l, "").Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.RemoteAddr, r.Host = "127.0.0.1:1234", "localhost"
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != http.StatusForbidden {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	locktest.OK(t, l.Release(t.Context()))
}

// TestOtherSites can't make a browser act.
func TestOtherSites(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.handler(ui.Revoke)
	l := f.try(f.client.Lock("n"))
	for _, headers := range [][]string{
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"},
		{"Sec-Fetch-Site", "cross-site", "Origin", "http://example.com"},
		{"Sec-Fetch-Site", "", "Origin", "https://attacker.example"},
		{"Sec-Fetch-Site", "", "Origin", "null"},
	} {
		for _, path := range []string{"/release", "/revoke", "/trigger", "/happened", "/did-not-happen"} {
			if w := post(h, lockPath(path, "n"), revocation(l, ""), headers...); w.Code != http.StatusForbidden {
				t.Errorf("%q: %s: %d", headers, path, w.Code)
			}
		}
	}
	for _, path := range []string{"/release", "/revoke", "/happened", "/did-not-happen"} {
		if code, _ := get(t, h, lockPath(path, "n")+"&"+revocation(l, "").Encode()); code != http.StatusMethodNotAllowed {
			t.Errorf("GET %s: %d", path, code)
		}
	}
	k, err := f.client.Get(t.Context(), "n")
	if locktest.OK(t, err); !k.Held() || k.ReleaseRequested {
		t.Errorf("%+v", k)
	}
	if w := post(h, "/revoke?name=n", revocation(l, ""), "Sec-Fetch-Site", "", "Origin", "http://example.com"); w.Code != http.StatusSeeOther {
		t.Errorf("from the page itself: %d", w.Code)
	}
	_ = l.Release(context.Background())
}

// unsafe are parts of a page that its Content-Security-Policy would refuse.
var unsafe = regexp.MustCompile(`(?i)<style|<script(?: [^>]*)?>[^<]|[\s"']style=|<[^>]*[\s"'/]on\w+\s*=|javascript:|data:|<iframe|<base`)

// TestHeaders: all answers have the headers, and no page needs more than they allow.
func TestHeaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := f.try(f.client.Lock("n"))
	defer func() { locktest.OK(t, l.Release(t.Context())) }()
	for _, access := range []ui.Access{ui.None, ui.Revoke} {
		h := f.handler(access)
		for _, path := range append(append(paths, statics...), "/healthz", "/no-such-page", "/lock?name=", "/release") {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Header.Set("Origin", "https://attacker.example")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			for name, want := range map[string]string{
				"Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
				"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
				"Set-Cookie": "", "Access-Control-Allow-Origin": "", "Access-Control-Allow-Credentials": "",
			} {
				if got := w.Header().Get(name); got != want {
					t.Errorf("%s: %s is %q", path, name, got)
				}
			}
			contains(t, path, w.Header().Get("Content-Security-Policy"), "default-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'")
			lacks(t, path, w.Header().Get("Content-Security-Policy"), "unsafe", "data:", "http")
			if found := unsafe.FindString(w.Body.String()); found != "" && strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
				t.Errorf("%s has %q", path, found)
			}
			if !strings.Contains(path, "ui.") && w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("%s may be stored", path)
			}
		}
	}
	for _, control := range []string{`<p style="x">`, `<style>`, `<script>alert(1)</script>`, `<script type="module">x`, `<a onclick="x">`, `<svg/onload=x>`} {
		if !unsafe.MatchString(control) {
			t.Errorf("control: %s is not found", control)
		}
	}
}

// TestActions: the holder sees the reason with the actor, and the log has both.
func TestActions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var logged bytes.Buffer
	h := f.handler(ui.Revoke, ui.Options{Logger: slog.New(slog.NewTextHandler(&logged, nil)), Actor: func(r *http.Request) string { return r.Header.Get("User") }})
	l := f.try(f.client.Lock("n"))
	w := post(h, "/release?name=n", revocation(l, "deploy at noon"), "User", "alice")
	if got := w.Header().Get("Location"); w.Code != http.StatusSeeOther || got != "lock?name=n" {
		t.Fatalf("%d, to %s", w.Code, got)
	}
	locktest.Receive(t, l.ReleaseRequested())
	if got := l.ReleaseReason(); got != "deploy at noon (by alice)" {
		t.Errorf("the reason is %q", got)
	}
	contains(t, "the page", see(t, h, "/lock?name=n"), "release asked", "deploy at noon (by alice)")

	wrong := revocation(l, "")
	wrong.Set("confirm", "N")
	if w := post(h, "/revoke?name=n", wrong, "User", "alice"); w.Code != http.StatusBadRequest {
		t.Errorf("another name is typed: %d", w.Code)
	}
	wrong.Del("confirm")
	if w := post(h, "/revoke?name=n", wrong, "User", "alice"); w.Code != http.StatusBadRequest || l.Err() != nil {
		t.Errorf("no name is typed: %d, %v", w.Code, l.Err())
	}
	for _, path := range []string{"/revoke?name=n", "/release?name=n"} {
		silent := revocation(l, "")
		silent.Set("reason", " \t")
		if w := post(h, path, silent, "User", "alice"); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "there is no reason: must be given") {
			t.Errorf("%s without a reason: %d, %s", path, w.Code, w.Body)
		}
	}
	if w := post(h, "/revoke?name=n", revocation(l, "x"), "User", "bob\x00\xff"+strings.Repeat("x", 600)); w.Code != http.StatusSeeOther {
		t.Errorf("revoke: %d, %s", w.Code, w.Body)
	}
	var lost *pglock.LostError
	pgtest.Eventually(t, "the lease is lost", func() bool { return errors.As(l.Err(), &lost) })
	contains(t, "the error", lost.Error(), "(by bobx")
	contains(t, "the page", see(t, h, "/lock?name=n"), "revoked", "(by bobx", "Nobody holds it")
	contains(t, "the log", logged.String(), "request release", "actor=alice", `reason="deploy at noon (by alice)"`, "name=n", "ui: revoke", "actor=bobx")

	again := f.try(f.client.Lock("n"))
	w = post(h, "/release?name=n", revocation(l, ""), "User", "alice")
	if w.Code != http.StatusConflict || again.Err() != nil {
		t.Errorf("an old grant: %d, %v", w.Code, again.Err())
	}
	contains(t, "the page", w.Body.String(), "grant", `href="lock?name=n"`)
	for form, want := range map[string]int{"": 400, "token=x&confirm=n&reason=r": 400, "token=-1&confirm=n&reason=r": 400, "token=9&confirm=n&reason=%00": 400, "token=9&confirm=n&reason=" + strings.Repeat("x", 600): 400, "token=9&confirm=n&x=" + strings.Repeat("x", 1<<15): 400} {
		r := httptest.NewRequest(http.MethodPost, "/revoke?name=n", strings.NewReader(form))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%.80s: %d, %s", form, w.Code, w.Body)
		}
	}
	if w := post(h, "/revoke?name=unknown", map[string][]string{"token": {"1"}, "confirm": {"unknown"}, "reason": {"r"}}); w.Code != http.StatusConflict {
		t.Errorf("a lock without a row: %d", w.Code)
	}
	locktest.OK(t, again.Release(t.Context()))
	_ = l.Release(context.Background())
}

// TestGrantsOfPermits are revoked one by one.
func TestGrantsOfPermits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.handler(ui.Revoke)
	one, two := f.try(f.client.Semaphore("sem", 5).Weight(2), pglock.WithHolder("first")), f.try(f.client.Semaphore("sem", 5), pglock.WithHolder("second"))
	contains(t, "the page", see(t, h, "/lock?name=sem"), "3 of 5 permits in use", "2 permits", "1 permit<", "<select name=\"token\">", "· first</option>", "· second</option>")
	if w := post(h, "/revoke?name=sem", revocation(two, "")); w.Code != http.StatusSeeOther {
		t.Errorf("%d, %s", w.Code, w.Body)
	}
	body := see(t, h, "/lock?name=sem")
	contains(t, "the page", body, "2 of 5 permits in use", "first")
	lacks(t, "the page", body, "second</bdi></span>", "<select")
	locktest.OK(t, one.Release(t.Context()))
	_ = two.Release(context.Background())
}

// TestHealth: it needs no access, and only those who may read are told the reason.
func TestHealth(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	closed := f.open()
	for _, access := range []ui.Access{ui.None, ui.Read} {
		if code, body := get(t, f.handler(access), "/healthz"); code != http.StatusOK || body != "ok\n" {
			t.Errorf("%d, %q", code, body)
		}
	}
	shared, err := ui.Handler(closed, ui.Options{})
	locktest.OK(t, err)
	began := time.Now()
	first, _ := get(t, shared, "/healthz")
	locktest.OK(t, closed.Close(t.Context()))
	second, _ := get(t, shared, "/healthz")
	if first != http.StatusOK || second != http.StatusOK && time.Since(began) < time.Second {
		t.Errorf("requests of one second: %d, %d", first, second)
	}
	for access, want := range map[ui.Access]string{ui.None: "unavailable\n", ui.Read: "pglock: client closed\n"} {
		h, err := ui.Handler(closed, ui.Options{Authorize: allow(access)})
		locktest.OK(t, err)
		if code, body := get(t, h, "/healthz"); code != http.StatusServiceUnavailable || body != want {
			t.Errorf("%d, %q", code, body)
		}
		if code, body := get(t, h, "/"); access == ui.Read && (code != http.StatusServiceUnavailable || !strings.Contains(body, "client closed")) {
			t.Errorf("%d, %s", code, body)
		}
	}
}

// TestHealthIsBounded: a database that does not answer is reported in two seconds.
func TestHealthIsBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.handler(ui.None)
	tx, err := f.admin.Begin(t.Context())
	locktest.OK(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), "LOCK TABLE "+schema.Quote(f.schema)+".distributed_locks")
	locktest.OK(t, err)
	began := time.Now()
	if code, _ := get(t, h, "/healthz"); code != http.StatusServiceUnavailable || time.Since(began) > 4500*time.Millisecond {
		t.Errorf("%d after %v", code, time.Since(began))
	}
}

// TestOptions: without a client there is no handler, and without options nobody else may look.
func TestOptions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h, err := ui.Handler(f.client, ui.Options{})
	locktest.OK(t, err)
	if code, _ := get(t, h, "/"); code != http.StatusForbidden { // the default
		t.Errorf("%d", code)
	}
	if _, err := ui.Handler(nil, ui.Options{}); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Error(err)
	}
}
