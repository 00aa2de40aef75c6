package ui_test

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/schedule"
	"github.com/pglock/pglock-go/pglock/ui"
)

// TestEmptyPages: each page says that there is nothing.
func TestEmptyPages(t *testing.T) {
	t.Parallel()
	h := newFixture(t).handler(ui.Revoke)
	for path, want := range map[string]string{
		"/": "Nothing needs attention", "/locks": "No name has been locked yet", "/waiting": "Nobody waits", "/permits": "No semaphore", "/elections": "No election",
		"/schedules": "No job", "/once": "has an outcome", "/doctor": "pglock doctor", "/lock?name=n": "never granted",
	} {
		contains(t, path, see(t, h, path), want, "<h1>", `lang="en"`)
	}
}

// TestPages: one of everything is on its page.
func TestPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.handler(ui.Revoke)
	end := context.Background()
	var leases []*pglock.Lease
	defer func() {
		for _, l := range leases {
			_ = l.Release(end) // a waiter may have it
		}
	}()
	leases = append(leases, f.try(f.client.Lock("outer"), pglock.WithHolder("alice"), pglock.WithLabels(map[string]string{"team": "billing"})))
	bob := f.open(pglock.WithHolder("bob"))
	leases = append(leases, f.try(bob.Lock("inner")))
	f.waits(bob, bob.Lock("outer"))
	carol := f.open(pglock.WithHolder("carol"))
	f.waits(carol, carol.Lock("inner"))
	leases = append(leases, f.try(f.client.Semaphore("sem", 7).Weight(3)), f.try(f.client.Reader("catalog")), f.try(f.client.Writer("ledger")))
	locktest.OK(t, f.try(f.client.Lock("released"), pglock.WithHolder("dave")).Release(t.Context()))

	lacks(t, "the first page", see(t, h, "/locks"), ">released<")
	contains(t, "the first page", see(t, h, "/locks"), "1–5 of 5 locks that match, 6 in all", `<option value="held" selected>`)
	contains(t, "locks", see(t, h, "/locks?state="), "1–6 of 6 locks", ">outer<", "alice", ">released<", "held by", "dave", "semaphore", "readers–writer")
	waiting := see(t, h, "/waiting")
	contains(t, "the tree", waiting, ">outer<", "alice", ">bob<", "holds 1", ">inner<", "held by", ">carol<")
	if !regexp.MustCompile(`(?s)>outer<.*<ul>.*>bob<.*<ul>.*>inner<.*<ul>.*>carol<.*</ul>.*</ul>.*</ul>`).MatchString(waiting) {
		t.Errorf("the tree has another form:\n%s", waiting)
	}
	permits := see(t, h, "/permits")
	contains(t, "permits", permits, "3 of 7", "1 reader<", ">writer<", "3 semaphores and readers–writer locks")
	lacks(t, "permits", permits, ">outer<")
	lock := see(t, h, "/lock?name=outer")
	contains(t, "the lock", lock, "alice", "team", "billing", "bob", "<title>outer · pglock</title>", fmt.Sprintf(`value="%d"`, leases[0].Token()))

	e, err := leader.New(f.client, "election")
	locktest.OK(t, err)
	term, err := e.Campaign(t.Context(), "10.0.0.7:8080")
	locktest.OK(t, err)
	contains(t, "elections", see(t, h, "/elections"), "1 election<", ">election<", "10.0.0.7:8080", fmt.Sprint(term.Lease().Token()))
	locktest.OK(t, term.Resign(end))
	elections := see(t, h, "/elections")
	contains(t, "elections", elections, "no leader", "released</bdi> at")
	lacks(t, "elections", elections, ">outer<", "10.0.0.7:8080")

	job, err := schedule.New(f.client, "nightly")
	locktest.OK(t, err)
	nothing := func(context.Context, *pglock.Lease) error { return nil }
	locktest.OK(t, job.RunDue(t.Context(), schedule.In(schedule.Every(time.Hour), time.UTC), nothing))
	contains(t, "schedules", see(t, h, "/schedules"), "1 job,", ">nightly<", ">waiting<", ">in ", ">UTC<")
	f.sql(`UPDATE pglock.distributed_locks SET labels = labels || jsonb_build_object('next', to_char(now() AT TIME ZONE 'UTC' - interval '90 min', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) WHERE name = 'nightly'`)
	contains(t, "schedules", see(t, h, "/schedules"), "late by 1h30m")
	if job.Once(t.Context(), time.Now(), func(context.Context, *pglock.Lease) error { return errors.New("no paper") }) == nil {
		t.Error("the run has not failed")
	}
	contains(t, "schedules", see(t, h, "/schedules"), ">failed<", "failed 1 time: ", "no paper")
	operator := f.handler(ui.Operate)
	if w := post(operator, "/trigger?name=nightly", nil); w.Code != http.StatusSeeOther || w.Header().Get("Location") != "schedules?name=nightly" {
		t.Errorf("run now: %d, %s", w.Code, w.Body)
	}
	body := see(t, operator, "/schedules")
	contains(t, "schedules", body, "triggered ")
	lacks(t, "schedules", body, "Run now")
	run, err := job.Begin(t.Context(), time.Now())
	locktest.OK(t, err)
	for name, want := range map[string]string{"nightly": "the job is being run", "none": "no process has served the job"} {
		if w := post(operator, "/trigger?name="+name, nil); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d, %s", name, w.Code, w.Body)
		}
	}
	locktest.OK(t, run.Abandon(end))

	_, err = once.Do(t.Context(), f.client, "payment/1", make([]byte, 32), func(context.Context, *pglock.Lease) (int, error) { return 0, context.DeadlineExceeded })
	if err == nil {
		t.Error("the outcome is known")
	}
	contains(t, "once", see(t, h, "/once"), "1 effect that has", "payment/1", "outcome unknown", "pglock once resolve KEY --did-not-happen")
	contains(t, "clients", see(t, h, "/clients"), "Sessions of pglock", "pglock")
}

// TestDoctor: the page has the results of the function, each with its remedy.
func TestDoctor(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var err error
	h := f.handler(ui.Read, ui.Options{Doctor: func(context.Context) ([]ui.Check, error) {
		return []ui.Check{{Name: "clock", Level: "warn", Found: "<3 s> ahead", Remedy: "run NTP"}}, err
	}})
	body := see(t, h, "/doctor")
	contains(t, "doctor", body, "clock", `class="badge warn"`, "&lt;3 s&gt; ahead", "run NTP")
	lacks(t, "doctor", body, "pglock doctor", "data-live")
	err = context.DeadlineExceeded
	if code, body := get(t, h, "/doctor"); code != http.StatusServiceUnavailable || !strings.Contains(body, "deadline exceeded") {
		t.Errorf("%d, %s", code, body)
	}
}

// TestLabels are formatted or hidden by a function, also the payload of an election.
func TestLabels(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := f.try(f.client.Lock("n"), pglock.WithLabels(map[string]string{"payload": "10.0.0.7", "password": "secret", "team": "x"}))
	defer func() { locktest.OK(t, l.Release(t.Context())) }()
	h := f.handler(ui.Revoke, ui.Options{Label: func(key, value string) (string, bool) { return strings.ToUpper(value) + "!", key == "team" }})
	for _, path := range append(paths, "/waiting") {
		lacks(t, path, see(t, h, path), "secret", "SECRET", "password", "10.0.0.7")
	}
	contains(t, "the lock", see(t, h, "/lock?name=n"), "team", "X!")
	contains(t, "elections", see(t, h, "/elections"), "X!")
	contains(t, "by default", see(t, f.handler(ui.Read), "/lock?name=n"), "secret")
}

// hostile are names that break pages that are put together by hand, or that look like others.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, "`${x}`", "{{.Query}}", "&lt;&amp;amp;",
	"a/b/../../c", "?name=other&name=n#x", "%2e%2e%00+%", "javascript:alert(1)", " two  blanks ", "line\nbreak\r\n\ttab", "\x1b[31mred\x07\x7f\u009b",
	"gnp.\u202egpj.exe", "\u2066\u2067\u2068\u2069\u200e\u200f", "zero\u200bwidth\ufeff\u00ad\u00a0\u2028", "שלום", "e\u0301\u0301\u0301", "🔒漢字", `\u202e`, "-", "\ufffd",
	strings.Repeat("x", 512), strings.Repeat("漢", 170),
}

var lockLink = regexp.MustCompile(`<a class="lock" href="([^"]*)" title="([^"]*)">`)

// TestHostileNames: each name has a link that leads to its page, where it can be revoked, and none of its
// characters acts or hides on any page.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.handler(ui.Revoke)
	leases := map[string]*pglock.Lease{}
	for _, name := range hostile {
		leases[name] = f.try(f.client.Lock(name), pglock.WithHolder(name), pglock.WithLabels(map[string]string{name: name, "payload": name}))
	}
	other := f.open(pglock.WithHolder("waiter \u202e<b>"))
	f.waits(other, other.Lock(hostile[0]))
	for _, path := range paths {
		checkText(t, path, see(t, h, path))
	}
	found := 0
	for _, m := range lockLink.FindAllStringSubmatch(see(t, h, "/locks"), -1) {
		link := html.UnescapeString(m[1])
		u, err := url.Parse(link)
		locktest.OK(t, err)
		name := u.Query().Get("name")
		l := leases[name]
		if l == nil {
			t.Errorf("the link %s leads to the lock %q", link, name)
			continue
		}
		found++
		page := see(t, h, "/"+link)
		checkText(t, link, page)
		contains(t, link, page, fmt.Sprintf(`name="token" value="%d"`, l.Token()))
		action := regexp.MustCompile(`action="(revoke[^"]*)"`).FindStringSubmatch(page)
		if len(action) == 0 {
			t.Errorf("%s has no form", link)
			continue
		}
		form := revocation(l, "")
		form.Set("confirm", html.UnescapeString(m[2])) // as it is shown, so that it can be typed
		if w := post(h, "/"+html.UnescapeString(action[1]), form); w.Code != http.StatusSeeOther {
			t.Errorf("%q is not revoked: %d, %s", name, w.Code, w.Body)
		} else if target, err := url.Parse(w.Header().Get("Location")); err != nil || target.Query().Get("name") != name {
			t.Errorf("after revoking %q: %s, %v", name, w.Header().Get("Location"), err)
		}
		_ = l.Release(context.Background())
	}
	if found != len(hostile) {
		t.Errorf("%d of %d names have a link", found, len(hostile))
	}
	for _, name := range append(hostile, "", "\x00", "\xff", strings.Repeat("x", 513)) {
		for _, parameter := range []string{"name", "holder", "state", "order", "page"} {
			path := "/locks?" + url.Values{parameter: {name}}.Encode()
			if code, body := get(t, h, path); code == http.StatusOK || code == http.StatusBadRequest {
				checkText(t, path, body)
			} else {
				t.Errorf("%s: %d", path, code)
			}
		}
	}
	for _, name := range []string{"", "\x00", "\xff", strings.Repeat("x", 513)} {
		if code, _ := get(t, h, lockPath("/lock", name)); code != http.StatusBadRequest {
			t.Errorf("the lock %.20q: %d", name, code)
		}
	}
}

// checkText checks that a page has no markup of a name, and no character that acts or hides.
func checkText(t *testing.T, what, body string) {
	t.Helper()
	for _, r := range body {
		if r != '\n' && (r < ' ' || r >= 0x7f && r < 0xa0 || strings.ContainsRune("\u00a0\u00ad\u200b\u200e\u200f\u2028\u202e\u2066\u2067\u2068\u2069\ufeff", r)) {
			if inInput.MatchString(body) { // the fields of the filter have what was typed
				body = inInput.ReplaceAllString(body, "")
				checkText(t, what, body)
				return
			}
			t.Errorf("%s has the character %U", what, r)
			return
		}
	}
	lacks(t, what, body, "<script>", "<img src=x", "<b>", " onmouseover='")
}

var inInput = regexp.MustCompile(`<input name="(name|holder)" value="[^"]*"`)

// TestTenThousandLocks: a page has a hundred of them, and all can be reached and found.
func TestTenThousandLocks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sql(`INSERT INTO pglock.distributed_locks (name, token, version, holder, acquired_at, expires_at)
		SELECT 'lock ' || lpad(i::text, 5, '0'), i, 1, 'h' || i % 100, now() - i * interval '1 s', now() + interval '1 h' FROM generate_series(1, 10050) AS i`)
	f.sql(`INSERT INTO pglock.lock_waiters (name, client, holder, expires_at, ticket)
		SELECT 'lock 07777', i::text, 'w' || i, now() + interval '1 h', i FROM generate_series(1, 5000) AS i`)
	h := f.handler(ui.Revoke)
	names := func(path string) (names []string) {
		body := see(t, h, path)
		if len(body) > 200_000 {
			t.Errorf("%s has %d bytes", path, len(body))
		}
		for _, m := range lockLink.FindAllStringSubmatch(body, -1) {
			names = append(names, m[2])
		}
		return names
	}
	for path, want := range map[string]struct {
		n           int
		first, last string
	}{
		"/locks":                           {100, "lock 00001", "lock 00100"},
		"/locks?page=2":                    {100, "lock 00101", "lock 00200"},
		"/locks?page=100":                  {100, "lock 09901", "lock 10000"},
		"/locks?page=101":                  {50, "lock 10001", "lock 10050"},
		"/locks?page=-1":                   {100, "lock 00001", "lock 00100"},
		"/locks?order=held":                {100, "lock 10050", "lock 09951"},
		"/locks?order=waiters":             {100, "lock 07777", "lock 00099"},
		"/locks?name=9999":                 {1, "lock 09999", "lock 09999"},
		"/locks?name=lock+0000%3F":         {9, "lock 00001", "lock 00009"},
		"/locks?holder=h7&page=2":          {1, "lock 10007", "lock 10007"},
		"/locks?state=waiting":             {1, "lock 07777", "lock 07777"},
		"/locks?state=held&order=x&page=3": {100, "lock 00201", "lock 00300"},
	} {
		got := names(path)
		if len(got) != want.n || got[0] != want.first || got[len(got)-1] != want.last {
			t.Errorf("%s: %d locks, from %v", path, len(got), got)
		}
	}
	if got := names("/locks?name=nothing"); len(got) > 0 {
		t.Errorf("%q", got)
	}
	contains(t, "a part", see(t, h, "/locks?page=2&order=held"), "101–200 of 10,050 locks<", `href="?order=held&amp;page=1"`, `href="?order=held&amp;page=3"`)
	contains(t, "the last part", see(t, h, "/locks?page=101"), `href="?page=100"`)
	lacks(t, "the last part", see(t, h, "/locks?page=101"), `href="?page=102"`)
	contains(t, "after the end", see(t, h, "/locks?page=102"), "The list ends before this page", `href="?page=101"`)
	contains(t, "a filter", see(t, h, "/locks?name=9999"), "1–1 of 1 locks that match, 10,050 in all")
	contains(t, "the lock", see(t, h, "/lock?name=lock+07777"), "5,000", "and 4,900 more")
	contains(t, "the tree", see(t, h, "/waiting"), "and 4,980 more")
}

// TestPrefix: all addresses are relative, so the pages work under any prefix.
func TestPrefix(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := f.try(f.client.Lock("n"))
	defer func() { locktest.OK(t, l.Release(t.Context())) }()
	h := f.handler(ui.Revoke)
	for name, prefix := range map[string]string{"no slash": "/admin/locks", "a slash": "/admin/locks/"} {
		under := http.StripPrefix(prefix, h)
		for _, path := range append(paths, statics...) {
			if code, body := get(t, under, "/admin/locks"+path); code != http.StatusOK {
				t.Errorf("%s: %s: %d", name, path, code)
			} else if absolute := regexp.MustCompile(`(?:href|src|action)="(?:/|http)[^"]*"`).FindString(body); absolute != "" {
				t.Errorf("%s: %s has %s", name, path, absolute)
			}
		}
	}
}

// TestAssets: the files of the pages, and no others.
func TestAssets(t *testing.T) {
	t.Parallel()
	h := newFixture(t).handler(ui.Read)
	for path, kind := range map[string]string{"/ui.css": "text/css; charset=utf-8", "/ui.js": "text/javascript; charset=utf-8", "/ui.svg": "image/svg+xml"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if got := w.Header().Get("Content-Type"); got != kind || w.Body.Len() == 0 {
			t.Errorf("%s is %s", path, got)
		}
	}
	for _, path := range []string{"/static/ui.css", "/templates/layout.html", "/ui.css/", "/ui.", "/ui.x", "/lock/", "/refusal"} {
		if code, _ := get(t, h, path); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
	}
	if code, _ := get(t, h, "/ui.x/../../layout.html"); code == http.StatusOK {
		t.Error("a path leads out of the files")
	}
}
