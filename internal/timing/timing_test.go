package timing

import (
	"testing"
	"time"
)

// TestTimingInequalities checks the inequalities in the comments of timing.go.
func TestTimingInequalities(t *testing.T) {
	t.Parallel()
	var revoking time.Duration
	for _, pause := range RevokePauses {
		revoking += pause
	}
	for _, tc := range []struct {
		why   string
		order []time.Duration // each less than the next
	}{
		{"the default TTL is allowed", []time.Duration{MinTTL - 1, DefaultTTL, MaxTTL + 1}},
		{"a slow grant can be trusted", []time.Duration{StatementBound, DefaultTTL - MaxMargin}},
		{"the server gives up a row lock before the client gives up the statement", []time.Duration{LockTimeout, StatementBound / 2}},
		{"a release is cut off before its bound", []time.Duration{CancelGrace, StatementBound / 2}},
		{"a first attempt is cut off before its bound", []time.Duration{FirstAttempt, StatementBound / 2}},
		{"an outage is survived by several attempts", []time.Duration{4 * StatementBound, OutagePatience + 1}},
		{"a grant is revoked within the bound", []time.Duration{revoking, OutagePatience + 1}},
		{"passwords and TLS fit in a dial at a round trip of 500 ms", []time.Duration{7 * 500 * time.Millisecond, ConnectBound}},
		{"a dial takes no longer than a statement that waits for it", []time.Duration{ConnectBound, StatementBound + 1}},
		{"a statement outlasts the pause after a rejected login", []time.Duration{LoginPause, MaxLoginPause + 1, StatementBound * 2 / 3}},
		{"a spare connection outlives a statement", []time.Duration{StatementBound, SpareIdle}},
		{"an idle listener looks more than once", []time.Duration{ListenerLook, PingEvery, ListenerIdle}},
		{"a refresh that counted on the listener has ended before that closes", []time.Duration{RefreshEvery + SweepEvery, ListenerIdle/2 - ListenerLook}},
		{"waiters that die with a holder do not delay the next grant", []time.Duration{TicketTTL, DefaultTTL + 1}},
		{"waiters in line look more and more rarely", []time.Duration{LeastLook, FirstLook, 16 * LookStep, RefreshEvery}},
		{"looks come before an attempt", []time.Duration{RefreshEvery, QuietPause}},
		{"a busy server has more time for a dial", []time.Duration{ConnectBound, MaxConnectBound}},
		{"a dial that hangs gets company", []time.Duration{DialPatience, ConnectBound / 2}},
		{"the first statements of a connection have the time of one", []time.Duration{StatementBound, InitBound}},
		{"an end takes longer than a statement", []time.Duration{StatementBound, ConnCloseBound}},
		{"a renewal attempt has its least bound", []time.Duration{MinRenewPatience, StatementBound}},
		{"renewals are tried again before a statement's bound", []time.Duration{MaxRenewRetry, StatementBound}},
		{"a head that was not notified polls before it is skipped", []time.Duration{FirstPause, HandoffWait, MaxPause, PollBound, HeadGrace}},
		{"waiters poll one after the other after an expiry", []time.Duration{ExpirySpread, HeadStep, MaxPause}},
		{"the next in the queue polls before the head is skipped", []time.Duration{2 * HeadWait, HeadGrace}},
		{"a head behind a guard keeps its place", []time.Duration{2 * MaxPause, HeadGrace}},
		{"a ticket outlives a refresh that failed", []time.Duration{2*(RefreshEvery+SweepEvery) + StatementBound, TicketTTL + 1}},
		{"an unused row is deleted while it is known", []time.Duration{IdleRowTTL, TicketTTL}},
		{"only rows of dead clients are pruned", []time.Duration{TicketTTL + StatementBound, DeadRowAge}},
		{"the listener reconnects less and less often", []time.Duration{FirstReconnect, MaxReconnect, NoDeliveryPause, NotifyBackoff + 1}},
		{"few pauses are long without a listener", []time.Duration{FirstPause, ListenAfter, MaxPause}},
		{"pings do not overlap", []time.Duration{StatementBound, PingEvery}},
		{"the listener's end fits in a statement's bound", []time.Duration{ListenerCloseBound, StatementBound}},
		{"the pruning lock outlives a statement", []time.Duration{StatementBound, PruneTTL}},
		{"the default retention is allowed", []time.Duration{MinRetention, DefaultRetention + 1}},
		{"a cycle is found soon", []time.Duration{DeadlockAfter, 100 * time.Millisecond}},
		{"a nested wait outlives a statement that failed", []time.Duration{2 * DeadlockEvery, NestedWaitTTL}},
		{"an end is waited for while it counts", []time.Duration{NestedEndWait, NestedWaitTTL}},
		{"pruning runs several times in the default retention", []time.Duration{MaxPruneEvery, DefaultRetention/4 + 1}},
	} {
		for i, d := range tc.order[1:] {
			if tc.order[i] >= d {
				t.Errorf("%s: %v is not less than %v", tc.why, tc.order[i], d)
			}
		}
	}
}
