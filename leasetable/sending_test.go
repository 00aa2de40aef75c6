package leasetable_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/leasetable"
)

// sending is how a statement is to be sent.
type sending struct {
	statement string
	wakes     bool
	tries     int
	reserved  bool
}

// recorder is a Sender that gets no rows.
type recorder struct {
	names map[string]string // of statements, by their texts
	sent  []sending
	args  [][]any
}

func (r *recorder) Send(_ context.Context, st leasetable.Statement) (sent time.Time, err error) {
	r.sent = append(r.sent, sending{r.names[st.SQL], st.Wakes, max(st.Tries, 1), st.Reserved})
	r.args = append(r.args, st.Args)
	return time.Now(), nil
}

// TestHowStatementsAreSent: for each method, its statements, and what a Sender may do with them. Only
// what is safe to repeat has several tries, and only renewals have connections of their own.
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
	const name = "s"
	seen := recorder{names: map[string]string{}}
	for name, sql := range leasetable.Statements(name) {
		seen.names[sql] = name
	}
	s := leasetable.New(name, &seen)
	used := map[string]bool{}
	fence := fencing.Fence{Schema: name, Name: "n", Token: 1}
	fences := []fencing.Fence{fence}
	renewals := []leasetable.Extension{{Fence: fence, TTL: time.Minute}}
	tickets := []leasetable.Ticket{{Client: "c", Names: []string{"n"}, Number: 7}}
	lease, permit, several := request("n", "1", "h"), request("p", "2", "h"), request("a, b", "3", "h")
	permit.Permits = leasetable.Permits{Capacity: 2, Weight: 1}
	several.All = []string{"a", "b"}
	fresh := request("f", "4", "h")
	fresh.New = true
	for method, tc := range map[string]struct {
		call func(ctx context.Context)
		want []sending
	}{
		"AcquireFast":           {func(ctx context.Context) { _, _ = s.AcquireFast(ctx, one(lease)) }, once("acquire_fast")},
		"AcquireFast, all":      {func(ctx context.Context) { _, _ = s.AcquireFast(ctx, one(several)) }, once("acquire_all")},
		"AcquireFast, permit":   {func(ctx context.Context) { _, _ = s.AcquireFast(ctx, one(permit)) }, once("acquire_permit")},
		"AcquireFast, batch":    {func(ctx context.Context) { _, _ = s.AcquireFast(ctx, []*leasetable.Request{lease, permit}) }, once("acquire_fast_batch")},
		"AcquireFast, new":      {func(ctx context.Context) { _, _ = s.AcquireFast(ctx, one(fresh)) }, plain("acquire_new", "acquire_fast")},
		"AcquireFast, some new": {func(ctx context.Context) { _, _ = s.AcquireFast(ctx, []*leasetable.Request{fresh, lease}) }, once("acquire_batch")},
		"AcquireFull":           {func(ctx context.Context) { _, _ = s.AcquireFull(ctx, one(lease)) }, plain("peek", "acquire_new", "acquire_full")},
		"AcquireSlots":          {func(ctx context.Context) { _, _ = s.AcquireSlots(ctx, permit) }, wakes("acquire_slots")},
		"HandOff":               {func(ctx context.Context) { _, _ = s.HandOff(ctx, fence, lease, "c") }, once("handoff")},
		"Upgrade":               {func(ctx context.Context) { _, _ = s.Upgrade(ctx, 1, permit) }, once("upgrade_permits")},
		"Resize":                {func(ctx context.Context) { _, _ = s.Resize(ctx, "p", 3) }, wakes("resize_permits")},
		"KeepPermits":           {func(ctx context.Context) { _, _ = s.KeepPermits(ctx, fence, 1) }, wakes("keep_permits")},
		"Release":               {func(ctx context.Context) { _, _, _ = s.Release(ctx, fence, 0) }, wakes("release")},
		"ReleaseBatch":          {func(ctx context.Context) { _, _ = s.ReleaseBatch(ctx, fences, make([]time.Duration, 1)) }, wakes("release_batch")},
		"ReleasePermits":        {func(ctx context.Context) { _, _ = s.ReleasePermits(ctx, []string{"p"}, 1, false) }, wakes("release_permits")},
		"ReleasePermits, one":   {func(ctx context.Context) { _, _ = s.ReleasePermits(ctx, []string{"p"}, 1, true) }, append(wakes("release_permit"), wakes("release_permits")...)},
		"Revoke":                {func(ctx context.Context) { _, _ = s.Revoke(ctx, lease) }, wakes("revoke")},
		"Renew":                 {func(ctx context.Context) { _, _ = s.Renew(ctx, renewals) }, append(twice("renew"), twice("check_grants")...)},
		"Adopt":                 {func(ctx context.Context) { _, _ = s.Adopt(ctx, fence, "h", time.Minute) }, plain("renew", "check_grants")},
		"CheckGrants":           {func(ctx context.Context) { _, _ = s.CheckGrants(ctx, fences) }, once("check_grants")},
		"RevokeGrant":           {func(ctx context.Context) { _, _ = s.RevokeGrant(ctx, fence, "why") }, wakesTwice("revoke_grant")},
		"RequestRelease":        {func(ctx context.Context) { _, _ = s.RequestRelease(ctx, fence, "why") }, wakesTwice("request_release")},
		"SetLabels":             {func(ctx context.Context) { _, _ = s.SetLabels(ctx, fence, "{}", 100) }, wakesTwice("set_labels")},
		"AwaitGuards":           {func(ctx context.Context) { _ = s.AwaitGuards(ctx, fence) }, wakes("await_guards")},
		"Join":                  {func(ctx context.Context) { _, _ = s.Join(ctx, "c", lease, 0, true) }, twice("join")},
		"Join, all":             {func(ctx context.Context) { _, _ = s.Join(ctx, "c", several, 0, true) }, wakesTwice("join_all")},
		"RefreshTickets":        {func(ctx context.Context) { _, _ = s.RefreshTickets(ctx, tickets, true) }, once("refresh_tickets")},
		"LeaveQueue":            {func(ctx context.Context) { _ = s.LeaveQueue(ctx, tickets[0]) }, wakes("leave_queue")},
		"DeleteRows":            {func(ctx context.Context) { _ = s.DeleteRows(ctx, tickets) }, once("delete_rows")},
		"QuitQueue":             {func(ctx context.Context) { _ = s.QuitQueue(ctx, "c") }, wakes("quit_queue")},
		"Watch":                 {func(ctx context.Context) { _ = s.Watch(ctx, "n", "c") }, twice("watch")},
		"NestedWait":            {func(ctx context.Context) { _, _ = s.NestedWait(ctx, &leasetable.NestedWait{Request: lease}) }, once("nested_wait")},
		"EndNestedWait":         {func(ctx context.Context) { _ = s.EndNestedWait(ctx, lease.ID) }, twice("end_nested_wait")},
		"GrantedTo":             {func(ctx context.Context) { _, _ = s.GrantedTo(ctx, "n", lease.ID) }, twice("granted_to")},
		"Prune":                 {func(ctx context.Context) { _, _ = s.Prune(ctx, time.Hour, 0) }, twice("prune")},
		"LiftTokens":            {func(ctx context.Context) { _ = s.LiftTokens(ctx, "n") }, twice("lift")},
		"DeleteDeadRows":        {func(ctx context.Context) { _ = s.DeleteDeadRows(ctx) }, twice("delete_dead_rows")},
		"RenewReserved": {func(ctx context.Context) {
			_, _ = s.RenewReserved(ctx, renewals, time.Hour, func(time.Time) {})
		}, []sending{{statement: "renew", tries: 1, reserved: true}, {statement: "check_grants", tries: 1, reserved: true}}},
	} {
		seen.sent, seen.args = nil, nil
		tc.call(t.Context())
		if !slices.Equal(seen.sent, tc.want) {
			t.Errorf("%s: sent %+v, want %+v", method, seen.sent, tc.want)
		}
		for i, st := range seen.sent {
			used[st.statement] = true
			if last := len(seen.args[i]) - 1; st.wakes && seen.args[i][last] != true {
				t.Errorf("%s: the last argument of %s does not let it wake: %v", method, st.statement, seen.args[i][last])
			}
		}
	}
	for name := range leasetable.Statements(name) {
		if !used[name] {
			t.Errorf("no method has sent %s", name)
		}
	}
}
