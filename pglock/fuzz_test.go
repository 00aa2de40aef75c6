package pglock_test

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
)

// fuzzWorld is a schema and two clients for a fuzz test, as a role with the rights of WithUser.
type fuzzWorld struct {
	admin  *pgxpool.Pool
	schema string
	a, b   *pglock.Client
}

func newFuzzWorld(f *testing.F) fuzzWorld {
	f.Helper()
	admin := pgtest.Pool(f)
	name := pgtest.Schema(f, admin)
	user := pgtest.UserPool(f, admin, name)
	open := func() *pglock.Client {
		c, err := pglock.Open(context.Background(), user, pglock.WithSchema(name))
		if err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), pgtest.Patience)
			defer cancel()
			if err := c.Close(ctx); err != nil {
				f.Errorf("Close: %v", err)
			}
		})
		return c
	}
	return fuzzWorld{admin, name, open(), open()}
}

// scan reads a row with a statement written for the default schema.
func (w fuzzWorld) scan(t *testing.T, statement string, args []any, into ...any) {
	t.Helper()
	if err := w.admin.QueryRow(t.Context(), schema.Render(statement, w.schema), args...).Scan(into...); err != nil {
		t.Fatalf("%s %q: %v", statement, args, err)
	}
}

// fits reports whether a text is from 1 to limit bytes that PostgreSQL stores unchanged.
func fits(text string, limit int) bool {
	return text != "" && len(text) <= limit && utf8.ValidString(text) && !strings.ContainsRune(text, 0)
}

// hostileText are texts that break code which quotes by hand, cuts, or reads a pattern.
var hostileText = []string{
	"n", "", "'", `"`, `\`, `\'`, "''", `E'\047'`, "$1", "$$", "$function$", "%s%n", "%", "_", "*", "?", "a\nb", "a\r\nb", "\t", "\x01\x1b[31m", "a\x00b", "\x00",
	"\xff", "\xc3\x28", "\xed\xa0\x80", "\ufffd", "漢字", "🔒", "e\u0301", "\u00e9", "\u202edrow", "\u2028", "\ufeff", "NULL", "null", "{}", "[1]", "a,b", "(a)", "a b", " ", " a ",
	"pglock.", "pg_", `"pglock".distributed_locks`, "'; DROP TABLE distributed_locks; --", "x'); SELECT pg_sleep(9); --", "/*", "--", ";", "a@1", "a@1+s", "@", "+",
	"../../etc", "https://a/?b=c&d#e", strings.Repeat("x", 512), strings.Repeat("x", 513), strings.Repeat("é", 256), strings.Repeat("é", 257), strings.Repeat("'", 512), strings.Repeat("y", 9000),
}

// FuzzLockName takes a name and a holder through Acquire, the SQL views, a notification to a waiter of
// another process, and Release. They come back byte for byte, or they are refused.
func FuzzLockName(f *testing.F) {
	for i, text := range hostileText {
		f.Add(text, "h")
		f.Add("n"+strconv.Itoa(i), text)
	}
	w := newFuzzWorld(f)
	calls := 0
	f.Fuzz(func(t *testing.T, name, holder string) {
		ctx := t.Context()
		l, err := w.a.TryAcquire(ctx, name, pglock.WithHolder(holder))
		switch {
		case !fits(holder, 512) && fits(name, 512):
			if !errors.Is(err, pglock.ErrInvalidOption) {
				t.Fatalf("holder %q: %v", holder, err)
			}
			return
		case !fits(name, 512):
			if !errors.Is(err, pglock.ErrInvalidOption) {
				t.Fatalf("name %q: %v", name, err)
			}
			if _, err := w.a.Get(ctx, name); !errors.Is(err, pglock.ErrInvalidOption) {
				t.Fatalf("Get(%q): %v", name, err)
			}
			return
		case err != nil:
			t.Fatalf("name %q, holder %q: %v", name, holder, err)
		}
		defer func() { _ = l.Release(context.Background()) }() // does nothing but after a failure
		k, err := w.b.Get(ctx, name)
		if err != nil || k.Name != name || k.Holder != holder || k.Token != l.Token() {
			t.Fatalf("Get(%q) by %q: %+v, %v", name, holder, k, err)
		}
		var busy *pglock.BusyError
		if _, err := w.b.TryAcquire(ctx, name); !errors.As(err, &busy) || busy.Name != name || busy.Holder != holder {
			t.Fatalf("a try on %q by %q: %v", name, holder, err)
		}
		// The server's equality of names is that of bytes: the lock is no other's.
		var gotName, gotHolder string
		var rows int
		w.scan(t, `SELECT min(name COLLATE "C"), min(holder COLLATE "C"), count(*) FROM pglock.locks_held`, nil, &gotName, &gotHolder, &rows)
		if gotName != name || gotHolder != holder || rows != 1 {
			t.Fatalf("locks_held has %d rows, %q by %q, want %q by %q", rows, gotName, gotHolder, name, holder)
		}
		listed := 0
		for k, err := range w.a.Locks(ctx, inspect.Filter{Prefix: name, Holder: holder, Held: true}) {
			if err != nil || k.Name != name || k.Holder != holder {
				t.Fatalf("Locks: %+v, %v", k, err)
			}
			listed++
		}
		if listed != 1 {
			t.Fatalf("Locks with prefix %q lists %d", name, listed)
		}
		// A waiter of another process is woken by a notification whose payload is the name.
		got := make(chan error, 1)
		go func() {
			next, err := w.b.Acquire(ctx, name, pglock.WithHolder(holder))
			if err == nil {
				err = next.Release(ctx)
			}
			got <- err
		}()
		pgtest.Eventually(t, "the waiter has a ticket", func() bool { return pglock.HeadWaits(w.b, name) })
		w.scan(t, "SELECT name, client FROM pglock.locks_waiting WHERE name = $1", []any{name}, &gotName, &gotHolder)
		if gotName != name || gotHolder != holder {
			t.Fatalf("locks_waiting has %q by %q, want %q by %q", gotName, gotHolder, name, holder)
		}
		if err := l.Release(ctx); err != nil {
			t.Fatalf("Release(%q): %v", name, err)
		}
		select {
		case err := <-got:
			if err != nil {
				t.Fatalf("the waiter for %q: %v", name, err)
			}
		case <-time.After(pgtest.Patience):
			t.Fatalf("the waiter for %q was not woken", name)
		}
		if k, err := w.a.Get(ctx, name); err != nil || k.Held() || k.Previous.Holder != holder {
			t.Fatalf("after the release of %q: %+v, %v", name, k, err)
		}
		if calls++; calls%500 == 0 {
			if _, err := w.a.Prune(ctx, 0); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzLabels takes two labels through Acquire, SetLabels, Get and the view.
func FuzzLabels(f *testing.F) {
	for i, text := range hostileText {
		f.Add(text, "v", "k"+strconv.Itoa(i), text)
	}
	f.Add("a", strings.Repeat("x", 16<<10), "b", "")
	w := newFuzzWorld(f)
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		ctx := t.Context()
		storable := func(s string) bool { return s == "" || fits(s, len(s)) }
		first, both := map[string]string{k1: v1}, map[string]string{k1: v1, k2: v2}
		l, err := w.a.TryAcquire(ctx, "n", pglock.WithLabels(first))
		if err != nil {
			small := len(k1)+len(v1) < 16<<10/6 // JSON makes at most 6 bytes of one
			if !errors.Is(err, pglock.ErrInvalidOption) || storable(k1) && storable(v1) && small {
				t.Fatalf("labels %q: %v", first, err)
			}
			return
		}
		defer func() {
			check(t, l.Release(context.Background()))
		}()
		want := both
		if err := l.SetLabels(ctx, map[string]string{k2: v2}); err != nil {
			small := len(k1)+len(v1)+len(k2)+len(v2) < 16<<10/6-16
			if !errors.Is(err, pglock.ErrInvalidOption) || storable(k2) && storable(v2) && small {
				t.Fatalf("SetLabels(%q, %q): %v", k2, v2, err)
			}
			want = first
		}
		if k, err := w.b.Get(ctx, "n"); err != nil || !maps.Equal(k.Labels, want) {
			t.Fatalf("Get: %q, %v, want %q", k.Labels, err, want)
		}
		var stored string
		w.scan(t, "SELECT labels->>$1 FROM pglock.locks_held", []any{k1}, &stored)
		if stored != want[k1] {
			t.Fatalf("the view has label %q: %q, want %q", k1, stored, want[k1])
		}
	})
}

// FuzzNotification sends an arbitrary payload on each channel of a client that holds a lock and waits
// for another. Any role may do that. Neither lock is affected, and both work afterwards.
func FuzzNotification(f *testing.F) {
	for i, text := range append(hostileText, "TOKEN", "-TOKEN", "TOKENTOKEN", "0", "1", "-1", "9223372036854775807", "9223372036854775808", "+1", "1e3", "waited", "held", "other") {
		f.Add(uint8(i), text)
	}
	for channel := range uint8(4) {
		f.Add(channel, "TOKEN")
		f.Add(channel, "waited")
	}
	w := newFuzzWorld(f)
	f.Fuzz(func(t *testing.T, channel uint8, payload string) {
		ctx := t.Context()
		held, err := w.b.TryAcquire(ctx, "held")
		must(t, err)
		before, err := w.a.TryAcquire(ctx, "waited")
		must(t, err)
		got := make(chan *pglock.Lease, 1)
		go func() {
			l, err := w.b.Acquire(ctx, "waited")
			check(t, err)
			got <- l
		}()
		pgtest.Eventually(t, "b waits", func() bool { return pglock.HeadWaits(w.b, "waited") && pglock.Listening(w.b) })

		payload = strings.ReplaceAll(payload, "TOKEN", strconv.FormatInt(int64(held.Token()), 10))
		if payload == "" || fits(payload, 7999) { // the server refuses others
			var client string
			w.scan(t, "SELECT client FROM pglock.lock_waiters WHERE ticket > 0 AND name = 'waited'", nil, &client)
			channels := []string{client, client + "_watch", client + "_all", pglock.HolderChannel(w.schema)}
			if _, err := w.admin.Exec(ctx, "SELECT pg_notify($1, $2)", channels[channel%4], payload); err != nil {
				t.Fatal(err)
			}
		}
		// A round trip of notifications: those before it have been delivered.
		must(t, before.Release(ctx))
		select {
		case next := <-got:
			if next == nil {
				return
			}
			grows(t, before, next)
			check(t, next.Release(ctx))
		case <-time.After(pgtest.Patience):
			t.Fatalf("the waiter was not woken after payload %q", payload)
		}
		if err := held.Err(); err != nil {
			t.Errorf("the holder has lost its lock by payload %q: %v", payload, err)
		}
		select {
		case <-held.ReleaseRequested():
			t.Errorf("the holder was asked to release by payload %q", payload)
		default:
		}
		check(t, held.Release(ctx))
	})
}
