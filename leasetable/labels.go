package leasetable

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/leasetable/internal/timing"
)

// WithLabels stores labels with the grant, for people and tools that read the table: at most 16 KiB
// as JSON. It replaces those of an earlier WithLabels or WithLabel. Default none.
func WithLabels(labels map[string]string) LeaseOption {
	labels = maps.Clone(labels) // the caller may change it before the option is used
	return leaseOption(func(c *leaseConfig) (err error) {
		c.labels, err = encodeLabels(labels)
		return err
	})
}

// WithLabel adds a label to those of the options before it. See WithLabels.
func WithLabel(key, value string) LeaseOption {
	return leaseOption(func(c *leaseConfig) error {
		labels := map[string]string{}
		if err := json.Unmarshal([]byte(c.labels), &labels); err != nil {
			return err
		}
		labels[key] = value
		text, err := encodeLabels(labels)
		c.labels = text
		return err
	})
}

// encodeLabels returns labels as JSON.
func encodeLabels(labels map[string]string) (string, error) {
	for k, v := range labels {
		if !storable(k) || !storable(v) {
			return "{}", invalidOption("label %.64q: key and value must be UTF-8 without NUL", k)
		}
	}
	if len(labels) == 0 {
		return "{}", nil
	}
	text, err := json.Marshal(labels)
	if err != nil {
		return "{}", invalidOption("labels: %v", err)
	}
	if len(text) > maxLabelBytes {
		return "{}", invalidOption("%d bytes of labels: too many: must be at most %d", len(text), maxLabelBytes)
	}
	return string(text), nil
}

// SetLabels adds labels to those of the grant, and replaces those with the same keys. All together may
// have 16 KiB as JSON. Callers of Watch are notified. A joined lease changes the labels of its outer
// lease.
//
// If the lease has ended, or its grant has ended on the server, the error wraps ErrLost or
// ErrReleased, or is a *fencing.StaleError. For labels that are invalid or too large it wraps
// ErrInvalidOption. If the server does not answer, it wraps ErrUnavailable, and the labels may have
// been set. An unlocked lease and a lease of a semaphore or of a reader have no labels that can be
// changed. ctx bounds the call.
func (l *Lease) SetLabels(ctx context.Context, labels map[string]string) error {
	if err := l.Err(); err != nil {
		return err
	}
	doing := fmt.Sprintf("set the labels of %q", l.fence.Name)
	l = l.root()
	for _, p := range l.parts { // one after the other: a failure leaves the others with the old labels
		if err := p.SetLabels(ctx, labels); err != nil {
			return err
		}
	}
	switch {
	case l.parts != nil:
		return nil
	case l.Unlocked():
		return errs.Errorf("pglock: %s: %w", doing, errUnlocked)
	case l.cfg.permits.Shared():
		return errs.Errorf("pglock: %s: %w: only the labels of an exclusive grant can be changed", doing, fencing.ErrShared)
	}
	text, err := encodeLabels(labels)
	if err != nil {
		return err
	}
	c := l.client
	if err := c.beginCall(); err != nil {
		return err
	}
	defer c.endCall()
	got, err := c.store.SetLabels(ctx, l.fence, text, maxLabelBytes)
	if err == nil && !got.Done && got.Found && got.Current == l.fence.Token && got.TooLarge {
		return invalidOption("%s: too many: all labels must have at most %d bytes", doing, maxLabelBytes)
	}
	return c.intervention(ctx, doing, l.fence, got.Intervention, err)
}

// WithAnnounce notifies the clients that watch the lock of the grant, after it was made. Without it,
// callers of Watch usually see a grant to a new holder within a second. It delays no call. If no
// client watches the lock, it costs a read.
func WithAnnounce() LeaseOption {
	return leaseOption(func(c *leaseConfig) error { c.announce = true; return nil })
}

// announce notifies the clients that watch the lock of l in the background. A failure is ignored: they
// also poll. The caller is inside a counted call.
func (c *Client) announce(l *Lease) {
	c.background(timing.StatementBound, func(ctx context.Context) {
		for _, name := range l.Names() {
			_ = c.store.NotifyWatchers(ctx, name)
		}
	})
}

// sameHolding reports whether two states of a lock have the same holder and labels.
func sameHolding(a, b LockInfo) bool {
	return a.Token == b.Token && a.Held() == b.Held() && (!a.Held() || a.Holder == b.Holder && maps.Equal(a.Labels, b.Labels))
}
