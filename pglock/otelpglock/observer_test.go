package otelpglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
	"github.com/pglock/pglock-go/pglock/otelpglock"
)

// kind is a group function: "account" for "account:17".
func kind(name string) string {
	group, _, _ := strings.Cut(name, ":")
	return group
}

// TestMetrics of a client on a server: these, and no others.
func TestMetrics(t *testing.T) {
	t.Parallel()
	m := newTelemetry(t, otelpglock.WithGroup(kind))
	c := m.open()
	ctx := t.Context()

	// account: a grant, a refused try, a call that gives up, a hand-off.
	held, err := c.Acquire(ctx, "account:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.TryAcquire(ctx, "account:1"); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Fatal(err)
	}
	if _, err := c.Acquire(ctx, "account:1", pglock.WithWait(2*time.Second)); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Fatal(err)
	}
	next := make(chan *pglock.Lease)
	go func() {
		l, err := c.Acquire(ctx, "account:1")
		if err != nil {
			t.Error(err)
		}
		next <- l
	}()
	m.awaitWaits(2)
	if p := m.metrics()["pglock.acquire.waiting {call} up-down {pglock.group=account}"]; p.value != 1 {
		t.Errorf("%v calls wait", p.value)
	}
	if p := m.metrics()["pglock.lease.active {lease} up-down {pglock.group=account}"]; p.value != 1 {
		t.Errorf("%v leases are active", p.value)
	}
	release(t, held)
	release(t, <-next)

	// job: a renewed lease and a lost one.
	renewed, err := c.Acquire(ctx, "job:1", pglock.WithTTL(3*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := renewed.Extend(ctx, time.Minute); err != nil {
		t.Fatal(err)
	}
	release(t, renewed)
	lost, err := c.Acquire(ctx, "job:2", pglock.WithTTL(time.Second), pglock.WithRenewEvery(0))
	if err != nil {
		t.Fatal(err)
	}
	locktest.Receive(t, lost.Done())
	if err := c.Close(ctx); err != nil { // waits for the events
		t.Fatal(err)
	}

	want := map[string]func(point) bool{
		"pglock.acquire.duration s histogram {pglock.group=account pglock.outcome=granted}":                    times(2),
		"pglock.acquire.duration s histogram {pglock.group=account pglock.outcome=busy}":                       times(1),
		"pglock.acquire.duration s histogram {error.type=timeout pglock.group=account pglock.outcome=timeout}": times(1),
		"pglock.acquire.attempts {attempt} counter {pglock.group=account}":                                     atLeast(3),
		"pglock.acquire.waiting {call} up-down {pglock.group=account}":                                         total(0),
		"pglock.acquire.ahead {waiter} histogram {pglock.group=account}":                                       func(p point) bool { return p == point{2, 0} },
		"pglock.lease.active {lease} up-down {pglock.group=account}":                                           total(0),
		"pglock.lease.duration s histogram {pglock.end=released pglock.group=account}":                         times(2),
		"pglock.release.duration s histogram {pglock.group=account}":                                           times(2),

		"pglock.acquire.duration s histogram {pglock.group=job pglock.outcome=granted}":     times(2),
		"pglock.acquire.attempts {attempt} counter {pglock.group=job}":                      atLeast(2),
		"pglock.lease.active {lease} up-down {pglock.group=job}":                            total(0),
		"pglock.lease.duration s histogram {pglock.end=released pglock.group=job}":          times(1),
		"pglock.lease.duration s histogram {pglock.end=expired pglock.group=job}":           times(1),
		"pglock.lease.losses {lease} counter {pglock.group=job pglock.loss.reason=expired}": total(1),
		"pglock.release.duration s histogram {pglock.group=job}":                            times(1),
		"pglock.renewal.duration s histogram {pglock.group=job}":                            often,
		"pglock.renewal.remaining 1 histogram {pglock.group=job}":                           often,

		"pglock.batch.size {operation} histogram {pglock.operation=acquire}": often,
		"pglock.batch.size {operation} histogram {pglock.operation=release}": often,
		"pglock.batch.size {operation} histogram {pglock.operation=renew}":   often,
		"pglock.batch.duration s histogram {pglock.operation=acquire}":       often,
		"pglock.batch.duration s histogram {pglock.operation=release}":       often,
		"pglock.batch.duration s histogram {pglock.operation=renew}":         often,
	}
	const handoffs = "pglock.handoffs {handoff} counter {pglock.group=account}"
	if _, handedOff := m.metrics()[handoffs]; handedOff { // unless the waiter polled at that moment
		want[handoffs] = total(1)
	}
	m.wantMetrics(started(want, "account", "job"))
}

// TestMetricsOfFailures: each failure has its error.type. A lease that moves is not acquired and not
// released.
func TestMetricsOfFailures(t *testing.T) {
	t.Parallel()
	m := newTelemetry(t)
	ctx := t.Context()
	gone := &pglock.LostError{Name: "n"}
	for _, outcome := range []observe.Outcome{observe.OutcomeUnavailable, observe.OutcomeClosed, observe.OutcomeCanceled} {
		m.Acquire(ctx, observe.AcquireEvent{Name: "n", Outcome: outcome, Err: errors.New("none"), Waited: time.Second})
	}
	m.Acquire(ctx, observe.AcquireEvent{Name: "n", Outcome: observe.OutcomeFailed, Err: pglock.ErrPrivilege, Waited: time.Second})
	m.Renewal(ctx, observe.RenewalEvent{Name: "n", Err: fmt.Errorf("%w: %w", pglock.ErrUnavailable, context.DeadlineExceeded), Duration: time.Second, TTLRemaining: 0.25})
	m.Release(ctx, observe.ReleaseEvent{Name: "n", Err: pglock.ErrUnavailable, Duration: time.Second, Held: time.Minute})
	m.Release(ctx, observe.ReleaseEvent{Name: "n", Err: gone, Duration: time.Second, Held: time.Minute, Again: true})
	m.Acquire(ctx, observe.AcquireEvent{Name: "n", Outcome: observe.OutcomeGranted, Adopted: true, Waited: time.Second})
	m.Release(ctx, observe.ReleaseEvent{Name: "n", HandedOver: true, Held: time.Hour})
	m.Loss(ctx, observe.LossEvent{Name: "n", Err: gone, Reason: observe.LossEnded, Held: time.Minute})
	m.Batch(ctx, observe.BatchEvent{Operation: observe.OperationRelease, Size: 3, Err: errors.New("unknown"), Duration: time.Second})

	exactly := func(v float64) func(point) bool { return func(p point) bool { return p == point{1, v} } }
	want := map[string]func(point) bool{
		"pglock.acquire.duration s histogram {error.type=privilege pglock.group=default pglock.outcome=failed}": exactly(1),
		"pglock.acquire.attempts {attempt} counter {pglock.group=default}":                                      total(0),
		"pglock.renewal.duration s histogram {error.type=unavailable pglock.group=default}":                     exactly(1),
		"pglock.renewal.remaining 1 histogram {pglock.group=default}":                                           exactly(0.25),
		"pglock.release.duration s histogram {error.type=unavailable pglock.group=default}":                     exactly(1),
		"pglock.release.duration s histogram {error.type=lost pglock.group=default}":                            exactly(1),
		"pglock.lease.active {lease} up-down {pglock.group=default}":                                            total(-2), // it was not told of the grants
		"pglock.lease.duration s histogram {pglock.end=released pglock.group=default}":                          exactly(60),
		"pglock.lease.duration s histogram {pglock.end=ended pglock.group=default}":                             exactly(60),
		"pglock.lease.duration s histogram {pglock.end=handed_over pglock.group=default}":                       exactly(3600),
		"pglock.lease.losses {lease} counter {pglock.group=default pglock.loss.reason=ended}":                   total(1),
		"pglock.batch.size {operation} histogram {pglock.operation=release}":                                    exactly(3),
		"pglock.batch.duration s histogram {error.type=_OTHER pglock.operation=release}":                        exactly(1),
	}
	for _, outcome := range []string{"unavailable", "closed", "canceled"} {
		want["pglock.acquire.duration s histogram {error.type="+outcome+" pglock.group=default pglock.outcome="+outcome+"}"] = exactly(1)
	}
	m.wantMetrics(started(want, "default"))
}

// TestMetricsOfResults: elections and jobs have their names, unless names are hidden, and other results
// have groups. An announcement starts counters.
func TestMetricsOfResults(t *testing.T) {
	t.Parallel()
	m := newTelemetry(t, otelpglock.WithGroup(kind))
	event := func(kind observe.Kind, name string, outcome observe.Outcome, took time.Duration) {
		m.Result(t.Context(), observe.ResultEvent{Kind: kind, Name: name, Outcome: outcome, Duration: took})
	}
	event(observe.KindTerm, "e", "", 0)
	event(observe.KindTerm, "e", observe.OutcomeBegan, 0)
	event(observe.KindTerm, "other", observe.OutcomeBegan, 0)
	event(observe.KindTerm, "other", observe.OutcomeLost, time.Second)
	event(observe.KindListener, "", observe.OutcomeBegan, 0)
	event(observe.KindListener, "", observe.OutcomeFailed, time.Second)
	event(observe.KindTick, "j", "", time.Hour)
	event(observe.KindTick, "over", "", -1<<63)
	event(observe.KindTick, "j", observe.OutcomeBegan, 2*time.Second)
	event(observe.KindTick, "j", observe.OutcomeDone, 3*time.Second)
	event(observe.KindTx, "account:1", observe.OutcomeDone, time.Second)
	event("mine", "account:2", "odd", 0)

	exactly := func(v float64) func(point) bool { return func(p point) bool { return p == point{1, v} } }
	around := func(d time.Duration) func(point) bool {
		return func(p point) bool {
			return p.value > 1.7e9 && time.Until(time.UnixMicro(int64(p.value*1e6))).Abs() < d.Abs()+pgtest.Patience
		}
	}
	const results, took = "pglock.results {result} counter ", "pglock.result.duration s histogram "
	want := map[string]func(point) bool{
		"pglock.leader.active {term} up-down {pglock.lock.name=e}":                 total(1),
		"pglock.leader.active {term} up-down {pglock.lock.name=other}":             total(0),
		results + "{pglock.kind=term pglock.lock.name=e pglock.outcome=began}":     total(1),
		results + "{pglock.kind=term pglock.lock.name=e pglock.outcome=lost}":      total(0),
		results + "{pglock.kind=term pglock.lock.name=other pglock.outcome=began}": total(1),
		results + "{pglock.kind=term pglock.lock.name=other pglock.outcome=lost}":  total(1),
		took + "{pglock.kind=term pglock.lock.name=other pglock.outcome=lost}":     exactly(1),
		"pglock.listener.active {connection} up-down {}":                           total(1),
		results + "{pglock.kind=listener pglock.outcome=began}":                    total(1),
		results + "{pglock.kind=listener pglock.outcome=failed}":                   total(1),
		took + "{pglock.kind=listener pglock.outcome=failed}":                      exactly(1),
		"pglock.tick.next s gauge {pglock.lock.name=j}":                            around(time.Hour),
		"pglock.tick.next s gauge {pglock.lock.name=over}":                         total(0),
		"pglock.tick.lateness s histogram {pglock.lock.name=j}":                    exactly(2),
		"pglock.tick.last_success s gauge {pglock.lock.name=j}":                    around(0),
		results + "{pglock.kind=tick pglock.lock.name=j pglock.outcome=began}":     total(1),
		results + "{pglock.kind=tick pglock.lock.name=j pglock.outcome=done}":      total(1),
		took + "{pglock.kind=tick pglock.lock.name=j pglock.outcome=done}":         exactly(3),
		results + "{pglock.group=account pglock.kind=tx pglock.outcome=done}":      total(1),
		took + "{pglock.group=account pglock.kind=tx pglock.outcome=done}":         exactly(1),
		results + "{pglock.group=account pglock.kind=mine pglock.outcome=odd}":     total(1),
		results + "{pglock.kind=tick pglock.lock.name=over pglock.outcome=done}":   total(0),
	}
	for _, job := range []string{"j", "over"} {
		for _, outcome := range []string{"failed", "missed", "abandoned"} {
			want[results+"{pglock.kind=tick pglock.lock.name="+job+" pglock.outcome="+outcome+"}"] = total(0)
		}
	}
	m.wantMetrics(started(want))

	hidden := newTelemetry(t, otelpglock.WithGroup(kind), otelpglock.WithoutNames())
	hidden.Result(t.Context(), observe.ResultEvent{Kind: observe.KindTerm, Name: "account:1", Outcome: observe.OutcomeBegan})
	hidden.wantMetrics(started(map[string]func(point) bool{
		"pglock.leader.active {term} up-down {pglock.group=account}":             total(1),
		results + "{pglock.group=account pglock.kind=term pglock.outcome=began}": total(1),
	}))
}

// TestSpans: one for each call, in the trace of its context, with the grant that it waited for.
func TestSpans(t *testing.T) {
	t.Parallel()
	m := newTelemetry(t, otelpglock.WithGroup(kind))
	c := m.open()
	ctx, root := m.tracer.Tracer("test").Start(t.Context(), "request")
	began := time.Now()
	held, err := c.Acquire(ctx, "account:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.TryAcquire(ctx, "account:1"); err == nil {
		t.Fatal("granted twice")
	}
	gaveUp, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, timeout := c.Acquire(gaveUp, "account:1")
	next := make(chan *pglock.Lease)
	go func() {
		l, err := c.Acquire(t.Context(), "account:1") // of another trace
		if err != nil {
			t.Error(err)
		}
		next <- l
	}()
	m.awaitWaits(2)
	release(t, held)
	last := <-next
	release(t, last)
	root.End()

	spans := m.spans.GetSpans()
	if len(spans) != 5 {
		t.Fatalf("%d spans", len(spans))
	}
	attributes := func(outcome string, more ...attribute.KeyValue) []attribute.KeyValue {
		return append(more, attribute.String("pglock.lock.name", "account:1"), attribute.String("pglock.group", "account"),
			attribute.String("pglock.holder", "me"), attribute.String("pglock.outcome", outcome))
	}
	token := func(l *pglock.Lease) attribute.KeyValue { return attribute.Int64("pglock.token", int64(l.Token())) }
	queued := func(is bool) attribute.KeyValue { return attribute.Bool("pglock.queued", is) }
	blocker := attribute.Int64("pglock.blocker", int64(held.Token()))
	handedOff := find(spans[3], "pglock.handed_off") // the server may have come first
	want := []struct {
		attributes []attribute.KeyValue
		status     codes.Code
		root       bool
	}{
		{attributes("granted", token(held), queued(false), attribute.Bool("pglock.handed_off", false)), codes.Unset, false},
		{attributes("busy", queued(false), blocker), codes.Unset, false},
		{attributes("timeout", queued(true), attribute.Int("pglock.ahead", 0), attribute.String("error.type", "timeout"), blocker), codes.Error, false},
		{attributes("granted", token(last), queued(true), attribute.Int("pglock.ahead", 0), handedOff, blocker), codes.Unset, true},
	}
	for i, w := range want {
		s := spans[i]
		w.attributes = append(w.attributes, find(s, "pglock.attempts"))
		got, wanted := attribute.NewSet(s.Attributes...), attribute.NewSet(w.attributes...)
		if s.Name != "pglock acquire" || !got.Equals(&wanted) || s.Status.Code != w.status {
			t.Errorf("span %d %q: %s, want %s; %v", i, s.Name, text(got), text(wanted), s.Status)
		}
		if s.Parent.IsValid() == w.root || !w.root && s.Parent.SpanID() != root.SpanContext().SpanID() {
			t.Errorf("span %d has the parent %v", i, s.Parent)
		}
		if s.StartTime.Before(began) || !s.EndTime.After(s.StartTime) || s.EndTime.After(time.Now()) {
			t.Errorf("span %d from %v to %v", i, s.StartTime, s.EndTime)
		}
	}
	if spans[2].Status.Description != timeout.Error() || spans[2].EndTime.Sub(spans[2].StartTime) < 2*time.Second {
		t.Errorf("the call that gave up: %+v", spans[2])
	}
}

// find returns an attribute of a span.
func find(s tracetest.SpanStub, key attribute.Key) attribute.KeyValue {
	for _, kv := range s.Attributes {
		if kv.Key == key {
			return kv
		}
	}
	return attribute.KeyValue{Key: "missing", Value: attribute.StringValue(string(key))}
}

// TestWithoutNames: neither attributes nor status have the name or the holder of a lock.
func TestWithoutNames(t *testing.T) {
	t.Parallel()
	for _, hide := range []bool{true, false} {
		var opts []otelpglock.Option
		if hide {
			opts = append(opts, otelpglock.WithoutNames())
		}
		m := newTelemetry(t, opts...)
		c := m.open()
		if _, err := c.Acquire(t.Context(), "secret"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Acquire(t.Context(), "secret", pglock.WithWait(time.Millisecond)); err == nil {
			t.Fatal("granted twice")
		}
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		all := ""
		for _, s := range m.spans.GetSpans() {
			all += fmt.Sprintln(s.Attributes, s.Status, s.Links, s.Events)
		}
		for _, word := range []string{"secret", "pglock.holder"} {
			if strings.Contains(fmt.Sprint(all, m.metrics()), word) == hide {
				t.Errorf("hidden: %v, found %q: %v", hide, word, !hide)
			}
		}
	}
}

// TestInvalidOptions are refused by New.
func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]otelpglock.Option{
		"no group function":  otelpglock.WithGroup(nil),
		"no meter provider":  otelpglock.WithMeterProvider(nil),
		"no tracer provider": otelpglock.WithTracerProvider(nil),
	} {
		if _, err := otelpglock.New(o); !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func release(t *testing.T, l *pglock.Lease) {
	t.Helper()
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}
