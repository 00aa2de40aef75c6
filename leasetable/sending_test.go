package leasetable_test

import (
	"context"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
)

// interceptor sees each statement before it is sent, and makes those with one text fail.
type interceptor struct {
	sql    string
	before func(ctx context.Context) context.Context // called for this text
	sent   [][]any                                   // the arguments of each attempt with this text
	mu     sync.Mutex
}

func (i *interceptor) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	i.mu.Lock()
	defer i.mu.Unlock()
	if data.SQL != i.sql {
		return ctx
	}
	i.sent = append(i.sent, append([]any{}, data.Args...))
	return i.before(ctx)
}

func (i *interceptor) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// watch makes before run at each attempt with this text, and returns the arguments of the attempts of op.
func (i *interceptor) watch(sql string, before func(context.Context) context.Context, op func()) [][]any {
	set := func(sql string) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.sql, i.before = sql, before
	}
	i.sent = nil
	set(sql)
	op()
	set("")
	return i.sent
}

// sending is how a statement is sent.
type sending struct {
	statement string
	wakes     bool // it is repeated without its notification if the server refuses it
	tries     int  // in all, if its effect is unknown
	reserved  bool // on a connection that is kept for renewals
}

// TestHowStatementsAreSent: for each method, its statements, and how often each is sent when its
// connection fails, and when the server refuses it.
func TestHowStatementsAreSent(t *testing.T) {
	t.Parallel()
	plain := func(names ...string) (all []sending) {
		for _, name := range names {
			all = append(all, sending{statement: name, tries: 1})
		}
		return all
	}
	once := func(name string) []sending { return []sending{{statement: name, tries: 1}} }
	twice := func(name string) []sending { return []sending{{statement: name, tries: 2}} }
	wakes := func(name string) []sending { return []sending{{statement: name, tries: 1, wakes: true}} }
	wakesTwice := func(name string) []sending { return []sending{{statement: name, tries: 2, wakes: true}} }
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	var seen interceptor
	s := newStore(t, pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &seen }), name)
	statements := leasetable.Statements(name)

	fence := fencing.Fence{Schema: name, Name: "n", Token: 1}
	fences := []fencing.Fence{fence}
	renewals := []leasetable.Extension{{Fence: fence, TTL: time.Minute}}
	tickets := []leasetable.Ticket{{Client: "c", Names: []string{"n"}, Number: 7}}
	lease, permit, several := request("n", "1", "h"), request("p", "2", "h"), request("a, b", "3", "h")
	permit.Permits = leasetable.Permits{Capacity: 2, Weight: 1}
	several.All = []string{"a", "b"}
	for method, tc := range map[string]struct {
		call func(ctx context.Context)
		want []sending
	}{
		"AcquireFast":         {func(ctx context.Context) { _, _ = s.AcquireFast(ctx, one(lease)) }, once("acquire_fast")},
		"AcquireFast, all":    {func(ctx context.Context) { _, _ = s.AcquireFast(ctx, one(several)) }, once("acquire_all")},
		"AcquireFast, permit": {func(ctx context.Context) { _, _ = s.AcquireFast(ctx, one(permit)) }, once("acquire_permit")},
		"AcquireFast, batch":  {func(ctx context.Context) { _, _ = s.AcquireFast(ctx, []*leasetable.Request{lease, permit}) }, once("acquire_fast_batch")},
		"AcquireFull":         {func(ctx context.Context) { _, _ = s.AcquireFull(ctx, one(lease)) }, plain("peek", "acquire_full")},
		"AcquireSlots":        {func(ctx context.Context) { _, _ = s.AcquireSlots(ctx, permit) }, wakes("acquire_slots")},
		"HandOff":             {func(ctx context.Context) { _, _ = s.HandOff(ctx, fence, lease, "c") }, once("handoff")},
		"Upgrade":             {func(ctx context.Context) { _, _ = s.Upgrade(ctx, 1, permit) }, once("upgrade_permits")},
		"Resize":              {func(ctx context.Context) { _, _ = s.Resize(ctx, "p", 3) }, wakes("resize_permits")},
		"KeepPermits":         {func(ctx context.Context) { _, _ = s.KeepPermits(ctx, fence, 1) }, wakes("keep_permits")},
		"Release":             {func(ctx context.Context) { _, _, _ = s.Release(ctx, fence, 0) }, wakes("release")},
		"ReleaseBatch":        {func(ctx context.Context) { _, _ = s.ReleaseBatch(ctx, fences, make([]time.Duration, 1)) }, wakes("release_batch")},
		"ReleasePermits":      {func(ctx context.Context) { _, _ = s.ReleasePermits(ctx, []string{"p"}, 1, false) }, wakes("release_permits")},
		"ReleasePermits, one": {func(ctx context.Context) { _, _ = s.ReleasePermits(ctx, []string{"p"}, 1, true) }, append(wakes("release_permit"), wakes("release_permits")...)},
		"Revoke":              {func(ctx context.Context) { _, _ = s.Revoke(ctx, lease) }, wakes("revoke")},
		"Renew":               {func(ctx context.Context) { _, _ = s.Renew(ctx, renewals) }, append(twice("renew"), twice("check_grants")...)},
		"Adopt":               {func(ctx context.Context) { _, _ = s.Adopt(ctx, fence, "h", time.Minute) }, plain("renew", "check_grants")},
		"CheckGrants":         {func(ctx context.Context) { _, _ = s.CheckGrants(ctx, fences) }, once("check_grants")},
		"RevokeGrant":         {func(ctx context.Context) { _, _ = s.RevokeGrant(ctx, fence, "why") }, wakesTwice("revoke_grant")},
		"RequestRelease":      {func(ctx context.Context) { _, _ = s.RequestRelease(ctx, fence, "why") }, wakesTwice("request_release")},
		"SetLabels":           {func(ctx context.Context) { _, _ = s.SetLabels(ctx, fence, "{}", 100) }, wakesTwice("set_labels")},
		"AwaitGuards":         {func(ctx context.Context) { _ = s.AwaitGuards(ctx, fence) }, wakes("await_guards")},
		"Join":                {func(ctx context.Context) { _, _ = s.Join(ctx, "c", lease, 0, true) }, twice("join")},
		"Join, all":           {func(ctx context.Context) { _, _ = s.Join(ctx, "c", several, 0, true) }, wakesTwice("join_all")},
		"RefreshTickets":      {func(ctx context.Context) { _, _ = s.RefreshTickets(ctx, tickets, true) }, once("refresh_tickets")},
		"LeaveQueue":          {func(ctx context.Context) { _ = s.LeaveQueue(ctx, tickets[0]) }, wakes("leave_queue")},
		"DeleteRows":          {func(ctx context.Context) { _ = s.DeleteRows(ctx, tickets) }, once("delete_rows")},
		"QuitQueue":           {func(ctx context.Context) { _ = s.QuitQueue(ctx, "c") }, wakes("quit_queue")},
		"Watch":               {func(ctx context.Context) { _ = s.Watch(ctx, "n", "c") }, twice("watch")},
		"NestedWait":          {func(ctx context.Context) { _, _ = s.NestedWait(ctx, &leasetable.NestedWait{Request: lease}) }, once("nested_wait")},
		"EndNestedWait":       {func(ctx context.Context) { _ = s.EndNestedWait(ctx, lease.ID) }, twice("end_nested_wait")},
		"GrantedTo":           {func(ctx context.Context) { _, _ = s.GrantedTo(ctx, "n", lease.ID) }, twice("granted_to")},
		"Prune":               {func(ctx context.Context) { _, _ = s.Prune(ctx, time.Hour, "") }, twice("prune")},
		"LiftTokens":          {func(ctx context.Context) { _ = s.LiftTokens(ctx, "n") }, twice("lift")},
		"DeleteDeadRows":      {func(ctx context.Context) { _ = s.DeleteDeadRows(ctx) }, twice("delete_dead_rows")},
		"RenewReserved": {func(ctx context.Context) {
			_, _ = s.RenewReserved(ctx, renewals, time.Hour, func(time.Time) {})
		}, []sending{{statement: "renew", tries: 1, reserved: true}, {statement: "check_grants", tries: 1, reserved: true}}},
	} {
		for _, want := range tc.want {
			lost := seen.watch(statements[want.statement], func(ctx context.Context) context.Context {
				ctx, cancel := context.WithCancel(ctx)
				cancel()
				return ctx
			}, func() { tc.call(t.Context()) })
			got := sending{statement: want.statement, tries: len(lost)}
			if len(lost) > 0 && len(lost[0]) > 0 {
				_, got.reserved = lost[0][0].(pgx.QueryExecMode)
			}
			away := false
			rename := func(from, to string) {
				if _, err := pool.Exec(t.Context(), "ALTER SCHEMA "+schema.Quote(from)+" RENAME TO "+schema.Quote(to)); err != nil {
					t.Fatal(err)
				}
				away = !away
			}
			refused := seen.watch(statements[want.statement], func(ctx context.Context) context.Context {
				if !away {
					rename(name, name+"'")
				}
				return ctx
			}, func() { tc.call(t.Context()) })
			if away {
				rename(name+"'", name)
			}
			if n := len(refused); n == 2 {
				first, second := refused[0], refused[1]
				last := len(first) - 1
				got.wakes = first[last] == true && second[last] == false && reflect.DeepEqual(first[:last], second[:last])
			} else if n != 1 {
				t.Errorf("%s: %s, which the server refuses, was sent %d times", method, want.statement, n)
			}
			if got != want {
				t.Errorf("%s: sent as %+v, want %+v", method, got, want)
			}
		}
	}
}
