package pglock

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock/inspect"
)

// WithLabels stores labels with the grant, for operators and monitoring. It adds them to those of
// the options before it, and replaces those with the same keys. The sum may have 16 KiB as JSON.
func WithLabels(labels map[string]string) LeaseOption {
	labels = maps.Clone(labels) // the caller may change the map before the option is used
	return leaseOption(func(c *leaseConfig) (err error) {
		all := map[string]string{}
		if err := json.Unmarshal([]byte(c.labels), &all); err != nil {
			return err
		}
		maps.Copy(all, labels)
		c.labels, err = encodeLabels(all, maxLabelBytes)
		return err
	})
}

// encodeLabels returns labels as JSON of at most limit bytes.
func encodeLabels(labels map[string]string, limit int) (string, error) {
	for k, v := range labels {
		if !storable(k) || !storable(v) {
			return "{}", invalidOption("label %.64q: key and value must be UTF-8 without NUL", k)
		}
	}
	if len(labels) == 0 {
		return "{}", nil
	}
	text, _ := json.Marshal(labels) // texts only
	if len(text) > limit {
		return "{}", invalidOption("%d bytes of labels: too many: must be at most %d", len(text), limit)
	}
	return string(text), nil
}

// SetLabels adds labels to those of the grant, and replaces those with the same keys. The sum may
// have 16 KiB as JSON. Callers of Watch are notified, also if the grant has these labels already,
// and then nothing is written. The names of a multi-lease are changed one after the other, so after
// a failure some may have the old labels, and after ErrUnavailable the new ones.
//
// If the lease has ended, SetLabels returns the error of Err, and if its grant has ended on the
// server, a *StaleError. The labels of a semaphore's or a reader's lease can't be changed.
func (l *Lease) SetLabels(ctx context.Context, labels map[string]string) error {
	if err := l.Err(); err != nil {
		return err
	}
	op := fmt.Sprintf("set the labels of %q", l.fence.Name)
	if l.shared() {
		return errs.Errorf("pglock: %s: %w: only the labels of an exclusive grant can be changed", op, fencing.ErrShared)
	}
	text, err := encodeLabels(labels, maxLabelBytes)
	if err != nil {
		return err
	}
	c := l.client
	if err := c.beginCall(); err != nil {
		return err
	}
	defer c.endCall()
	for _, fence := range l.Fences() {
		got, err := c.store.SetLabels(ctx, fence, text, maxLabelBytes)
		if err == nil && !got.Done && got.Found && got.Current == fence.Token && got.Large {
			return invalidOption("%s: too many: all labels must have at most %d bytes", op, maxLabelBytes)
		}
		if err := c.grantCall(ctx, op, fence, got, err); err != nil {
			return err
		}
	}
	return nil
}

// sameHolding reports whether two states of a lock have the same holder and labels.
func sameHolding(a, b inspect.Lock) bool {
	return a.Token == b.Token && a.Held() == b.Held() && (!a.Held() || a.Holder == b.Holder && maps.Equal(a.Labels, b.Labels))
}
