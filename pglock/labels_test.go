package pglock_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock"
)

// TestLabelsOfTheSameSizeForAll: labels that a call may acquire with can be set again, however many they are.
// One byte more is too large for both.
func TestLabelsOfTheSameSizeForAll(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		labels, size := map[string]string{}, len("{}")-1
		for i := 0; size < 15<<10; i++ {
			key := fmt.Sprintf("key %04d", i)
			labels[key] = "value"
			size += len(`"` + key + `":"value",`)
		}
		labels["last"] = strings.Repeat("x", 16<<10-size-len(`"last":"",`)+1-len("}"))
		l := try(t, c, "n", pglock.WithLabels(labels))
		check(t, l.SetLabels(t.Context(), map[string]string{"last": labels["last"]}))
		check(t, l.SetLabels(t.Context(), nil))
		labels["last"] += "x"
		fails(t, "SetLabels", l.SetLabels(t.Context(), map[string]string{"last": labels["last"]}), pglock.ErrInvalidOption)
		fails(t, "Acquire", second(c.TryAcquire(t.Context(), "m", pglock.WithLabels(labels))), pglock.ErrInvalidOption)
		release(t, l)
	})
}

// TestSetLabels: labels are added and replaced, those who watch see them at once, and only the current
// grant can change them.
func TestSetLabels(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c, operator := f.open(), f.open()
		w := watch(t.Context(), t, operator, "n")
		w.sees("")
		synctest.Wait()
		l := try(t, c, "n", pglock.WithHolder("h"), pglock.WithLabels(map[string]string{"a": "1", "b": "0"}), pglock.WithLabels(map[string]string{"b": "1"}))
		w.sees("h")
		const n = 20
		for i := range n {
			must(t, l.SetLabels(t.Context(), map[string]string{"b": fmt.Sprint(i), "c": "3"}))
			if late := w.sees("h"); late > 0 {
				t.Errorf("labels are seen after %v", late)
			}
		}
		k, err := c.Get(t.Context(), "n")
		if err != nil || len(k.Labels) != 3 || k.Labels["a"] != "1" || k.Labels["b"] != fmt.Sprint(n-1) || k.Token != l.Token() {
			t.Errorf("%+v, %v", k, err)
		}
		big := map[string]string{"big": strings.Repeat("x", 10_000)}
		check(t, l.SetLabels(t.Context(), big))
		big["more"], big["big"] = big["big"], "y"
		delete(big, "big")
		for what, labels := range map[string]map[string]string{"together": big, "NUL": {"a": "\x00"}, "UTF-8": {"\xff": ""}} {
			fails(t, what, l.SetLabels(t.Context(), labels), pglock.ErrInvalidOption)
		}
		f.Expire("n", 0)
		fails(t, "a stale grant", l.SetLabels(t.Context(), nil), fencing.ErrStale)
		_ = l.Release(t.Context()) // its grant is gone
		if err := l.SetLabels(t.Context(), nil); err == nil {
			t.Error("an ended lease: no error")
		}
	})
}
