package ui_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/ui"
)

// unknown leaves a key without an outcome, and returns its record.
func (f fixture) unknown(key string) once.Info {
	f.t.Helper()
	_, err := once.Do(f.t.Context(), f.client, key, nil, func(context.Context, *pglock.Lease) (int, error) { return 0, errors.New("no answer") })
	if err == nil {
		f.t.Fatal("the outcome is known")
	}
	return f.key(key)
}

func (f fixture) key(key string) once.Info {
	f.t.Helper()
	i, err := once.Get(f.t.Context(), f.pool, key, once.WithSchema(f.schema))
	if !errors.Is(err, once.ErrNotFound) {
		locktest.OK(f.t, err)
	}
	return i
}

// TestNow: what needs attention is on the first page with its cure and, for those who may act, a link to it. What
// operators did is there too.
func TestNow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	runs, found := 0, ui.Check{Name: "fsync", Level: "fail", Found: "<off>", Remedy: "set fsync = on"}
	var failed error
	h := f.handler(ui.Revoke, ui.Options{Doctor: func(context.Context) ([]ui.Check, error) {
		runs++
		return []ui.Check{found, {Name: "clock", Level: "warn", Found: "ahead"}}, failed
	}})
	f.unknown("charge <8812>")
	l := f.try(f.client.Lock("slow"))
	f.sql(`INSERT INTO pglock.lock_waiters (name, client, holder, expires_at, since) VALUES ('slow', 'c', 'w', now() + interval '1 h', now() - interval '9 min')`)
	for _, h := range map[string]http.Handler{"open": h, "again": h} {
		body := see(t, h, "/")
		contains(t, "the first page", body, "fsync: &lt;off&gt;", "set fsync = on", "charge &lt;8812&gt;", "Resolve the key", "--did-not-happen", "waiters: 1, up to 9m",
			`href="lock?name=slow#actions">Ask or revoke<`, "No operator has done anything")
		lacks(t, "the first page", body, "ahead", "Nothing needs attention")
		if strings.Index(body, "fsync") > strings.Index(body, "8812") || strings.Index(body, "8812") > strings.Index(body, ">slow<") {
			t.Errorf("the worst is not first:\n%s", body)
		}
	}
	if runs != 1 {
		t.Errorf("the checks ran %d times in one minute", runs)
	}
	lacks(t, "a page to look at", see(t, f.handler(ui.Read), "/"), "Resolve the key", "#actions", "fsync")
	lacks(t, "a page to ask from", see(t, f.handler(ui.Operate), "/"), "Resolve the key", "or revoke<")
	failed = errors.New("no connection")
	broken := f.handler(ui.Read, ui.Options{Doctor: func(context.Context) ([]ui.Check, error) { return nil, failed }})
	contains(t, "checks that fail themselves", see(t, broken, "/"), "doctor: no connection")
	if w := post(h, "/release?name=slow", revocation(l, "deploy")); w.Code != http.StatusSeeOther {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
	contains(t, "the first page", see(t, h, "/"), "asked to release", "deploy (by 192.0.2.1)", "its holder was asked, so")
	locktest.OK(t, l.Release(t.Context()))
}

// TestResolve: a key is resolved by those who may revoke, who type it and say how they know. The record has both.
func TestResolve(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.handler(ui.Revoke, ui.Options{Actor: func(*http.Request) string { return "alice" }})
	for _, key := range []string{"charge:1", "a\x1b<b>\u202e", `"' ?name=x&#`} {
		for action, happened := range map[string]bool{"/did-not-happen": false, "/happened": true} {
			i := f.unknown(key)
			form := url.Values{"token": {strconv.FormatInt(int64(i.Token), 10)}, "reason": {"seen at the bank"}, "confirm": {key}}
			page := see(t, h, "/once")
			checkText(t, "the page", page)
			contains(t, "the page", page, `action="happened?name=`, `formaction="did-not-happen?name=`, "outcome unknown")
			change := func(name, value string) url.Values {
				wrong := url.Values{}
				for n, v := range form {
					wrong[n] = v
				}
				wrong.Set(name, value)
				return wrong
			}
			for what, wrong := range map[string]url.Values{"another key": change("confirm", "x"), "no reason": change("reason", " "), "a long reason": change("reason", strings.Repeat("x", 600))} {
				if w := post(h, lockPath(action, key), wrong); w.Code != http.StatusBadRequest {
					t.Errorf("%s: %d", what, w.Code)
				}
			}
			if w := post(h, lockPath(action, key), change("token", "999999")); w.Code != http.StatusConflict {
				t.Errorf("another attempt: %d", w.Code)
			}
			for _, access := range []ui.Access{ui.None, ui.Read, ui.Operate} {
				weak := f.handler(access)
				if w := post(weak, lockPath(action, key), form); w.Code != http.StatusForbidden {
					t.Errorf("access %d: %d", access, w.Code)
				}
				if _, body := get(t, weak, "/once"); strings.Contains(body, "<form") {
					t.Errorf("access %d has the form", access)
				}
			}
			if f.key(key).State != "started" {
				t.Fatalf("%q is resolved", key)
			}
			if w := post(h, lockPath(action, key), form); w.Code != http.StatusSeeOther || !strings.HasPrefix(w.Header().Get("Location"), "once?") {
				t.Errorf("%q, %s: %d, %s", key, action, w.Code, w.Body)
			}
			if state := f.key(key).State; state != map[bool]string{true: "done"}[happened] {
				t.Errorf("%q, %s: it is %q", key, action, state)
			}
			f.sql("UPDATE pglock.once_keys SET expires_at = '2020-01-01' WHERE state = 'done'")
			first := see(t, h, "/")
			checkText(t, "the first page", first)
			contains(t, "the first page", first, map[bool]string{true: "resolved: happened", false: "resolved: did not happen"}[happened], "seen at the bank (by alice)")
		}
	}
}

// TestFromALockToItsSessions and back, to a transaction that guards it, and to what operators did to it.
func TestFromALockToItsSessions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.handler(ui.Revoke)
	l, other := f.try(f.client.Lock("held")), f.try(f.open(pglock.WithHolder("another")).Lock("other"))
	if w := post(h, "/release?name=other", revocation(other, "not here")); w.Code != http.StatusSeeOther {
		t.Errorf("%d", w.Code)
	}
	if w := post(h, "/release?name=held", revocation(l, "deploy")); w.Code != http.StatusSeeOther {
		t.Errorf("%d", w.Code)
	}
	tx, err := f.pool.Begin(t.Context())
	locktest.OK(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	locktest.OK(t, l.Guard(t.Context(), tx))
	page := see(t, h, "/lock?name=held")
	contains(t, "the lock", page, `<small class="note">process `, "Actions of operators", "deploy (by", "is guarded by an open transaction", "SELECT pg_terminate_backend("+
		strconv.Itoa(int(tx.Conn().PgConn().PID()))+")")
	lacks(t, "the lock", page, "not here")
	clients := see(t, h, "/clients")
	contains(t, "clients", clients, l.Holder()+" (pglock)", `data-label="Holds"><a class="lock" href="lock?name=held"`, `data-label="Holds"><a class="lock" href="lock?name=other"`)
	locktest.OK(t, tx.Rollback(t.Context()))
	locktest.OK(t, l.Release(t.Context()))
	locktest.OK(t, other.Release(t.Context()))
}
