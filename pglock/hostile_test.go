package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/once"
)

// hostileTexts are texts that break code which quotes by hand, cuts, or takes a text for a format or
// a pattern.
var hostileTexts = []string{
	"'; DROP SCHEMA pglock CASCADE; --", `\'; SELECT pg_sleep(9); --`, `" OR ""="`, `a\`, `\\`, `\x00`, `E'\047'`, "$$;$$", "$1", "$function$", "%s%d%n", "a%", "_", "*", "?",
	"a\nb\r\nc", "\t\x01\x1b[31m", "漢字🔒é", "e\u0301", "\u202e\u2028\ufeff", "\ufffd", `{"a":1}`, "null", "a,b;c", " a ", "a/b@1+s", strings.Repeat("'", 512), strings.Repeat("é", 256),
}

// invalidTexts can't be stored, or are too long for a name.
var invalidTexts = []string{"a\x00b", "\x00", "a\xff", "\xc3\x28", "\xed\xa0\x80", strings.Repeat("x", 513)}

// TestHostileTextComesBack takes hostile texts through every call that accepts a text, with both
// meanings of backslashes in literals, and with and without parameters. They come back byte for byte.
func TestHostileTextComesBack(t *testing.T) {
	t.Parallel()
	for _, session := range []struct {
		conforming string
		mode       pgx.QueryExecMode
	}{{"on", pgx.QueryExecModeCacheStatement}, {"on", pgx.QueryExecModeSimpleProtocol}, {"off", pgx.QueryExecModeCacheStatement}} { // pgx refuses off with the simple protocol
		t.Run(session.conforming+" "+session.mode.String(), func(t *testing.T) {
			t.Parallel()
			old := pgtest.EscapesAreOld(t)
			if session.conforming == "off" && !old {
				return // as with on
			}
			h := newHostile(t, func(c *pgxpool.Config) {
				if old {
					c.ConnConfig.RuntimeParams["standard_conforming_strings"] = session.conforming
					c.ConnConfig.RuntimeParams["escape_string_warning"] = "off"
				}
				c.ConnConfig.DefaultQueryExecMode = session.mode
			})
			for i, text := range hostileTexts {
				other := hostileTexts[(i+1)%len(hostileTexts)]
				h.lock(text, other)
				h.others(text, other)
				if i%4 == 0 || os.Getenv("PGLOCK_CHAOS") != "" {
					h.queue(text)
					h.permits(text, other)
				}
			}
			for _, text := range invalidTexts {
				h.refused(text)
			}
			var tables int
			if err := h.admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename IN ('distributed_locks', 'once_keys')", h.schema).Scan(&tables); err != nil || tables != 2 {
				t.Errorf("%d tables are left, %v", tables, err)
			}
			h.control(session.conforming == "off")
		})
	}
}

// control shows that the texts break code that writes them into statements by hand.
func (h *hostile) control(escapes bool) {
	broken := 0
	for _, text := range hostileTexts {
		quoted := text
		if escapes { // right with standard_conforming_strings on
			quoted = strings.ReplaceAll(text, "'", "''")
		}
		var got string
		ctx, cancel := context.WithTimeout(h.Context(), pgtest.Patience)
		err := h.user.QueryRow(ctx, "SELECT '"+quoted+"'", pgx.QueryExecModeExec).Scan(&got)
		cancel()
		if err != nil || got != text {
			broken++
		}
	}
	if broken < 2 {
		h.Errorf("the control: %d texts break a statement that quotes them by hand", broken)
	}
}

// hostile is a schema with two clients, as a role with the rights of WithUser.
type hostile struct {
	*testing.T
	admin, user *pgxpool.Pool
	schema      string
	a, b        *pglock.Client
}

func newHostile(t *testing.T, change func(*pgxpool.Config)) *hostile {
	t.Helper()
	admin := pgtest.Pool(t)
	name := pgtest.Schema(t, admin)
	config := pgtest.UserPool(t, admin, name).Config()
	change(config)
	user, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(user.Close)
	h := &hostile{T: t, admin: admin, user: user, schema: name}
	for _, c := range []**pglock.Client{&h.a, &h.b} {
		if *c, err = pglock.Open(t.Context(), user, pglock.WithSchema(name), pglock.WithLogger(nil)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = (*c).Close(context.Background()) }) // some leases were revoked
	}
	return h
}

func (h *hostile) ok(what string, err error) {
	h.Helper()
	if err != nil {
		h.Fatalf("%s: %v", what, err)
	}
}

// same fails the test unless the texts that came back are those that were given, in pairs.
func (h *hostile) same(what string, texts ...string) {
	h.Helper()
	for i := 0; i < len(texts); i += 2 {
		if texts[i] != texts[i+1] {
			h.Errorf("%s: got %q, want %q", what, texts[i], texts[i+1])
		}
	}
}

// lock takes texts through the calls of a lease and of operators.
func (h *hostile) lock(name, text string) {
	ctx := h.Context()
	labels := map[string]string{name: text, text: name}
	l, err := h.a.TryAcquire(ctx, name, pglock.WithHolder(text), pglock.WithLabels(labels))
	h.ok("TryAcquire", err)
	more := map[string]string{name + "x": text}
	h.ok("SetLabels", l.SetLabels(ctx, more))
	maps.Copy(labels, more)
	reason := text
	h.ok("RequestRelease", h.b.RequestRelease(ctx, name, l.Token(), reason))
	k, err := h.b.Get(ctx, name)
	h.ok("Get", err)
	h.same("Get", k.Name, name, k.Holder, text, k.ReleaseReason, reason, l.Holder(), text, l.Name(), name)
	if !maps.Equal(k.Labels, labels) {
		h.Errorf("labels: got %q, want %q", k.Labels, labels)
	}
	var busy *pglock.BusyError
	if _, err := h.b.TryAcquire(ctx, name); !errors.As(err, &busy) || busy.Name != name || busy.Holder != text {
		h.Errorf("TryAcquire(%q): %v", name, err)
	}
	for _, filter := range []inspect.Filter{{Prefix: name}, {Holder: text, Held: true}, {Labels: more}, {Prefix: name, Holder: text, Labels: labels, Held: true}} {
		found := false
		for k, err := range h.b.Locks(ctx, filter) {
			h.ok("Locks", err)
			found = found || k.Name == name
			if !strings.HasPrefix(k.Name, filter.Prefix) || filter.Holder != "" && k.Holder != filter.Holder {
				h.Errorf("Locks(%+v) lists %q by %q", filter, k.Name, k.Holder)
			}
		}
		if !found {
			h.Errorf("Locks(%+v) does not list %q", filter, name)
		}
	}
	for k, err := range h.b.Watch(ctx, name) {
		h.ok("Watch", err)
		h.same("Watch", k.Name, name, k.Holder, text)
		break
	}
	tx, err := h.user.Begin(ctx)
	h.ok("Begin", err)
	h.ok("Bind", l.Bind(ctx, tx))
	h.ok("Rollback", tx.Rollback(ctx))

	fence, err := l.HandOver()
	h.ok("HandOver", err)
	encoded, err := fence.MarshalText()
	h.ok("MarshalText", err)
	parsed, err := fencing.ParseFence(string(encoded))
	h.ok("ParseFence", err)
	adopted, err := h.b.Adopt(ctx, parsed, pglock.WithHolder(text))
	h.ok("Adopt", err)
	h.same("Adopt", adopted.Name(), name, adopted.Fence().Schema, h.schema)
	h.ok("Revoke", h.a.Revoke(ctx, name, adopted.Token(), reason))
	k, err = h.a.Get(ctx, name)
	h.ok("Get", err)
	h.same("after Revoke", k.Previous.Reason, reason, k.Previous.Holder, text)
}

// queue takes a holder's name through the queue.
func (h *hostile) queue(text string) {
	ctx := h.Context()
	l, err := h.a.TryAcquire(ctx, "queue")
	h.ok("TryAcquire", err)
	got := make(chan error, 1)
	go func() {
		next, err := h.b.Acquire(ctx, "queue", pglock.WithHolder(text))
		if err == nil {
			err = next.Release(ctx)
		}
		got <- err
	}()
	pgtest.Eventually(h, "the waiter is in the queue", func() bool {
		k, err := h.a.Get(ctx, "queue")
		return err == nil && len(k.Waiters) == 1 && k.Waiters[0].Holder == text
	})
	h.ok("Release", l.Release(ctx))
	h.ok("Acquire", <-got)
}

// permits takes texts through a semaphore, a readers-writer lock and several names.
func (h *hostile) permits(name, text string) {
	ctx := h.Context()
	cut := func(prefix string) string { // to a name's size
		whole := prefix + name
		for len(whole) > 512 || !utf8.ValidString(whole) {
			whole = whole[:len(whole)-1]
		}
		return whole
	}
	permit, err := h.a.Semaphore(cut("s"), 2).TryAcquire(ctx, pglock.WithHolder(text), pglock.WithLabels(map[string]string{text: name}))
	h.ok("TryAcquire", err)
	k, err := h.b.Get(ctx, cut("s"))
	h.ok("Get", err)
	if len(k.Grants) != 1 || k.Grants[0].Holder != text || k.Grants[0].Labels[text] != name {
		h.Errorf("a semaphore: %+v", k)
	}
	h.ok("RequestRelease", h.b.RequestRelease(ctx, cut("s"), permit.Token(), text))
	h.ok("Revoke", h.b.Revoke(ctx, cut("s"), permit.Token(), text))

	reader, err := h.a.Reader(cut("r")).TryAcquire(ctx, pglock.WithHolder(text))
	h.ok("TryRLock", err)
	h.ok("Release", reader.Release(ctx))

	several, err := locktest.All(h.a, cut("a"), cut("b")).TryAcquire(ctx, pglock.WithHolder(text))
	h.ok("TryAcquireAll", err)
	for _, f := range several.Fences() {
		k, err := h.b.Get(ctx, f.Name)
		h.ok("Get", err)
		h.same("several names", k.Holder, text)
	}
	h.ok("Release", several.Release(ctx))
}

// others takes texts through advisory locks, marks, idempotency keys and elections.
func (h *hostile) others(name, text string) {
	ctx := h.Context()
	h.ok("DoTx", h.a.DoTx(ctx, name, func(ctx context.Context, tx pgx.Tx) error {
		return fencing.Advance(ctx, tx, name, 1, fencing.WithSchema(h.schema))
	}))
	var stored string
	h.ok("mark", h.admin.QueryRow(ctx, "SELECT resource FROM "+pgx.Identifier{h.schema, "fencing_high_water"}.Sanitize()+" WHERE resource = $1", name).Scan(&stored))
	h.same("Advance", stored, name)
	for range 2 { // the second call gets the stored result
		result, err := once.Do(ctx, h.a, name, []byte(text), func(context.Context, *pglock.Lease) (string, error) { return text, nil })
		h.ok("once.Do", err)
		h.same("once.Do", result, text)
	}
	info, err := once.Get(ctx, h.user, name, once.WithSchema(h.schema))
	h.ok("once.Get", err)
	h.same("once.Get", info.Key, name)
	e, err := leader.New(h.a, "election")
	h.ok("leader.New", err)
	term, err := e.Campaign(ctx, text)
	h.ok("Campaign", err)
	l, err := e.Leader(ctx)
	h.ok("Leader", err)
	h.same("the payload", l.Payload, text)
	h.ok("Resign", term.Resign(ctx))
}

// refused gives a text to each call, which refuses it with the error for that.
func (h *hostile) refused(text string) {
	ctx := h.Context()
	short := len(text) <= 512
	name := func(what string, err error) {
		h.Helper()
		if !errors.Is(err, pglock.ErrInvalidOption) {
			h.Errorf("%s(%.20q): %v", what, text, err)
		}
	}
	option := func(what string, err error) {
		h.Helper()
		if !errors.Is(err, pglock.ErrInvalidOption) {
			h.Errorf("%s(%.20q): %v", what, text, err)
		}
	}
	_, err := h.a.TryAcquire(ctx, text)
	name("TryAcquire", err)
	_, err = h.a.Acquire(ctx, text)
	name("Acquire", err)
	_, err = locktest.All(h.a, "n", text).TryAcquire(ctx)
	name("TryAcquireAll", err)
	_, err = h.a.Get(ctx, text)
	name("Get", err)
	_, err = h.a.Semaphore(text, 2).Acquire(ctx)
	name("Semaphore", err)
	_, err = h.a.Writer(text).TryAcquire(ctx)
	name("Writer", err)
	for _, err := range h.a.Watch(ctx, text) {
		name("Watch", err)
		break
	}
	name("Revoke", h.a.Revoke(ctx, text, 1, ""))
	name("RequestRelease", h.a.RequestRelease(ctx, text, 1, ""))
	if _, err = h.a.Adopt(ctx, pglock.Fence{Schema: h.schema, Name: text, Token: 1}); !errors.Is(err, fencing.ErrInvalidFence) {
		h.Errorf("Adopt(%.20q): %v", text, err)
	}
	_, err = h.a.TryAcquire(ctx, "n", pglock.WithHolder(text))
	option("WithHolder", err)
	option("Revoke: reason", h.a.Revoke(ctx, "n", 1, text))
	option("RequestRelease: reason", h.a.RequestRelease(ctx, "n", 1, text))
	if _, err := pglock.Open(ctx, h.user, pglock.WithSchema(text)); !errors.Is(err, pglock.ErrInvalidOption) {
		h.Errorf("WithSchema(%.20q): %v", text, err)
	}
	if short {
		_, err = h.a.TryAcquire(ctx, "n", pglock.WithLabels(map[string]string{text: "v"}))
		option("WithLabel: key", err)
		_, err = h.a.TryAcquire(ctx, "n", pglock.WithLabels(map[string]string{"k": text}))
		option("WithLabel: value", err)
		for _, err := range h.a.Locks(ctx, inspect.Filter{Prefix: text}) {
			option("Locks", err)
			break
		}
		if err := h.a.DoTx(ctx, text, func(context.Context, pgx.Tx) error { return nil }); err == nil {
			h.Errorf("DoTx(%q) succeeds", text)
		}
	}
	if _, err := once.Do(ctx, h.a, text, nil, func(context.Context, *pglock.Lease) (string, error) { return "", nil }); !errors.Is(err, once.ErrInvalidKey) {
		h.Errorf("once.Do(%.20q): %v", text, err)
	}
	if err := pgx.BeginFunc(ctx, h.user, func(tx pgx.Tx) error { return fencing.Advance(ctx, tx, text, 1, fencing.WithSchema(h.schema)) }); !errors.Is(err, fencing.ErrInvalidFence) {
		h.Errorf("Advance(%.20q): %v", text, fmt.Sprint(err))
	}
}
